"""What the router would send to the cloud about a replayed camera: decisions, evidence images cut from recent frames,
and bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

import av
import numpy as np

from appliance import wire
from appliance.clock import footage_period
from appliance.config import SiteConfig
from appliance.evidence.frame_selection import (
    FACTS_ONLY,
    EvidenceMoment,
    EvidencePlan,
    ImageSet,
    plan_evidence,
    select_moments,
)
from appliance.evidence.image_encoder import EncodedImage, encode_image
from appliance.evidence.redaction import Redactor, people_in_frame
from appliance.lab.cassette.verdict_source import ReplayEscalation
from appliance.privacy import PrivacyRules
from appliance.router.escalation_planner import EscalationPlanner, RoutePlan, RouterContext
from appliance.rules.schedule import LocalTime, off_peak_in_s
from appliance.types import Alert, AlertChange, Event, EvidenceStep, FrameBoxes, PipelineStep, Route, StreamHeader
from appliance.uplink.nats_messages import NatsMessage, chunk_message

FRAMES_HELD_MAX = 64  # decoded pictures in memory; more looks than that inside span_s leave some pictures guessed
BOXES_HELD_MAX = 2048  # span_s is at most 30, detect.fps at most 60


@dataclass(frozen=True, slots=True)
class _HeldFrame:
    t: float
    picture: av.VideoFrame


@dataclass(frozen=True, slots=True)
class EscalationImages:
    """refs: what the message would bring. bytes: their chunks with subjects and headers. guessed: how many of the
    `count` could not be cut and count with the mean size of the others (a clip: with nothing, see `Album`). can,
    image_free: what the message says of itself. shown: the pictures themselves, to be looked at. clip: whether one goes
    along."""

    refs: tuple[wire.MediaRef, ...]
    bytes: int
    count: int
    guessed: int
    can: tuple[wire.Need, ...] = ()
    image_free: bool = False
    shown: tuple[EncodedImage, ...] = ()
    clip: bool = False


class FrameHistory:
    """The last looks of one camera within `span_s`, with their pictures.

    Pictures are cut from the very frames that live evidence would choose (`moments_of`) and encoded by the same
    function, so their bytes are measured, provided that the footage is what the recording would hold. What cannot be
    had: a best view that comes after the question, a moment no longer in memory (it counts with the mean of the
    others, `guessed`), and a clip, which is cut from packets (`guessed`, with no bytes).
    """

    def __init__(self, config: SiteConfig, camera: str) -> None:
        self._site = config.site.name
        self._settings = config.escalation
        self._image_free = config.image_free(camera)
        self._veil = Redactor(config.cameras[camera])
        self._seen: deque[FrameBoxes] = deque(maxlen=BOXES_HELD_MAX)
        self._shown: deque[_HeldFrame] = deque(maxlen=FRAMES_HELD_MAX)

    def clear(self) -> None:
        """A run begins: tracks of before are others."""
        self._seen.clear()
        self._shown.clear()

    def add(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame."""
        self._seen.append(boxes)
        self._shown.append(_HeldFrame(boxes.t, picture))
        while boxes.t - self._seen[0].t > self._settings.span_s:
            self._seen.popleft()
        while boxes.t - self._shown[0].t > self._settings.span_s:
            self._shown.popleft()

    def images(
        self,
        alert: Alert,
        event: Event,
        first: EvidenceStep | None = None,
        *,
        need: wire.Need | None = None,
        step: int = 0,
    ) -> EscalationImages:
        """The pictures of message number `step` of a question about `event`, asked now.

        first: with which evidence the question begins (None: as the site file says); need: of a later message, what
        the cloud needs to see in it. At least one look must have been shown.
        """
        clips = not self._veil.digest
        chosen = (
            FACTS_ONLY if self._image_free else plan_evidence(first or self._settings.first, need, step, clips=clips)
        )
        made, wanted, guessed = self._made(alert, event, chosen.images)
        sizes = [sum(message.size for message in self._chunks(each)) for each in made]
        size = round(wanted * sum(sizes) / len(sizes)) if guessed else sum(sizes)
        count = (wanted if guessed else len(made)) + chosen.clip
        return self._pictures(made, chosen, size, count, guessed + chosen.clip)

    def _pictures(
        self, made: list[EncodedImage], chosen: EvidencePlan, size: int, count: int, guessed: int
    ) -> EscalationImages:
        refs = tuple(each.ref for each in made)
        return EscalationImages(refs, size, count, guessed, chosen.can, self._image_free, tuple(made), chosen.clip)

    def _made(self, alert: Alert, event: Event, cut: ImageSet) -> tuple[list[EncodedImage], int, int]:
        """The pictures that can be cut, each once; how many are wanted; how many of those are no longer in memory."""
        moments = select_moments(cut, self._settings, event, self._seen, alert.best)
        if not moments:
            return [], 0, 0
        kept = {shown.t: shown.picture for shown in self._shown}
        there = [moment for moment in moments if moment.t in kept]
        guessed = len(moments) - len(there)
        if not there:  # the newest picture stands in, so that the guess has a size
            there, kept = [moments[-1]], {moments[-1].t: self._shown[-1].picture}
        made = [self._cut(cut, each, alert, kept[each.t]) for each in there]
        return list({each.ref.id: each for each in made}.values()), len(moments), guessed

    def _cut(self, cut: ImageSet, moment: EvidenceMoment, alert: Alert, picture: av.VideoFrame) -> EncodedImage:
        image = np.asarray(picture.to_ndarray(format="bgr24"), np.uint8)
        image = self._veil.redact(image, people_in_frame(moment.t, self._seen, alert.tracks, moment.box))
        return encode_image(cut, self._settings, moment.t, moment, image)

    def _chunks(self, picture: EncodedImage) -> list[NatsMessage]:
        parts = range(picture.ref.chunks)
        size = wire.CHUNK_BYTES
        return [chunk_message(self._site, picture.ref, n, picture.data[n * size : (n + 1) * size]) for n in parts]


