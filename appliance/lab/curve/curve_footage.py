"""Replays one camera's footage of a scenario once: its labelled incidents and all that a strategy could send."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import av
import numpy as np

from appliance import wire
from appliance.alerts.best_view import view_of
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import Clock
from appliance.config import DecisionConfig, Rule
from appliance.evidence.frame_selection import EvidenceMoment, plan_evidence, select_moments
from appliance.evidence.image_encoder import encoded_image, order_image
from appliance.lab.curve.incident_labels import CameraTruth, IncidentLabels, could_come, label_incidents, may_escalate
from appliance.media.image_maker import make_image
from appliance.replay import replay_runner
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_routing import FrameHistory
from appliance.replay.replay_runner import ReplayOptions, ReplayPlan, ReplayProgress
from appliance.router.escalation_planner import build_escalation
from appliance.scenario.expectations import Expectation, expectations_of
from appliance.scenario.ground_truth import BoxesSpool, read_truth, shaken_truth, true_frame_boxes
from appliance.scenario.scenario_loader import ScenarioPart, ScenarioPlan, with_uplink
from appliance.scenario.scenario_runner import DetectorCache
from appliance.scenario.scenario_verdicts import scenario_answers
from appliance.types import Alert, Event, FrameBoxes, Route, StreamHeader, TrackedObject
from appliance.uplink.jetstream_publisher import NatsMessage, chunk_message

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
        """One examined frame of the replay."""
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
        image = np.asarray(av_frame.to_ndarray(format="bgr24"), np.uint8)
        moment = EvidenceMoment(t, None)
        order = order_image("frame", self._config.escalation, moment)
        frame = encoded_image(order, t, moment, make_image(image, order))
        ref, site, size = frame.ref, self._config.site.name, wire.CHUNK_BYTES
        chunks = (chunk_message(site, ref, n, frame.data[n * size : (n + 1) * size]).size for n in range(ref.chunks))
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
        return _message_bytes(escalation) + sum(chunks)

    def _sighting(self, found: TrackedObject, t: float, rule: Rule) -> BestSighting:
        """Return the sighting of an escalation about this track at `t`; facts that no rule gave are placeholders."""
        event = Event(
            camera=self._camera,
            rule=rule.name,
            kind=rule.kind,
            track=found.track,
            label=found.label,
            t=t,
            score=found.score,
            box=found.box,
            severity="alert",
        )
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
    subject = wire.escalation_subject(escalation.site, wire.PRIORITY_OF[escalation.severity])
    headers = {"Nats-Msg-Id": wire.escalation_message_id(escalation)}
    return NatsMessage(subject, escalation.to_json(), headers, "facts").size


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


def replay_footage(
    plan: ScenarioPlan, models: DetectorCache, clock: Clock, progress: ReplayProgress | None = None
) -> tuple[ReplayedFootage, ...]:
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
            replay_input = replay_runner.clip_input(part.clip, config, part.camera, detector)
            replay_plan = replay_runner.with_conditions(
                ReplayPlan((replay_input,), config, detector, verdict_source=answers), plan.conditions
            )
            options = ReplayOptions(
                clock, progress=progress, workers=models.detector_threads(config), observer=recorder.record
            )
            (result,) = replay_runner.play(replay_plan, spool, options)
            found.append(_replayed_footage(plan, part, result, recorder, spool))
    return tuple(found)


def _replayed_footage(
    plan: ScenarioPlan, part: ScenarioPart, result: ReplayResult, recorder: BaselineRecorder, spool: BoxesSpool
) -> ReplayedFootage:
    return ReplayedFootage(
        scenario=plan.name,
        camera=part.camera,
        model=result.model,
        bytes=result.footage_bytes,
        seconds=result.footage_s,
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
            yield RouterEscalation(route, moments_shown, route.bytes + more_bytes_of[route.alert])
    yield from (RouterEscalation(route, (route.t,), route.bytes + more_bytes_of[route.alert]) for route in pending)


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
