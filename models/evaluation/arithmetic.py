"""Average precision and what hangs together with it, in numpy: needed where pycocotools is not, and while training.

`models.evaluate` reports pycocotools' figures; tests/unit/test_evaluate.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.base import box_arrays
from appliance.base.box_arrays import iou_matrix, share_inside, take_best

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


def match(
    found: Sequence[tuple[Floats, Floats]], truth: Sequence[Floats], ignored: Sequence[Floats], iou_min: float = 0.5
) -> Matched:
    """found: (boxes, scores) of each picture; truth and ignored: boxes of each, in units in which y is a height.

    COCO's rule: answers in order of score, each takes the free true box it overlaps most.
    """
    scores, hits, void, by, heights = [], [], [], [], []
    for (boxes, values), right, doubtful in zip(found, truth, ignored, strict=True):
        order = np.argsort(-values, kind="stable")
        taken = take_best(iou_matrix(boxes[order], right), iou_min)
        hit, finder = taken >= 0, np.full(len(right), -1.0)
        finder[taken[hit]] = values[order][hit]
        spare = share_inside(boxes[order], doubtful).max(axis=1, initial=0.0) >= iou_min
        scores.append(values[order])
        hits.append(hit)
        void.append(spare & ~hit)
        by.append(finder)
        heights.append(right[:, 3] - right[:, 1])
    everything = [np.concatenate([np.zeros(0), *parts]) for parts in (scores, hits, void, by, heights)]
    rank = np.argsort(-everything[0], kind="stable")
    return Matched(everything[0][rank], everything[1][rank] > 0, everything[2][rank] > 0, everything[3], everything[4])


def average_precision(matched: Matched) -> float:
    """Return the area under the curve of precision over recall at COCO's 101 points; nan without a single true box."""
    hits = matched.hits[~matched.void]
    right = np.cumsum(hits.astype(float))
    return box_arrays.average_precision(right, np.arange(1.0, len(hits) + 1), len(matched.found), "coco")


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
