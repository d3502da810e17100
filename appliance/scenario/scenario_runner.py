"""Replays one scenario through the live cameras' pipeline and compares the reported with the expected events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import SourceError
from appliance.config import DecisionConfig, LineRule
from appliance.detect import detector as detectors
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.detect.runtime_choice import as_at_run_time, way_text
from appliance.replay.replay_plan import (
    ReplayOptions,
    ReplayPlan,
    StoodBefore,
    clip_input,
    standing,
    with_conditions,
    with_stood_before,
    workers_for,
)
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_runner import play
from appliance.scenario.diagnosis import (
    MissDiagnosis,
    NetworkTraits,
    alarm_fault,
    answer_faults,
    figure_faults,
    footage_faults,
    limit_faults,
    miss_fault,
)
from appliance.scenario.expectations import (
    EVENTS_MAX,
    EventMatches,
    Expectation,
    FalseAlarm,
    Miss,
    derived_expectations,
    expectations_of,
    match_events,
    prohibitions_of,
)
from appliance.scenario.ground_truth import BoxesSpool, read_truth, shaken_truth
from appliance.scenario.metrics import TrackFigures, compare_with_truth, event_figures
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_result import Fault, FaultMoment, ScenarioResult, WatchedCamera
from appliance.scenario.scenario_verdicts import accepted_alerts, rejected_events, scenario_answers
from appliance.types import Event

# Faults of each kind that are diagnosed and shown with stills; the others are only listed. Keeps a report readable.
DIAGNOSED_FAULTS_MAX = 40

DetectorLoader = Callable[[DetectorConfig], ObjectDetector]


class DetectorCache:
    """Loads detectors for scenarios that run one after the other. State: the last one, as most scenarios share it.

    They run as the appliance would run them here (`as_at_run_time`), where settings leave that open. model: replaces
    the model that sites and scenarios name. ways: what ran them, for people, without what was left to the file.
    """

    def __init__(self, model: str | None = None, load: DetectorLoader | None = None) -> None:
        self._model = model
        self._load = load
        self.ways: list[str] = []
        self._asked: tuple[DetectorConfig, Path | None] | None = None
        self._last: tuple[DetectorConfig, ObjectDetector] | None = None

    def get(self, settings: DetectorConfig, storage: Path | None = None) -> ObjectDetector:
        """Return the detector of these settings. Raise ModelError or MissingPart.

        storage: the folder of an appliance that remembers its choice of a runtime.
        """
        if self._model is not None:
            settings = settings.with_model(self._model)
        if self._last is None or self._asked != (settings, storage):  # of two appliances each has its own choice
            settled = settings if self._load else as_at_run_time(settings, storage)
            if self._last is None or self._last[0] != settled:
                self._last = (settled, (self._load or detector_loader.load)(settled))
            self._asked = (settings, storage)
            if (way := way_text(settled)) and way not in self.ways:
                self.ways.append(way)
        return self._last[1]

    def detector_threads(self, config: DecisionConfig) -> int:
        """How many threads may call the detector at once; 1 for a loader that was passed in."""
        return workers_for(config) if self._load in (None, detector_loader.load) else 1


@dataclass(frozen=True, slots=True)
class _CameraReplay:
    """One camera's replay with its FrameBoxes."""

    result: ReplayResult
    spool: BoxesSpool
    network: NetworkTraits


def run_scenario(
    plan: ScenarioPlan,
    models: DetectorCache,
    clock: Clock | None = None,
    override: DecisionConfig | None = None,
) -> ScenarioResult:
    """Replay every camera of the scenario and evaluate it. Raises ModelError, MissingPart and ConfigError (truth file).

    override: settings to replay with instead of the plan's; the expectations stay those of the plan's rules.
    """
    config = override or plan.config
    empty = ScenarioResult(
        name=plan.name,
        file=plan.file,
        note=plan.scenario.note,
        status="skipped",
        weather=plan.conditions.texts,
        seed=plan.conditions.seed,
    )
    if plan.absent:
        missing = ", ".join(path.name for path in plan.absent)
        return replace(empty, status="skipped", reason=f"the footage is not there: {missing}")
    clock = clock or SystemClock()
    begin = clock.monotonic()
    detector = models.get(config.detector, plan.storage)
    with ExitStack() as stack:
        replays = []
        answers = stack.enter_context(scenario_answers(plan))
        try:
            for part in plan.parts:
                spool = stack.enter_context(BoxesSpool())
                inputs = (clip_input(part.clip, config, part.camera, detector),)
                replayed = with_stood_before(
                    with_conditions(ReplayPlan(inputs, config, detector, verdict_source=answers), plan.conditions),
                    stood_before_of(plan, part.camera),
                )
                options = ReplayOptions(clock, workers=models.detector_threads(config))
                (result,) = play(replayed, spool, options)
                replays.append(
                    _CameraReplay(result, spool, NetworkTraits(detector.labels, detectors.calibration_of(detector)))
                )
        except SourceError as error:
            return replace(
                empty, status="failed", model=detector.name, faults=(Fault(kind="footage", title=str(error)),)
            )
        outcome = apply_known_failing(_evaluated(plan, replays, empty), plan.scenario.known_failing)
    judged_by = str(answers.answered_by) if answers is not None else ""
    return replace(outcome, model=detector.name, judged_by=judged_by, wall_s=clock.monotonic() - begin)


