"""A tiny grey picture of one place, and whether the place still looks like it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes
from appliance.types import Box

Patch = NDArray[np.float32]
"""(ROWS * COLUMNS,) brightness of the cells of a place, mean 0, length 1: light that changes everywhere at once, by
clouds or exposure, leaves it as it is."""

ROWS, COLUMNS = 12, 16
_SIDE_MIN = 12  # pixels: a place that is smaller says too little
_CONTRAST_MIN = 4.0  # grey levels between its cells (standard deviation): below it noise is correlated with noise


def cut(planes: Planes, box: Box) -> Patch | None:
    """What lies in `box` (shares of the picture); None: there is no picture, or too little to see in it.

    Each cell is the mean of its pixels. About 0.02 ms.
    """
    if not planes:
        return None
    height, width = planes[0].shape
    x1, x2 = max(0, round(box[0] * width)), min(width, round(box[2] * width))
    y1, y2 = max(0, round(box[1] * height)), min(height, round(box[3] * height))
    if x2 - x1 < _SIDE_MIN or y2 - y1 < _SIDE_MIN:
        return None
    cells = cv2.resize(planes[0][y1:y2, x1:x2], (COLUMNS, ROWS), interpolation=cv2.INTER_AREA)
    return normal(cells.ravel())


def normal(cells: NDArray[np.generic]) -> Patch | None:
    """`cells` with mean 0 and length 1; None where they hardly differ."""
    values = np.asarray(cells, np.float32)
    values = values - values.mean()
    length = float(np.sqrt(np.dot(values, values)))
    if length < _CONTRAST_MIN * ROWS**0.5 * COLUMNS**0.5:
        return None
    return np.asarray(values / np.float32(length), np.float32)


def alike(a: Patch, b: Patch) -> float:
    """Normalised cross-correlation: 1 the same, 0 nothing in common, below 0 the opposite. Rounded, so that the last
    bit of a sum decides nothing."""
    return round(float(np.dot(a, b)), 4)


def blend(a: Patch, b: Patch, share: float) -> Patch:
    """`a` moved towards `b` by `share`."""
    mixed = a + np.float32(share) * (b - a)
    length = float(np.sqrt(np.dot(mixed, mixed)))
    return np.asarray(mixed / np.float32(length), np.float32) if length > 1e-3 else b
