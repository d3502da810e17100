"""Computes with arrays of bounding boxes (x1, y1, x2, y2): overlaps, greedy matching, average precision by two rules.

Any unit, as long as all have the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Literal["coco", "voc"]
"""coco: the mean precision at 101 recalls. voc: the area under the curve at every point (PASCAL VOC 2010)."""
_RECALLS = np.linspace(0, 1, 101)
HEIGHTS_PX = (16.0, 32.0, 64.0, 128.0, float("inf"))  # of a box in a network's input; below, nobody promises much


@dataclass(frozen=True, slots=True)
class HeightFigures:
    """AP of the boxes whose height in the network's input is from `low` to below `high` pixels; None without boxes."""

    low: float
    high: float
    boxes: int
    ap50: float | None
    ap70: float | None


@dataclass(frozen=True, slots=True)
class Truth:
    """The true boxes of an image for one class: those that count, those of another height, and regions to ignore."""

    counted: Floats
    others: Floats
    ignored: Floats


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


def match_answers(found: Floats, truth: Truth, iou_min: float, outside: Bools) -> tuple[NDArray[np.intp], Bools]:
    """Return the counted box that each answer takes (-1: none), and whether the answer is void, by COCO's rule.

    found: (N, 4), the surest first. outside: (N,) answers of a height that is not asked for. Void is a wrong answer in
    an ignored region, on a box of another height, or of another height itself.
    """
    taken = take_best(iou_matrix(found, truth.counted), iou_min)
    wrong = taken < 0
    void = outside | (share_inside(found, truth.ignored).max(axis=1, initial=0.0) >= iou_min)
    others = take_best(iou_matrix(found[wrong], truth.others), iou_min) >= 0
    void[np.flatnonzero(wrong)[others]] = True
    return taken, void & wrong


def in_range(boxes: Floats, scale: float, heights_px: tuple[float, float]) -> Bools:
    """Return which boxes (N, 4) are as high as asked for, where `scale` turns their unit into pixels."""
    height_px = (boxes[:, 3] - boxes[:, 1]) * scale
    return (height_px >= heights_px[0]) & (height_px < heights_px[1])


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
