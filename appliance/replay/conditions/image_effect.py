"""Shared parts of image effects: YUV planes, the Effect protocol and its order, seeded randomness, haze and noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol
from zlib import crc32

import av
import cv2
import numpy as np
from av.video.reformatter import ColorRange, VideoReformatter
from numpy.typing import NDArray

from appliance.media.frames import quarter_turns

Plane = NDArray[np.uint8]
Weights = NDArray[np.float32]
GREY = 128  # mid-grey of 0..255, the chroma of a colourless pixel (ITU-T H.273)


@dataclass(frozen=True, slots=True)
class Planes:
    """An upright frame. y: (H, W), u, v: (H/2, W/2), uint8; black, white: y of the darkest and brightest.

    Invariant: the arrays are never written into; an effect passes on what it does not change.
    """

    y: Plane
    u: Plane
    v: Plane
    black: int
    white: int

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.y.shape[1], self.y.shape[0]

    def with_y(self, y: Plane) -> Planes:
        """Another brightness, held between black and white."""
        if self.black > 0:
            y = np.clip(y, np.uint8(self.black), np.uint8(self.white))
        return replace(self, y=y)

    def with_colour(self, share: float) -> Planes:
        """With `share` of the colour; 0 is grey."""
        return replace(self, u=_towards_grey(self.u, share), v=_towards_grey(self.v, share))

    def level(self, share: float) -> float:
        """y of a brightness 0..1."""
        return self.black + share * (self.white - self.black)


def _towards_grey(plane: Plane, share: float) -> Plane:
    return np.asarray(cv2.convertScaleAbs(plane, alpha=share, beta=GREY * (1 - share)), np.uint8)


class PlaneConverter:
    """Makes planes of frames. State: a scaler, costly to make."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def to_planes(self, frame: av.VideoFrame) -> Planes:
        """Upright, with even sides."""
        width, height = frame.width // 2 * 2, frame.height // 2 * 2
        plain = frame
        if frame.format.name not in ("yuv420p", "yuvj420p") or (width, height) != (frame.width, frame.height):
            plain = self._reformatter.reformat(frame, width, height, "yuv420p")
        flat = np.asarray(plain.to_ndarray(), np.uint8).reshape(-1)
        pixels, quarter, turns = width * height, width * height // 4, quarter_turns(frame)
        y = flat[:pixels].reshape(height, width)
        u = flat[pixels : pixels + quarter].reshape(height // 2, width // 2)
        v = flat[pixels + quarter :].reshape(height // 2, width // 2)
        full = plain.format.name == "yuvj420p" or plain.color_range == ColorRange.JPEG
        y, u, v = (np.ascontiguousarray(np.rot90(plane, turns)) for plane in (y, u, v))
        return Planes(y, u, v, *((0, 255) if full else (16, 235)))


def frame_of(planes: Planes, like: av.VideoFrame) -> av.VideoFrame:
    """Return a frame with `like`'s colours and time stamp; it is upright, so it has no rotation."""
    width, height = planes.size
    flat = np.concatenate([plane.reshape(-1) for plane in (planes.y, planes.u, planes.v)])
    frame = av.VideoFrame.from_ndarray(flat.reshape(height * 3 // 2, width), format="yuv420p")
    frame.colorspace = like.colorspace
    frame.color_range = ColorRange.JPEG if planes.black == 0 else ColorRange.MPEG
    frame.pts = like.pts
    if like.time_base is not None:
        frame.time_base = like.time_base
    return frame


class EffectStage(IntEnum):
    """Effects are applied in this order, the way of the light, however they were written."""

    LIGHT = 0
    AIR = 1
    GLASS = 2
    MOUNT = 3
    SENSOR = 4
    CODER = 5


@dataclass(frozen=True, slots=True)
class EffectTime:
    """The frame that an effect is applied to."""

    frame: int
    t: float  # seconds of the footage
    since: float  # seconds since the condition began


class Effect(Protocol):
    """Changes a frame by its content, number and time and by the seed.

    Invariant: nothing is remembered of other frames, so the outcome does not depend on which of them are examined.
    """

    @property
    def stage(self) -> EffectStage: ...

    def apply(self, planes: Planes, now: EffectTime) -> Planes: ...


@dataclass(frozen=True, slots=True)
class SeededRandom:
    """The randomness of one effect."""

    seed: int
    name: str

    def for_footage(self) -> np.random.Generator:
        """Return the same sequence for the whole footage."""
        return np.random.default_rng((self.seed, crc32(self.name.encode())))

    def for_frame(self, frame: int) -> np.random.Generator:
        """Return the sequence of one frame."""
        return np.random.default_rng((self.seed, crc32(self.name.encode()), frame))


def row_distances_m(rows: int) -> Weights:
    """(rows, 1) metres, guessed: the scene is not measured, and most cameras look down at 10 to 30 degrees.

    5.6 m at the lower edge, 12 m in the middle, 50 m at a fifth of the height, 120 m above a seventh.
    """
    v = (np.arange(rows, dtype=np.float32) + 0.5) / rows
    return np.clip(5.0 / np.maximum(v - 0.1, 0.001), 5.6, 120.0).astype(np.float32)[:, None]


def smooth_noise(rng: np.random.Generator, size: tuple[int, int], cells: int) -> Weights:
    """(height, width) smooth noise, mean 0, spread about 1: `cells` blobs across. Made small and blown up."""
    width, height = size
    coarse = rng.standard_normal((max(2, round(cells * height / width)), max(2, cells))).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)


@dataclass(frozen=True, slots=True)
class HazeLayer:
    """How much of a scene is still seen through the air, and the rest, for each plane: (H, W) and (H/2, W/2), 0..1."""

    whole: tuple[Weights, Weights]
    half: tuple[Weights, Weights]

    @classmethod
    def of(cls, clear: Weights, size: tuple[int, int]) -> HazeLayer:
        """clear: (rows, columns) of any size, blown up smoothly; size: (width, height) of the frame."""
        whole, half = (
            np.asarray(cv2.resize(clear, each, interpolation=cv2.INTER_LINEAR), np.float32)
            for each in (size, (size[0] // 2, size[1] // 2))
        )
        return cls((whole, 1 - whole), (half, 1 - half))

    def over(self, planes: Planes, light: float) -> Planes:
        """Airlight in front of the scene; light: its y."""
        y = blended(planes.y, round(light), *self.whole)
        u, v = (blended(plane, GREY, *self.half) for plane in (planes.u, planes.v))
        return Planes(y, u, v, planes.black, planes.white)


def blended(plane: Plane, other: Plane | int, kept: Weights, rest: Weights) -> Plane:
    """`kept` of a plane and `rest` of `other`, (H, W) each; four times as fast as the same in numpy."""
    if isinstance(other, int):
        other = np.full_like(plane, min(255, max(0, other)))
    return np.asarray(cv2.blendLinear(plane, other, kept, rest), np.uint8)
