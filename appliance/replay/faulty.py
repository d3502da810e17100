"""A film as a bad link would have brought it: frames lost, late, frozen, a gap; which and when by chance of a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import av
import numpy as np

from appliance.ingest.decode import Frame
from appliance.ingest.thrift.thrift import Thrift
from appliance.replay.film import Film, Scene
from appliance.types import Gap
from appliance.weather.spec import Condition
from appliance.weather.weather import Weather

_APART_S = 0.001  # time stamps rise, whatever is wrong with them
_STALLS_A_S = 0.1  # a link that stands still does so every ten seconds, one with another


class FaultyFilm:
    """A film whose frames come as the weather lets them. The number of a frame stays what it is in the footage, so that
    true boxes still find theirs; a frozen frame shows an older picture under its own number.

    One thread. What becomes of a frame depends on the seed, its number and its time, and for time stamps on the
    frame before.
    """

    def __init__(self, film: Film, camera: str, weather: Weather) -> None:
        self._film = film
        self._camera = camera
        self._faults = weather.streams
        self._seed = weather.seed
        self._held: av.VideoFrame | None = None
        self._gone: tuple[Condition, float] | None = None
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

    def play(self, thrift: Thrift | None = None) -> Iterator[Scene]:
        last_t = 0.0
        for scene in self._film.play(thrift):
            if not isinstance(scene, Frame):
                yield scene
                continue
            last_t = scene.t
            yield from self._frame(scene)
        if self._gone is not None:
            yield self._gap(*self._gone, last_t)

    def _frame(self, frame: Frame) -> Iterator[Scene]:
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
        yield replace(frame, t=self._t, picture=picture)

    def _shown(self, frame: Frame) -> av.VideoFrame:
        if self._at("freeze", frame.t) is None or self._held is None:
            self._held = frame.picture
        return self._held

    def _lost(self, frame: Frame) -> bool:
        drop = self._at("drop", frame.t)
        return drop is not None and self._chance("drop", frame.index) < drop.amount / 100

    def _delay_s(self, frame: Frame) -> float:
        """By how much the frame's time stamp is wrong."""
        jitter, late = self._at("jitter", frame.t), self._at("late", frame.t)
        delay_s = 0.0
        if jitter is not None:
            delay_s += (2 * self._chance("jitter", frame.index) - 1) * jitter.amount / 1000
        if late is not None:
            delay_s += self._behind_s(frame, late.amount / 1000)
        return delay_s

    def _behind_s(self, frame: Frame, stall_s: float) -> float:
        """What waited while the link stood still comes at its end, one right after the other."""
        second = int(frame.t)
        if second != self._second and frame.t >= self._back_t and self._chance("late", second) < _STALLS_A_S:
            self._back_t = frame.t + stall_s
        self._second = second
        return max(0.0, self._back_t - frame.t)

    def _at(self, name: str, t: float) -> Condition | None:
        return next((each for each in self._faults if each.kind.name == name and each.at(t)), None)

    def _chance(self, name: str, number: int) -> float:
        return float(np.random.default_rng((self._seed, crc32(name.encode()), number)).random())

    def _gap(self, gap: Condition, t_start: float, t_end: float) -> Gap:
        return Gap(camera=self._camera, t_start=round(t_start, 3), t_end=round(t_end, 3), reason=gap.words)


def weathered(film: Film, camera: str, weather: Weather) -> Film:
    """The film under that weather; itself where only pictures change."""
    return FaultyFilm(film, camera, weather) if weather.streams else film
