"""What encoder and network take away: resolution, JPEG quality, black images, and frames dropped, delayed, frozen or
missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import av
import cv2
import numpy as np

from appliance.decode_policy.keyframe_policy import DecodePolicy
from appliance.lab.conditions.condition_spec import ConditionSet, FootageCondition
from appliance.lab.conditions.image_effect import EffectStage, EffectTime, Plane, Planes
from appliance.lab.footage import FrameSource, SourceItem
from appliance.media.decoder import DecodedFrame
from appliance.types import Gap


class Scale:
    """A picture of `factor` times the sides. Boxes are shares of the picture, so the truth stays as it is."""

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


_APART_S = 0.001  # time stamps rise, whatever is wrong with them
_STALLS_A_S = 0.1  # a link that stands still does so every ten seconds, one with another


class FaultySource:
    """A film whose frames come as the weather lets them. The number of a frame stays what it is in the footage, so that
    true boxes still find theirs; a frozen frame shows an older picture under its own number.

    One thread. What becomes of a frame depends on the seed, its number and its time, and for time stamps on the
    frame before.
    """

    def __init__(self, film: FrameSource, camera: str, weather: ConditionSet) -> None:
        self._film = film
        self._camera = camera
        self._faults = weather.stream_conditions
        self._seed = weather.seed
        self._held: av.VideoFrame | None = None
        self._gone: tuple[FootageCondition, float] | None = None
        self._t = 0.0
        self._back_t = 0.0
        self._second = -1

    @property
    def name(self) -> str:
        return self._film.name

    @property
    def length_s(self) -> float | None:
        return self._film.length_s

    @property
    def decoded(self) -> int:
        return self._film.decoded

    @property
    def skipped(self) -> int:
        return self._film.skipped

    @property
    def t(self) -> float:
        return self._t

    @property
    def damaged(self) -> int:
        return self._film.damaged

    @property
    def jumps(self) -> int:
        return self._film.jumps

    @property
    def bytes(self) -> int:
        return self._film.bytes

    @property
    def error(self) -> str | None:
        return self._film.error

    def play(self, thrift: DecodePolicy | None = None) -> Iterator[SourceItem]:
        last_t = 0.0
        for scene in self._film.play(thrift):
            if not isinstance(scene, DecodedFrame):
                yield scene
                continue
            last_t = scene.t
            yield from self._frame(scene)
        if self._gone is not None:
            yield self._gap(*self._gone, last_t)

    def _frame(self, frame: DecodedFrame) -> Iterator[SourceItem]:
        gap = self._at("gap", frame.t)
        if gap is not None:
            self._gone = self._gone or (gap, self._t)
            return
        if self._lost(frame):
            return
        picture = self._shown(frame)
        t = max(frame.t + self._delay_s(frame), self._t + _APART_S) if self._t or frame.t else frame.t
        if self._gone is not None:
            yield self._gap(*self._gone, t)
            self._gone = None
        self._t = round(t, 6)
        yield replace(frame, t=self._t, av_frame=picture)

    def _shown(self, frame: DecodedFrame) -> av.VideoFrame:
        if self._at("freeze", frame.t) is None or self._held is None:
            self._held = frame.av_frame
        return self._held

    def _lost(self, frame: DecodedFrame) -> bool:
        drop = self._at("drop", frame.t)
        return drop is not None and self._chance("drop", frame.index) < drop.amount / 100

    def _delay_s(self, frame: DecodedFrame) -> float:
        """By how much the frame's time stamp is wrong."""
        jitter, late = self._at("jitter", frame.t), self._at("late", frame.t)
        delay_s = 0.0
        if jitter is not None:
            delay_s += (2 * self._chance("jitter", frame.index) - 1) * jitter.amount / 1000
        if late is not None:
            delay_s += self._behind_s(frame, late.amount / 1000)
        return delay_s

    def _behind_s(self, frame: DecodedFrame, stall_s: float) -> float:
        """What waited while the link stood still comes at its end, one right after the other."""
        second = int(frame.t)
        if second != self._second and frame.t >= self._back_t and self._chance("late", second) < _STALLS_A_S:
            self._back_t = frame.t + stall_s
        self._second = second
        return max(0.0, self._back_t - frame.t)

    def _at(self, name: str, t: float) -> FootageCondition | None:
        return next((each for each in self._faults if each.kind.name == name and each.at(t)), None)

    def _chance(self, name: str, number: int) -> float:
        return float(np.random.default_rng((self._seed, crc32(name.encode()), number)).random())

    def _gap(self, gap: FootageCondition, t_start: float, t_end: float) -> Gap:
        return Gap(camera=self._camera, t_start=round(t_start, 3), t_end=round(t_end, 3), reason=gap.text)


def with_stream_faults(film: FrameSource, camera: str, weather: ConditionSet) -> FrameSource:
    """The film under that weather; itself where only pictures change."""
    return FaultySource(film, camera, weather) if weather.stream_conditions else film
