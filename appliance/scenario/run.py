"""One scenario replayed and judged: the same pipeline as live, then what came held against what had to come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from appliance.clock import Clock, SystemClock
from appliance.config import LineRule, SiteConfig
from appliance.detect import detector as detectors
from appliance.detect.detector import ObjectDetector
from appliance.errors import SourceError
from appliance.model import Detector
from appliance.replay import runner
from appliance.replay.result import ReplayResult
from appliance.replay.runner import Progress
from appliance.scenario import entries, faults, truth
from appliance.scenario.answering import answering, standing, struck
from appliance.scenario.compare import compare
from appliance.scenario.expect import EVENTS_MAX, FalseAlarm, Judgement, Miss, Wanted, judge
from appliance.scenario.measures import event_figures
from appliance.scenario.moved import moved
from appliance.scenario.plan import Plan
from appliance.scenario.sighting import Sighting
from appliance.scenario.spool import Spool
from appliance.scenario.verdict import Fault, Moment, TrackFigures, Verdict, Watched
from appliance.types import Event

# So many misses are looked into, and so many false alarms get a picture; of the rest there is the sentence.
SHOWN_MAX = 40

Load = Callable[[Detector], ObjectDetector]


class Models:
    """Loads detectors for scenarios that come one after the other. State: the last one, as most share it.

    model: takes the place of what sites and scenarios name.
    """

    def __init__(self, model: str | None = None, load: Load | None = None) -> None:
        self._model = model
        self._load = load or detectors.load
        self._ours = load is None
        self._last: tuple[Detector, ObjectDetector] | None = None

    def get(self, settings: Detector) -> ObjectDetector:
        """Raises ModelError or MissingPart."""
        if self._model is not None:
            settings = settings.model_copy(update={"model": self._model})
        if self._last is None or self._last[0] != settings:
            self._last = (settings, self._load(settings))
        return self._last[1]

    def hands(self, config: SiteConfig) -> int:
        """How many threads may ask the detector at once; a loader that was handed in promises nothing."""
        return runner.hands_for(config) if self._ours else 1


@dataclass(frozen=True, slots=True)
class _Played:
    """One camera's replay with its looks."""

    result: ReplayResult
    spool: Spool


def run(
    plan: Plan,
    models: Models,
    progress: Progress | None = None,
    clock: Clock | None = None,
    tried: SiteConfig | None = None,
) -> Verdict:
    """Replay every camera of the scenario and judge. Raises ModelError, MissingPart and ConfigError (truth file).

    tried: settings to replay with instead of the plan's; what must be reported is still what the plan's rules say.
    """
    config = tried or plan.config
    blank = Verdict(
        name=plan.name,
        file=plan.file,
        note=plan.scenario.note,
        status="skipped",
        weather=plan.weather.words,
        seed=plan.weather.seed,
    )
    if plan.absent:
        missing = ", ".join(path.name for path in plan.absent)
        return replace(blank, status="skipped", reason=f"the footage is not there: {missing}")
    clock = clock or SystemClock()
    begin = clock.monotonic()
    eye = models.get(config.detector)
    with ExitStack() as stack:
        played = []
        answers = stack.enter_context(answering(plan))
        try:
            for part in plan.parts:
                spool = stack.enter_context(Spool())
                result = runner.replay(
                    part.clip,
                    config,
                    part.camera,
                    eye,
                    spool,
                    progress,
                    clock=clock,
                    hands=models.hands(config),
                    answers=answers,
                    weather=plan.weather,
                )
                played.append(_Played(result, spool))
        except SourceError as error:
            return replace(blank, status="failed", model=eye.name, faults=(Fault(kind="footage", title=str(error)),))
        verdict = marked(_judged(plan, played, blank), plan.scenario.known_failing)
    judged_by = str(answers.answered_by) if answers is not None else ""
    return replace(verdict, model=eye.name, judged_by=judged_by, wall_s=clock.monotonic() - begin)


