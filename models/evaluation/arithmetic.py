"""Computes figures from detections and labels: average precision, the best threshold, recall by height.

Average precision is computed in numpy, during training and where pycocotools is missing. `models.evaluate` reports
pycocotools' figures; tests/unit/test_evaluate.py holds the two together.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.base import box_arrays
from appliance.base.box_arrays import HEIGHTS_PX, HeightFigures, Truth, in_range, match_answers
from appliance.base.errors import MissingDependency

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


HEIGHTS = (0.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 160.0, 1e9)
ANSWERS_MAX = 300


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


@dataclass(frozen=True, slots=True)
class HeightRow:
    """Boxes whose height in pixels is from `low` to below `high`, and the share of them found."""

    low: float
    high: float
    boxes: int
    recall: float | None


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The figures of one class.

    `ap50` and `ap` are pycocotools' AP at IoU 0.5 and its mean from 0.5 to 0.95; the rest is at IoU 0.5, and at
    `threshold`, the score with the best F1.
    """

    name: str
    boxes: int
    ap50: float
    ap: float
    threshold: float
    f1: float
    precision: float
    recall: float
    heights: tuple[HeightRow, ...]


def figures(judged: Sequence[Judged], names: Sequence[str]) -> list[ClassFigures]:
    """Return the figures of each class of `names` that has at least one box.

    Raise MissingDependency without pycocotools.
    """
    rows = []
    for name in names:
        matched = _matched(judged, name)
        if len(matched.found) == 0:
            continue
        ap50, ap = _coco(judged, name)
        at = best_threshold(matched)
        heights = recall_by_height(matched, HEIGHTS, at.threshold)
        table = tuple(
            HeightRow(low, high, count, None if count == 0 else recall) for low, high, count, recall in heights
        )
        rows.append(
            ClassFigures(name, len(matched.found), ap50, ap, at.threshold, at.f1, at.precision, at.recall, table)
        )
    return rows


def _matched(judged: Sequence[Judged], name: str) -> Matched:
    found, truth, crowd = [], [], []
    for each in judged:
        mine = _mask(each.found_names, name)
        right = _mask(each.truth_names, name)
        found.append((each.found[mine], each.scores[mine]))
        truth.append(each.truth[right & ~each.crowd])
        crowd.append(each.truth[_ignored(each, name)])
    return match(found, truth, crowd)


def _coco(judged: Sequence[Judged], name: str) -> tuple[float, float]:
    """Return AP50 and AP50:95 by pycocotools."""
    coco_class, evaluation_class = _pycocotools()
    labels: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for number, each in enumerate(judged, 1):
        counted, mine = _mask(each.truth_names, name) & ~each.crowd, _mask(each.found_names, name)
        for which, crowd in ((counted, 0), (_ignored(each, name), 1)):
            labels += [
                _row(number, box, id=len(labels) + n, iscrowd=crowd) for n, box in enumerate(each.truth[which], 1)
            ]
        for box, score in zip(each.found[mine], each.scores[mine], strict=True):
            answers.append(_row(number, box, id=len(answers) + 1, score=float(score)))
    if not answers:
        return 0.0, 0.0
    images = [{"id": number} for number in range(1, len(judged) + 1)]
    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = coco_class(), coco_class()
        for holder, annotations in ((truth, labels), (found, answers)):
            holder.dataset = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": name}]}
            holder.createIndex()
        run = evaluation_class(truth, found, "bbox")
        run.params.maxDets = [1, 100, ANSWERS_MAX]
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][:, :, 0, 0, -1]
    return float(np.maximum(precision[0], 0).mean()), float(np.maximum(precision, 0).mean())


def _row(image: int, box: NDArray[np.float64], **more: float) -> dict[str, object]:
    x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
    return {
        "image_id": image, "category_id": 1, "bbox": [float(x), float(y), float(width), float(height)],
        "area": float(width * height), "iscrowd": 0, **more,
    }  # fmt: skip


def _pycocotools() -> tuple[Any, Any]:
    try:
        coco, cocoeval = importlib.import_module("pycocotools.coco"), importlib.import_module("pycocotools.cocoeval")
    except ImportError:
        raise MissingDependency("evaluation needs pycocotools: pip install '.[train]'") from None
    return coco.COCO, cocoeval.COCOeval


def _ignored(judged: Judged, name: str) -> NDArray[np.bool_]:
    return judged.crowd & (_mask(judged.truth_names, name) | _mask(judged.truth_names, ""))


def _mask(names: Sequence[str], name: str) -> NDArray[np.bool_]:
    return np.array([each == name for each in names], bool)
