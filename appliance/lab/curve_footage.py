"""Replays one camera's footage of a scenario once: its labelled incidents and all that a strategy could send.

Labelled incidents are what the alert policy makes of a scenario's true events under the site's own rules.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf

import av

from appliance import wire
from appliance.alerts.pipeline import AlertPolicy, view_of
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import Clock
from appliance.config import CameraConfig, DecisionConfig, Rule
from appliance.evidence.evidence_selection import (
    EvidenceMoment,
    encoded_image,
    order_image,
    plan_evidence,
    select_moments,
)
from appliance.lab.curve_ranking import LabelledIncident
from appliance.media.frames import upright_bgr
from appliance.media.stills import make_image
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input, with_conditions, with_stood_before
from appliance.replay.replay_report import format_time
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_routing import FrameHistory, escalation_message, image_bytes
from appliance.replay.replay_runner import play
from appliance.router.escalation_planner import build_escalation
from appliance.rules.engine import RulesEngine, rule_event
from appliance.scenario.expectations import Expectation, expectations_of
from appliance.scenario.ground_truth import BoxesSpool, read_truth, shaken_truth, true_frame_boxes
from appliance.scenario.scenario_loader import ScenarioPart, ScenarioPlan, with_uplink
from appliance.scenario.scenario_runner import DetectorCache, stood_before_of
from appliance.scenario.scenario_verdicts import scenario_answers
from appliance.types import Alert, AlertChange, Event, FrameBoxes, Route, StreamHeader, TrackedObject

BEFORE_S, AFTER_S = 1.0, 3.0  # seconds around an alert; as the windows of true events, see DerivedEvents


@dataclass(frozen=True, slots=True)
class IncidentLabels:
    """Alerts as a perfect detector and tracker would have raised them.

    untimed: entries of `expect` without a moment, which can be neither found nor missed.
    """

    alerts: tuple[Alert, ...]
    untimed: int

    def incidents(self, footage: int) -> tuple[LabelledIncident, ...]:
        """Return each with the window in which an image shows it."""
        return tuple(
            LabelledIncident(
                footage=footage,
                start=alert.t_start - BEFORE_S,
                end=(alert.t_start if alert.t_end is None else alert.t_end) + AFTER_S,
                t=alert.t_start,
                text=f"{', '.join(alert.rules)} at {format_time(alert.t_start)}",
            )
            for alert in self.alerts
        )


@dataclass(frozen=True, slots=True)
class _EntryEvent:
    """An entry of `expect` as an event that lasts from `event.t` to `end`."""

    event: Event
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraTruth:
    """The truth about a camera's footage.

    header: camera and frame size. looks: the true objects at the frames that were examined, empty where there are no
    true boxes. expectations: the entries of `expect`. derived: every event of the true boxes must be reported as well
    (`truth.events`).
    """

    header: StreamHeader
    frames: Sequence[FrameBoxes]
    expectations: Sequence[Expectation]
    derived: bool


def label_incidents(config: DecisionConfig, truth: CameraTruth) -> IncidentLabels:
    """Return the incidents of one camera.

    An entry takes the time and the object of the true event that matches it, where the boxes hold one, so that its
    incident lasts as long as the object stays in view; otherwise it lasts as long as the entry says.
    """
    camera = truth.header.camera
    site = config.cameras[camera]
    true_events = _events(site, truth)
    required = [(number, each) for number, each in enumerate(truth.expectations) if each.min]
    found = [_entry_event(number, each, camera, site, true_events) for number, each in required]
    entries = [each for each in found if each is not None]
    # An entry and the true boxes may describe the same event.
    events = {event.id: event for event in (*(each.event for each in entries), *(true_events if truth.derived else ()))}
    alerts = _alerts(config, truth, sorted(events.values(), key=lambda event: event.t), entries)
    return IncidentLabels(tuple(alert for alert in alerts if may_escalate(alert, config)), len(required) - len(entries))


def _events(site: CameraConfig, truth: CameraTruth) -> tuple[Event, ...]:
    rules = RulesEngine(truth.header.camera, site)
    rules.feed(truth.header)
    return tuple(event for boxes in truth.frames for event in rules.feed(boxes))


def _entry_event(
    number: int, expectation: Expectation, camera: str, site: CameraConfig, true_events: Sequence[Event]
) -> _EntryEvent | None:
    """Return the event; None: the entry has no moment, or expects several events anywhere in a span."""
    pattern = expectation.pattern
    matching_events = [event for event in true_events if pattern.matches(event)]
    if expectation.min == 1 and matching_events and pattern.end != inf:
        at = pattern.start if expectation.at is None else expectation.at
        event = min(matching_events, key=lambda each: abs(each.t - at))
        return _EntryEvent(event, event.t)
    if expectation.at is None and (pattern.end == inf or expectation.min > 1):
        return None
    t, end = (pattern.start, pattern.end) if expectation.at is None else (expectation.at, expectation.at)
    matching = next(event for event in _possible_events(camera, site, t) if pattern.matches_except_time(event))
    return _EntryEvent(replace(matching, track=-1 - number, id=f"expect {number}"), end)


def _possible_events(camera: str, site: CameraConfig, t: float) -> Iterable[Event]:
    """Return an event of each rule and label."""
    for rule in site.rules:
        for label in rule.labels:
            yield rule_event(camera, rule, TrackedObject(track=0, label=label, score=0.0, box=(0.0, 0.0, 0.0, 0.0)), t)


def could_come(camera: str, site: CameraConfig, expectation: Expectation) -> bool:
    """Return whether the camera has a rule that can report the expected event."""
    return any(expectation.pattern.matches_except_time(event) for event in _possible_events(camera, site, 0.0))


def _alerts(
    config: DecisionConfig, truth: CameraTruth, events: Sequence[Event], entries: Sequence[_EntryEvent]
) -> list[Alert]:
    """Return the alerts that the policy makes of the events; their objects are in view for as long as is known."""
    camera = truth.header.camera
    policy = AlertPolicy(config.alerts, config.cameras[camera].rules)
    changes: list[AlertChange] = [*policy.begin(truth.header).changes]
    pending, last = list(events), 0.0
    for boxes in truth.frames:
        due = [event for event in pending if event.t <= boxes.t]
        pending = pending[len(due) :]
        changes += policy.feed(_with_entries(boxes, entries), due).changes
        last = boxes.t
    if pending:  # they come after the last frame
        last = pending[-1].t
        end = FrameBoxes(camera=camera, seq=len(truth.frames), frame=0, t=last, looked=True)
        changes += policy.feed(end, pending).changes
    changes += policy.close(last, "end of clip").changes
    return [change.alert for change in changes if change.kind == "ended"]


def _with_entries(boxes: FrameBoxes, entries: Sequence[_EntryEvent]) -> FrameBoxes:
    seen = tuple(
        TrackedObject(track=each.event.track, label=each.event.label, score=0.9, box=(0.0, 0.0, 1.0, 1.0))
        for each in entries
        if each.event.track < 0 and each.event.t <= boxes.t <= each.end
    )
    return replace(boxes, objects=(*boxes.objects, *seen)) if seen else boxes


def may_escalate(alert: Alert, config: DecisionConfig) -> bool:
    """Return whether the site may escalate the alert at all; otherwise the router cannot miss it."""
    rules: dict[str, Rule] = {rule.name: rule for rule in config.cameras[alert.camera].rules}
    return alert.severity in config.escalation.severities and any(rules[name].escalate for name in alert.rules)


# Seconds between whole frames that are encoded to know their size; frames in between count as the last one. Encoding
# every frame would cost more than the replay.
FRAME_ENCODED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ExaminedFrame:
    """One examined frame.

    motion: the share of the frame that moved; frame_bytes: bytes on the uplink if this one frame were sent whole, with
    its escalation.
    """

    t: float
    motion: float
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class BestSighting:
    """One track where its score was best. moments, bytes: of the evidence that the router would send of it then.

    A frame with less evidence (the track has just begun) counts only while there is none with more.
    """

    t: float
    score: float
    moments: tuple[float, ...]
    bytes: int


class BaselineRecorder:
    """Records what the baselines could send, as an observer of one camera's replay, which it does not change.

    State: motion and size of each frame, the best sighting of each track, the last frames. Whole frames have the size
    of a single frame of evidence (`escalation.frame_side_max`, `frame_bytes_max`), tracks that of the evidence an
    escalation of the site begins with, so that the baselines pay what the router would pay.
    """

    def __init__(self, config: DecisionConfig, camera: str, model: str) -> None:
        self._config = config
        self._camera = camera
        self._model = model
        self._rules = config.cameras[camera].rules
        self._history = FrameHistory(config, camera)
        first = plan_evidence(config.escalation.first, None, 0).images
        self._images_per_escalation = {"crops": config.escalation.crops, "frames": config.escalation.frames}.get(
            first, 1
        )
        self._sightings: dict[int, BestSighting] = {}
        self._encoded_t = float("-inf")
        self._frame_bytes = 0
        self.examined: list[ExaminedFrame] = []

    @property
    def best_sightings(self) -> Sequence[BestSighting]:
        """One for each track with a label that a rule of the camera watches."""
        return list(self._sightings.values())

    def record(self, boxes: FrameBoxes, request: InferenceRequest) -> None:
        """Record one examined frame of the replay."""
        if boxes.t - self._encoded_t >= FRAME_ENCODED_EVERY_S:
            self._encoded_t, self._frame_bytes = boxes.t, self._frame_message_bytes(boxes.t, request.av_frame)
        # The first frame has nothing to be compared with; the motion gate reports all of it as moved.
        self.examined.append(ExaminedFrame(boxes.t, request.priority if boxes.seq else 0.0, self._frame_bytes))
        self._history.add(boxes, request.av_frame)
        for found in boxes.objects:
            rule = next((rule for rule in self._rules if found.label in rule.labels and rule.escalate), None)
            best = self._sightings.get(found.track)
            if rule is not None and (
                best is None or found.score > best.score or len(best.moments) < self._images_per_escalation
            ):
                now = self._sighting(found, boxes.t, rule)
                if best is None or (len(now.moments), now.score) > (len(best.moments), best.score):
                    self._sightings[found.track] = now

    def _frame_message_bytes(self, t: float, av_frame: av.VideoFrame) -> int:
        image = upright_bgr(av_frame)
        moment = EvidenceMoment(t, None)
        order = order_image("frame", self._config.escalation, moment)
        frame = encoded_image(order, t, moment, make_image(image, order))
        ref, site = frame.ref, self._config.site.name
        escalation = wire.Escalation(
            id=f"esc-{ref.id[:16]}",
            site=site,
            camera=self._camera,
            alert=ref.id[:16],
            rule="frame",
            kind="frame",
            label="frame",
            severity="alert",
            question="Is there anything in this picture that a person should see?",
            t=t,
            created_t=t,
            model=self._model,
            media=(ref,),
        )
        return _message_bytes(escalation) + image_bytes(site, frame)

    def _sighting(self, found: TrackedObject, t: float, rule: Rule) -> BestSighting:
        """Return the sighting of an escalation about this track at `t`; facts that no rule gave are placeholders."""
        event = replace(rule_event(self._camera, rule, found, t), severity="alert")
        alert = Alert(
            camera=self._camera,
            id="0" * 16,
            rules=(rule.name,),
            severity="alert",
            t_start=t,
            t_end=None,
            tracks=(found.track,),
            labels=(found.label,),
            score=found.score,
            best=view_of(found, t),
        )
        evidence = self._history.images(alert, event)
        escalation = build_escalation(alert, event, rule, site=self._config.site.name, now=t, model=self._model)
        body = escalation.model_copy(
            update={"media": evidence.refs, "can": evidence.can, "image_free": evidence.image_free}
        )
        moments = tuple(ref.t for ref in evidence.refs) or (t,)
        return BestSighting(t, found.score, moments, _message_bytes(body) + evidence.bytes)


def _message_bytes(escalation: wire.Escalation) -> int:
    """Return the size of the escalation itself, with subject and headers."""
    return escalation_message(escalation, wire.PRIORITY_OF[escalation.severity]).size


@dataclass(frozen=True, slots=True)
class RouterEscalation:
    """An escalation that the router would send.

    moments: times that its images show, or of the event where it has none. bytes: of the escalation and, where a
    verdict requested more evidence, of that.
    """

    route: Route
    moments: tuple[float, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedFootage:
    """The outcome of a replay.

    bytes: of the footage as the camera sent it. merge_s: seconds within which alerts merge, and so how far apart single
    frames are sent. alerts: those that the site would ask about, as its labels are. judged_by: the judge that answered
    the escalations, '' for none (see Alert.verdict for the verdicts). clip: the file.
    """

    scenario: str
    camera: str
    model: str
    bytes: int
    seconds: float
    merge_s: float
    labels: IncidentLabels
    routes: tuple[Route, ...]
    escalations: tuple[RouterEscalation, ...]
    alerts: tuple[Alert, ...]
    examined: tuple[ExaminedFrame, ...]
    best_sightings: tuple[BestSighting, ...]
    judged_by: str = ""
    clip: str = ""


def has_truth(plan: ScenarioPlan) -> bool:
    """Return whether the scenario says what truly happens in it."""
    scenario = plan.scenario
    derived = scenario.truth is not None and scenario.truth.events is not None
    return bool(scenario.expect or scenario.never) or derived or scenario.others == "never"


def replay_footage(plan: ScenarioPlan, models: DetectorCache, clock: Clock) -> tuple[ReplayedFootage, ...]:
    """Replay every camera of a scenario with an uplink, so that the router has something to decide.

    The scenario's own conditions hold, and the verdicts are those it names. Raise SourceError when a clip cannot be
    read, ModelError, MissingPart, ConfigError (truth file), UsageError (cassette).
    """
    plan = replace(plan, config=with_uplink(plan.config))
    config, detector = plan.config, models.get(plan.config.detector)
    found = []
    with ExitStack() as stack:
        answers = stack.enter_context(scenario_answers(plan))
        for part in plan.parts:
            recorder = BaselineRecorder(config, part.camera, detector.name)
            spool = stack.enter_context(BoxesSpool())
            replay_input = clip_input(part.clip, config, part.camera, detector)
            replay_plan = with_stood_before(
                with_conditions(ReplayPlan((replay_input,), config, detector, verdict_source=answers), plan.conditions),
                stood_before_of(plan, part.camera),
            )
            options = ReplayOptions(clock, workers=models.detector_threads(config), observer=recorder.record)
            (result,) = play(replay_plan, spool, options)
            found.append(_replayed_footage(plan, part, result, recorder, spool))
    return tuple(found)


def _replayed_footage(
    plan: ScenarioPlan, part: ScenarioPart, result: ReplayResult, recorder: BaselineRecorder, spool: BoxesSpool
) -> ReplayedFootage:
    return ReplayedFootage(
        scenario=plan.name,
        camera=part.camera,
        model=result.model,
        bytes=result.end.footage_bytes,
        seconds=result.end.t,
        merge_s=plan.config.alerts.merge_s,
        labels=label_incidents(plan.config, _truth(plan, part, result, spool)),
        routes=result.routes,
        escalations=tuple(_router_escalations(plan, result, spool)),
        alerts=tuple(alert for alert in result.alerts if may_escalate(alert, plan.config)),
        examined=tuple(recorder.examined),
        best_sightings=tuple(recorder.best_sightings),
        judged_by=result.answered_by,
        clip=str(part.clip),
    )


def _router_escalations(plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool) -> Iterator[RouterEscalation]:
    """Yield the last escalation about each alert: one that is postponed and then released is the same.

    The moments are those that evidence selection chooses for it, from the same frames.
    """
    settings = plan.config.escalation
    escalated = {route.alert: route for route in result.routes if route.ask}
    pending = sorted(escalated.values(), key=lambda route: route.t)
    events = {event.id: event for event in result.events}
    more_bytes_of: dict[str, int] = defaultdict(int)
    for verdict in result.verdicts:
        more_bytes_of[verdict.alert] += verdict.more_bytes
    recent: deque[FrameBoxes] = deque()
    for boxes in spool.frame_boxes():
        recent.append(boxes)
        while recent[0].t < boxes.t - settings.span_s:
            recent.popleft()
        while pending and pending[0].t <= boxes.t:
            route = pending.pop(0)
            cut = plan_evidence(route.evidence, None, 0).images
            moments = select_moments(cut, settings, events[route.event], recent, None)
            moments_shown = tuple(each.t for each in moments) or (route.t,)
            yield RouterEscalation(route, moments_shown, route.cost.bytes + more_bytes_of[route.alert])
    yield from (RouterEscalation(route, (route.t,), route.cost.bytes + more_bytes_of[route.alert]) for route in pending)


def _truth(plan: ScenarioPlan, part: ScenarioPart, result: ReplayResult, spool: BoxesSpool) -> CameraTruth:
    settings = plan.scenario.truth
    boxes_of_frames: Sequence[FrameBoxes] = [replace(boxes, looked=True, objects=()) for boxes in spool.frame_boxes()]
    derived = False
    if settings is not None and plan.truth is not None and settings.camera in (None, part.camera):
        frames = shaken_truth(
            read_truth(plan.truth, settings, result.size),
            spool.frame_boxes(),
            plan.conditions,
            result.size,
        )
        boxes_of_frames = list(true_frame_boxes(spool, frames))
        derived = settings.events is not None
    header = StreamHeader(camera=part.camera, clip="", model="truth", size=result.size, run="truth")
    return CameraTruth(
        header=header, frames=boxes_of_frames, expectations=list(_expectations_of_camera(plan, part)), derived=derived
    )


def _expectations_of_camera(plan: ScenarioPlan, part: ScenarioPart) -> Iterator[Expectation]:
    """Return the expectations that only this camera can fulfil."""
    for each in expectations_of(plan):
        cameras = [
            other.camera for other in plan.parts if could_come(other.camera, plan.config.cameras[other.camera], each)
        ]
        if cameras == [part.camera]:
            yield each
