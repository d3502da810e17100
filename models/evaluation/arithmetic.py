"""Computes average precision from detections and labels, also by height, in numpy.

tests/unit/test_evaluate.py holds it to `appliance.lab.detection_figures`, which a test holds to pycocotools.
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


@dataclass(frozen=True, slots=True)
class Judged:
    """One picture's labels and answers, boxes (N, 4) in pixels.

    crowd: (N,) labels in which an answer is neither right nor wrong: of their class, without a name of any.
    scale: pixels of the network's input that a pixel is high; 0: not known.
    """

    truth: NDArray[np.float64]
    truth_names: tuple[str, ...]
    crowd: NDArray[np.bool_]
    found: NDArray[np.float64]
    found_names: tuple[str, ...]
    scores: NDArray[np.float64]
    scale: float = 0.0
