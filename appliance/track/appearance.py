"""What an object looks like: how bright and of which colours its upper and its lower half are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Planes = Sequence[NDArray[np.uint8]]
"""One picture as it was decoded: brightness (H, W), then, where there are colours, two colour planes (h, w), upright.
Empty: there is no picture, only boxes."""

# Of a standing person: chest and legs, without head and feet, without the background beside them.
_HALVES = ((0.12, 0.50), (0.50, 0.92))
_BESIDE = 0.2
# So many points of each half are looked at, whatever its size in pixels: the cost of an object is fixed.
_ROWS, _COLUMNS = 12, 8
_BINS = 12
_ACROSS = _BESIDE + (1 - 2 * _BESIDE) * (np.arange(_COLUMNS) + 0.5) / _COLUMNS
_STEPS = (np.arange(_ROWS) + 0.5) / _ROWS
_DOWN = np.stack([low + (high - low) * _STEPS for low, high in _HALVES])
# Where video has its values: brightness 16..235, and what cameras outdoors make of colours.
_LOWEST = (16.0, 96.0, 96.0)
_HIGHEST = (235.0, 160.0, 160.0)


def describe(planes: Planes, boxes: NDArray[np.float32]) -> Floats | None:
    """(N, L) histograms of the objects in `boxes` (N, 4, shares of the picture); None without a picture.

    For each half and plane one histogram that sums to 1, linear between its bins, so that a slow change of light
    moves it a little and not by whole bins. L is 24 for each plane. About 0.03 ms per box on a desktop core.
    """
    if not planes:
        return None
    x, y = _points(np.asarray(boxes, np.float64))
    count = min(len(planes), len(_LOWEST))
    values = np.empty((len(boxes), count, 2, _ROWS, _COLUMNS))
    shape, row, column = None, None, None
    for index, plane in enumerate(planes[:count]):
        if plane.shape != shape:
            shape = height, width = plane.shape
            column = np.minimum(np.maximum((x * width).astype(np.intp), 0), width - 1)[:, None, None, :]
            row = np.minimum(np.maximum((y * height).astype(np.intp), 0), height - 1)[:, :, :, None]
        values[:, index] = (plane[row, column] - _LOWEST[index]) / (_HIGHEST[index] - _LOWEST[index])
    return _histograms(values.reshape(-1, _ROWS * _COLUMNS)).reshape(len(boxes), count * 2 * _BINS)


def likeness(some: Floats, others: Floats) -> Floats:
    """(M, N): how alike each of `some` (M, L) and each of `others` (N, L) look; 1 the same, 0 nothing in common.

    The Bhattacharyya coefficient, mean over the histograms. On PETS09-S2L1 the same person 1.5 to 5 s later has
    0.95 +- 0.05, another one 0.77 +- 0.10. Rounded, so that the last bit of a sum decides nothing.
    """
    shared = (np.sqrt(some)[:, None] * np.sqrt(others)[None]).sum(axis=2)
    return np.asarray(np.round(shared * (_BINS / some.shape[1]), 6), np.float64)


def _points(boxes: Floats) -> tuple[Floats, Floats]:
    """x (N, columns) and y (N, 2, rows) of the points to look at, in shares."""
    side = boxes[:, 2:] - boxes[:, :2]
    return boxes[:, :1] + side[:, :1] * _ACROSS, boxes[:, 1, None, None] + side[:, 1, None, None] * _DOWN


def _histograms(values: Floats) -> Floats:
    """(M, points), 0..1 and clipped to it, to (M, bins)."""
    count, points = values.shape
    place = np.minimum(np.maximum(values, 0.0), 1.0) * (_BINS - 1)
    lower = np.minimum(place.astype(np.intp), _BINS - 2)
    upper_share = place - lower
    index = (lower + np.arange(count)[:, None] * _BINS).ravel()
    total = count * _BINS
    found = np.bincount(index, (1 - upper_share).ravel(), total) + np.bincount(index + 1, upper_share.ravel(), total)
    return np.asarray(found.reshape(count, _BINS) / points)
