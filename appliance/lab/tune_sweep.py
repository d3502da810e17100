"""A sweep: a setting by its name with the values it takes, and every scenario run at every combination of them.

The detector is asked once about each frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any

from pydantic import ValidationError

from appliance.base.clock import Clock, SystemClock
from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.base.errors import SourceError, UsageError
from appliance.config import CameraConfig, DecisionConfig
from appliance.detect import detector_loader
from appliance.detect.runtime_choice import as_at_run_time
from appliance.lab.operating_points import OperatingPoint, ScenarioOutcome, SweepSetting, SweepValue, outcome_of
from appliance.replay.replay_resume import MemoizedDetector
from appliance.scenario import scenario_runner
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader

POINTS_MAX = 400  # combinations; each is a replay of decisions
VALUES_MAX = 100  # of one setting
_RANGE_PATTERN = re.compile(r"^(-?[\d.]+):(-?[\d.]+):([\d.]+)$")
_SECTIONS = {
    "detect": ("fps", "heartbeat_s"),
    "alerts": ("merge_s", "length_max_s"),
    "detector": ("model", "score_min"),
}
_RULE_KEYS = ("score_min", "cooldown_s", "seconds", "height_min", "height_max")
SWEEP_KEYS = (
    *(f"rules.{key}" for key in _RULE_KEYS),
    *(f"rules.NAME.{key}" for key in _RULE_KEYS),
    *(f"{section}.{key}" for section, keys in _SECTIONS.items() for key in keys),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting and the values it takes. rule: of this rule only; "" is every rule that has the key."""

    key: str
    section: str
    rule: str
    name: str
    values: tuple[SweepValue, ...]

    def change(self, config: DecisionConfig, value: SweepValue) -> DecisionConfig:
        """Return `config` with the value in place. Raises UsageError when the value is invalid."""
        if self.section == "rules":
            cameras = {name: self._rules(camera, value) for name, camera in config.cameras.items()}
            return replace(config, cameras=cameras)
        if self.section == "detect":
            cameras = {
                name: camera.model_copy(update={"detect": self._set(camera.detect, value)})
                for name, camera in config.cameras.items()
            }
            return replace(config, cameras=cameras)
        if self.key == "detector.model":
            return replace(config, detector=config.detector.with_model(str(value)))
        return replace(config, **{self.section: self._set(getattr(config, self.section), value)})

    def found_in(self, config: DecisionConfig) -> bool:
        """Return whether any part of `config` has this setting."""
        if self.section != "rules":
            return True
        return any(self._applies_to(rule) for camera in config.cameras.values() for rule in camera.rules)

    def _rules(self, camera: CameraConfig, value: SweepValue) -> CameraConfig:
        rules = tuple(self._set(rule, value) if self._applies_to(rule) else rule for rule in camera.rules)
        return camera.model_copy(update={"rules": rules})

    def _applies_to(self, rule: Any) -> bool:
        return self.rule in ("", rule.name) and self.name in type(rule).model_fields

    def _set(self, section: ConfigModel, value: SweepValue) -> Any:
        try:
            return type(section).model_validate({**section.model_dump(), self.name: value})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise UsageError(f"--sweep {self.key}: {value} is not possible: {first['msg']}") from None


def read_sweep(text: str) -> Sweep:
    """Read `rules.score_min=0.3:0.8:0.05` (from, to, step) or `alerts.merge_s=4,8,16`. Raises UsageError."""
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise UsageError(f"--sweep {text}: write KEY=FROM:TO:STEP or KEY=VALUE,VALUE")
    section, rule, name = _parse_key(key.strip())
    return Sweep(key.strip(), section, rule, name, _values(key, values.strip(), text_values=name == "model"))


def sweep_grid(sweeps: Sequence[Sweep]) -> list[SweepSetting]:
    """Return every combination of the values. Raises UsageError beyond POINTS_MAX."""
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) != len(keys):
        raise UsageError("--sweep: a setting is named twice")
    points = [tuple(zip(keys, values, strict=True)) for values in product(*(sweep.values for sweep in sweeps))]
    if len(points) > POINTS_MAX:
        raise UsageError(f"--sweep: {len(points)} combinations are over {POINTS_MAX}; sweep fewer values at once")
    return points


def apply_setting(config: DecisionConfig, sweeps: Sequence[Sweep], setting: SweepSetting) -> DecisionConfig:
    """Return `config` with all values of the setting in place."""
    for sweep, (_, value) in zip(sweeps, setting, strict=True):
        config = sweep.change(config, value)
    return config


