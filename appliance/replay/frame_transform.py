"""Applies the image conditions of a replay to each frame, before motion gate and detector see it.

Rain, snow and fog are here: what stands or falls between the lens and the scene.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import av
import cv2
import numpy as np

from appliance.replay.footage_conditions import ConditionSet, FootageCondition
from appliance.replay.image_effects import (
    DAY_LUX,
    Blur,
    Dirt,
    Effect,
    EffectStage,
    EffectTime,
    Exposure,
    HazeLayer,
    Infrared,
    Insects,
    Night,
    Plane,
    PlaneConverter,
    Planes,
    SeededRandom,
    SensorNoise,
    Shake,
    frame_of,
    row_distances_m,
    smooth_noise,
)
from appliance.replay.stream_faults import BlackImage, Compression, Scale

_CELL = 16  # pixels; fog has no sharp edges


class Fog:
    """Fog by distance: the light that comes through is exp(-3 d / V) at distance d.

    5 % is left at the visibility V (WMO's meteorological optical range). Distances are guessed from the rows, and the
    fog drifts and is not even.
    """

    stage = EffectStage.AIR

    def __init__(self, sight_m: float, random: SeededRandom) -> None:
        self._sight_m = sight_m
        self._random = random

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        width, height = planes.size[0] // _CELL, planes.size[1] // _CELL
        drift = smooth_noise(self._random.for_footage(), (4 * width, height), 12)
        # Swaying to and fro needs no memory and never comes to an end.
        x = round(1.5 * width * (1 + np.sin(now.t / 25.0)))
        thick = np.clip(1 + 0.22 * drift[:, x : x + width], 0.4, 1.8)
        clear = np.exp(-3.0 / self._sight_m * row_distances_m(height) * thick).astype(np.float32)
        return HazeLayer.of(clear, planes.size).over(planes, airlight(planes))


class Haze:
    """Even, steady haze: what rain and snow leave of the distance. State: its layer, made once a frame size."""

    def __init__(self, sight_m: float) -> None:
        self._sight_m = sight_m
        self._layers: dict[tuple[int, int], HazeLayer] = {}

    def over(self, planes: Planes, light: float) -> Planes:
        if planes.size not in self._layers:
            clear = np.exp(-3.0 / self._sight_m * row_distances_m(64)).repeat(2, axis=1).astype(np.float32)
            self._layers = {planes.size: HazeLayer.of(clear, planes.size)}
        return self._layers[planes.size].over(planes, light)


def airlight(planes: Planes) -> float:
    """Return the y of the light that fog, rain and snow throw into the lens: brighter than the mean, dim at night."""
    mean = float(cv2.mean(planes.y)[0]) - planes.black
    return planes.black + min(0.82 * (planes.white - planes.black), 1.25 * mean + 22)


@dataclass(frozen=True, slots=True)
class _DropLayer:
    """Drops or flakes at one distance. Lengths in pixels of a frame 720 rows high."""

    count: int
    length_px: tuple[float, float]
    width: int
    light: float  # share of the airlight, 0..1
    fall_px_s: float = 0.0  # 0: too fast to be seen falling


@dataclass(frozen=True, slots=True)
class PrecipitationTuning:
    """The layers of rain and snow: far ones are sharp, near ones out of focus. Lengths as in `_DropLayer`."""

    rain_mm: float = 10.0  # an hour, at which the counts of the rain layers hold
    rain_far: tuple[_DropLayer, ...] = (_DropLayer(900, (7, 16), 1, 0.30), _DropLayer(260, (20, 42), 1, 0.42))
    rain_near: _DropLayer = _DropLayer(36, (60, 130), 3, 0.40)
    rain_blur_px: float = 2.2  # of the near layer
    snow_cm: float = 2.0  # an hour, at which the counts of the snow layers hold
    snow_far: tuple[_DropLayer, ...] = (_DropLayer(1500, (1, 1), 1, 0.75, 70), _DropLayer(420, (2, 3), 2, 0.85, 150))
    snow_near: _DropLayer = _DropLayer(46, (5, 9), 4, 0.75, 420)
    snow_blur_px: float = 3.2
    far_blur_px: float = 0.6  # of the far layers of both


TUNING = PrecipitationTuning()
_SUBPIXEL = 3  # fractional bits of OpenCV's coordinates: streaks at whole pixels look like a comb


class Rain:
    """Streaks, as long as a drop falls while the shutter is open, in three depths, and haze that grows with distance.

    A drop crosses the frame in less time than passes between two frames, so each has its own drops; the wind stays.
    Drops show the sky, so they are lighter than what is behind them, least before something light.
    """

    stage = EffectStage.AIR

    def __init__(self, mm: float, random: SeededRandom) -> None:
        self._density = (mm / TUNING.rain_mm) ** 0.7
        self._haze = Haze(900.0 / (mm / TUNING.rain_mm) ** 0.63)
        self._random = random
        self._lean = float(random.for_footage().uniform(-0.28, 0.28))

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        sky, size = airlight(planes), planes.size
        hazy = self._haze.over(planes, sky)
        rng = self._random.for_frame(now.frame)
        gust = self._lean + float(rng.normal(0, 0.02))
        far, near = _canvas(size), _canvas((size[0] // 2, size[1] // 2))
        for layer in TUNING.rain_far:
            self._streaks(far, layer, gust, rng)
        self._streaks(near, TUNING.rain_near, gust, rng)
        return hazy.with_y(_lighter(hazy.y, _fallen(far, near, TUNING.rain_blur_px), sky))

    def _streaks(self, canvas: Plane, layer: _DropLayer, lean: float, rng: np.random.Generator) -> None:
        height, width = canvas.shape
        scale = height / 720
        count = _count(layer, self._density, width / height)
        x, y = rng.uniform(-0.1 * width, 1.1 * width, count), rng.uniform(-0.1 * height, height, count)
        length = rng.uniform(*layer.length_px, count) * scale
        slant = lean + rng.normal(0, 0.03, count)
        light = 255 * layer.light * rng.uniform(0.35, 1.0, count)
        ends = np.stack([x, y, x + slant * length, y + length], axis=1)
        thick = max(1, round(layer.width * scale))
        for (x1, y1, x2, y2), each in zip((ends * (1 << _SUBPIXEL)).astype(int).tolist(), light.tolist(), strict=True):
            cv2.line(canvas, (x1, y1), (x2, y2), each, thick, cv2.LINE_AA, _SUBPIXEL)


class Snow:
    """Flakes in three depths that fall, drift and sway; the near ones are out of focus.

    Their way from frame to frame follows the footage's time.
    """

    stage = EffectStage.AIR

    def __init__(self, cm: float, random: SeededRandom) -> None:
        self._density = (cm / TUNING.snow_cm) ** 0.8
        self._haze = Haze(450.0 / (cm / TUNING.snow_cm) ** 0.7)
        self._random = random

    def apply(self, planes: Planes, now: EffectTime) -> Planes:
        sky, size = min(planes.level(0.95), airlight(planes) + 25), planes.size
        hazy = self._haze.over(planes, sky)
        rng = self._random.for_footage()
        far, near = _canvas(size), _canvas((size[0] // 2, size[1] // 2))
        for layer in TUNING.snow_far:
            self._flakes(far, layer, now.t, rng)
        self._flakes(near, TUNING.snow_near, now.t, rng)
        return hazy.with_y(_lighter(hazy.y, _fallen(far, near, TUNING.snow_blur_px), sky))

    def _flakes(self, canvas: Plane, layer: _DropLayer, t: float, rng: np.random.Generator) -> None:
        height, width = canvas.shape
        scale = height / 720
        count = _count(layer, self._density, width / height)
        x0, y0, pace, phase = rng.uniform(size=(4, count))
        fall = layer.fall_px_s * scale
        pace = fall * (0.7 + 0.6 * pace)
        sway = fall * 0.12 * np.sin(t * 1.7 + 6.28 * phase)
        x = np.mod(x0 * width + 0.25 * pace * t + sway, width)
        y = np.mod(y0 * height + pace * t, height)
        radius = np.maximum(0.6, rng.uniform(*layer.length_px, count) * scale)
        light = 255 * layer.light * rng.uniform(0.4, 1.0, count)
        circles = (np.stack([x, y, radius], axis=1) * (1 << _SUBPIXEL)).astype(int).tolist()
        for (px, py, size), each in zip(circles, light.tolist(), strict=True):
            cv2.circle(canvas, (px, py), size, each, -1, cv2.LINE_AA, _SUBPIXEL)


def _count(layer: _DropLayer, density: float, ratio: float) -> int:
    """Return how many of a layer are in a frame of that ratio of width to height."""
    return round(layer.count * density * ratio * 9 / 16)


def _canvas(size: tuple[int, int]) -> Plane:
    return np.zeros((size[1], size[0]), np.uint8)


def _fallen(far: Plane, near: Plane, soft_px: float) -> Plane:
    """Draw far and near ones together, the near ones at half the size, since they are blurred anyway."""
    size, scale = (far.shape[1], far.shape[0]), far.shape[0] / 720
    blurred = cv2.GaussianBlur(near, (0, 0), max(0.3, soft_px * scale / 2))
    sharp = cv2.GaussianBlur(far, (3, 3), max(0.3, TUNING.far_blur_px * scale))
    return np.asarray(cv2.max(sharp, cv2.resize(blurred, size, interpolation=cv2.INTER_LINEAR)), np.uint8)


def _lighter(y: Plane, share: Plane, light: float) -> Plane:
    """Move towards `light` by `share` (0..255), never darker."""
    towards = cv2.multiply(cv2.subtract(np.full_like(y, min(255, round(light + 40))), y), share, scale=1 / 255)
    return np.asarray(cv2.add(y, towards), np.uint8)


class FrameTransform:
    """Makes of a frame what the camera would have shown. One camera, one thread.

    State: caches only. The outcome depends on the frame, its number and time, the conditions and the seed.
    """

    def __init__(self, conditions: ConditionSet) -> None:
        pairs = [
            (each, effect)
            for each, random in _randoms(conditions)
            if not each.kind.stream
            for effect in _MAKERS[each.kind.name](each, random)
        ]
        self._effects = sorted(pairs, key=lambda pair: pair[1].stage)
        self._freezes = _freezes(conditions)
        self._converter = PlaneConverter()

    def __call__(self, frame: int, t: float, image: av.VideoFrame) -> av.VideoFrame:
        """Return the frame that is examined instead.

        Its rotation is undone even where nothing else is changed, so that size and orientation do not jump when a
        condition begins.
        """
        planes = self._converter.to_planes(image)
        frame, t = _frozen(self._freezes, frame, t)
        for condition, effect in self._effects:
            if condition.at(t):
                planes = effect.apply(planes, EffectTime(frame, t, t - condition.t0))
        return frame_of(planes, image)


def frame_transform_of(conditions: ConditionSet) -> FrameTransform | None:
    """Return the transform; None: nothing changes what is in a frame."""
    return FrameTransform(conditions) if conditions.image_conditions else None


def shake_offset(conditions: ConditionSet, frame: int, t: float) -> tuple[float, float]:
    """Return (x, y) in pixels by which the image is moved at that frame, right and down; see `Shake`."""
    x = y = 0.0
    frame, t = _frozen(_freezes(conditions), frame, t)
    for each, random in _randoms(conditions):
        if each.kind.name == "shake" and each.at(t):
            moved = Shake(each.amount, random).offset(frame)
            x, y = x + moved[0], y + moved[1]
    return x, y


def _freezes(conditions: ConditionSet) -> tuple[FootageCondition, ...]:
    return tuple(each for each in conditions.conditions if each.kind.name == "freeze")


def _frozen(freezes: Sequence[FootageCondition], frame: int, t: float) -> tuple[int, float]:
    """Return the number and time of the frame whose conditions apply: a frozen frame keeps its rain and noise.

    Its number only seeds them, so the milliseconds at which the freeze began do as well as any.
    """
    for each in freezes:
        if each.at(t):
            return round(each.t0 * 1000), each.t0
    return frame, t


def _randoms(conditions: ConditionSet) -> list[tuple[FootageCondition, SeededRandom]]:
    """Return each condition with its own randomness; the second of a kind is not like the first."""
    seen: Counter[str] = Counter()
    found = []
    for each in conditions.conditions:
        name = each.kind.name
        found.append((each, SeededRandom(conditions.seed, f"{name}/{seen[name]}")))
        seen[name] += 1
    return found


def _night(condition: FootageCondition, random: SeededRandom) -> tuple[Effect, ...]:
    return Night(condition.amount, random), SensorNoise(2.0 + 2.2 * (DAY_LUX / condition.amount) ** 0.3, random)


def _infrared(condition: FootageCondition, random: SeededRandom) -> tuple[Effect, ...]:
    return Infrared(condition.amount, switches=condition.t0 > 0), SensorNoise(4.0, random, grey=True)


_MAKERS: Mapping[str, Callable[[FootageCondition, SeededRandom], tuple[Effect, ...]]] = {
    "rain": lambda each, random: (Rain(each.amount, random),),
    "snow": lambda each, random: (Snow(each.amount, random),),
    "fog": lambda each, random: (Fog(each.amount, random),),
    "night": _night,
    "infrared": _infrared,
    "exposure": lambda each, random: (Exposure(each.amount),),
    "flash": lambda each, random: (Exposure(each.amount, fades=True),),
    "dirt": lambda each, random: (Dirt(each.amount, random),),
    "insects": lambda each, random: (Insects(each.amount, random),),
    "blur": lambda each, random: (Blur(each.amount),),
    "shake": lambda each, random: (Shake(each.amount, random),),
    "noise": lambda each, random: (SensorNoise(each.amount, random),),
    "scale": lambda each, random: (Scale(each.amount),),
    "jpeg": lambda each, random: (Compression(each.amount),),
    "black": lambda each, random: (BlackImage(),),
}
