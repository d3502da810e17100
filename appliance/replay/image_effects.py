"""Effects on a frame: their order, randomness, haze and noise; night and exposure; dirt, insects and a shaking mast."""

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
        """Return them with another brightness, held between black and white."""
        if self.black > 0:
            y = np.clip(y, np.uint8(self.black), np.uint8(self.white))
        return replace(self, y=y)

    def with_colour(self, share: float) -> Planes:
        """Return them with `share` of the colour; 0 is grey."""
        return replace(self, u=_towards_grey(self.u, share), v=_towards_grey(self.v, share))

    def level(self, share: float) -> float:
        """Return the y of a brightness 0..1."""
        return self.black + share * (self.white - self.black)


def _towards_grey(plane: Plane, share: float) -> Plane:
    return np.asarray(cv2.convertScaleAbs(plane, alpha=share, beta=GREY * (1 - share)), np.uint8)


class PlaneConverter:
    """Makes planes of frames. State: a scaler, costly to make."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def to_planes(self, frame: av.VideoFrame) -> Planes:
        """Return the planes upright, with even sides."""
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
    """Return (rows, 1) metres, guessed: the scene is not measured, and most cameras look down at 10 to 30 degrees.

    5.6 m at the lower edge, 12 m in the middle, 50 m at a fifth of the height, 120 m above a seventh.
    """
    v = (np.arange(rows, dtype=np.float32) + 0.5) / rows
    return np.clip(5.0 / np.maximum(v - 0.1, 0.001), 5.6, 120.0).astype(np.float32)[:, None]


def smooth_noise(rng: np.random.Generator, size: tuple[int, int], cells: int) -> Weights:
    """Return smooth noise (height, width), mean 0, spread about 1: `cells` blobs across, made small and blown up."""
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
        """Lay airlight over the scene; light: its y."""
        y = blended(planes.y, round(light), *self.whole)
        u, v = (blended(plane, GREY, *self.half) for plane in (planes.u, planes.v))
        return Planes(y, u, v, planes.black, planes.white)


def blended(plane: Plane, other: Plane | int, kept: Weights, rest: Weights) -> Plane:
    """Blend `kept` of a plane and `rest` of `other`, (H, W) each; four times as fast as the same in numpy."""
    if isinstance(other, int):
        other = np.full_like(plane, min(255, max(0, other)))
    return np.asarray(cv2.blendLinear(plane, other, kept, rest), np.uint8)


GAMMA = 2.2  # ITU-R BT.1886 and sRGB, rounded
DAY_LUX = 30.0  # with less light than this a camera can no longer make up for it
_SWITCH_S = 0.8  # for which the frame is bleached after the switch


class Night:
    """Little light: darker where no lamp shines, nearly no colour below a few lux (cameras fade it out).

    The brightness falls with a small power of the light, since the camera opens up as far as it can; the grain that
    comes of that is an effect of its own, behind the glass.
    """

    stage = EffectStage.LIGHT

    def __init__(self, lux: float, random: SeededRandom) -> None:
        share = min(1.0, lux / DAY_LUX)
        self._gain = 1.45 * share**0.22
        self._colour = min(0.9, 0.42 * lux**0.35)
        self._random = random
        self._maps: dict[tuple[int, int], Weights] = {}

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        lit = self._lit(planes.size) * np.float32(self._gain)
        y = (planes.y - np.float32(planes.black)) * lit + np.float32(planes.black + 0.5)
        dark = planes.with_y(np.clip(y, 0, 255).astype(np.uint8)).with_colour(self._colour * self._gain)
        # Sodium and warm LED: a little towards orange.
        warm = 5 * self._colour
        return replace(dark, u=_shifted(dark.u, -warm), v=_shifted(dark.v, warm))

    def _lit(self, size: tuple[int, int]) -> Weights:
        """Return (H, W), the share of the light that each place gets: pools under some lamps, dark distance and sky."""
        if size not in self._maps:
            width, height = size[0] // 8, size[1] // 8
            far = 1.0 / (1.0 + (row_distances_m(height) / 60.0) ** 2)
            spread = smooth_noise(self._random.for_footage(), (width, height), 5)
            lit = far * np.clip(0.85 + 0.22 * spread, 0.35, 1.5) + 0.06
            self._maps = {size: np.asarray(cv2.resize(lit.astype(np.float32), size), np.float32)}
        return self._maps[size]


class Infrared:
    """The camera's own infrared light: grey, a bright middle, dark corners, the distance lost.

    Plants and most cloth throw back more of it than of what we see, so colour makes things brighter here. For a
    moment after switching over, the filter's swing and the exposure that must settle bleach the frame.
    """

    stage = EffectStage.LIGHT

    def __init__(self, reach_m: float, *, switches: bool) -> None:
        self._reach_m = reach_m
        self._switches = switches
        self._maps: dict[tuple[int, int], Weights] = {}

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        tint = cv2.add(_shifted(planes.u, -128), _shifted(planes.v, -128))
        glow = np.asarray(cv2.resize(tint, planes.size, interpolation=cv2.INTER_LINEAR), np.uint8)
        seen = (planes.y - np.float32(planes.black)) * np.float32(0.8) + glow * np.float32(1.1) + np.float32(12)
        y = seen * self._lit(planes.size) + np.float32(planes.black + 0.5)
        if self._switches and now.since < _SWITCH_S:
            y *= np.float32(1 + 1.6 * (1 - now.since / _SWITCH_S) ** 2)
        grey = np.full_like(planes.u, 128)
        return Planes(planes.y, grey, grey, planes.black, planes.white).with_y(np.clip(y, 0, 255).astype(np.uint8))

    def _lit(self, size: tuple[int, int]) -> Weights:
        if size not in self._maps:
            width, height = size[0] // 8, size[1] // 8
            x = (np.arange(width, dtype=np.float32) + 0.5) / width - 0.5
            y = (np.arange(height, dtype=np.float32)[:, None] + 0.5) / height - 0.55
            spot = np.exp(-((x / 0.46) ** 2) - (y / 0.55) ** 2)
            far = 1.0 / (1.0 + (row_distances_m(height) / self._reach_m) ** 2)
            linear = (0.05 + 0.95 * spot) * (0.02 + 0.98 * far) * 1.6
            lit = np.minimum(linear, 1.9) ** (1 / GAMMA)
            self._maps = {size: np.asarray(cv2.resize(lit.astype(np.float32), size), np.float32)}
        return self._maps[size]


class Exposure:
    """Brighter or darker by `stops` of light. fades: it is gone after half a second (a flash)."""

    stage = EffectStage.LIGHT

    def __init__(self, stops: float, *, fades: bool = False) -> None:
        self._stops = stops
        self._fades = fades

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        stops = self._stops * max(0.0, 1 - now.since / 0.5) if self._fades else self._stops
        if stops == 0:
            return planes
        gain = 2 ** (stops / GAMMA)
        table = np.clip((np.arange(256) - planes.black) * gain + planes.black + 0.5, 0, 255).astype(np.uint8)
        bright = np.asarray(cv2.LUT(planes.y, table), np.uint8)
        return planes.with_y(bright).with_colour(min(1.0, gain) if stops < 0 else 1.0)


def _shifted(plane: Plane, by: float) -> Plane:
    """Return the absolute value of `plane + by`, at most 255."""
    return np.asarray(cv2.convertScaleAbs(plane, alpha=1.0, beta=by), np.uint8)


_MARGIN = 160  # pixels by which a sheet is larger than a frame, so that each frame gets another cut
_NoiseSheet = NDArray[np.int16]


class SensorNoise:
    """Adds noise of `steps` (standard deviation, in steps of 255) to the brightness and softer noise to the colour.

    Denoising in cameras leaves blotches: colour noise is coarser than that of the brightness.
    """

    stage = EffectStage.SENSOR

    def __init__(self, steps: float, random: SeededRandom, *, grey: bool = False) -> None:
        """grey: a sensor that sees no colour has no noise in it."""
        self._steps = steps
        self._random = random
        self._grey = grey
        self._sheets: dict[tuple[int, int], tuple[_NoiseSheet, _NoiseSheet]] = {}

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        fine, coarse = self._of(planes.size)
        rng = self._random.for_frame(now.frame)
        half = (planes.size[0] // 2, planes.size[1] // 2)
        noisy = planes.with_y(_added(planes.y, _cut(fine, planes.size, rng)))
        if self._grey:
            return noisy
        u, v = (_added(plane, _cut(coarse, half, rng)) for plane in (planes.u, planes.v))
        return replace(noisy, u=u, v=v)

    def _of(self, size: tuple[int, int]) -> tuple[_NoiseSheet, _NoiseSheet]:
        if size not in self._sheets:
            rng = self._random.for_footage()
            fine = _sheet(size, rng, self._steps, 0.6)
            self._sheets = {size: (fine, _sheet((size[0] // 2, size[1] // 2), rng, 0.45 * self._steps, 1.6))}
        return self._sheets[size]


def _sheet(size: tuple[int, int], rng: np.random.Generator, steps: float, soft_px: float) -> _NoiseSheet:
    """Return noise a little larger than the frame, blurred by `soft_px` and brought back to its strength."""
    raw = rng.standard_normal((size[1] + _MARGIN, size[0] + _MARGIN)).astype(np.float32)
    soft = cv2.GaussianBlur(raw, (0, 0), soft_px)
    return np.asarray(np.rint(soft * (steps / soft.std())), np.int16)


def _cut(sheet: _NoiseSheet, size: tuple[int, int], rng: np.random.Generator) -> _NoiseSheet:
    x, y = (int(each) for each in rng.integers(0, _MARGIN, 2))
    flips = rng.integers(0, 2, 2)
    cut = sheet[y : y + size[1], x : x + size[0]]
    return cut[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]


def _added(plane: Plane, noise: _NoiseSheet) -> Plane:
    return np.asarray(cv2.add(plane, np.ascontiguousarray(noise), dtype=cv2.CV_8U), np.uint8)


class Dirt:
    """Blotches and dried drops, far out of focus, that take away contrast; they stay where they are."""

    stage = EffectStage.GLASS

    def __init__(self, percent: float, random: SeededRandom) -> None:
        self._share = percent / 100
        self._random = random
        self._maps: dict[tuple[int, int], tuple[Weights, Weights]] = {}

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        kept, half = self._kept(planes.size)
        small = cv2.resize(planes.y, (planes.size[0] // 16, planes.size[1] // 16), interpolation=cv2.INTER_AREA)
        dim = cv2.convertScaleAbs(small, alpha=0.55, beta=planes.level(0.12))
        mud = np.asarray(cv2.resize(dim, planes.size, interpolation=cv2.INTER_LINEAR), np.uint8)
        u = blended(planes.u, GREY - 4, half, 1 - half)
        v = blended(planes.v, GREY + 3, half, 1 - half)
        return Planes(planes.y, u, v, planes.black, planes.white).with_y(blended(planes.y, mud, kept, 1 - kept))

    def _kept(self, size: tuple[int, int]) -> tuple[Weights, Weights]:
        """Return how much of the scene comes through, (H, W) and half of it."""
        if size not in self._maps:
            width, height = size[0] // 4, size[1] // 4
            rng = self._random.for_footage()
            smudges = smooth_noise(rng, (width, height), 7) + 0.55 * smooth_noise(rng, (width, height), 22)
            edge = np.quantile(smudges, 1 - self._share)
            dirt = np.clip((smudges - edge) * 2.2 + 0.25, 0, 1) * 0.75
            dirt = np.maximum(dirt, self._drops(width, height, rng) * 0.8)
            kept = (1 - cv2.GaussianBlur(dirt.astype(np.float32), (0, 0), height / 90)).astype(np.float32)
            half = (size[0] // 2, size[1] // 2)
            self._maps = {size: (np.asarray(cv2.resize(kept, size)), np.asarray(cv2.resize(kept, half)))}
        return self._maps[size]

    def _drops(self, width: int, height: int, rng: np.random.Generator) -> Weights:
        """Return small round stains, one for each two per cent."""
        canvas = np.zeros((height, width), np.float32)
        for _ in range(max(1, round(50 * self._share))):
            at = (int(rng.integers(0, width)), int(rng.integers(0, height)))
            cv2.circle(canvas, at, max(2, round(height * rng.uniform(0.008, 0.03))), float(rng.uniform(0.4, 0.9)), -1)
        return canvas


class Insects:
    """Moths close to the lens, blurred and smeared along their way; light where the scene is dark, else dark.

    They turn at every beat of their wings, so where one is does not depend on where it was a frame ago.
    """

    stage = EffectStage.GLASS

    def __init__(self, count: float, random: SeededRandom) -> None:
        self._mean = count
        self._random = random

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        rng = self._random.for_frame(now.frame)
        width, height = planes.size
        canvas = np.zeros((height // 2, width // 2), np.uint8)
        for _ in range(int(rng.poisson(self._mean))):
            _moth(canvas, rng)
        share = cv2.resize(
            cv2.GaussianBlur(canvas, (0, 0), height / 260), (width, height), interpolation=cv2.INTER_LINEAR
        )
        dark = float(cv2.mean(planes.y)[0]) < planes.level(0.33)
        moth = share.astype(np.float32) * np.float32(1 / 255)
        return planes.with_y(blended(planes.y, round(planes.level(0.95 if dark else 0.1)), 1 - moth, moth))


def _moth(canvas: Plane, rng: np.random.Generator) -> None:
    """Draw a bent streak with thick and thin places: the wings beat several times while the shutter is open."""
    height, width = canvas.shape
    centre = rng.uniform((0, 0), (width, height))
    reach, turn = height * rng.uniform(0.03, 0.14), rng.uniform(0, 6.28)
    bend, beats = rng.uniform(-0.7, 0.7), rng.integers(2, 5)
    thick = height * rng.uniform(0.008, 0.026)
    steps = np.linspace(-1, 1, 24)
    angle = turn + bend * steps
    points = centre + reach * np.stack([steps * np.cos(angle), steps * np.sin(angle)], axis=1)
    sizes = thick * (0.5 + 0.5 * np.abs(np.sin(steps * np.pi * beats / 2)))
    light = int(rng.integers(130, 225))
    for (x, y), size in zip(points, sizes, strict=True):
        cv2.circle(canvas, (round(float(x)), round(float(y))), max(1, round(float(size))), light, -1, cv2.LINE_AA)


class Blur:
    """Out of focus."""

    stage = EffectStage.GLASS

    def __init__(self, px: float) -> None:
        self._px = px

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        y, u, v = (
            np.asarray(cv2.GaussianBlur(plane, (0, 0), px), np.uint8)
            for plane, px in ((planes.y, self._px), (planes.u, self._px / 2), (planes.v, self._px / 2))
        )
        return Planes(y, u, v, planes.black, planes.white)


_FRAMES_A_SWAY = 4  # frames from one side to the other
_UNITS = 8  # of a pixel, so that halves of the colour planes are exact


class Shake:
    """Moves the frame by at most `px` in each direction, along a way that bends every few frames.

    The way is a function of the frame's number alone; `offset` is public because true boxes must go the same way.
    """

    stage = EffectStage.MOUNT

    def __init__(self, px: float, random: SeededRandom) -> None:
        self._px = px
        self._random = random

    def offset(self, frame: int) -> tuple[float, float]:
        """Return (x, y) in pixels, right and down, in eighths."""
        sway, share = divmod(frame, _FRAMES_A_SWAY)
        begin, end = (self._random.for_frame(each).uniform(-1, 1, 2) for each in (sway, sway + 1))
        ease = (1 - np.cos(np.pi * share / _FRAMES_A_SWAY)) / 2
        x, y = np.rint((begin + (end - begin) * ease) * self._px * _UNITS) / _UNITS
        return float(x), float(y)

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        x, y = self.offset(now.frame)
        y_plane = _moved(planes.y, x, y)
        return Planes(
            y_plane, _moved(planes.u, x / 2, y / 2), _moved(planes.v, x / 2, y / 2), planes.black, planes.white
        )


def _moved(plane: Plane, x: float, y: float) -> Plane:
    way = np.array([[1, 0, x], [0, 1, y]], np.float32)
    size = (plane.shape[1], plane.shape[0])
    moved = cv2.warpAffine(plane, way, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(moved, np.uint8)
