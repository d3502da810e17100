"""Computes average precision and related figures in numpy, during training and where pycocotools is missing.

`models.evaluate` reports pycocotools' figures; tests/unit/test_evaluate.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.base import box_arrays
from appliance.base.box_arrays import HEIGHTS_PX, HeightFigures, Truth, in_range, match_answers

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


@dataclass(frozen=True, slots=True)
class Heights:
    """Only boxes from `low` to below `high` pixels of the network's input count.

    scales: pixels of the input that one unit of each picture's boxes is high.
    """

    low: float
    high: float
    scales: Sequence[float]


def match(
    found: Sequence[tuple[Floats, Floats]], truth: Sequence[Floats], ignored: Sequence[Floats], iou_min: float = 0.5,
    only: Heights | None = None,
) -> Matched:  # fmt: skip
    """found: (boxes, scores) of each picture; truth and ignored: boxes of each, in units in which y is a height.

    COCO's rule: answers in order of score, each takes the free true box it overlaps most.
    """
    parts: list[Matched] = []
    bounds = (only.low, only.high) if only else (-np.inf, np.inf)
    scales = only.scales if only else [1.0] * len(truth)
    for (boxes, values), right, doubtful, scale in zip(found, truth, ignored, scales, strict=True):
        order = np.argsort(-values, kind="stable")
        asked = in_range(right, scale, bounds)
        split = Truth(right[asked], right[~asked], doubtful)
        taken, void = match_answers(boxes[order], split, iou_min, ~in_range(boxes[order], scale, bounds))
        hit, finder = taken >= 0, np.full(len(split.counted), -1.0)
        finder[taken[hit]] = values[order][hit]
        parts.append(Matched(values[order], hit, void, finder, split.counted[:, 3] - split.counted[:, 1]))
    return joined(parts)


def joined(parts: Sequence[Matched]) -> Matched:
    """Return several pictures' answers as one, best first."""
    none = np.zeros(0)
    scores, hits, void, found, heights = (
        np.concatenate([none, *(getattr(part, name) for part in parts)])
        for name in ("scores", "hits", "void", "found", "heights")
    )
    rank = np.argsort(-scores, kind="stable")
    return Matched(scores[rank], hits[rank] > 0, void[rank] > 0, found, heights)


def figures_by_height(
    found: Sequence[tuple[Floats, Floats]], truth: Sequence[Floats], ignored: Sequence[Floats], scales: Sequence[float]
) -> tuple[HeightFigures, ...]:
    """Return AP at IoU 0.5 and 0.7 for each range of HEIGHTS_PX."""
    rows = []
    for low, high in pairwise(HEIGHTS_PX):
        loose, tight = (match(found, truth, ignored, iou_min, Heights(low, high, scales)) for iou_min in (0.5, 0.7))
        boxes = len(loose.found)
        aps = [average_precision(each) if boxes else None for each in (loose, tight)]
        rows.append(HeightFigures(low, high, boxes, *aps))
    return tuple(rows)


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