def _parse_key(key: str) -> tuple[str, str, str]:
    parts = key.split(".")
    if len(parts) == 2 and parts[1] in _SECTIONS.get(parts[0], ()):
        return parts[0], "", parts[1]
    if parts[0] == "rules" and len(parts) in (2, 3) and parts[-1] in _RULE_KEYS:
        return "rules", parts[1] if len(parts) == 3 else "", parts[-1]
    raise UsageError(f"--sweep {key}: there is no such setting to sweep (there is: {', '.join(SWEEP_KEYS)})")


def _values(key: str, text: str, *, text_values: bool) -> tuple[SweepValue, ...]:
    match = None if text_values else _RANGE_PATTERN.match(text)
    try:
        if match is not None:
            low, high, step = map(Decimal, match.groups())
            if step <= 0 or high < low:
                raise UsageError(f"--sweep {key}: {text} goes nowhere; write FROM:TO:STEP")
            count = int((high - low) / step) + 1
            values: tuple[SweepValue, ...] = tuple(
                float(low + number * step) for number in range(min(count, VALUES_MAX + 1))
            )
        else:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            values = tuple(parts) if text_values else tuple(float(part) for part in parts)
    except (ValueError, ArithmeticError):
        raise UsageError(f"--sweep {key}: `{text}` is neither FROM:TO:STEP nor a list of numbers") from None
    if not values or len(values) > VALUES_MAX:
        raise UsageError(f"--sweep {key}: 1 to {VALUES_MAX} values, please")
    return tuple(dict.fromkeys(values))


PRESENT_SETTING: SweepSetting = ()


SweepProgress = Callable[[int, int, str], None]  # done, of how many, what comes next


class MemoizedDetectors:
    """The detectors of a sweep, each loaded once and run once on each frame."""

    def __init__(self, load: DetectorLoader | None = None) -> None:
        self._load = load or (lambda settings: detector_loader.load(as_at_run_time(settings)))
        self._memos: dict[DetectorConfig, MemoizedDetector] = {}

    def __call__(self, settings: DetectorConfig) -> MemoizedDetector:
        """Return the detector of these settings. Raise ModelError or MissingPart."""
        if settings not in self._memos:
            self._memos[settings] = MemoizedDetector(self._load(settings))
        return self._memos[settings]

    def forget(self) -> None:
        for memo in self._memos.values():
            memo.forget()


def run_sweep(
    plans: Sequence[ScenarioPlan],
    sweeps: Sequence[Sweep],
    settings: Sequence[SweepSetting],
    memoized: MemoizedDetectors,
    *,
    model: str | None = None,
    clock: Clock | None = None,
    progress: SweepProgress = lambda done, of, what: None,
) -> list[OperatingPoint]:
    """Run the present setting first, then each of `settings`. Raise SourceError when a clip cannot be read."""
    clock = clock or SystemClock()
    for sweep in sweeps:
        _check_used(sweep, plans)
    models = DetectorCache(model if not any(sweep.name == "model" for sweep in sweeps) else None, load=memoized)
    all_settings = (PRESENT_SETTING, *settings)
    found: list[list[ScenarioOutcome]] = [[] for _ in all_settings]
    for number, plan in enumerate(plans):
        memoized.forget()
        for index, setting in enumerate(all_settings):
            progress(number * len(all_settings) + index, len(plans) * len(all_settings), plan.name)
            found[index].append(_run_one(plan, sweeps, setting, models, clock))
    progress(len(plans) * len(all_settings), len(plans) * len(all_settings), "")
    return [OperatingPoint(setting, tuple(outcomes)) for setting, outcomes in zip(all_settings, found, strict=True)]


def _run_one(
    plan: ScenarioPlan, sweeps: Sequence[Sweep], setting: SweepSetting, models: DetectorCache, clock: Clock
) -> ScenarioOutcome:
    tried = apply_setting(plan.config, sweeps, setting) if setting else None
    verdict = scenario_runner.run_scenario(plan, models, clock=clock, override=tried)
    footage = next((fault for fault in verdict.faults if fault.kind == "footage" and fault.fails), None)
    if footage is not None:
        raise SourceError(f"{plan.name}: {footage.title}")
    return outcome_of(plan.name, verdict)


def _check_used(sweep: Sweep, plans: Sequence[ScenarioPlan]) -> None:
    if any(sweep.found_in(plan.config) for plan in plans):
        return
    rules = sorted({rule.name for plan in plans for camera in plan.config.cameras.values() for rule in camera.rules})
    raise UsageError(f"--sweep {sweep.key}: no rule here has it (rules: {', '.join(rules) or 'none'})")
