"""Motion detection: how much has moved and where, as a priority for the detector, never a permission to skip a
camera.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.media.frames import halved
from appliance.types import Box

STEADY = 1.0
BLOBS_MAX = 64
KEPT = 0.8  # of a blob's evidence from one picture to the next
HEIR_MAX = 3.0  # times what is there now: the faint trace in the background of an insect is no heir to it
GROWN = 0.25
FLEETING = 2

CellArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MotionBlobs:
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
    def none(cls) -> MotionBlobs:
        nothing = np.zeros(0, np.int32)
        return cls(np.zeros((0, 4), np.int32), nothing, np.zeros(0), np.zeros(0), nothing)

    def next_frame(
        self, change: CellArray, before: CellArray, above: CellArray, moved: NDArray[np.bool_]
    ) -> MotionBlobs:
        """Those of the next picture, as heirs of these. change: of each cell, before: in the last picture, above: how
        far it is beyond the usual, moved: where that is above 0."""
        there = np.flatnonzero(moved)
        if len(there) == 0:
            return MotionBlobs.none()
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
        return MotionBlobs(boxes, stats[rows, 4], evidence, peaks, ages.astype(np.int32))

    def fleeting(self, now: MotionBlobs) -> float:
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


CELLS_MAX = 160  # across; a cell is then 8 pixels of a 720p picture, 16 of a 1080p one
BACKGROUND_SHARE = 0.08
NOISE_SHARE = 0.05
RESTLESS_SHARE = 0.01  # of a cell that moves: a branch is learnt in the end, a passer-by is not
NOISE_MAX = 12.0
FLOOR = 2.5
SPREADS = 5.0
LEARN_LOOKS = 10  # from nothing, or after a whole change: 2 s at 5 looks a second
LEARN_ABOVE = 4.0
WHOLE_SHARE = 0.35
REGIONS_MAX = 8
THRESHOLD_MIN = 3.0
THRESHOLD_MAX = 100.0
THRESHOLD_KEPT = 0.998
THRESHOLD_ABOVE = 1.6


@dataclass(frozen=True, slots=True)
class MotionRegion:
    """A part of the picture in which something moved. box: shares of the picture; priority: 0..1."""

    box: Box
    priority: float


@dataclass(frozen=True, slots=True)
class Motion:
    """What moved. priority: 0 (nothing) to 1; regions: where, the most important first; whole: the whole picture
    changed (light, infrared, the camera was moved, the first picture), so that regions say nothing."""

    priority: float
    regions: tuple[MotionRegion, ...] = ()
    whole: bool = False


class MotionGate:
    """State: background, what is usual for each cell, the blobs of the last picture, the bar. Owner: one camera run.

    Deterministic in the planes it is given. All planes of a run have one size. eager: the bar stays at its lowest: rain
    costs looks, and nobody has to bring evidence for a second one.
    """

    def __init__(self, *, eager: bool = False) -> None:
        self._eager = eager
        self._background: NDArray[np.float32] | None = None
        self._usual: CellArray = np.zeros((0, 0), np.float32)
        self._spread: CellArray = self._usual
        self._before: CellArray = self._usual
        self._looks = 0
        self._blobs = MotionBlobs.none()
        self._bar = THRESHOLD_MIN

    @property
    def threshold(self) -> float:
        """What a blob that is new has to bring, BAR_MIN..BAR_MAX: grey levels beyond the usual, summed."""
        return self._bar

    def measure(self, plane: NDArray[np.uint8]) -> Motion:
        """What changed more than it usually does. plane: uint8 (H, W), brightness; see `Pictures.sketch`."""
        if self._background is None or self._background.shape != plane.shape:
            self._begin(plane)
            return Motion(1.0, whole=True)
        change = _change(plane, self._background)
        above = change - self._bound()
        moved = above > 0
        share = float(np.count_nonzero(moved)) / moved.size
        if share > WHOLE_SHARE:
            self._whole(plane, change)
            return Motion(share, whole=True)
        cv2.accumulateWeighted(plane, self._background, BACKGROUND_SHARE)
        self._learn(change, moved)
        before, self._blobs = self._blobs, self._blobs.next_frame(change, self._before, above, moved)
        self._before = change
        self._raise(before)
        return self._told(moved.shape)

    def peek_priority(self, plane: NDArray[np.uint8]) -> float:
        """The priority that `measure` would tell, without learning anything."""
        if self._background is None or self._background.shape != plane.shape:
            return 1.0
        change = _change(plane, self._background)
        above = change - self._bound()
        moved = above > 0
        share = float(np.count_nonzero(moved)) / moved.size
        if share == 0.0 or share > WHOLE_SHARE:
            return share
        blobs = self._blobs.next_frame(change, self._before, above, moved)
        return float(blobs.sizes[blobs.evidence >= self._bar].sum()) / moved.size

    def _begin(self, plane: NDArray[np.uint8]) -> None:
        self._background = plane.astype(np.float32)
        self._before = _change(plane, self._background)
        self._usual, self._spread = np.zeros_like(self._before), np.zeros_like(self._before)
        self._looks, self._blobs, self._bar = 0, MotionBlobs.none(), THRESHOLD_MIN

    def _whole(self, plane: NDArray[np.uint8], change: CellArray) -> None:
        """The new picture is the background; how noisy it is has to be found out again."""
        assert self._background is not None
        np.copyto(self._background, plane)
        self._blobs, self._before = MotionBlobs.none(), np.zeros_like(change)
        if self._looks >= LEARN_LOOKS:
            self._looks = 1
        else:  # it goes on: a camera that shakes is learnt, as all that goes on is
            self._learn(change, np.ones(change.shape, np.bool_))

    def _bound(self) -> CellArray:
        return np.asarray(self._usual + SPREADS * self._spread + FLOOR, np.float32)

    def _learn(self, change: CellArray, moved: NDArray[np.bool_]) -> None:
        """Mostly from cells at rest, so that a person walking by does not blind the place they walked through."""
        self._looks += 1
        if self._looks <= LEARN_LOOKS:
            # All are learnt from, but what sticks out of the whole picture is something, and not noise.
            seen = np.minimum(change, min(NOISE_MAX, LEARN_ABOVE * float(np.median(change)) + 1.0))
            pace: CellArray | float = 1.0 / self._looks
        else:
            seen = np.minimum(change, NOISE_MAX)
            pace = np.where(moved, np.float32(RESTLESS_SHARE), np.float32(NOISE_SHARE))
        off = seen - self._usual
        self._usual += pace * off
        self._spread += pace * (np.abs(off) - self._spread)

    def _raise(self, before: MotionBlobs) -> None:
        """What was there for a moment and is gone tells how much is nothing."""
        self._bar = max(THRESHOLD_MIN, THRESHOLD_KEPT * self._bar)
        fleeting = before.fleeting(self._blobs)
        if not self._eager:
            self._bar = max(self._bar, min(THRESHOLD_MAX, THRESHOLD_ABOVE * fleeting))

    def _told(self, shape: tuple[int, ...]) -> Motion:
        blobs = self._blobs
        counted = np.flatnonzero(blobs.evidence >= self._bar)
        if len(counted) == 0:
            return Motion(0.0)
        total = shape[0] * shape[1]
        whole = np.array([shape[1], shape[0], shape[1], shape[0]], float)
        boxes = [_box(blobs.boxes[row] / whole) for row in counted]
        parts = [MotionRegion(box, float(blobs.sizes[row]) / total) for box, row in zip(boxes, counted, strict=True)]
        return Motion(float(blobs.sizes[counted].sum()) / total, _few(parts))


def _change(plane: NDArray[np.uint8], background: NDArray[np.float32]) -> CellArray:
    """Mean change of each cell, without what the whole picture has in common."""
    step = max(1, plane.shape[1] // 40)
    light = _median((plane[::step, ::step] - background[::step, ::step]).ravel())
    expected = cv2.convertScaleAbs(background, beta=light)
    return to_cells(np.asarray(cv2.absdiff(plane, expected), np.uint8)).astype(np.float32)


def _median(values: NDArray[np.float32]) -> float:
    """As np.median, in a third of the time for a thousand of them."""
    high = len(values) // 2
    low = high - 1 + len(values) % 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / np.float32(2))


def to_cells(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The plane halved until it is no wider than CELLS_MAX; halving is what is cheap, other ratios are not."""
    while plane.shape[1] > CELLS_MAX:
        plane = halved(plane)
    return plane


def _box(sides: NDArray[np.float64]) -> Box:
    x1, y1, x2, y2 = (min(1.0, max(0.0, float(side))) for side in sides)
    return x1, y1, x2, y2


def _few(regions: list[MotionRegion]) -> tuple[MotionRegion, ...]:
    """At most REGIONS_MAX: the least important ones are joined with what is nearest to them."""
    found = sorted(regions, key=lambda each: (-each.priority, each.box))
    while len(found) > REGIONS_MAX:
        least = found.pop()
        near = min(range(len(found)), key=lambda n: math.dist(_centre(found[n].box), _centre(least.box)))
        found[near] = MotionRegion(union_box(found[near].box, least.box), found[near].priority + least.priority)
    return tuple(found)


def union_box(one: Box, other: Box) -> Box:
    """The smallest box that holds both."""
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
