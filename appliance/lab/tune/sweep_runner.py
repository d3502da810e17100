"""Runs every scenario at every operating point, asking the detector once about each frame."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.base.clock import Clock, SystemClock
from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import SourceError, UsageError
from appliance.detect import detector as detectors
from appliance.detect.detector import DetectorProxy, ObjectDetector, VariableInput
from appliance.lab.tune.operating_points import OperatingPoint, ScenarioOutcome, outcome_of
from appliance.lab.tune.sweep_settings import Sweep, SweepSetting, apply_setting
from appliance.scenario import scenario_runner
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader
from appliance.types import Detections

CACHED_DETECTIONS_MAX = 100_000  # some 100 MB at 30 objects a frame; five and a half hours at 5 fps
PRESENT_SETTING: SweepSetting = ()


class MemoizedDetector(DetectorProxy):
    """Caches the detector's detections by the contents of the frame; failures are not cached.

    State: the cache, oldest first; the numbers of requests and of inferences that these took. Owner: one thread.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        super().__init__(detector)
        self.requests = 0
        self.inferences = 0
        self._cache: dict[bytes, Detections] = {}

    @property
    def shape_step(self) -> int:
        return self._detector.shape_step if isinstance(self._detector, VariableInput) else 0

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Return the remembered detections, or detect. Raise DetectorError."""
        return [self._detect_one(frame) for frame in frames]

    def forget(self) -> None:
        """Empty the cache before other footage, whose frames differ."""
        self._cache.clear()

    def _detect_one(self, frame: NDArray[np.uint8]) -> Detections:
        self.requests += 1
        key = hashlib.blake2b(np.ascontiguousarray(frame).data, digest_size=16, salt=_shape_bytes(frame)).digest()
        known = self._cache.get(key)
        if known is None:
            self.inferences += 1
            known = self._cache[key] = self._detector.detect([frame])[0]
            if len(self._cache) > CACHED_DETECTIONS_MAX:
                del self._cache[next(iter(self._cache))]
        return known


def _shape_bytes(frame: NDArray[np.uint8]) -> bytes:
    return b"%d,%d" % frame.shape[:2]


SweepProgress = Callable[[int, int, str], None]  # done, of how many, what comes next


class MemoizedDetectors:
    """The detectors of a sweep, each loaded once and run once on each frame."""

    def __init__(self, load: DetectorLoader | None = None) -> None:
        self._load = load or detectors.load
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
    shelf: MemoizedDetectors,
    *,
    model: str | None = None,
    clock: Clock | None = None,
    progress: SweepProgress = lambda done, of, what: None,
) -> list[OperatingPoint]:
    """Run the present setting first, then each of `settings`. Raise SourceError when a clip cannot be read."""
    clock = clock or SystemClock()
    for sweep in sweeps:
        _check_used(sweep, plans)
    models = DetectorCache(model if not any(sweep.name == "model" for sweep in sweeps) else None, load=shelf)
    all_settings = (PRESENT_SETTING, *settings)
    found: list[list[ScenarioOutcome]] = [[] for _ in all_settings]
    for number, plan in enumerate(plans):
        shelf.forget()
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
