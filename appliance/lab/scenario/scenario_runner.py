"""Replays one scenario through the same pipeline as live cameras and compares what was reported with what was
expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from appliance.clock import Clock, SystemClock
from appliance.config import LineRule, SiteConfig
from appliance.detect import detector as detectors
from appliance.detect.detector import ObjectDetector
from appliance.detector_config import DetectorConfig
from appliance.errors import SourceError
from appliance.lab.replay import replay_runner
from appliance.lab.replay.replay_result import ReplayResult
from appliance.lab.replay.replay_runner import ReplayProgress
from appliance.lab.scenario import diagnosis, expectations, ground_truth
from appliance.lab.scenario.diagnosis import MissDiagnosis
from appliance.lab.scenario.event_metrics import event_figures
from appliance.lab.scenario.expectations import EVENTS_MAX, EventMatches, Expectation, FalseAlarm, Miss, match_events
from appliance.lab.scenario.ground_truth import BoxesSpool, shaken_truth
from appliance.lab.scenario.scenario_loader import ScenarioPlan
from appliance.lab.scenario.scenario_result import Fault, FaultMoment, ScenarioResult, TrackFigures, WatchedCamera
from appliance.lab.scenario.scenario_verdicts import accepted_alerts, rejected_events, scenario_answers
from appliance.lab.scenario.tracking_metrics import compare_with_truth
from appliance.types import Event

# So many misses are looked into, and so many false alarms get a picture; of the rest there is the sentence.
DIAGNOSED_FAULTS_MAX = 40

DetectorLoader = Callable[[DetectorConfig], ObjectDetector]


class DetectorCache:
    """Loads detectors for scenarios that come one after the other. State: the last one, as most share it.

    model: takes the place of what sites and scenarios name.
    """

    def __init__(self, model: str | None = None, load: DetectorLoader | None = None) -> None:
        self._model = model
        self._load = load or detectors.load
        self._ours = load is None
        self._last: tuple[DetectorConfig, ObjectDetector] | None = None

    def get(self, settings: DetectorConfig) -> ObjectDetector:
        """Raises ModelError or MissingPart."""
        if self._model is not None:
            settings = settings.model_copy(update={"model": self._model})
        if self._last is None or self._last[0] != settings:
            self._last = (settings, self._load(settings))
        return self._last[1]

    def detector_threads(self, config: SiteConfig) -> int:
        """How many threads may ask the detector at once; a loader that was handed in promises nothing."""
        return replay_runner.workers_for(config) if self._ours else 1


@dataclass(frozen=True, slots=True)
class _Played:
    """One camera's replay with its looks."""

    result: ReplayResult
    spool: BoxesSpool


def run_scenario(
    plan: ScenarioPlan,
    models: DetectorCache,
    progress: ReplayProgress | None = None,
    clock: Clock | None = None,
    override: SiteConfig | None = None,
) -> ScenarioResult:
    """Replay every camera of the scenario and judge. Raises ModelError, MissingPart and ConfigError (truth file).

    tried: settings to replay with instead of the plan's; what must be reported is still what the plan's rules say.
    """
    config = override or plan.config
    blank = ScenarioResult(
        name=plan.name,
        file=plan.file,
        note=plan.scenario.note,
        status="skipped",
        weather=plan.conditions.texts,
        seed=plan.conditions.seed,
    )
    if plan.absent:
        missing = ", ".join(path.name for path in plan.absent)
        return replace(blank, status="skipped", reason=f"the footage is not there: {missing}")
    clock = clock or SystemClock()
    begin = clock.monotonic()
    eye = models.get(config.detector)
    with ExitStack() as stack:
        played = []
        answers = stack.enter_context(scenario_answers(plan))
        try:
            for part in plan.parts:
                spool = stack.enter_context(BoxesSpool())
                result = replay_runner.replay(
                    part.clip,
                    config,
                    part.camera,
                    eye,
                    spool,
                    progress,
                    clock=clock,
                    workers=models.detector_threads(config),
                    verdict_source=answers,
                    conditions=plan.conditions,
                )
                played.append(_Played(result, spool))
        except SourceError as error:
            return replace(blank, status="failed", model=eye.name, faults=(Fault(kind="footage", title=str(error)),))
        verdict = apply_known_failing(_judged(plan, played, blank), plan.scenario.known_failing)
    judged_by = str(answers.answered_by) if answers is not None else ""
    return replace(verdict, model=eye.name, judged_by=judged_by, wall_s=clock.monotonic() - begin)


