"""Night, infrared light, exposure changes, and the sensor noise that comes with little light."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.replay.conditions.image_effect import (
    EffectStage,
    EffectTime,
    Plane,
    Planes,
    SeededRandom,
    Weights,
    row_distances_m,
    smooth_noise,
)

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
        """(H, W) share of the light that each place gets: pools under some lamps, the distance and sky dark."""
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
    """Noise a little larger than the frame, blurred by `soft_px` and brought back to its strength."""
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
