"""The pictures of a question in a replay: cut from the frames that live evidence would choose, and their bytes."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

import av
import numpy as np

from appliance import wire
from appliance.alerts.evidence_frames import Moment, choose_moments
from appliance.alerts.evidence_still import jpeg
from appliance.config import Escalation
from appliance.escalate.media import Message, chunk_message
from appliance.types import Alert, Event, FrameBoxes

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


@dataclass(frozen=True, slots=True)
class Pictures:
    """refs: what the question would carry. bytes: their chunks with subjects and headers. guessed: how many of the
    `count` could not be cut and count with the mean size of the others."""

    refs: tuple[wire.MediaRef, ...]
    bytes: int
    count: int
    guessed: int


class Album:
    """The last looks of one camera within `span_s`, with their pictures.

    Pictures are cut from the very frames that live evidence would choose (`choose_moments`) and encoded the same way,
    so their bytes are measured, provided that the footage is what the recording would hold. What cannot be had: a best
    view that comes after the question, and a moment no longer in memory; the latter counts with the mean of the
    others (`guessed`).
    """

    def __init__(self, site: str, settings: Escalation) -> None:
        self._site = site
        self._settings = settings
        self._seen: deque[FrameBoxes] = deque(maxlen=LOOKS_HELD_MAX)
        self._shown: deque[_Shown] = deque(maxlen=FRAMES_HELD_MAX)

    def clear(self) -> None:
        """A run begins: tracks of before are others."""
        self._seen.clear()
        self._shown.clear()

    def look(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame."""
        self._seen.append(boxes)
        self._shown.append(_Shown(boxes.t, picture))
        while boxes.t - self._seen[0].t > self._settings.span_s:
            self._seen.popleft()
        while boxes.t - self._shown[0].t > self._settings.span_s:
            self._shown.popleft()

    def pictures(self, alert: Alert, event: Event) -> Pictures:
        """The pictures of a question about `event`, asked now. At least one look must have been shown."""
        made, wanted, guessed = self._made(alert, event)
        sizes = [sum(message.size for message in self._chunks(each)) for each in made]
        size = round(wanted * sum(sizes) / len(sizes)) if guessed else sum(sizes)
        return Pictures(tuple(each.ref for each in made), size, wanted if guessed else len(made), guessed)

    def _made(self, alert: Alert, event: Event) -> tuple[list[_Picture], int, int]:
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
