"""What is wrong with the window and the lens: dirt, insects, focus."""

from __future__ import annotations

import cv2
import numpy as np

from appliance.weather.effect import Chance, Now, Stage, blended, clouds
from appliance.weather.planes import GREY, Plane, Planes, Share


class Dirt:
    """Blotches and dried drops, far out of focus, that take away contrast; they stay where they are."""

    stage = Stage.GLASS

    def __init__(self, percent: float, chance: Chance) -> None:
        self._share = percent / 100
        self._chance = chance
        self._maps: dict[tuple[int, int], tuple[Share, Share]] = {}

    def apply(self, planes: Planes, now: Now) -> Planes:
        kept, half = self._kept(planes.size)
        small = cv2.resize(planes.y, (planes.size[0] // 16, planes.size[1] // 16), interpolation=cv2.INTER_AREA)
        dim = cv2.convertScaleAbs(small, alpha=0.55, beta=planes.level(0.12))
        mud = np.asarray(cv2.resize(dim, planes.size, interpolation=cv2.INTER_LINEAR), np.uint8)
        u = blended(planes.u, GREY - 4, half, 1 - half)
        v = blended(planes.v, GREY + 3, half, 1 - half)
        return Planes(planes.y, u, v, planes.black, planes.white).with_y(blended(planes.y, mud, kept, 1 - kept))

    def _kept(self, size: tuple[int, int]) -> tuple[Share, Share]:
        """(H, W) and half of it: how much of the scene comes through."""
        if size not in self._maps:
            width, height = size[0] // 4, size[1] // 4
            rng = self._chance.still()
            film = clouds(rng, (width, height), 7) + 0.55 * clouds(rng, (width, height), 22)
            edge = np.quantile(film, 1 - self._share)
            dirt = np.clip((film - edge) * 2.2 + 0.25, 0, 1) * 0.75
            dirt = np.maximum(dirt, self._drops(width, height, rng) * 0.8)
            kept = (1 - cv2.GaussianBlur(dirt.astype(np.float32), (0, 0), height / 90)).astype(np.float32)
            half = (size[0] // 2, size[1] // 2)
            self._maps = {size: (np.asarray(cv2.resize(kept, size)), np.asarray(cv2.resize(kept, half)))}
        return self._maps[size]

    def _drops(self, width: int, height: int, rng: np.random.Generator) -> Share:
        """Small round stains, one for each two per cent."""
        canvas = np.zeros((height, width), np.float32)
        for _ in range(max(1, round(50 * self._share))):
            at = (int(rng.integers(0, width)), int(rng.integers(0, height)))
            cv2.circle(canvas, at, max(2, round(height * rng.uniform(0.008, 0.03))), float(rng.uniform(0.4, 0.9)), -1)
        return canvas


class Insects:
    """Moths close to the lens, blurred and smeared along their way; light where the scene is dark, else dark.

    They turn at every beat of their wings, so where one is has nothing to do with where it was a look ago.
    """

    stage = Stage.GLASS

    def __init__(self, count: float, chance: Chance) -> None:
        self._mean = count
        self._chance = chance

    def apply(self, planes: Planes, now: Now) -> Planes:
        rng = self._chance.of(now.frame)
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
    """A bent streak with thick and thin places: the wings beat several times while the shutter is open."""
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

    stage = Stage.GLASS

    def __init__(self, px: float) -> None:
        self._px = px

    def apply(self, planes: Planes, now: Now) -> Planes:
        y, u, v = (
            np.asarray(cv2.GaussianBlur(plane, (0, 0), px), np.uint8)
            for plane, px in ((planes.y, self._px), (planes.u, self._px / 2), (planes.v, self._px / 2))
        )
        return Planes(y, u, v, planes.black, planes.white)
