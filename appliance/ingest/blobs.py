"""Cells that moved and touch, followed from picture to picture: how much speaks for each being something."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

STEADY = 1.0
BLOBS_MAX = 64
KEPT = 0.8  # of a blob's evidence from one picture to the next
HEIR_MAX = 3.0  # times what is there now: the faint trace in the background of an insect is no heir to it
GROWN = 0.25
FLEETING = 2

Cells = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Blobs:
    """Cells that moved and touch. boxes: (N, 4) xyxy in cells; sizes: (N,) cells; evidence: (N,) how far beyond the
    usual they are as long as that is not what it was in the last picture, and what is left of its forerunner's; peaks:
    (N,) the most there ever was of it; ages: (N,) pictures in which it changed: what stays as it is, such as a block
    that an encoder made anew, does not grow older."""

    boxes: NDArray[np.int32]
    sizes: NDArray[np.int32]
    evidence: NDArray[np.float64]
    peaks: NDArray[np.float64]
    ages: NDArray[np.int32]

    @classmethod
    def none(cls) -> Blobs:
        nothing = np.zeros(0, np.int32)
        return cls(np.zeros((0, 4), np.int32), nothing, np.zeros(0), np.zeros(0), nothing)

    def next(self, change: Cells, before: Cells, above: Cells, moved: NDArray[np.bool_]) -> Blobs:
        """Those of the next picture, as heirs of these. change: of each cell, before: in the last picture, above: how
        far it is beyond the usual, moved: where that is above 0."""
        there = np.flatnonzero(moved)
        if len(there) == 0:
            return Blobs.none()
        count, labels, stats, _ = cv2.connectedComponentsWithStats(moved.view(np.uint8), connectivity=8)
        label, beyond = labels.ravel()[there], above.ravel()[there]
        weights = np.bincount(label, beyond, count)
        fresh = np.minimum(beyond, np.abs(change.ravel()[there] - before.ravel()[there]) - STEADY)
        news = np.bincount(label, np.maximum(fresh, 0.0), count)
        rows = 1 + np.argsort(-weights[1:], kind="stable")[:BLOBS_MAX]
        corner = stats[rows, :2]
        boxes = np.concatenate([corner, corner + stats[rows, 2:4]], axis=1)
        evidence: NDArray[np.float64] = news[rows].astype(np.float64)
        ages = (news[rows] >= GROWN * weights[rows]).astype(np.int32)
        peaks = evidence
        if len(self.ages):
            touches = _touch(boxes, self.boxes)
            left = KEPT * np.where(touches, self.evidence, 0.0).max(axis=1)
            evidence = evidence + np.minimum(left, HEIR_MAX * weights[rows])
            peaks = np.maximum(evidence, np.where(touches, self.peaks, 0.0).max(axis=1))
            ages = ages + np.where(touches, self.ages, 0).max(axis=1)
        return Blobs(boxes, stats[rows, 4], evidence, peaks, ages.astype(np.int32))

    def fleeting(self, now: Blobs) -> float:
        """The most there ever was of those that came and are gone at once, `now` being the next picture's; 0: of
        none."""
        gone = self.ages <= FLEETING
        if len(now.ages) and len(self.ages):
            gone &= ~_touch(self.boxes, now.boxes).any(axis=1)
        return float(self.peaks[gone].max()) if gone.any() else 0.0


def _touch(some: NDArray[np.int32], others: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(M, N): which boxes overlap or are next to each other."""
    first = np.maximum(some[:, None, :2], others[None, :, :2])
    last = np.minimum(some[:, None, 2:], others[None, :, 2:])
    return np.asarray((first <= last + 1).all(axis=2), np.bool_)