def stood_before_of(plan: ScenarioPlan, camera: str) -> StoodBefore:
    """Return what the scenario says stood before a camera when its clip began; {}: it does not say."""
    known = plan.scenario.stood_before.get(camera)
    return {} if known is None else {camera: tuple(standing(each.label, each.box, each.seconds) for each in known)}


def _evaluated(plan: ScenarioPlan, replays: Sequence[_CameraReplay], empty: ScenarioResult) -> ScenarioResult:
    scenario, results = plan.scenario, [each.result for each in replays]
    derived, tracks = _compare_with_truth(plan, replays)
    reported = _reported_events(results, after_verdicts=scenario.after_verdicts)
    matches = match_events(
        reported[:EVENTS_MAX],
        [*expectations_of(plan), *derived],
        prohibitions_of(plan),
        others_forbidden=scenario.others == "never",
    )
    watched = tuple(_watched(plan, result) for result in results)
    figures = event_figures(
        matches.required_outcomes,
        matches.judged_outcomes,
        [hit.delay_s for hit in matches.hits if hit.delay_s is not None],
        alerts=sum(len(part.alerts) for part in watched),
        footage_s=sum(result.end.t for result in results),
    )
    sent_bytes = sum(result.sent_bytes for result in results)
    found = [
        *(fault for result in results for fault in footage_faults(result)),
        *answer_faults(results, fails=scenario.after_verdicts),
        *_flood_faults(len(reported)),
        *_event_faults(plan, replays, matches),
        *limit_faults(scenario.at_most, watched, sent_bytes),
        *figure_faults(scenario.require, figures, tracks),
    ]
    return replace(
        empty,
        status="failed" if any(fault.fails for fault in found) else "passed",
        faults=tuple(found),
        judgement=matches,
        events=figures,
        tracks=tracks,
        bytes=sent_bytes,
        watched=watched,
    )


def apply_known_failing(result: ScenarioResult, known_failing: str) -> ScenarioResult:
    """Let a scenario marked `known_failing` fail: if it passes, the mark has to go, or it hides the next failure.

    Unreadable footage, or a detector that did not answer, is never the known failure.
    """
    if not known_failing or any(fault.kind == "footage" and fault.fails for fault in result.faults):
        return result
    if result.status == "failed":
        return replace(result, status="known failing", reason=known_failing)
    title = "it passes now: remove `known_failing` from the file"
    passes = Fault(kind="mark", title=title, detail=f"it was said to fail: {known_failing}", source="known_failing")
    return replace(result, status="failed", faults=(*result.faults, passes))


def _reported_events(results: Iterable[ReplayResult], *, after_verdicts: bool) -> list[Event]:
    """Return the events that a person is notified of: not suppressed and, with `after_verdicts`, not rejected."""
    events = []
    for result in results:
        suppressed = set(result.end.suppressed) | (rejected_events(result) if after_verdicts else frozenset())
        events += [event for event in result.events if event.id not in suppressed]
    return sorted(events, key=lambda event: event.t)


def _flood_faults(count: int) -> list[Fault]:
    if count <= EVENTS_MAX:
        return []
    return [Fault(kind="limit", title=f"{count} events; only the first {EVENTS_MAX} were judged")]


def _compare_with_truth(
    plan: ScenarioPlan, replays: Sequence[_CameraReplay]
) -> tuple[list[Expectation], TrackFigures | None]:
    """Return the expectations derived from the true boxes, and how well boxes and tracks agree with them."""
    settings = plan.scenario.truth
    if settings is None or plan.truth is None:
        return [], None
    replay = next(each for each in replays if settings.camera in (None, each.result.end.camera))
    size = replay.result.size
    frames = shaken_truth(read_truth(plan.truth, settings, size), replay.spool.frame_boxes(), plan.conditions, size)
    derived = (
        derived_expectations(plan, replay.result, replay.spool, frames, settings.events)
        if settings.events is not None
        else []
    )
    return derived, compare_with_truth(replay.spool.frame_boxes(), frames, settings.labels)