class ImageSource(Protocol):
    """Where pictures come from; see appliance.lab.replay.replay_routing."""

    def images(self, alert: Alert, event: Event, *, need: wire.Need | None = None, step: int = 0) -> EscalationImages:
        """Those of a later message, of an object that the judge needs to see more of."""
        ...


def replay_escalation(
    album: ImageSource, alert: Alert, event: Event, body: wire.Escalation, pictures: EscalationImages, priority: str
) -> ReplayEscalation:
    """`body` (what the router asks, or the message before) with the pictures of this message.

    Of what a later message brings the pictures are cut when it is asked for, so `album` must still be where it was.
    """
    media = {ref.id: ref for ref in (*body.media, *pictures.refs)}
    whole = body.model_copy(
        update={"media": tuple(media.values()), "can": pictures.can, "image_free": pictures.image_free}
    )

    def more(need: wire.Need) -> ReplayEscalation | None:
        step = whole.step + 1
        if need not in pictures.can:
            return None
        later = album.images(alert, event, need=need, step=step)
        if not later.shown and need != "clip":
            return None
        return replay_escalation(album, alert, event, whole.model_copy(update={"step": step}), later, priority)

    facts = escalation_message(whole, priority)
    return ReplayEscalation(whole, priority, pictures.shown, pictures.clip, facts.size + pictures.bytes, more)


def escalation_message(body: wire.Escalation, priority: str) -> NatsMessage:
    """As the uplink publishes it."""
    headers = {"Nats-Msg-Id": wire.escalation_message_id(body.site, body.id, body.step)}
    return NatsMessage(wire.escalation_subject(body.site, priority), body.to_json(), headers, "facts")


def router_context_of(config: SiteConfig, wall: LocalTime | None = None) -> RouterContext:
    """What the router knows beyond one camera, in a replay: the site file's budgets, off-peak hours where the footage
    has a time of day, nothing of link and box, and nothing learnt."""
    privacy = PrivacyRules(config, wall)
    return RouterContext.of(config, footage_period, off_peak_in_s(config.escalation.off_peak, wall), privacy.level)


class ReplayRouting:
    """The decisions of one camera by the planner that the core uses, with the bytes of what it would ask.

    State: the planner's, the last looks with their pictures, the questions of the last `decide`. Nothing is held for a
    site that never asks.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str, outlook: RouterContext | None = None) -> None:
        """outlook: what the cameras of one replay share."""
        self._asks = config.uplink is not None and config.escalation.enabled
        self._camera = camera
        self._model = model
        self._planner = EscalationPlanner(config, camera, outlook or router_context_of(config))
        self._album = FrameHistory(config, camera)
        self._t = 0.0
        self._questions: tuple[ReplayEscalation, ...] = ()
        self.begin()

    def begin(self, header: StreamHeader | None = None) -> None:
        """A run begins: tracks of before are others."""
        self._album.clear()
        self._planner.begin(header or StreamHeader(camera=self._camera, clip="", model=self._model, size=(0, 0)))

    def add(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame, before what it decides is handed to `decide`."""
        self._t = boxes.t
        self._planner.observe(boxes)
        if self._asks:
            self._album.add(boxes, picture)

    def decide(self, step: PipelineStep) -> tuple[Route, ...]:
        """One route for each alert that was opened, and another when a later event changes the router's mind."""
        routes, questions = [], []
        for change in step.changes:
            now = self._t if change.event is None else change.event.t
            plan = self._planner.plan(change, now)
            if plan is None:
                continue
            route, question = self._measured(plan, change)
            routes.append(route)
            questions += [question] if question else []
        self._questions = tuple(questions)
        return tuple(routes)

    def escalations(self) -> tuple[ReplayEscalation, ...]:
        """Those of the last `decide`, as they would be sent; the pictures of later messages can be cut until the next
        look."""
        return self._questions

    def _measured(self, plan: RoutePlan, change: AlertChange) -> tuple[Route, ReplayEscalation | None]:
        """The route with the bytes of its question in place of those expected; none for one that was put off before."""
        route = plan.route
        if plan.escalation is None:
            return route, None
        if plan.again:
            return replace(route, bytes=0, message_bytes=0, picture_bytes=0), None
        pictures = self._album.images(change.alert, plan.event, route.evidence)
        question = replay_escalation(self._album, change.alert, plan.event, plan.escalation, pictures, route.priority)
        measured = replace(
            route,
            bytes=question.bytes,
            message_bytes=question.bytes - pictures.bytes,
            picture_bytes=pictures.bytes,
            pictures=pictures.count,
            pictures_guessed=pictures.guessed,
        )
        return measured, question
