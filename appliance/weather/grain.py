"""Sensor noise: one sheet of grain for the whole footage, of which each frame gets another cut-out."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.weather.effect import Chance, Now, Stage
from appliance.weather.planes import Plane, Planes

_MARGIN = 160
_Sheet = NDArray[np.int16]


class Grain:
    """Adds noise of `steps` (standard deviation, in steps of 255) to the brightness and softer noise to the colour.

    Denoising in cameras leaves blotches: colour noise is coarser than that of the brightness.
    """

    stage = Stage.SENSOR

    def __init__(self, steps: float, chance: Chance, *, grey: bool = False) -> None:
        """grey: a sensor that sees no colour has no noise in it."""
        self._steps = steps
        self._chance = chance
        self._grey = grey
        self._sheets: dict[tuple[int, int], tuple[_Sheet, _Sheet]] = {}

    def apply(self, planes: Planes, now: Now) -> Planes:
        fine, coarse = self._of(planes.size)
        rng = self._chance.of(now.frame)
        half = (planes.size[0] // 2, planes.size[1] // 2)
        noisy = planes.with_y(_added(planes.y, _cut(fine, planes.size, rng)))
        if self._grey:
            return noisy
        u, v = (_added(plane, _cut(coarse, half, rng)) for plane in (planes.u, planes.v))
        return replace(noisy, u=u, v=v)

    def _of(self, size: tuple[int, int]) -> tuple[_Sheet, _Sheet]:
        if size not in self._sheets:
            rng = self._chance.still()
            fine = _sheet(size, rng, self._steps, 0.6)
            self._sheets = {size: (fine, _sheet((size[0] // 2, size[1] // 2), rng, 0.45 * self._steps, 1.6))}
        return self._sheets[size]


def _sheet(size: tuple[int, int], rng: np.random.Generator, steps: float, soft_px: float) -> _Sheet:
    """Noise a little larger than the picture, blurred by `soft_px` and brought back to its strength."""
    raw = rng.standard_normal((size[1] + _MARGIN, size[0] + _MARGIN)).astype(np.float32)
    soft = cv2.GaussianBlur(raw, (0, 0), soft_px)
    return np.asarray(np.rint(soft * (steps / soft.std())), np.int16)


def _cut(sheet: _Sheet, size: tuple[int, int], rng: np.random.Generator) -> _Sheet:
    x, y = (int(each) for each in rng.integers(0, _MARGIN, 2))
    flips = rng.integers(0, 2, 2)
    cut = sheet[y : y + size[1], x : x + size[0]]
    return cut[:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]


def _added(plane: Plane, noise: _Sheet) -> Plane:
    return np.asarray(cv2.add(plane, np.ascontiguousarray(noise), dtype=cv2.CV_8U), np.uint8)
