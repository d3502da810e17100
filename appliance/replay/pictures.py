"""The pictures of a question in a replay: cut from the frames that live evidence would choose, and their bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import av
import numpy as np

from appliance import wire
from appliance.alerts.evidence_moments import Moment
from appliance.alerts.evidence_picture import Picture, picture_of
from appliance.alerts.evidence_plan import FACTS_ALONE, Cut, Plan, moments_of, plan
from appliance.alerts.evidence_veil import Veil, company
from appliance.config import SiteConfig
from appliance.escalate.media import Message, chunk_message
from appliance.types import Alert, Event, EvidenceStep, FrameBoxes

FRAMES_HELD_MAX = 64  # decoded pictures in memory; more looks than that inside span_s leave some pictures guessed
LOOKS_HELD_MAX = 2048  # span_s is at most 30, detect.fps at most 60


@dataclass(frozen=True, slots=True)
class _Shown:
    t: float
    picture: av.VideoFrame


@dataclass(frozen=True, slots=True)
class Pictures:
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
    shown: tuple[Picture, ...] = ()
    clip: bool = False


class Album:
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
        self._veil = Veil(config.cameras[camera])
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

    def pictures(
        self,
        alert: Alert,
        event: Event,
        first: EvidenceStep | None = None,
        *,
        need: wire.Need | None = None,
        step: int = 0,
    ) -> Pictures:
        """The pictures of message number `step` of a question about `event`, asked now.

        first: with which evidence the question begins (None: as the site file says); need: of a later message, what
        the cloud needs to see in it. At least one look must have been shown.
        """
        clips = not self._veil.mark
        chosen = FACTS_ALONE if self._image_free else plan(first or self._settings.first, need, step, clips=clips)
        made, wanted, guessed = self._made(alert, event, chosen.cut)
        sizes = [sum(message.size for message in self._chunks(each)) for each in made]
        size = round(wanted * sum(sizes) / len(sizes)) if guessed else sum(sizes)
        count = (wanted if guessed else len(made)) + chosen.clip
        return self._pictures(made, chosen, size, count, guessed + chosen.clip)

    def _pictures(self, made: list[Picture], chosen: Plan, size: int, count: int, guessed: int) -> Pictures:
        refs = tuple(each.ref for each in made)
        return Pictures(refs, size, count, guessed, chosen.can, self._image_free, tuple(made), chosen.clip)

    def _made(self, alert: Alert, event: Event, cut: Cut) -> tuple[list[Picture], int, int]:
        """The pictures that can be cut, each once; how many are wanted; how many of those are no longer in memory."""
        moments = moments_of(cut, self._settings, event, self._seen, alert.best)
        if not moments:
            return [], 0, 0
        kept = {shown.t: shown.picture for shown in self._shown}
        there = [moment for moment in moments if moment.t in kept]
        guessed = len(moments) - len(there)
        if not there:  # the newest picture stands in, so that the guess has a size
            there, kept = [moments[-1]], {moments[-1].t: self._shown[-1].picture}
        made = [self._cut(cut, each, alert, kept[each.t]) for each in there]
        return list({each.ref.id: each for each in made}.values()), len(moments), guessed

    def _cut(self, cut: Cut, moment: Moment, alert: Alert, picture: av.VideoFrame) -> Picture:
        image = np.asarray(picture.to_ndarray(format="bgr24"), np.uint8)
        image = self._veil.over(image, company(moment.t, self._seen, alert.tracks, moment.box))
        return picture_of(cut, self._settings, moment.t, moment, image)

    def _chunks(self, picture: Picture) -> list[Message]:
        parts = range(picture.ref.chunks)
        size = wire.CHUNK_BYTES
        return [chunk_message(self._site, picture.ref, n, picture.data[n * size : (n + 1) * size]) for n in parts]
