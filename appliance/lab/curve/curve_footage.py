"""Replays one camera's footage of a scenario once and records its labelled incidents and everything that any strategy
could send.
"""

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
from appliance.clock import Clock
from appliance.config import Rule, SiteConfig
from appliance.evidence.frame_selection import EvidenceMoment, plan_evidence, select_moments
from appliance.evidence.frame_selection import plan_evidence as evidence_plan
from appliance.evidence.image_encoder import encode_image
from appliance.lab.curve.incident_labels import CameraTruth, IncidentLabels, could_come, label_incidents, may_escalate
from appliance.lab.replay import replay_runner
from appliance.lab.replay.replay_result import ReplayResult
from appliance.lab.replay.replay_routing import FrameHistory
from appliance.lab.replay.replay_runner import ReplayOptions, ReplayPlan, ReplayProgress
from appliance.lab.scenario import expectations, ground_truth
from appliance.lab.scenario.expectations import Expectation
from appliance.lab.scenario.ground_truth import BoxesSpool, shaken_truth, true_frame_boxes
from appliance.lab.scenario.scenario_loader import ScenarioPart, ScenarioPlan, with_uplink
from appliance.lab.scenario.scenario_runner import DetectorCache
from appliance.lab.scenario.scenario_verdicts import scenario_answers
from appliance.router.escalation_planner import build_escalation
from appliance.types import Alert, Event, FrameBoxes, Route, StreamHeader, TrackedObject
from appliance.uplink.nats_messages import NatsMessage, chunk_message

FRAME_ENCODED_EVERY_S = (
    1.0  # whole frames are encoded so often; what was examined in between weighs as much as the last one
)


@dataclass(frozen=True, slots=True)
class ExaminedFrame:
    """One look. motion: the gate's share of the picture that moved; frame_bytes: what sending this one frame whole
    would put on the uplink, the question with it."""

    t: float
    motion: float
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class BestSighting:
    """One track where its score was best. moments, bytes: of the evidence that the router would send of it then; a
    look at which there is less of that (the track has just begun) counts only while there is none with more."""

    t: float
    score: float
    moments: tuple[float, ...]
    bytes: int


