"""Arrays of bounding boxes (x1, y1, x2, y2): overlaps, greedy matching, and average precision by two rules.

Any unit, as long as all have the same.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Literal["coco", "voc"]
"""coco: the mean precision at 101 recalls. voc: the area under the curve at every point (PASCAL VOC 2010)."""
_RECALLS = np.linspace(0, 1, 101)


def iou_matrix(a: Floats, b: Floats) -> Floats:
    """Return the intersection over union of boxes (N, 4) and (M, 4), (N, M)."""
    shared = _shared(a, b)
    return np.asarray(shared / np.maximum(_areas(a)[:, None] + _areas(b)[None] - shared, 1e-12))


def share_inside(a: Floats, b: Floats) -> Floats:
    """Return the share of each box of `a` (N, 4) that lies in each of `b` (M, 4), (N, M): COCO's rule for crowds."""
    return np.asarray(_shared(a, b) / np.maximum(_areas(a), 1e-12)[:, None])


def take_best(shared: Floats, iou_min: float) -> NDArray[np.intp]:
    """Return for each row of overlaps (N, M), the surest answer first, the column that it takes, (N,); -1: none.

    Each takes the free column that it overlaps most, if by `iou_min` at least: COCO's rule.
    """
    free = np.ones(shared.shape[1], bool)
    taken = np.full(shared.shape[0], -1, np.intp)
    for row in range(shared.shape[0] if shared.shape[1] else 0):
        candidates = np.where(free, shared[row], -1.0)
        best = int(candidates.argmax())
        if candidates[best] >= iou_min:
            free[best], taken[row] = False, best
    return taken


def average_precision(right: Floats, counted: Floats, boxes: float, rule: Rule) -> float:
    """Return the average precision of answers in the order of their scores; nan without a true box.

    right, counted: (N,) how many of the answers up to each are right, and count. boxes: how many true ones there are.
    """
    if boxes == 0:
        return float("nan")
    recall = right / boxes
    envelope = np.maximum.accumulate((right / np.maximum(counted, 1e-12))[::-1])[::-1]
    if rule == "voc":
        return float((np.diff(np.concatenate([[0.0], recall])) * envelope).sum())
    at = np.searchsorted(recall, _RECALLS, side="left")
    return float(np.append(envelope, 0.0)[np.minimum(at, len(envelope))].mean())


def _shared(a: Floats, b: Floats) -> Floats:
    sides = np.maximum(np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2]), 0.0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def _areas(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
