"""Computes figures from detections and labels: COCO's average precisions, the best threshold, recall by height."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import MissingDependency
from models.evaluation import arithmetic

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
    """Return the figures of each class of `names` that has at least one box. Raise MissingPart without pycocotools."""
    rows = []
    for name in names:
        matched = _matched(judged, name)
        if len(matched.found) == 0:
            continue
        ap50, ap = _coco(judged, name)
        at = arithmetic.best_threshold(matched)
        heights = arithmetic.recall_by_height(matched, HEIGHTS, at.threshold)
        table = tuple(
            HeightRow(low, high, count, None if count == 0 else recall) for low, high, count, recall in heights
        )
        rows.append(
            ClassFigures(name, len(matched.found), ap50, ap, at.threshold, at.f1, at.precision, at.recall, table)
        )
    return rows


def _matched(judged: Sequence[Judged], name: str) -> arithmetic.Matched:
    found, truth, crowd = [], [], []
    for each in judged:
        mine = _mask(each.found_names, name)
        right = _mask(each.truth_names, name)
        found.append((each.found[mine], each.scores[mine]))
        truth.append(each.truth[right & ~each.crowd])
        crowd.append(each.truth[_ignored(each, name)])
    return arithmetic.match(found, truth, crowd)


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
