"""Every scenario at every point, by the same replay and judgement as `vedette scenario run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.clock import Clock, SystemClock
from appliance.detect import detector as detectors
from appliance.errors import SourceError, UsageError
from appliance.model import Detector
from appliance.scenario import run as scenario_run
from appliance.scenario.plan import Plan
from appliance.scenario.run import Load, Models
from appliance.scenario.tune.memo import Memo
from appliance.scenario.tune.point import Outcome, Point, outcome_of
from appliance.scenario.tune.sweep import Setting, Sweep, changed

PRESENT: Setting = ()
Told = Callable[[int, int, str], None]  # done, of how many, what comes next


class Shelf:
    """Detectors as they are asked for, each loaded once and asked once about each picture."""

    def __init__(self, load: Load | None = None) -> None:
        self._load = load or detectors.load
        self._memos: dict[Detector, Memo] = {}

    def __call__(self, settings: Detector) -> Memo:
        """Raises ModelError or MissingPart."""
        if settings not in self._memos:
            self._memos[settings] = Memo(self._load(settings))
        return self._memos[settings]

    def forget(self) -> None:
        for memo in self._memos.values():
            memo.forget()


def measure(
    plans: Sequence[Plan],
    sweeps: Sequence[Sweep],
    settings: Sequence[Setting],
    shelf: Shelf,
    *,
    model: str | None = None,
    clock: Clock | None = None,
    told: Told = lambda done, of, what: None,
) -> list[Point]:
    """The present setting first, then each of `settings`. Raises SourceError when a clip cannot be read."""
    clock = clock or SystemClock()
    for sweep in sweeps:
        _must_be_somewhere(sweep, plans)
    models = Models(model if not any(sweep.name == "model" for sweep in sweeps) else None, load=shelf)
    every = (PRESENT, *settings)
    found: list[list[Outcome]] = [[] for _ in every]
    for number, plan in enumerate(plans):
        shelf.forget()
        for place, setting in enumerate(every):
            told(number * len(every) + place, len(plans) * len(every), plan.name)
            found[place].append(_one(plan, sweeps, setting, models, clock))
    told(len(plans) * len(every), len(plans) * len(every), "")
    return [Point(setting, tuple(outcomes)) for setting, outcomes in zip(every, found, strict=True)]


def _one(plan: Plan, sweeps: Sequence[Sweep], setting: Setting, models: Models, clock: Clock) -> Outcome:
    tried = changed(plan.config, sweeps, setting) if setting else None
    verdict = scenario_run.run(plan, models, clock=clock, tried=tried)
    footage = next((fault for fault in verdict.faults if fault.kind == "footage" and fault.fails), None)
    if footage is not None:
        raise SourceError(f"{plan.name}: {footage.title}")
    return outcome_of(plan.name, verdict)


def _must_be_somewhere(sweep: Sweep, plans: Sequence[Plan]) -> None:
    if any(sweep.found_in(plan.config) for plan in plans):
        return
    rules = sorted({rule.name for plan in plans for camera in plan.config.cameras.values() for rule in camera.rules})
    raise UsageError(f"--sweep {sweep.key}: no rule here has it (rules: {', '.join(rules) or 'none'})")
