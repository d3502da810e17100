"""What all effects have in common: when in the light's way they come, and where their chance comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol
from zlib import crc32

import cv2
import numpy as np

from appliance.weather.planes import GREY, Plane, Planes, Share


class Stage(IntEnum):
    """The way of the light: effects are applied in this order, however they were written."""

    LIGHT = 0
    AIR = 1
    GLASS = 2
    MOUNT = 3
    SENSOR = 4
    CODER = 5


@dataclass(frozen=True, slots=True)
class Now:
    """The frame that is looked at. t: seconds of the footage; since: seconds since the condition began."""

    frame: int
    t: float
    since: float


class Effect(Protocol):
    """Changes a picture by what is in it, the seed, the frame's number and its time, and by nothing else: no memory
    of other frames, so that it is all the same which of them are looked at."""

    @property
    def stage(self) -> Stage: ...

    def apply(self, planes: Planes, now: Now) -> Planes: ...


@dataclass(frozen=True, slots=True)
class Chance:
    """A source of randomness of one effect."""

    seed: int
    name: str

    def still(self) -> np.random.Generator:
        """The same for the whole footage."""
        return np.random.default_rng((self.seed, crc32(self.name.encode())))

    def of(self, frame: int) -> np.random.Generator:
        """Of one frame."""
        return np.random.default_rng((self.seed, crc32(self.name.encode()), frame))


def distances(rows: int) -> Share:
    """(rows, 1) metres, guessed: nobody has measured the scene, and most cameras look down at 10 to 30 degrees.

    5.6 m at the lower edge, 12 m in the middle, 50 m at a fifth of the height, 120 m above a seventh.
    """
    v = (np.arange(rows, dtype=np.float32) + 0.5) / rows
    return np.clip(5.0 / np.maximum(v - 0.1, 0.001), 5.6, 120.0).astype(np.float32)[:, None]


def clouds(rng: np.random.Generator, size: tuple[int, int], cells: int) -> Share:
    """(height, width) smooth noise, mean 0, spread about 1: `cells` blobs across. Made small and blown up."""
    width, height = size
    coarse = rng.standard_normal((max(2, round(cells * height / width)), max(2, cells))).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)


@dataclass(frozen=True, slots=True)
class Veil:
    """How much of a scene is still seen through the air, and the rest, for each plane: (H, W) and (H/2, W/2), 0..1."""

    whole: tuple[Share, Share]
    half: tuple[Share, Share]

    @classmethod
    def of(cls, clear: Share, size: tuple[int, int]) -> Veil:
        """clear: (rows, columns) of any size, blown up smoothly; size: (width, height) of the picture."""
        whole, half = (
            np.asarray(cv2.resize(clear, each, interpolation=cv2.INTER_LINEAR), np.float32)
            for each in (size, (size[0] // 2, size[1] // 2))
        )
        return cls((whole, 1 - whole), (half, 1 - half))

    def before(self, planes: Planes, light: float) -> Planes:
        """Airlight in front of the scene; light: its y."""
        y = blended(planes.y, round(light), *self.whole)
        u, v = (blended(plane, GREY, *self.half) for plane in (planes.u, planes.v))
        return Planes(y, u, v, planes.black, planes.white)


def blended(plane: Plane, other: Plane | int, kept: Share, rest: Share) -> Plane:
    """`kept` of a plane and `rest` of `other`, (H, W) each; four times as fast as the same in numpy."""
    if isinstance(other, int):
        other = np.full_like(plane, min(255, max(0, other)))
    return np.asarray(cv2.blendLinear(plane, other, kept, rest), np.uint8)
