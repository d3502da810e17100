"""From labels and detections to figures: average precision, its interval, precision and recall, calibration.

AP is by COCO's rule, in numpy; a test holds it against pycocotools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.base.box_arrays import (
    HEIGHTS_PX,
    HeightFigures,
    Truth,
    average_precision,
    in_range,
    iou_matrix,
    match_answers,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCORE = 0.5  # at which precision and recall are given
IOU_MIN = 0.5  # PASCAL VOC's and COCO's AP50
SAME_OBJECT_IOU = 0.7  # two answers of different classes that count as one class: the better one counts
ANSWERS_MAX = 300  # of an image; COCO's own limit of 100 is for its 80 classes together
RESAMPLES = 500  # bootstrap draws of all images: the ends of an interval are then stable to about 0.01
LEVEL = (5, 95)  # percentiles of the interval
CALIBRATION_BINS = 10  # Naeini et al. 2015; more hold too few boxes each
CALIBRATED_FROM = 0.1  # scores below are no claim: no rule looks at them
TIGHT_IOU = 0.7  # what a box must reach to be tight: KITTI's bound for cars
_IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, slots=True)
class ClassBoxes:
    """One class in one image: true boxes (T, 4) and found ones (N, 4) in shares; ignored (T,), scores (N,).

    input_px: height of the image in the network's input, in pixels; 0: not known.
    """

    truth: Floats
    ignored: Bools
    found: Floats
    scores: Floats
    input_px: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionFigures:
    """The accuracy for one class.

    ap50_low, ap50_high: the bootstrap's interval over images; precision, recall: at SCORE and IoU 0.5;
    calibration_error: mean distance of scores from the share of right ones; calibration: slope and offset of the line
    from a score's log-odds to those of being right (Platt 1999). None: no detections.
    """

    images: int
    boxes: int
    ap50: float
    ap50_low: float
    ap50_high: float
    ap50_95: float
    ap70: float
    precision: float | None
    recall: float
    calibration_error: float | None
    calibration: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class _Matches:
    """Detections of all images, best first.

    hits: right; void: on an ignored box, so not counted; image: index of its image. boxes: (images,) the true boxes of
    each.
    """

    scores: Floats
    hits: Bools
    void: Bools
    image: NDArray[np.intp]
    boxes: NDArray[np.intp]


def one_answer_each(boxes: Floats, scores: Floats, classes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows to keep, best first, where several classes count as one.

    A car that is called car and truck is one vehicle.
    """
    iou = iou_matrix(boxes, boxes)
    kept: list[int] = []
    for row in np.argsort(-scores, kind="stable"):
        if not any(classes[row] != classes[other] and iou[row, other] >= SAME_OBJECT_IOU for other in kept):
            kept.append(int(row))
    return np.array(kept, np.intp)


def detection_figures(images: Sequence[ClassBoxes]) -> DetectionFigures:
    """Return the figures of one class; at least one true box is needed that is not ignored."""
    images = [_best_answers(each) for each in images]
    matches = _match(images, IOU_MIN)
    whole = np.ones(len(images))
    low, high = _interval(matches)
    sure = (matches.scores >= SCORE) & ~matches.void
    right = int((matches.hits & sure).sum())
    return DetectionFigures(
        images=len(images),
        boxes=int(matches.boxes.sum()),
        ap50=_average_precision(matches, whole),
        ap50_low=low,
        ap50_high=high,
        ap50_95=float(np.mean([_average_precision(_match(images, iou), whole) for iou in _IOUS])),
        ap70=_average_precision(_match(images, TIGHT_IOU), whole),
        precision=right / int(sure.sum()) if sure.any() else None,
        recall=right / int(matches.boxes.sum()),
        calibration_error=_calibration_error(matches),
        calibration=_calibration_line(matches),
    )