def _judged(plan: Plan, played: Sequence[_Played], blank: Verdict) -> Verdict:
    scenario, results = plan.scenario, [each.result for each in played]
    true_wanted, tracks = _against_truth(plan, played)
    reported = _reported(results, after_verdicts=scenario.after_verdicts)
    judgement = judge(
        reported[:EVENTS_MAX],
        [*entries.wanted(plan), *true_wanted],
        entries.barred(plan),
        closed=scenario.others == "never",
    )
    watched = tuple(_watched(plan, result) for result in results)
    figures = event_figures(
        judgement.places,
        judgement.answers,
        [hit.delay_s for hit in judgement.hits if hit.delay_s is not None],
        alerts=sum(len(part.alerts) for part in watched),
        footage_s=sum(result.footage_s for result in results),
    )
    sent_bytes = sum(result.sent_bytes for result in results)
    found = [
        *(fault for result in results for fault in faults.footage_faults(result)),
        *faults.answer_faults(results, fails=scenario.after_verdicts),
        *_flood(len(reported)),
        *_event_faults(plan, played, judgement),
        *faults.limit_faults(scenario.at_most, watched, sent_bytes),
        *faults.figure_faults(scenario.require, figures, tracks),
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


def marked(verdict: Verdict, known_failing: str) -> Verdict:
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
        held = {event.id for event in result.suppressed} | (struck(result) if after_verdicts else frozenset())
        events += [event for event in result.events if event.id not in held]
    return sorted(events, key=lambda event: event.t)


def _flood(count: int) -> list[Fault]:
    if count <= EVENTS_MAX:
        return []
    return [Fault(kind="limit", title=f"{count} events; only the first {EVENTS_MAX} were judged")]


def _against_truth(plan: Plan, played: Sequence[_Played]) -> tuple[list[Wanted], TrackFigures | None]:
    """What the true boxes say must be reported, and how well boxes and tracks agree with them."""
    settings = plan.scenario.truth
    if settings is None or plan.truth is None:
        return [], None
    filmed = next(each for each in played if settings.camera in (None, each.result.camera))
    size = filmed.result.size
    frames = moved(truth.read(plan.truth, settings, size), filmed.spool.looks(), plan.weather, size)
    wanted = (
        entries.derived(plan, filmed.result, filmed.spool, frames, settings.events)
        if settings.events is not None
        else []
    )
    return wanted, compare(filmed.spool.looks(), frames, settings.labels)


def _event_faults(plan: Plan, played: Sequence[_Played], judgement: Judgement) -> list[Fault]:
    """Misses and false alarms in order of time, each with its moments; where a share is required, it decides."""
    require = plan.scenario.require
    sightings = _sightings(plan, played, judgement.misses[:SHOWN_MAX])
    moments = _moments(played, judgement.false_alarms[:SHOWN_MAX])
    found = []
    for index, miss in enumerate(judgement.misses):
        sighting = sightings[index] if index < len(sightings) else None
        camera = miss.wanted.pattern.camera or plan.parts[0].camera
        found.append(faults.miss_fault(miss, sighting, camera, fails=require.recall is None))
    for index, alarm in enumerate(judgement.false_alarms):
        found.append(faults.alarm_fault(alarm, moments.get(index), fails=require.precision is None))
    return sorted(found, key=lambda fault: fault.t or 0.0)


def _sightings(plan: Plan, played: Sequence[_Played], misses: Sequence[Miss]) -> list[Sighting]:
    """What was seen in the time of each miss. One pass over the looks of each camera."""
    by_camera: dict[str, list[Sighting]] = {each.result.camera: [] for each in played}
    every = []
    for miss in misses:
        each = _filmed(played, plan, miss)
        sighting = Sighting(miss, plan.config.cameras[each.result.camera], each.result.footage_s)
        by_camera[each.result.camera].append(sighting)
        every.append(sighting)
    for each in played:
        if by_camera[each.result.camera]:
            for look in each.spool.looks():
                for sighting in by_camera[each.result.camera]:
                    sighting.look(look)
    return every


def _filmed(played: Sequence[_Played], plan: Plan, miss: Miss) -> _Played:
    """The camera that should have reported it: the named one, else the first with such a rule."""
    pattern = miss.wanted.pattern
    for each in played:
        rules = plan.config.cameras[each.result.camera].rules
        if pattern.camera in ("", each.result.camera) and any(pattern.rule in ("", rule.name) for rule in rules):
            return each
    return played[0]


def _moments(played: Sequence[_Played], alarms: Sequence[FalseAlarm]) -> dict[int, Moment]:
    """The look at which each false alarm came, by its place in `alarms`."""
    found = {}
    for each in played:
        at = {index: alarm.event for index, alarm in enumerate(alarms) if alarm.event.camera == each.result.camera}
        for look in each.spool.looks() if at else ():
            for index, event in at.items():
                if event.t == look.t:
                    found[index] = Moment(
                        camera=look.camera, t=look.t, frame=look.frame, objects=look.objects, focus=event.track
                    )
    return found


def _watched(plan: Plan, result: ReplayResult) -> Watched:
    camera = plan.config.cameras[result.camera]
    part = next(part for part in plan.parts if part.camera == result.camera)
    zones = {rule.zone for rule in camera.rules if not isinstance(rule, LineRule)}
    lines = {rule.line for rule in camera.rules if isinstance(rule, LineRule)}
    return Watched(
        camera=result.camera,
        clip=part.clip,
        size=result.size,
        footage_s=result.footage_s,
        frames=result.frames,
        examined=result.examined,
        alerts=standing(result.alerts) if plan.scenario.after_verdicts else result.alerts,
        zones=tuple((name, points) for name, points in camera.zones.items() if name in zones),
        lines=tuple((name, ends) for name, ends in camera.lines.items() if name in lines),
    )
