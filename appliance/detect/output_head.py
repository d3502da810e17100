"""The port of output heads, and what they share: boxes without doubles, in a fixed order, each of one class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import InputForm
from appliance.detect.network_runtime import Array
from appliance.types import Detections

Floats = NDArray[np.float32]
Outputs = Mapping[str, Array]
"""The answer of a network: arrays by name, a batch of one."""
CANDIDATES_MAX = 1000  # by score; the cost grows with the square, and a frame shows fewer objects
DETECTIONS_MAX = 300  # of a frame, as Ultralytics' max_det
VEHICLES = frozenset({"car", "truck", "bus", "van"})
# Labels that look alike and are often really there: these give way among themselves only. All others (a kite, a cell
# phone) are most often mistakes before a fixed camera, and give way to whatever is wanted.
FAMILIES = (
    frozenset({"person"}),
    VEHICLES | {"train", "boat", "airplane"},
    frozenset({"bicycle", "motorcycle"}),
    frozenset({"bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"}),
)


class ClassPreference:
    """For a network's labels and the labels that rules want: which class gives way to which.

    A class gives way to a wanted one if no rule wants it and it is of the same family or of none. Kinds of vehicles are
    taken for each other all the time, so a rule that wants one of them wants them all here.
    """

    def __init__(self, labels: Sequence[str], wanted: Iterable[str]) -> None:
        names = frozenset(wanted)
        if names & VEHICLES:
            names |= VEHICLES
        family = [next((n for n, each in enumerate(FAMILIES) if label in each), -1) for label in labels]
        is_wanted = np.array([label in names for label in labels], np.bool_)
        alike = np.array([[a in (-1, b) for b in family] for a in family], np.bool_).reshape(len(labels), len(labels))
        self.gives_way: NDArray[np.bool_] = alike & ~is_wanted[:, None] & is_wanted[None, :]
        """(classes, classes): whether the class of the row gives way to that of the column."""

    def best(self, scores: NDArray[np.float32], score_min: float) -> NDArray[np.intp]:
        """Return the class of each answer, (N,), from its scores (N, classes).

        It is the class with the best score. If that one gives way to others, the best of them that has at least
        `score_min` takes its place.
        """
        chosen = scores.argmax(axis=1)
        rows = np.flatnonzero(self.gives_way[chosen].any(axis=1))
        if len(rows):
            rivals = np.where(self.gives_way[chosen[rows]], scores[rows], -1.0)
            preferred = rivals.argmax(axis=1)
            taken = rivals[np.arange(len(rows)), preferred] >= score_min
            chosen[rows[taken]] = preferred[taken]
        return np.asarray(chosen, np.intp)

    def resolve(self, found: Detections, iou_max: float) -> Detections:
        """Without the boxes that give way to another that overlaps them by more than `iou_max`."""
        rows = np.flatnonzero(self.gives_way[found.class_ids].any(axis=1)) if len(found) else np.zeros(0, np.intp)
        if not len(rows):
            return found
        keep = np.ones(len(found), np.bool_)
        for row in rows:
            rivals = found.boxes[self.gives_way[found.class_ids[row], found.class_ids]]
            keep[row] = not len(rivals) or float(_iou(found.boxes[row], rivals).max()) <= iou_max
        return found.select(keep)


def _iou(box: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    shared = sides[:, 0] * sides[:, 1]
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    return np.asarray(shared / np.maximum((box[2] - box[0]) * (box[3] - box[1]) + areas - shared, 1e-9), np.float32)


class UnknownLayout(ValueError):
    """No head fits; the text says why, as the end of a sentence."""


class OutputHead(Protocol):
    """How a network's output arrays become boxes. `classes` is None where the layout does not tell how many."""

    @property
    def name(self) -> str: ...
    @property
    def form(self) -> InputForm: ...
    @property
    def classes(self) -> int | None: ...

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        """Boxes in input pixels, doubles removed, score at least `score_min`. prefer: which classes give way."""
        ...


def non_maximum_suppression(found: Detections, iou_max: float, *, per_class: bool) -> Detections:
    """Keep the best of boxes that overlap by more than `iou_max`; within a class only if `per_class`.

    It takes the best CANDIDATES_MAX boxes where there are more. OpenCV's loop was 5 to 20 times faster than a
    vectorised numpy one for 10 to 1000 boxes.
    """
    if len(found) > CANDIDATES_MAX:
        found = found.select(np.argsort(-found.scores, kind="stable")[:CANDIDATES_MAX])
    if len(found) < 2:
        return found
    corners_sizes = found.boxes.copy()
    corners_sizes[:, 2:] -= corners_sizes[:, :2]
    groups = found.class_ids if per_class else np.zeros_like(found.class_ids)
    keep = cv2.dnn.NMSBoxesBatched(corners_sizes, found.scores, groups, 0.0, iou_max)  # type: ignore[arg-type]
    return found.select(np.asarray(keep, np.intp).reshape(-1))


def filter_and_sort(found: Detections, score_min: float) -> Detections:
    """Finite boxes with an area and a score of at least `score_min`, best score first, ties by box; at most 300."""
    size = found.boxes[:, 2:] - found.boxes[:, :2]
    fine = np.isfinite(found.boxes).all(axis=1) & (size > 1e-4).all(axis=1) & (found.scores >= score_min)
    found = found.select(fine)
    order = np.lexsort((found.class_ids, *found.boxes.T[::-1], -found.scores))
    return found.select(order[:DETECTIONS_MAX])


def to_detections(
    boxes: NDArray[np.generic], scores: NDArray[np.generic], class_ids: NDArray[np.generic]
) -> Detections:
    """Return detections, contiguous, from whatever dtypes a network answered with.

    A box that is not finite (a network in float16 overflows) is left out here: among the others it would suppress them
    all, and clipped to the frame it would be all of it.
    """
    found = Detections(
        np.ascontiguousarray(boxes, np.float32).reshape(-1, 4),
        np.minimum(np.ascontiguousarray(scores, np.float32).reshape(-1), 1.0),
        np.ascontiguousarray(class_ids, np.int32).reshape(-1),
    )
    finite = np.asarray(np.isfinite(found.boxes).all(axis=1), np.bool_)
    return found if finite.all() else found.select(finite)
