"""What the core would ask the cloud about a replayed camera, and the bytes it would send for that."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

import av
import numpy as np

from appliance import wire
from appliance.alerts.evidence_frames import Moment, choose_moments
from appliance.alerts.evidence_still import jpeg
from appliance.config import SiteConfig
from appliance.escalate import router
from appliance.escalate.media import Message, chunk_message
from appliance.types import Alert, AlertChange, Event, FrameBoxes, Route, Step

FRAMES_HELD_MAX = 64  # decoded pictures in memory; more looks than that inside span_s leave some pictures guessed
LOOKS_HELD_MAX = 2048  # span_s is at most 30, detect.fps at most 60


@dataclass(frozen=True, slots=True)
class _Shown:
    t: float
    picture: av.VideoFrame


@dataclass(frozen=True, slots=True)
class _Picture:
    """A JPEG as the evidence maker would write it."""

    ref: wire.MediaRef
    data: bytes


class Routing:
    """The router's decisions of one camera, as the core takes them: an alert is asked about once, at the first of its
    events that the router wants to ask about.

    Pictures are cut from the very frames that live evidence would choose (`choose_moments`) and encoded the same way,
    so their bytes are measured, provided that the footage is what the recording would hold. What cannot be had: a best
    view that comes after the question, and a moment no longer in memory; the latter counts with the mean of the
    others (`pictures_guessed`).

    State: the last looks within `span_s` with their pictures; which open alerts were asked about, or why not. Nothing
    is held for a site that never asks.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str) -> None:
        self._site = config.site.name
        self._settings = config.escalation
        self._uplink = config.uplink is not None
        self._rules = {rule.name: rule for rule in config.cameras[camera].rules}
        self._model = model
        self._seen: deque[FrameBoxes] = deque(maxlen=LOOKS_HELD_MAX)
        self._shown: deque[_Shown] = deque(maxlen=FRAMES_HELD_MAX)
        self._told: dict[str, router.Decision] = {}

    def begin(self) -> None:
        """A run begins: tracks of before are others."""
        self._seen.clear()
        self._shown.clear()

    def look(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame, before what it decides is handed to `decide`."""
        if not self._uplink or not self._settings.enabled:
            return
        self._seen.append(boxes)
        self._shown.append(_Shown(boxes.t, picture))
        while boxes.t - self._seen[0].t > self._settings.span_s:
            self._seen.popleft()
        while boxes.t - self._shown[0].t > self._settings.span_s:
            self._shown.popleft()

    def decide(self, step: Step) -> tuple[Route, ...]:
        """One route for each alert that was opened, and another when a later event changes the router's mind."""
        routes = []
        for change in step.changes:
            route = self._decide(change)
            if route is not None:
                routes.append(route)
            if change.kind == "ended":
                self._told.pop(change.alert.id, None)
        return tuple(routes)

    def _decide(self, change: AlertChange) -> Route | None:
        alert, event = change.alert, change.event
        told = self._told.get(alert.id)
        if event is None or (told is not None and told.ask):
            return None
        decision = router.decide(alert, self._rules[event.rule], self._settings, uplink=self._uplink)
        if decision == told:
            return None
        self._told[alert.id] = decision
        route = Route(
            camera=alert.camera, alert=alert.id, event=event.id, t=event.t, ask=decision.ask, reason=decision.reason
        )
        return self._asked(route, alert, event, decision.priority) if decision.ask else route

    def _asked(self, route: Route, alert: Alert, event: Event, priority: str) -> Route:
        question = router.build(alert, event, self._rules[event.rule], site=self._site, now=event.t, model=self._model)
        pictures, wanted, guessed = self._pictures(alert, event)
        sizes = [sum(message.size for message in self._chunks(each)) for each in pictures]
        picture_bytes = round(wanted * sum(sizes) / len(sizes)) if guessed else sum(sizes)
        body = question.model_copy(update={"media": tuple(each.ref for each in pictures)}).to_json()
        subject = wire.escalation_subject(self._site, priority)
        facts = Message(subject, body, {"Nats-Msg-Id": wire.message_id(self._site, question.id)}, "facts")
        return Route(
            camera=route.camera,
            alert=route.alert,
            event=route.event,
            t=route.t,
            ask=True,
            priority=priority,
            reason=route.reason,
            question=question.question,
            bytes=facts.size + picture_bytes,
            message_bytes=facts.size,
            picture_bytes=picture_bytes,
            pictures=wanted if guessed else len(pictures),
            pictures_guessed=guessed,
        )

    def _pictures(self, alert: Alert, event: Event) -> tuple[list[_Picture], int, int]:
        """The pictures that can be cut, each once; how many are wanted; how many of those are no longer in memory."""
        moments = choose_moments(event, self._seen, alert.best, self._settings.frames)
        kept = {shown.t: shown.picture for shown in self._shown}
        there = [moment for moment in moments if moment.t in kept]
        guessed = len(moments) - len(there)
        if not there:  # the newest picture stands in, so that the guess has a size
            there, kept = [moments[-1]], {moments[-1].t: self._shown[-1].picture}
        made = [_encode(kept[each.t], each, self._settings.frame_side_max) for each in there]
        return list({each.ref.id: each for each in made}.values()), len(moments), guessed

    def _chunks(self, picture: _Picture) -> list[Message]:
        parts = range(picture.ref.chunks)
        size = wire.CHUNK_BYTES
        return [chunk_message(self._site, picture.ref, n, picture.data[n * size : (n + 1) * size]) for n in parts]


def _encode(picture: av.VideoFrame, moment: Moment, side_max: int) -> _Picture:
    data = jpeg(np.asarray(picture.to_ndarray(format="bgr24"), np.uint8), side_max=side_max)
    sha256 = hashlib.sha256(data).hexdigest()
    scale = min(1.0, side_max / max(picture.width, picture.height))
    ref = wire.MediaRef(
        id=sha256[:32],
        kind="frame",
        mime="image/jpeg",
        bytes=len(data),
        sha256=sha256,
        chunks=-(-len(data) // wire.CHUNK_BYTES),
        t=moment.t,
        width=max(1, round(picture.width * scale)),
        height=max(1, round(picture.height * scale)),
        box=moment.box,
    )
    return _Picture(ref, data)
