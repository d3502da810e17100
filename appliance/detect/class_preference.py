"""Which class an object gets where a network gives it several: one that no rule wants gives way to a wanted one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.types import Detections

VEHICLES = frozenset({"car", "truck", "bus", "van"})
# What is really there and looks alike: these give way among themselves only. All others (a kite, a cell phone) are most
# often mistakes before a fixed camera, and give way to whatever is wanted.
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