def _judged(plan: ScenarioPlan, played: Sequence[_Played], blank: ScenarioResult) -> ScenarioResult:
    scenario, results = plan.scenario, [each.result for each in played]
    true_wanted, tracks = _against_truth(plan, played)
    reported = _reported(results, after_verdicts=scenario.after_verdicts)
    judgement = match_events(
        reported[:EVENTS_MAX],
        [*expectations.expectations_of(plan), *true_wanted],
        expectations.prohibitions_of(plan),
        others_forbidden=scenario.others == "never",
    )
    watched = tuple(_watched(plan, result) for result in results)
    figures = event_figures(
        judgement.required_outcomes,
        judgement.judged_outcomes,
        [hit.delay_s for hit in judgement.hits if hit.delay_s is not None],
        alerts=sum(len(part.alerts) for part in watched),
        footage_s=sum(result.footage_s for result in results),
    )
    sent_bytes = sum(result.sent_bytes for result in results)
    found = [
        *(fault for result in results for fault in diagnosis.footage_faults(result)),
        *diagnosis.answer_faults(results, fails=scenario.after_verdicts),
        *_flood(len(reported)),
        *_event_faults(plan, played, judgement),
        *diagnosis.limit_faults(scenario.at_most, watched, sent_bytes),
        *diagnosis.figure_faults(scenario.require, figures, tracks),
    ]
    return replace(
        blank,
        status="failed" if any(fault.fails for fault in found) else "passed",
        faults=tuple(found),
        judgement=judgement,
        events=figures,
        tracks=tracks,
        bytes=sent_bytes,
        watched=watched,
    )


def apply_known_failing(verdict: ScenarioResult, known_failing: str) -> ScenarioResult:
    """A scenario that is known to fail must: where it does not, the mark has to go, or it would hide the next failure.

    Footage that cannot be read, or that nobody looked at, is never what was known.
    """
    if not known_failing or any(fault.kind == "footage" and fault.fails for fault in verdict.faults):
        return verdict
    if verdict.status == "failed":
        return replace(verdict, status="known failing", reason=known_failing)
    title = "it passes now: remove `known_failing` from the file"
    passes = Fault(kind="mark", title=title, detail=f"it was said to fail: {known_failing}", source="known_failing")
    return replace(verdict, status="failed", faults=(*verdict.faults, passes))


def _reported(results: Iterable[ReplayResult], *, after_verdicts: bool) -> list[Event]:
    """What a person would have been told of: not what a cooldown held back, nor, if so wished, what was rejected."""
    events = []
    for result in results:
        held = {event.id for event in result.suppressed} | (rejected_events(result) if after_verdicts else frozenset())
        events += [event for event in result.events if event.id not in held]
    return sorted(events, key=lambda event: event.t)


def _flood(count: int) -> list[Fault]:
    if count <= EVENTS_MAX:
        return []
    return [Fault(kind="limit", title=f"{count} events; only the first {EVENTS_MAX} were judged")]


def _against_truth(plan: ScenarioPlan, played: Sequence[_Played]) -> tuple[list[Expectation], TrackFigures | None]:
    """What the true boxes say must be reported, and how well boxes and tracks agree with them."""
    settings = plan.scenario.truth
    if settings is None or plan.truth is None:
        return [], None
    filmed = next(each for each in played if settings.camera in (None, each.result.camera))
    size = filmed.result.size
    frames = shaken_truth(
        ground_truth.read_truth(plan.truth, settings, size), filmed.spool.frame_boxes(), plan.conditions, size
    )
    wanted = (
        expectations.derived_expectations(plan, filmed.result, filmed.spool, frames, settings.events)
        if settings.events is not None
        else []
    )
    return wanted, compare_with_truth(filmed.spool.frame_boxes(), frames, settings.labels)


