"""A setting by its name and the values it is swept over, and the site configuration with one of them in place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any

from pydantic import ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import UsageError
from appliance.config import CameraConfig, DecisionConfig

POINTS_MAX = 400  # combinations; each is a replay of decisions
VALUES_MAX = 100  # of one setting
SweepValue = float | str
SweepSetting = tuple[tuple[str, SweepValue], ...]  # (key, value) of every sweep, in the order of the command line
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
        """`config` with the value in place. Raises UsageError when the value is invalid."""
        if self.section == "rules":
            cameras = {name: self._rules(camera, value) for name, camera in config.cameras.items()}
            return replace(config, cameras=cameras)
        if self.section == "detect":
            cameras = {
                name: camera.model_copy(update={"detect": self._set(camera.detect, value)})
                for name, camera in config.cameras.items()
            }
            return replace(config, cameras=cameras)
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
    """`rules.score_min=0.3:0.8:0.05` (from, to, step) or `alerts.merge_s=4,8,16`. Raises UsageError."""
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise UsageError(f"--sweep {text}: write KEY=FROM:TO:STEP or KEY=VALUE,VALUE")
    section, rule, name = _parse_key(key.strip())
    return Sweep(key.strip(), section, rule, name, _values(key, values.strip(), text_values=name == "model"))


def sweep_grid(sweeps: Sequence[Sweep]) -> list[SweepSetting]:
    """Every combination of the values. Raises UsageError beyond POINTS_MAX."""
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) != len(keys):
        raise UsageError("--sweep: a setting is named twice")
    points = [tuple(zip(keys, values, strict=True)) for values in product(*(sweep.values for sweep in sweeps))]
    if len(points) > POINTS_MAX:
        raise UsageError(f"--sweep: {len(points)} combinations are over {POINTS_MAX}; sweep fewer values at once")
    return points


def apply_setting(config: DecisionConfig, sweeps: Sequence[Sweep], setting: SweepSetting) -> DecisionConfig:
    """`config` with all values of the setting in place."""
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