def figures_by_height(images: Sequence[ClassBoxes]) -> tuple[HeightFigures, ...]:
    """Return AP at IoU 0.5 and 0.7 for each range of HEIGHTS_PX; () where the input's size is not known.

    COCO's rule for areas: true boxes of other heights are ignored, and so are answers of other heights that are wrong.
    """
    images = [_best_answers(each) for each in images]
    if not images or any(each.input_px <= 0 for each in images):
        return ()
    rows = []
    for low, high in pairwise(HEIGHTS_PX):
        boxes, aps = 0, []
        for iou_min in (IOU_MIN, TIGHT_IOU):
            matches = _match(images, iou_min, (low, high))
            boxes = int(matches.boxes.sum())
            aps.append(_average_precision(matches, np.ones(len(images))) if boxes else None)
        rows.append(HeightFigures(low, high, boxes, aps[0], aps[1]))
    return tuple(rows)


def _best_answers(boxes: ClassBoxes) -> ClassBoxes:
    order = np.argsort(-boxes.scores, kind="stable")[:ANSWERS_MAX]
    return replace(boxes, found=boxes.found[order], scores=boxes.scores[order])


def _match(
    images: Sequence[ClassBoxes], iou_min: float, heights_px: tuple[float, float] = (0.0, float("inf"))
) -> _Matches:
    """COCO's rule: detections by score, each takes the free true box that it overlaps most.

    Only true boxes of `heights_px` in the network's input count.
    """
    hits, void, counted = [], [], []
    for each in images:
        right = ~each.ignored & in_range(each.truth, each.input_px, heights_px)
        truth = Truth(each.truth[right], each.truth[~each.ignored & ~right], each.truth[each.ignored])
        outside = ~in_range(each.found, each.input_px, heights_px)
        taken, spare = match_answers(each.found, truth, iou_min, outside)
        hits.append(taken >= 0)
        void.append(spare)
        counted.append(int(right.sum()))
    scores = np.concatenate([each.scores for each in images])
    places = np.repeat(np.arange(len(images)), [len(each.scores) for each in images])
    rank = np.argsort(-scores, kind="stable")
    hit, spare = np.concatenate(hits)[rank], np.concatenate(void)[rank]
    return _Matches(scores[rank], hit, spare, places[rank], np.array(counted, np.intp))


def _average_precision(matches: _Matches, weights: Floats) -> float:
    """Return the mean precision at COCO's 101 recalls; weights: (images,) how often each counts. nan: no true box."""
    weight = weights[matches.image]
    right, counted = np.cumsum(weight * matches.hits), np.cumsum(weight * ~matches.void)
    return average_precision(right, counted, float(weights @ matches.boxes), "coco")


def _interval(matches: _Matches) -> tuple[float, float]:
    """Return the interval of AP50, from as many images drawn with replacement, the same way each time."""
    random, count = np.random.default_rng(0), len(matches.boxes)
    draws = [
        _average_precision(matches, np.bincount(random.integers(0, count, count), minlength=count).astype(float))
        for _ in range(RESAMPLES)
    ]
    low, high = np.nanpercentile(draws, LEVEL)
    return float(low), float(high)


def _calibration_error(matches: _Matches) -> float | None:
    """Return the expected calibration error (Guo et al. 2017, arXiv:1706.04599) in bins of a tenth."""
    counted = (matches.scores >= CALIBRATED_FROM) & ~matches.void
    scores, hits = matches.scores[counted], matches.hits[counted].astype(float)
    if not len(scores):
        return None
    bins = np.minimum((scores * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=scores - hits, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(scores))


def _calibration_line(matches: _Matches) -> tuple[float, float] | None:
    """Fit the scores' log-odds by logistic regression (Newton's method), over the detections that the error counts.

    A weak prior keeps it finite where all are right.
    """
    counted = (matches.scores >= CALIBRATED_FROM) & ~matches.void
    scores, hits = np.clip(matches.scores[counted], 1e-3, 1 - 1e-3), matches.hits[counted].astype(float)
    if not len(scores):
        return None
    odds = np.log(scores / (1 - scores))
    line = np.array([1.0, 0.0])
    design = np.stack([odds, np.ones(len(odds))], axis=1)
    prior = np.array([0.5, 0.05])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-np.clip(design @ line, -30, 30)))
        gradient = design.T @ (chance - hits) + prior * (line - np.array([1.0, 0.0]))
        curvature = design.T @ (design * (chance * (1 - chance))[:, None]) + np.diag(prior)
        line = line - np.linalg.solve(curvature, gradient)
    return float(line[0]), float(line[1])
