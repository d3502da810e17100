"""Average precision and what hangs together with it, in numpy: needed where pycocotools is not, and while training.

`models.evaluate` reports pycocotools' figures; tests/unit/test_evaluate.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Matched:
    """All answers on a set for one class, best first. hits: right; void: on an ignored box, so not counted at all.

    found: (boxes,) the score that found each true box, or -1; heights: (boxes,) its height.
    """

    scores: Floats
    hits: Bools
    void: Bools
    found: Floats
    heights: Floats


def overlaps(one: Floats, other: Floats) -> Floats:
    """Return the IoU (N, M) of boxes (N, 4) and (M, 4)."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0, None).prod(-1) for each in (one, other)]
    return np.asarray(shared / np.maximum(areas[0][:, None] + areas[1][None, :] - shared, 1e-12))


def covers(one: Floats, other: Floats) -> Floats:
    """(N, M): share of each box of `one` that lies inside each of `other`; what crowds and ignored regions go by."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    return np.asarray(shared / np.maximum(np.clip(one[:, 2:] - one[:, :2], 0, None).prod(-1), 1e-12)[:, None])


def match(
    found: Sequence[tuple[Floats, Floats]], truth: Sequence[Floats], ignored: Sequence[Floats], iou_min: float = 0.5
) -> Matched:
    """found: (boxes, scores) of each picture; truth and ignored: boxes of each, in units in which y is a height.

    COCO's rule: answers in order of score, each takes the free true box it overlaps most.
    """
    scores, hits, void, by, heights = [], [], [], [], []
    for (boxes, values), right, doubtful in zip(found, truth, ignored, strict=True):
        order = np.argsort(-values, kind="stable")
        hit, finder = _take(overlaps(boxes[order], right), values[order], iou_min)
        spare = covers(boxes[order], doubtful).max(axis=1, initial=0.0) >= iou_min
        scores.append(values[order])
        hits.append(hit)
        void.append(spare & ~hit)
        by.append(finder)
        heights.append(right[:, 3] - right[:, 1])
    everything = [np.concatenate([np.zeros(0), *parts]) for parts in (scores, hits, void, by, heights)]
    rank = np.argsort(-everything[0], kind="stable")
    return Matched(everything[0][rank], everything[1][rank] > 0, everything[2][rank] > 0, everything[3], everything[4])


def _take(shared: Floats, values: Floats, iou_min: float) -> tuple[Bools, Floats]:
    free = np.ones(shared.shape[1], bool)
    finder = np.full(shared.shape[1], -1.0)
    hit = np.zeros(shared.shape[0], bool)
    for row in range(shared.shape[0]):
        candidates = np.where(free, shared[row], -1.0)
        best = int(candidates.argmax()) if len(candidates) else -1
        if best >= 0 and candidates[best] >= iou_min:
            free[best], finder[best], hit[row] = False, values[row], True
    return hit, finder


def average_precision(matched: Matched) -> float:
    """Return the area under the curve of precision over recall at COCO's 101 points; nan without a single true box."""
    if len(matched.found) == 0:
        return float("nan")
    recall, precision = curve(matched)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(np.concatenate([best, [0.0]])[np.minimum(at, len(best))].mean())


def curve(matched: Matched) -> tuple[Floats, Floats]:
    """Return the recall and precision after each counted answer."""
    hits = matched.hits[~matched.void]
    right = np.cumsum(hits)
    return right / max(1, len(matched.found)), right / np.arange(1, len(hits) + 1)


@dataclass(frozen=True, slots=True)
class Working:
    """The score threshold with the best F1, and how well it does."""

    threshold: float
    f1: float
    precision: float
    recall: float


def best_threshold(matched: Matched) -> Working:
    """Return the best threshold and its figures; without answers or boxes everything is 0, and nothing is raised."""
    recall, precision = curve(matched)
    if len(recall) == 0 or len(matched.found) == 0:
        return Working(0.0, 0.0, 0.0, 0.0)
    f1 = 2 * recall * precision / np.maximum(recall + precision, 1e-12)
    best = int(f1.argmax())
    scores = matched.scores[~matched.void]
    return Working(float(scores[best]), float(f1[best]), float(precision[best]), float(recall[best]))


def recall_by_height(
    matched: Matched, edges: Sequence[float], threshold: float
) -> list[tuple[float, float, int, float]]:
    """(from, below, boxes, share found at `threshold`) for each two neighbours of `edges`; share nan without boxes."""
    rows = []
    for low, high in pairwise(edges):
        inside = (matched.heights >= low) & (matched.heights < high)
        found = matched.found[inside] >= threshold
        rows.append((low, high, int(inside.sum()), float(found.mean()) if inside.any() else float("nan")))
    return rows
