"""The router's part in a replay: decisions, evidence images cut from recent frames, and bytes on the uplink."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import av

from appliance import wire
from appliance.base.clock import footage_period
from appliance.config import DecisionConfig
from appliance.evidence.evidence_selection import (
    FACTS_ONLY,
    EncodedImage,
    EvidenceMoment,
    ImageSet,
    encoded_image,
    order_image,
    plan_evidence,
    select_moments,
)
from appliance.evidence.privacy import PrivacyRules, Redactor, people_in_frame
from appliance.media.frames import upright_bgr
from appliance.media.stills import make_image
from appliance.replay.verdict_source import ReplayEscalation
from appliance.router.escalation_planner import EscalationPlanner, RoutePlan, RouterContext
from appliance.rules.weekly_hours import LocalTime, off_peak_in_s
from appliance.types import Alert, AlertChange, Event, EvidenceStep, FrameBoxes, PipelineStep, Route, StreamHeader
from appliance.uplink.jetstream_publisher import NatsMessage, chunk_message

FRAMES_HELD_MAX = 64  # decoded frames in memory; with more inside span_s some images are guessed
BOXES_HELD_MAX = 2048  # span_s is at most 30, detect.fps at most 60


@dataclass(frozen=True, slots=True)
class _HeldFrame:
    t: float
    av_frame: av.VideoFrame


@dataclass(frozen=True, slots=True)
class EscalationImages:
    """The images of one message of an escalation."""

    refs: tuple[wire.MediaRef, ...]
    bytes: int  # their chunks with subjects and headers
    count: int
    guessed: int  # could not be cut, and count with the mean size of the others (a clip: with nothing)
    can: tuple[wire.Need, ...] = ()  # what a later message could bring
    image_free: bool = False
    shown: tuple[EncodedImage, ...] = ()  # the images themselves
    clip: bool = False  # a clip goes along


class FrameHistory:
    """The last examined frames of one camera within `span_s`, with their boxes.

    Images are cut from the very frames that live evidence would choose (`select_moments`) and encoded by the same
    function, so their bytes are measured, provided that the footage is what the recording would hold. It cannot have a
    best view that comes after the escalation, a moment no longer in memory (it counts with the mean of the others,
    `guessed`), and a clip, which is cut from packets (`guessed`, with no bytes).
    """

    def __init__(self, config: DecisionConfig, camera: str) -> None:
        self._site = config.site.name
        self._settings = config.escalation
        self._image_free = config.image_free(camera)
        self._redactor = Redactor(config.cameras[camera])
        self._boxes: deque[FrameBoxes] = deque(maxlen=BOXES_HELD_MAX)
        self._frames: deque[_HeldFrame] = deque(maxlen=FRAMES_HELD_MAX)

    def clear(self) -> None:
        """Begin a session: earlier tracks are others."""
        self._boxes.clear()
        self._frames.clear()

    def add(self, boxes: FrameBoxes, av_frame: av.VideoFrame) -> None:
        """Remember an examined frame."""
        self._boxes.append(boxes)
        self._frames.append(_HeldFrame(boxes.t, av_frame))
        while boxes.t - self._boxes[0].t > self._settings.span_s:
            self._boxes.popleft()
        while boxes.t - self._frames[0].t > self._settings.span_s:
            self._frames.popleft()

    def images(
        self,
        alert: Alert,
        event: Event,
        first: EvidenceStep | None = None,
        *,
        need: wire.Need | None = None,
        step: int = 0,
    ) -> EscalationImages:
        """Return the images of message number `step` of an escalation of `event`, sent now.

        first: the evidence that it begins with (None: as the site file says); need: of a later message, what the cloud
        needs to see in it. At least one frame must have been added.
        """
        clips = not self._redactor.digest
        chosen = (
            FACTS_ONLY if self._image_free else plan_evidence(first or self._settings.first, need, step, clips=clips)
        )
        made, wanted, guessed = self._cut_all(alert, event, chosen.images)
        sizes = [image_bytes(self._site, each) for each in made]
        size = round(wanted * sum(sizes) / len(sizes)) if guessed else sum(sizes)
        count = (wanted if guessed else len(made)) + chosen.clip
        refs, guessed = tuple(each.ref for each in made), guessed + chosen.clip
        return EscalationImages(refs, size, count, guessed, chosen.can, self._image_free, tuple(made), chosen.clip)

    def _cut_all(self, alert: Alert, event: Event, cut: ImageSet) -> tuple[list[EncodedImage], int, int]:
        """Return the images that can be cut, each once; how many are wanted; how many are no longer in memory."""
        moments = select_moments(cut, self._settings, event, self._boxes, alert.best)
        if not moments:
            return [], 0, 0
        kept = {held.t: held.av_frame for held in self._frames}
        present = [moment for moment in moments if moment.t in kept]
        guessed = len(moments) - len(present)
        if not present:  # the newest frame stands in, so that the guess has a size
            present, kept = [moments[-1]], {moments[-1].t: self._frames[-1].av_frame}
        made = [self._cut(cut, each, alert, kept[each.t]) for each in present]
        return list({each.ref.id: each for each in made}.values()), len(moments), guessed

    def _cut(self, cut: ImageSet, moment: EvidenceMoment, alert: Alert, av_frame: av.VideoFrame) -> EncodedImage:
        image = upright_bgr(av_frame)
        hidden = self._redactor.redaction(people_in_frame(moment.t, self._boxes, alert.tracks, moment.box))
        order = order_image(cut, self._settings, moment, hidden)
        return encoded_image(order, moment.t, moment, make_image(image, order))


def image_bytes(site: str, image: EncodedImage) -> int:
    """Return the bytes of an image's chunks on the uplink of a site, with their subjects and headers."""
    size, parts = wire.CHUNK_BYTES, range(image.ref.chunks)
    return sum(chunk_message(site, image.ref, n, image.data[n * size : (n + 1) * size]).size for n in parts)


