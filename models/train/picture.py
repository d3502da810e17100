"""Holds a picture with its boxes, and changes the boxes with the picture's geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

GREY = 114
Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Warp = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Sample:
    """pixels: BGR uint8 (H, W, 3). boxes (N, 6) and ignore (M, 6), float32: class, x1, y1, x2, y2 in pixels, score."""

    pixels: Pixels
    boxes: Floats
    ignore: Floats

    def look(self, pixels: Pixels) -> Sample:
        """Return the same things, seen otherwise."""
        return replace(self, pixels=pixels)

    def keep(self, width_min: float, share_min: float, before: Floats) -> Sample:
        """Clip boxes to the picture.

        The rest of a box must be `width_min` pixels on both sides and `share_min` of the area it had `before` (N,). A
        box with less left becomes a region to ignore.
        """
        boxes, ignore = self._clipped(self.boxes), self._clipped(self.ignore)
        sides = boxes[:, 3:5] - boxes[:, 1:3]
        whole = (sides >= width_min).all(axis=1) & (sides.prod(axis=1) >= share_min * np.maximum(before, 1e-6))
        rest = boxes[~whole & (sides > 0).all(axis=1)]
        ignore = np.concatenate([ignore, rest])
        ignore = ignore[((ignore[:, 3:5] - ignore[:, 1:3]) > 0).all(axis=1)]
        return replace(self, boxes=boxes[whole], ignore=ignore)

    def _clipped(self, rows: Floats) -> Floats:
        height, width = self.pixels.shape[:2]
        rows = rows.copy()
        rows[:, 1:5:2] = rows[:, 1:5:2].clip(0, width)
        rows[:, 2:5:2] = rows[:, 2:5:2].clip(0, height)
        return rows


def areas(rows: Floats) -> Floats:
    """Return the areas (N,) in pixels."""
    return np.asarray((rows[:, 3] - rows[:, 1]) * (rows[:, 4] - rows[:, 2]), np.float32)


def empty() -> Floats:
    """Return no boxes."""
    return np.zeros((0, 6), np.float32)


def affine(sample: Sample, matrix: Floats, width: int, height: int) -> Sample:
    """`sample` seen through a 2 x 3 matrix from its pixels to those of a `width` x `height` picture, rest grey.

    The boxes go with it and are not clipped yet.
    """
    # warpAffine has no area mean: what shrinks by more than half would alias, as no camera's picture does.
    shrink = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    pixels = sample.pixels
    if shrink < 0.5:
        pixels = np.asarray(
            cv2.resize(pixels, None, fx=2 * shrink, fy=2 * shrink, interpolation=cv2.INTER_AREA), np.uint8
        )
        true = np.array([pixels.shape[1] / sample.pixels.shape[1], pixels.shape[0] / sample.pixels.shape[0]])
        inner = matrix.copy()
        inner[:, :2] = matrix[:, :2] / true
        warp = inner
    else:
        warp = matrix
    # Pixel centres: OpenCV maps index to index, boxes count edges, which lie half a pixel beside.
    centred = warp.copy()
    centred[:, 2] += warp[:, :2] @ np.array([0.5, 0.5], np.float32) - 0.5
    out = cv2.warpAffine(pixels, centred, (width, height), flags=cv2.INTER_LINEAR, borderValue=(GREY, GREY, GREY))
    points: Warp = lambda xy: xy @ matrix[:, :2].T + matrix[:, 2]  # noqa: E731
    return Sample(np.asarray(out, np.uint8), carried(sample.boxes, points), carried(sample.ignore, points))


def carried(rows: Floats, points: Warp, steps: int = 1) -> Floats:
    """Boxes (N, 6) around where `points` takes their outlines: corners, and `steps` - 1 points between each two."""
    if len(rows) == 0:
        return rows
    share = np.linspace(0, 1, steps + 1, dtype=np.float32)
    edge = np.concatenate(
        [
            np.stack([share, np.zeros_like(share)], 1),
            np.stack([share, np.ones_like(share)], 1),
            np.stack([np.zeros_like(share), share], 1),
            np.stack([np.ones_like(share), share], 1),
        ]
    )
    corner, size = rows[:, None, 1:3], rows[:, None, 3:5] - rows[:, None, 1:3]
    outline = points((corner + edge[None] * size).reshape(-1, 2)).reshape(len(rows), -1, 2)
    moved = rows.copy()
    moved[:, 1:3], moved[:, 3:5] = outline.min(axis=1), outline.max(axis=1)
    return moved
