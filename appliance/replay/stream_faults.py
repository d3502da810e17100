"""Losses by encoder and network: resolution, JPEG quality, black images; frames dropped, delayed, frozen or missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from zlib import crc32

import av
import cv2
import numpy as np

from appliance.analysis.decode_policy import DecodePolicy
from appliance.base.errors import SourceError
from appliance.media.decoder import DecodedFrame
from appliance.media.hardware_codec import HardwareSource
from appliance.replay.footage import FrameSource, SourceCounts, SourceItem
from appliance.replay.footage_conditions import ConditionSet, FootageCondition
from appliance.replay.image_effects import EffectStage, EffectTime, Plane, Planes
from appliance.types import Gap


class Scale:
    """A frame of `factor` times the sides. Boxes are shares of the frame, so the truth stays as it is."""

    stage = EffectStage.SENSOR

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        width, height = (max(32, round(side * self._factor) // 2 * 2) for side in planes.size)
        y = cv2.resize(planes.y, (width, height), interpolation=cv2.INTER_AREA)
        u, v = (cv2.resize(p, (width // 2, height // 2), interpolation=cv2.INTER_AREA) for p in (planes.u, planes.v))
        return Planes(
            np.asarray(y, np.uint8), np.asarray(u, np.uint8), np.asarray(v, np.uint8), planes.black, planes.white
        )


class Compression:
    """Compressed and opened again, as JPEG: blocks, ringing, lost colour, without the memory that a film codec has."""

    stage = EffectStage.CODER

    def __init__(self, quality: float) -> None:
        self._options = [cv2.IMWRITE_JPEG_QUALITY, round(quality)]

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        # Each plane on its own is what a JPEG does inside, and spares two conversions of colour.
        y, u, v = (self._squeezed(plane) for plane in (planes.y, planes.u, planes.v))
        return Planes(planes.y, u, v, planes.black, planes.white).with_y(y)

    def _squeezed(self, plane: Plane) -> Plane:
        _, data = cv2.imencode(".jpg", plane, self._options)
        opened = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
        assert opened is not None, "OpenCV opens what it wrote"
        return np.asarray(opened, np.uint8)


class BlackImage:
    """Nothing but black."""

    stage = EffectStage.CODER

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        grey = np.full_like(planes.u, 128)
        return Planes(np.full_like(planes.y, planes.black), grey, grey, planes.black, planes.white)


_STEP_S_MIN = 0.001  # time stamps rise, whatever is wrong with them
_STALL_RATE = 0.1  # a late link stands still every ten seconds on average


class _LinkFaults:
    """Decides which frames a bad link loses, and how late the others arrive.

    State: when the link stands still. It depends on the seed, a frame's number and its time alone.
    """

    def __init__(self, conditions: Sequence[FootageCondition], seed: int) -> None:
        self._conditions = conditions
        self._seed = seed
        self._stall_ends_t = 0.0
        self._stall_second = -1

    def loses(self, frame: DecodedFrame) -> bool:
        """Return True if the link loses this frame."""
        drop = self.at("drop", frame.t)
        return drop is not None and self._random("drop", frame.index) < drop.amount / 100

    def delay_s(self, frame: DecodedFrame) -> float:
        """Return by how much the frame's time stamp is wrong."""
        jitter, late = self.at("jitter", frame.t), self.at("late", frame.t)
        delay_s = 0.0
        if jitter is not None:
            delay_s += (2 * self._random("jitter", frame.index) - 1) * jitter.amount / 1000
        if late is not None:
            delay_s += self._behind_s(frame, late.amount / 1000)
        return delay_s

    def _behind_s(self, frame: DecodedFrame, stall_s: float) -> float:
        """Return how late a frame is: those that waited for the link arrive at its end, one after the other."""
        second = int(frame.t)
        if (
            second != self._stall_second
            and frame.t >= self._stall_ends_t
            and self._random("late", second) < _STALL_RATE
        ):
            self._stall_ends_t = frame.t + stall_s
        self._stall_second = second
        return max(0.0, self._stall_ends_t - frame.t)

    def at(self, name: str, t: float) -> FootageCondition | None:
        """Return the condition of this name that holds at a time; None if there is none."""
        return next((each for each in self._conditions if each.kind.name == name and each.at(t)), None)

    def _random(self, name: str, number: int) -> float:
        return float(np.random.default_rng((self._seed, crc32(name.encode()), number)).random())


class FaultySource:
    """A source whose frames arrive as over a bad link.

    Invariant: a frame keeps its number of the footage, so true boxes still find it; a frozen frame shows an older image
    under its own number.

    One thread. Whether a fault meets a frame depends on the seed and on the number and time of the frame. The time
    stamp that it gets depends on the frame before, too.
    """

    def __init__(self, source: FrameSource, camera: str, conditions: ConditionSet) -> None:
        self._source = source
        self._camera = camera
        self._conditions = conditions
        self._faults = _LinkFaults(conditions.stream_conditions, conditions.seed)
        self._frozen: av.VideoFrame | None = None
        self._gap_begun: tuple[FootageCondition, float] | None = None
        self._t = 0.0

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def length_s(self) -> float | None:
        return self._source.length_s

    @property
    def bytes(self) -> int:
        return self._source.bytes

    @property
    def counts(self) -> SourceCounts:
        return replace(self._source.counts, t=self._t)

    @property
    def error(self) -> str | None:
        return self._source.error

    def decoded_by(self, hardware: HardwareSource) -> FrameSource:
        return with_stream_faults(self._source.decoded_by(hardware), self._camera, self._conditions)

    def play(self, decode_policy: DecodePolicy | None = None) -> Iterator[SourceItem]:
        last_t, is_seen = 0.0, False
        for item in self._source.play(decode_policy):
            if not isinstance(item, DecodedFrame):
                yield item
                continue
            last_t = item.t
            for shown in self._frame(item):
                is_seen = is_seen or isinstance(shown, DecodedFrame)
                yield shown
        if not is_seen:
            raise SourceError(f"no frame of {self.name} is left under {self._conditions}: nothing can be said of it")
        if self._gap_begun is not None:
            yield self._gap(*self._gap_begun, last_t)

    def _frame(self, frame: DecodedFrame) -> Iterator[SourceItem]:
        gap = self._faults.at("gap", frame.t)
        if gap is not None:
            self._gap_begun = self._gap_begun or (gap, self._t)
            return
        if self._faults.loses(frame):
            return
        image = self._shown(frame)
        t = max(frame.t + self._faults.delay_s(frame), self._t + _STEP_S_MIN) if self._t or frame.t else frame.t
        if self._gap_begun is not None:
            yield self._gap(*self._gap_begun, t)
            self._gap_begun = None
        self._t = round(t, 6)
        yield replace(frame, t=self._t, av_frame=image)

    def _shown(self, frame: DecodedFrame) -> av.VideoFrame:
        if self._faults.at("freeze", frame.t) is None or self._frozen is None:
            self._frozen = frame.av_frame
        return self._frozen

    def _gap(self, gap: FootageCondition, t_start: float, t_end: float) -> Gap:
        return Gap(camera=self._camera, t_start=round(t_start, 3), t_end=round(t_end, 3), reason=gap.text)


def with_stream_faults(source: FrameSource, camera: str, conditions: ConditionSet) -> FrameSource:
    """Return the source under these conditions; itself where only images change."""
    return FaultySource(source, camera, conditions) if conditions.stream_conditions else source