def _event_faults(plan: ScenarioPlan, played: Sequence[_Played], judgement: EventMatches) -> list[Fault]:
    """Misses and false alarms in order of time, each with its moments; where a share is required, it decides."""
    require = plan.scenario.require
    sightings = _sightings(plan, played, judgement.misses[:DIAGNOSED_FAULTS_MAX])
    moments = _moments(played, judgement.false_alarms[:DIAGNOSED_FAULTS_MAX])
    found = []
    for index, miss in enumerate(judgement.misses):
        sighting = sightings[index] if index < len(sightings) else None
        camera = miss.wanted.pattern.camera or plan.parts[0].camera
        found.append(diagnosis.miss_fault(miss, sighting, camera, fails=require.recall is None))
    for index, alarm in enumerate(judgement.false_alarms):
        found.append(diagnosis.alarm_fault(alarm, moments.get(index), fails=require.precision is None))
    return sorted(found, key=lambda fault: fault.t or 0.0)


def _sightings(plan: ScenarioPlan, played: Sequence[_Played], misses: Sequence[Miss]) -> list[MissDiagnosis]:
    """What was seen in the time of each miss. One pass over the looks of each camera."""
    by_camera: dict[str, list[MissDiagnosis]] = {each.result.camera: [] for each in played}
    every = []
    for miss in misses:
        each = _filmed(played, plan, miss)
        sighting = MissDiagnosis(miss, plan.config.cameras[each.result.camera], each.result.footage_s)
        by_camera[each.result.camera].append(sighting)
        every.append(sighting)
    for each in played:
        if by_camera[each.result.camera]:
            for look in each.spool.frame_boxes():
                for sighting in by_camera[each.result.camera]:
                    sighting.add(look)
    return every


def _filmed(played: Sequence[_Played], plan: ScenarioPlan, miss: Miss) -> _Played:
    """The camera that should have reported it: the named one, else the first with such a rule."""
    pattern = miss.wanted.pattern
    for each in played:
        rules = plan.config.cameras[each.result.camera].rules
        if pattern.camera in ("", each.result.camera) and any(pattern.rule in ("", rule.name) for rule in rules):
            return each
    return played[0]


def _moments(played: Sequence[_Played], alarms: Sequence[FalseAlarm]) -> dict[int, FaultMoment]:
    """The look at which each false alarm came, by its place in `alarms`."""
    found = {}
    for each in played:
        at = {index: alarm.event for index, alarm in enumerate(alarms) if alarm.event.camera == each.result.camera}
        for look in each.spool.frame_boxes() if at else ():
            for index, event in at.items():
                if event.t == look.t:
                    found[index] = FaultMoment(
                        camera=look.camera, t=look.t, frame=look.frame, objects=look.objects, focus=event.track
                    )
    return found


def _watched(plan: ScenarioPlan, result: ReplayResult) -> WatchedCamera:
    camera = plan.config.cameras[result.camera]
    part = next(part for part in plan.parts if part.camera == result.camera)
    zones = {rule.zone for rule in camera.rules if not isinstance(rule, LineRule)}
    lines = {rule.line for rule in camera.rules if isinstance(rule, LineRule)}
    return WatchedCamera(
        camera=result.camera,
        clip=part.clip,
        size=result.size,
        footage_s=result.footage_s,
        frames=result.frames,
        examined=result.examined,
        alerts=accepted_alerts(result.alerts) if plan.scenario.after_verdicts else result.alerts,
        zones=tuple((name, points) for name, points in camera.zones.items() if name in zones),
        lines=tuple((name, ends) for name, ends in camera.lines.items() if name in lines),
    )