def _event_faults(plan: ScenarioPlan, replays: Sequence[_CameraReplay], matches: EventMatches) -> list[Fault]:
    """Misses and false alarms in order of time, with stills. Where a share is required, only that fails."""
    require = plan.scenario.require
    diagnoses = _diagnose(plan, replays, matches)
    moments = _alarm_moments(replays, matches.false_alarms[:DIAGNOSED_FAULTS_MAX])
    found = []
    for index, miss in enumerate(matches.misses):
        diagnosis = diagnoses[index] if index < len(diagnoses) else None
        result = _responsible_camera(replays, plan, miss).result
        found.append(miss_fault(miss, diagnosis, result, fails=require.recall is None))
    for index, alarm in enumerate(matches.false_alarms):
        found.append(alarm_fault(alarm, moments.get(index), fails=require.precision is None))
    return sorted(found, key=lambda fault: fault.t or 0.0)


def _diagnose(plan: ScenarioPlan, replays: Sequence[_CameraReplay], matches: EventMatches) -> list[MissDiagnosis]:
    """Return a diagnosis of each of the first misses. One pass over the boxes of each camera."""
    by_camera: dict[str, list[MissDiagnosis]] = {each.result.end.camera: [] for each in replays}
    diagnoses = []
    for miss in matches.misses[:DIAGNOSED_FAULTS_MAX]:
        each = _responsible_camera(replays, plan, miss)
        camera = plan.config.cameras[each.result.end.camera]
        known_before = each.result.end.camera in plan.scenario.stood_before
        counted = frozenset(hit.event.id for hit in matches.hits if hit.wanted is not miss.wanted)
        diagnosis = MissDiagnosis(
            miss, camera, each.result.end.t, each.network, known_before=known_before, counted=counted
        )
        by_camera[each.result.end.camera].append(diagnosis)
        diagnoses.append(diagnosis)
    for each in replays:
        if by_camera[each.result.end.camera]:
            for boxes in each.spool.frame_boxes():
                for diagnosis in by_camera[each.result.end.camera]:
                    diagnosis.add(boxes)
    return diagnoses


def _responsible_camera(replays: Sequence[_CameraReplay], plan: ScenarioPlan, miss: Miss) -> _CameraReplay:
    """Return the camera that should have reported the event: the named one, else the first with such a rule."""
    pattern = miss.wanted.pattern
    for each in replays:
        rules = plan.config.cameras[each.result.end.camera].rules
        if pattern.camera in ("", each.result.end.camera) and any(pattern.rule in ("", rule.name) for rule in rules):
            return each
    return replays[0]


def _alarm_moments(replays: Sequence[_CameraReplay], alarms: Sequence[FalseAlarm]) -> dict[int, FaultMoment]:
    """Return the frame at which each false alarm came, by its index in `alarms`."""
    found = {}
    for each in replays:
        events = {
            index: alarm.event for index, alarm in enumerate(alarms) if alarm.event.camera == each.result.end.camera
        }
        for boxes in each.spool.frame_boxes() if events else ():
            for index, event in events.items():
                if event.t == boxes.t:
                    found[index] = FaultMoment(
                        camera=boxes.camera, t=boxes.t, frame=boxes.frame, objects=boxes.objects, focus=event.track
                    )
    return found


def _watched(plan: ScenarioPlan, result: ReplayResult) -> WatchedCamera:
    camera = plan.config.cameras[result.end.camera]
    part = next(part for part in plan.parts if part.camera == result.end.camera)
    zones = {rule.zone for rule in camera.rules if not isinstance(rule, LineRule)}
    lines = {rule.line for rule in camera.rules if isinstance(rule, LineRule)}
    return WatchedCamera(
        camera=result.end.camera,
        clip=part.clip,
        size=result.size,
        footage_s=result.end.t,
        frames=result.end.frames,
        examined=result.end.examined,
        alerts=accepted_alerts(result.alerts) if plan.scenario.after_verdicts else result.alerts,
        zones=tuple((name, points) for name, points in camera.zones.items() if name in zones),
        lines=tuple((name, ends) for name, ends in camera.lines.items() if name in lines),
    )