def replay_escalation(
    frames: FrameHistory, alert: Alert, event: Event, body: wire.Escalation, images: EscalationImages, priority: str
) -> ReplayEscalation:
    """Return `body` (the router's escalation, or the message before) with the images of this message.

    The images of a later message are cut when the judge needs it, so `frames` must not have moved on by then.
    """
    media = {ref.id: ref for ref in (*body.media, *images.refs)}
    whole = body.model_copy(update={"media": tuple(media.values()), "can": images.can, "image_free": images.image_free})

    def more(need: wire.Need) -> ReplayEscalation | None:
        step = whole.step + 1
        if need not in images.can:
            return None
        later = frames.images(alert, event, need=need, step=step)
        if not later.shown and need != "clip":
            return None
        return replay_escalation(frames, alert, event, whole.model_copy(update={"step": step}), later, priority)

    facts = escalation_message(whole, priority)
    return ReplayEscalation(whole, priority, images.shown, images.clip, facts.size + images.bytes, more)


def escalation_message(body: wire.Escalation, priority: str) -> NatsMessage:
    """Return the message that the uplink would publish."""
    subject, headers = wire.escalation_subject(body.site, priority), wire.escalation_headers(body)
    return NatsMessage(subject, body.to_json(), headers, "facts")


def router_context_of(config: DecisionConfig, wall: LocalTime | None = None) -> RouterContext:
    """Return the router's knowledge beyond one camera, in a replay.

    It holds the site file's budgets, off-peak hours where the footage has a time of day, nothing of link and system
    load, nothing calibrated.
    """
    privacy = PrivacyRules(config.site, config.cameras, wall)
    escalation = config.escalation
    return RouterContext.of(
        config.site.name, escalation, footage_period, privacy.level,
        uplink=config.has_judge, off_peak_in_s=off_peak_in_s(escalation.off_peak, wall),
    )  # fmt: skip


class ReplayRouting:
    """The router's decisions about one camera, by the planner that the core uses, with the bytes it would send.

    State: the planner's, the last examined frames, the escalations of the last `decide`. No frame is held for a site
    that never escalates.
    """

    def __init__(self, config: DecisionConfig, camera: str, model: str, context: RouterContext) -> None:
        """context: what the cameras of one replay share."""
        self._escalates = config.has_judge and config.escalation.enabled
        self._camera = camera
        self._model = model
        self._planner = EscalationPlanner(camera, config.cameras[camera].rules, context)
        self._frame_history = FrameHistory(config, camera)
        self._t = 0.0
        self.escalations: tuple[ReplayEscalation, ...] = ()
        """Those of the last `decide`, as sent; images of later messages can be cut until the next `add`."""
        self.begin()

    def begin(self, header: StreamHeader | None = None) -> None:
        """Begin a session: earlier tracks are others."""
        self._frame_history.clear()
        self._planner.begin(header or StreamHeader(camera=self._camera, clip="", model=self._model, size=(0, 0)))

    def add(self, boxes: FrameBoxes, av_frame: av.VideoFrame) -> None:
        """Remember an examined frame, before `decide` gets what follows from it."""
        self._t = boxes.t
        self._planner.observe(boxes)
        if self._escalates:
            self._frame_history.add(boxes, av_frame)

    def decide(self, step: PipelineStep) -> tuple[Route, ...]:
        """Return one route for each alert that was opened, and another when a later event changes its decision."""
        routes, escalations = [], []
        for change in step.changes:
            now = self._t if change.event is None else change.event.t
            plan = self._planner.plan(change, now)
            if plan is None:
                continue
            route, escalation = self._measured(plan, change)
            routes.append(route)
            escalations += [escalation] if escalation else []
        self.escalations = tuple(escalations)
        return tuple(routes)

    def _measured(self, plan: RoutePlan, change: AlertChange) -> tuple[Route, ReplayEscalation | None]:
        """Return the route with the bytes of its escalation in place of those expected.

        There is none if it was postponed before.
        """
        route = plan.route
        if plan.escalation is None:
            return route, None
        if plan.released:
            return replace(route, cost=replace(route.cost, bytes=0, message_bytes=0, picture_bytes=0)), None
        images = self._frame_history.images(change.alert, plan.event, route.evidence)
        escalation = replay_escalation(
            self._frame_history, change.alert, plan.event, plan.escalation, images, route.priority
        )
        cost = replace(
            route.cost,
            bytes=escalation.bytes,
            message_bytes=escalation.bytes - images.bytes,
            picture_bytes=images.bytes,
            pictures=images.count,
            pictures_guessed=images.guessed,
        )
        return replace(route, cost=cost), escalation
