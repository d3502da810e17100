"""Fog: the farther, the less of the scene is left."""

from __future__ import annotations

import cv2
import numpy as np

from appliance.weather.effect import Chance, Now, Stage, Veil, clouds, distances
from appliance.weather.planes import Planes

_CELL = 16  # pixels; fog has no sharp edges


class Fog:
    """Light that comes through is exp(-3 d / V) at distance d (5 % is left at the visibility V; WMO's meteorological
    optical range). Distances are guessed from the rows, and the fog drifts and is not even.
    """

    stage = Stage.AIR

    def __init__(self, sight_m: float, chance: Chance) -> None:
        self._sight_m = sight_m
        self._chance = chance

    def apply(self, planes: Planes, now: Now) -> Planes:
        width, height = planes.size[0] // _CELL, planes.size[1] // _CELL
        drift = clouds(self._chance.still(), (4 * width, height), 12)
        # Swaying to and fro needs no memory and never comes to an end.
        x = round(1.5 * width * (1 + np.sin(now.t / 25.0)))
        thick = np.clip(1 + 0.22 * drift[:, x : x + width], 0.4, 1.8)
        clear = np.exp(-3.0 / self._sight_m * distances(height) * thick).astype(np.float32)
        return Veil.of(clear, planes.size).before(planes, airlight(planes))


class Haze:
    """The same evenly and always: what rain and snow leave of the distance. State: the veil, made once a size."""

    def __init__(self, sight_m: float) -> None:
        self._sight_m = sight_m
        self._veils: dict[tuple[int, int], Veil] = {}

    def before(self, planes: Planes, light: float) -> Planes:
        if planes.size not in self._veils:
            clear = np.exp(-3.0 / self._sight_m * distances(64)).repeat(2, axis=1).astype(np.float32)
            self._veils = {planes.size: Veil.of(clear, planes.size)}
        return self._veils[planes.size].before(planes, light)


def airlight(planes: Planes) -> float:
    """y of the light that fog, rain and snow throw into the lens: brighter than the scene's mean, dim at night."""
    mean = float(cv2.mean(planes.y)[0]) - planes.black
    return planes.black + min(0.82 * (planes.white - planes.black), 1.25 * mean + 22)