class BaselineRecorder:
    """Stands beside one camera of a replay (`replay.lane.Watch`); what it notes changes nothing of it.

    State: a number or two for each look, the best sighting of each track, the album's last looks. Whole frames are
    weighed as the evidence maker sends a single one (`escalation.frame_side_max`, `frame_bytes_max`), tracks with the
    evidence that a question of the site begins with, so that the baselines pay what the router would pay.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str) -> None:
        self._config = config
        self._camera = camera
        self._model = model
        self._rules = config.cameras[camera].rules
        self._album = FrameHistory(config, camera)
        first = plan_evidence(config.escalation.first, None, 0).images
        self._pictures = {"crops": config.escalation.crops, "frames": config.escalation.frames}.get(first, 1)
        self._tracks: dict[int, BestSighting] = {}
        self._weighed_t = float("-inf")
        self._frame_bytes = 0
        self.examined: list[ExaminedFrame] = []

    @property
    def best_sightings(self) -> Sequence[BestSighting]:
        """One for each track of a kind that a rule of the camera watches."""
        return list(self._tracks.values())

    def record(self, boxes: FrameBoxes, look: InferenceRequest) -> None:
        """One look of the replay."""
        if boxes.t - self._weighed_t >= FRAME_ENCODED_EVERY_S:
            self._weighed_t, self._frame_bytes = boxes.t, self._weigh(boxes.t, look.av_frame)
        # The first picture has nothing to be compared with; the gate calls all of it moved.
        self.examined.append(ExaminedFrame(boxes.t, look.priority if boxes.seq else 0.0, self._frame_bytes))
        self._album.add(boxes, look.av_frame)
        for found in boxes.objects:
            rule = next((rule for rule in self._rules if found.label in rule.labels and rule.escalate), None)
            best = self._tracks.get(found.track)
            if rule is not None and (best is None or found.score > best.score or len(best.moments) < self._pictures):
                now = self._sighted(found, boxes.t, rule)
                if best is None or (len(now.moments), now.score) > (len(best.moments), best.score):
                    self._tracks[found.track] = now

    def _weigh(self, t: float, picture: av.VideoFrame) -> int:
        image = np.asarray(picture.to_ndarray(format="bgr24"), np.uint8)
        frame = encode_image("frame", self._config.escalation, t, EvidenceMoment(t, None), image)
        ref, site, size = frame.ref, self._config.site.name, wire.CHUNK_BYTES
        chunks = (chunk_message(site, ref, n, frame.data[n * size : (n + 1) * size]).size for n in range(ref.chunks))
        question = wire.Escalation(
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
        return _message_bytes(question) + sum(chunks)

    def _sighted(self, found: TrackedObject, t: float, rule: Rule) -> BestSighting:
        """What a question about this track would carry now; the facts that no rule gave are made up, as long as any."""
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
        pictures = self._album.images(alert, event)
        question = build_escalation(alert, event, rule, site=self._config.site.name, now=t, model=self._model)
        body = question.model_copy(
            update={"media": pictures.refs, "can": pictures.can, "image_free": pictures.image_free}
        )
        moments = tuple(ref.t for ref in pictures.refs) or (t,)
        return BestSighting(t, found.score, moments, _message_bytes(body) + pictures.bytes)


def _message_bytes(question: wire.Escalation) -> int:
    """The question itself, with subject and headers."""
    subject = wire.escalation_subject(question.site, wire.PRIORITY_OF[question.severity])
    headers = {"Nats-Msg-Id": wire.escalation_message_id(question.site, question.id, question.step)}
    return NatsMessage(subject, question.to_json(), headers, "facts").size


@dataclass(frozen=True, slots=True)
class RouterEscalation:
    """What the router would ask. moments: times that its pictures show, or of the event where it has none; bytes: of
    the question, and where a judge answered, of what it asked to see beyond."""

    route: Route
    moments: tuple[float, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedFootage:
    """What came of it. bytes: of the footage as the camera sent it; apart_s: within how many seconds alerts are merged,
    and so how far apart single frames are sent; alerts: those that the site would ask about, as its labels are;
    judged_by: who answered the questions, '' for nobody (see Alert.verdict for what was said)."""

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


def has_truth(plan: ScenarioPlan) -> bool:
    """Whether the scenario says what truly happens in it, or what does not."""
    scenario = plan.scenario
    derived = scenario.truth is not None and scenario.truth.events is not None
    return bool(scenario.expect or scenario.never) or derived or scenario.others == "never"


def replay_footage(
    plan: ScenarioPlan, models: DetectorCache, clock: Clock, progress: ReplayProgress | None = None
) -> tuple[ReplayedFootage, ...]:
    """Replay every camera of a scenario with an uplink, so that the router has something to decide, in the scenario's
    own weather and with the verdicts it names. Raises SourceError when a clip cannot be read, ModelError, MissingPart,
    ConfigError (truth file), UsageError (cassette)."""
    plan = replace(plan, config=with_uplink(plan.config))
    config, eye = plan.config, models.get(plan.config.detector)
    found = []
    with ExitStack() as stack:
        answers = stack.enter_context(scenario_answers(plan))
        for part in plan.parts:
            watch = BaselineRecorder(config, part.camera, eye.name)
            spool = stack.enter_context(BoxesSpool())
            reel = replay_runner.clip_input(part.clip, config, part.camera, eye)
            show = replay_runner.with_conditions(
                ReplayPlan((reel,), config, eye, verdict_source=answers), plan.conditions
            )
            manner = ReplayOptions(
                clock, progress=progress, workers=models.detector_threads(config), observer=watch.record
            )
            (result,) = replay_runner.play(show, spool, manner)
            found.append(_footage(plan, part, result, watch, spool))
    return tuple(found)


def _footage(
    plan: ScenarioPlan, part: ScenarioPart, result: ReplayResult, watch: BaselineRecorder, spool: BoxesSpool
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
        escalations=tuple(_questions(plan, result, spool)),
        alerts=tuple(alert for alert in result.alerts if may_escalate(alert, plan.config)),
        examined=tuple(watch.examined),
        best_sightings=tuple(watch.best_sightings),
        judged_by=result.answered_by,
    )


def _questions(plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool) -> Iterator[RouterEscalation]:
    """The last question about each alert: one that is put off and then let go is the same. The moments are those that
    the evidence maker chooses for it, from the same looks."""
    settings = plan.config.escalation
    asked = {route.alert: route for route in result.routes if route.ask}
    waiting = sorted(asked.values(), key=lambda route: route.t)
    events = {event.id: event for event in result.events}
    beyond: dict[str, int] = defaultdict(int)
    for verdict in result.verdicts:
        beyond[verdict.alert] += verdict.more_bytes
    recent: deque[FrameBoxes] = deque()
    for look in spool.frame_boxes():
        recent.append(look)
        while recent[0].t < look.t - settings.span_s:
            recent.popleft()
        while waiting and waiting[0].t <= look.t:
            route = waiting.pop(0)
            cut = evidence_plan(route.evidence, None, 0).images
            moments = select_moments(cut, settings, events[route.event], recent, None)
            shown = tuple(each.t for each in moments) or (route.t,)
            yield RouterEscalation(route, shown, route.bytes + beyond[route.alert])
    yield from (RouterEscalation(route, (route.t,), route.bytes + beyond[route.alert]) for route in waiting)


def _truth(plan: ScenarioPlan, part: ScenarioPart, result: ReplayResult, spool: BoxesSpool) -> CameraTruth:
    settings = plan.scenario.truth
    looks: Sequence[FrameBoxes] = [replace(look, looked=True, objects=()) for look in spool.frame_boxes()]
    derived = False
    if settings is not None and plan.truth is not None and settings.camera in (None, part.camera):
        frames = shaken_truth(
            ground_truth.read_truth(plan.truth, settings, result.size),
            spool.frame_boxes(),
            plan.conditions,
            result.size,
        )
        looks = list(true_frame_boxes(spool, frames))
        derived = settings.events is not None
    header = StreamHeader(camera=part.camera, clip="", model="truth", size=result.size, run="truth")
    return CameraTruth(header=header, frames=looks, expectations=list(_wanted(plan, part)), derived=derived)


def _wanted(plan: ScenarioPlan, part: ScenarioPart) -> Iterator[Expectation]:
    """The entries that can only be of this camera."""
    for each in expectations.expectations_of(plan):
        able = [name.camera for name in plan.parts if could_come(name.camera, plan.config.cameras[name.camera], each)]
        if able == [part.camera]:
            yield each
