"""A dirty or unfocused lens, insects in front of it, and a camera that shakes on its mast."""

from __future__ import annotations

import cv2
import numpy as np

from appliance.replay.conditions.image_effect import (
    GREY,
    EffectStage,
    EffectTime,
    Plane,
    Planes,
    SeededRandom,
    Weights,
    blended,
    smooth_noise,
)


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
        """(H, W) and half of it: how much of the scene comes through."""
        if size not in self._maps:
            width, height = size[0] // 4, size[1] // 4
            rng = self._random.for_footage()
            film = smooth_noise(rng, (width, height), 7) + 0.55 * smooth_noise(rng, (width, height), 22)
            edge = np.quantile(film, 1 - self._share)
            dirt = np.clip((film - edge) * 2.2 + 0.25, 0, 1) * 0.75
            dirt = np.maximum(dirt, self._drops(width, height, rng) * 0.8)
            kept = (1 - cv2.GaussianBlur(dirt.astype(np.float32), (0, 0), height / 90)).astype(np.float32)
            half = (size[0] // 2, size[1] // 2)
            self._maps = {size: (np.asarray(cv2.resize(kept, size)), np.asarray(cv2.resize(kept, half)))}
        return self._maps[size]

    def _drops(self, width: int, height: int, rng: np.random.Generator) -> Weights:
        """Small round stains, one for each two per cent."""
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
        """(x, y) in pixels, right and down, in eighths."""
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
