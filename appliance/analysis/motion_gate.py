"""Detects motion: how much moved and where, as a priority for the detector, never a permission to skip a camera.

A fine brightness plane is compared with a slowly following background, cell by cell. Each cell learns how far it
usually is off (sensor noise at night, leaves, rain), and how widely that varies; what goes beyond is motion. Cells
that moved and touch are one blob, and a blob has to bring more than those that come and go at once: a threshold that
rain, snow and insects raise, up to `threshold_max` and never beyond, and that whoever stays in the frame gets over with
time. What changes everywhere at once (infrared switch, exposure, a shaken camera) is a whole change, and learnt anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.media.frames import halved
from appliance.types import Box

SHIFT_WIDTH = 40  # columns of the grid on which the light of the whole frame is compared


@dataclass(frozen=True, slots=True)
class BackgroundTuning:
    """How a cell learns what is usual there, and when a change is more than that."""

    cells_max: int = 160
    """Cells across; a cell is then 8 pixels of a 720p frame, 16 of a 1080p one."""
    background_share: float = 0.08
    """The share of a new frame in the background."""
    noise_share: float = 0.05
    """The share of a new change in the usual change of a cell at rest."""
    restless_share: float = 0.01
    """The same for a cell that moves: a branch is learnt in the end, a passer-by is not."""
    noise_max: float = 12.0
    """A change beyond that is learnt as so much: no cell becomes blind."""
    floor: float = 2.5
    """Less than that above the usual is never motion: compression changes flat areas by as much."""
    spreads: float = 5.0
    """How many usual spreads above the usual a change must be."""
    learn_frames: int = 10
    """From nothing, or after a whole change: 2 s."""
    learn_above: float = 4.0
    """While learning, more than so many times the median is something, and not noise."""
    whole_share: float = 0.35
    """With so many cells moving the whole frame has changed."""
    regions_max: int = 8


@dataclass(frozen=True, slots=True)
class BlobTuning:
    """When moving cells that belong together are an object."""

    threshold_min: float = 3.0
    threshold_max: float = 100.0
    """Evidence (grey levels beyond the usual, summed over cells) that a new blob has to bring: between these two."""
    threshold_kept: float = 0.998
    """The share of the threshold that remains with the next frame: half after 70 s."""
    threshold_above: float = 1.6
    """Times the evidence of blobs that come and go at once."""
    steady: float = 1.0
    """A cell that changed by less since the last frame brings no evidence: it stands there."""
    blobs_max: int = 64
    evidence_kept: float = 0.8
    """The share of a blob's evidence that remains with the next frame."""
    heir_max: float = 3.0
    """Times what is there now: the faint trace in the background of an insect is no heir to it."""
    grown: float = 0.25
    """A blob in which less than this share is new does not grow older."""
    fleeting_frames: int = 2
    """A blob that is gone by then has come and gone at once."""


@dataclass(frozen=True, slots=True)
class MotionTuning:
    """Thresholds of the motion gate.

    They were set on PETS, the rendered family and the seeded conditions (docs/gate.md). Changes are in grey levels of
    255, paces are shares a frame at five frames a second.
    """

    background: BackgroundTuning = BackgroundTuning()
    blobs: BlobTuning = BlobTuning()


TUNING = MotionTuning()

CellArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MovingCells:
    """The cells that changed by more than is usual for each."""

    above: CellArray  # (rows, columns) how far the change of each cell is beyond the usual
    moved: NDArray[np.bool_]  # (rows, columns) where that is above 0
    there: NDArray[np.intp]  # (N,) the same as numbers of cells, row by row

    @classmethod
    def beyond(cls, change: CellArray, bound: CellArray) -> MovingCells:
        above = change - bound
        moved = above > 0
        return cls(above, moved, moved.ravel().nonzero()[0])

    @property
    def share(self) -> float:
        """The share of the cells."""
        return len(self.there) / self.moved.size


@dataclass(frozen=True, slots=True)
class MotionBlobs:
    """Groups of cells that moved and touch, followed from frame to frame: how much speaks for each being something."""

    boxes: NDArray[np.int32]  # (N, 4) xyxy in cells
    sizes: NDArray[np.int32]  # (N,) cells
    evidence: NDArray[
        np.float64
    ]  # (N,) beyond the usual, if that is not what it was before, and what is left of before
    peaks: NDArray[np.float64]  # (N,) the most evidence there ever was
    ages: NDArray[np.int32]  # (N,) frames in which it changed: a block that an encoder made anew does not grow older

    @classmethod
    def none(cls) -> MotionBlobs:
        nothing = np.zeros(0, np.int32)
        return cls(np.zeros((0, 4), np.int32), nothing, np.zeros(0), np.zeros(0), nothing)

    def next_frame(self, change: CellArray, before: CellArray, moving: MovingCells) -> MotionBlobs:
        """Return the blobs of the next frame, as heirs of these.

        change: of each cell, (rows, columns); before: the same in the last frame.
        """
        there = moving.there
        if len(there) == 0:
            return MotionBlobs.none()
        count, labels, stats, _ = cv2.connectedComponentsWithStats(moving.moved.view(np.uint8), connectivity=8)
        label, beyond = labels.ravel()[there], moving.above.ravel()[there]
        weights = np.bincount(label, beyond, count)
        fresh = np.minimum(beyond, np.abs(change.ravel()[there] - before.ravel()[there]) - TUNING.blobs.steady)
        news = np.bincount(label, np.maximum(fresh, 0.0), count)
        rows = 1 + np.argsort(-weights[1:], kind="stable")[: TUNING.blobs.blobs_max]
        corner = stats[rows, :2]
        boxes = np.concatenate([corner, corner + stats[rows, 2:4]], axis=1)
        evidence: NDArray[np.float64] = news[rows].astype(np.float64)
        ages = (news[rows] >= TUNING.blobs.grown * weights[rows]).astype(np.int32)
        peaks = evidence
        if len(self.ages):
            touches = _touch(boxes, self.boxes)
            left = TUNING.blobs.evidence_kept * np.maximum.reduce(touches * self.evidence, axis=1)
            evidence = evidence + np.minimum(left, TUNING.blobs.heir_max * weights[rows])
            peaks = np.maximum(evidence, np.maximum.reduce(touches * self.peaks, axis=1))
            ages = ages + np.maximum.reduce(touches * self.ages, axis=1)
        return MotionBlobs(boxes, stats[rows, 4], evidence, peaks, ages.astype(np.int32))

    def fleeting(self, now: MotionBlobs) -> float:
        """Return the most evidence of blobs that came and are gone at once; 0: none. now: the next frame's blobs."""
        (young,) = (self.ages <= TUNING.blobs.fleeting_frames).nonzero()
        if len(now.ages) and len(young):
            young = young[~np.logical_or.reduce(_touch(self.boxes[young], now.boxes), axis=1)]
        return float(self.peaks[young].max()) if len(young) else 0.0


def _touch(some: NDArray[np.int32], others: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(M, N): which boxes overlap or are next to each other."""
    first = np.maximum(some[:, None, :2], others[None, :, :2])
    last = np.minimum(some[:, None, 2:], others[None, :, 2:])
    near = first <= last + 1
    return np.asarray(near[:, :, 0] & near[:, :, 1], np.bool_)


@dataclass(frozen=True, slots=True)
class MotionRegion:
    """A part of the frame in which something moved."""

    box: Box  # shares of the frame as it is coded
    priority: float  # share of the frame's cells that moved, 0..1


@dataclass(frozen=True, slots=True)
class Motion:
    """The motion in one frame."""

    priority: float  # 0 (nothing) to 1
    regions: tuple[MotionRegion, ...] = ()  # the most important first
    whole: bool = False  # all of it changed (light, infrared, camera moved, first frame): regions mean nothing


class MotionGate:
    """Measures motion, frame by frame.

    State: background, what is usual for each cell, the blobs of the last frame, the threshold. Owner: one camera
    session. Deterministic in the planes it is given. eager: the threshold stays at its lowest: rain costs inferences,
    and a new blob counts at once.
    """

    def __init__(self, *, eager: bool = False) -> None:
        self._eager = eager
        self._background: NDArray[np.float32] | None = None
        self._usual: CellArray = np.zeros((0, 0), np.float32)
        self._spread: CellArray = self._usual
        self._before: CellArray = self._usual
        self._frames = 0
        self._blobs = MotionBlobs.none()
        self.threshold = TUNING.blobs.threshold_min
        """The evidence that a new blob has to bring, `threshold_min`..`threshold_max`."""

    def measure(self, plane: NDArray[np.uint8]) -> Motion:
        """Return the change beyond the usual. plane: uint8 (H, W), brightness; see `FrameConverter.motion_plane`."""
        if self._background is None or self._background.shape != plane.shape:
            self._begin(plane)
            return Motion(1.0, whole=True)
        change = _change(plane, self._background)
        moving = MovingCells.beyond(change, self._bound())
        if moving.share > TUNING.background.whole_share:
            self._whole_change(plane, change)
            return Motion(moving.share, whole=True)
        cv2.accumulateWeighted(plane, self._background, TUNING.background.background_share)
        self._learn(change, moving.there)
        before, self._blobs = self._blobs, self._blobs.next_frame(change, self._before, moving)
        self._before = change
        self._raise_threshold(before)
        return self._motion(change.shape)

    def peek_priority(self, plane: NDArray[np.uint8]) -> float:
        """Return the priority that `measure` would give, without learning anything."""
        if self._background is None or self._background.shape != plane.shape:
            return 1.0
        change = _change(plane, self._background)
        moving = MovingCells.beyond(change, self._bound())
        if moving.share == 0.0 or moving.share > TUNING.background.whole_share:
            return moving.share
        blobs = self._blobs.next_frame(change, self._before, moving)
        return float(blobs.sizes[blobs.evidence >= self.threshold].sum()) / change.size

    def _begin(self, plane: NDArray[np.uint8]) -> None:
        self._background = plane.astype(np.float32)
        self._before = _change(plane, self._background)
        self._usual, self._spread = np.zeros_like(self._before), np.zeros_like(self._before)
        self._frames, self._blobs, self.threshold = 0, MotionBlobs.none(), TUNING.blobs.threshold_min

    def _whole_change(self, plane: NDArray[np.uint8], change: CellArray) -> None:
        """Take the new frame as the background; how noisy it is has to be learnt from the beginning."""
        assert self._background is not None
        np.copyto(self._background, plane)
        self._blobs, self._before = MotionBlobs.none(), np.zeros_like(change)
        if self._frames >= TUNING.background.learn_frames:
            self._frames = 1
        else:  # it goes on: a camera that shakes is learnt, as all that goes on is
            self._learn(change, np.arange(change.size))

    def _bound(self) -> CellArray:
        bound = TUNING.background.spreads * self._spread
        bound += self._usual
        bound += TUNING.background.floor
        return np.asarray(bound, np.float32)

    def _learn(self, change: CellArray, moved: NDArray[np.intp]) -> None:
        """Mostly from cells at rest, so that a person walking by does not blind the place they walked through.

        moved: the numbers of the other cells.
        """
        self._frames += 1
        if self._frames <= TUNING.background.learn_frames:
            # All are learnt from, but what sticks out of the whole frame is something, and not noise.
            above = TUNING.background.learn_above * _median_of(change.flatten()) + 1.0
            seen = np.minimum(change, min(TUNING.background.noise_max, above))
            pace: CellArray | float = 1.0 / self._frames
        else:
            seen = np.minimum(change, TUNING.background.noise_max)
            pace = np.full(change.shape, TUNING.background.noise_share, np.float32)
            pace.put(moved, TUNING.background.restless_share)
        off = seen - self._usual
        self._usual += pace * off
        np.abs(off, out=off)
        off -= self._spread
        off *= pace
        self._spread += off

    def _raise_threshold(self, before: MotionBlobs) -> None:
        """Blobs that came and went at once tell how much evidence is nothing."""
        self.threshold = max(TUNING.blobs.threshold_min, TUNING.blobs.threshold_kept * self.threshold)
        fleeting = before.fleeting(self._blobs)
        if not self._eager:
            self.threshold = max(
                self.threshold, min(TUNING.blobs.threshold_max, TUNING.blobs.threshold_above * fleeting)
            )

    def _motion(self, shape: tuple[int, ...]) -> Motion:
        blobs = self._blobs
        counted = np.flatnonzero(blobs.evidence >= self.threshold)
        if len(counted) == 0:
            return Motion(0.0)
        total = shape[0] * shape[1]
        whole = np.array([shape[1], shape[0], shape[1], shape[0]], float)
        boxes = [_box(blobs.boxes[row] / whole) for row in counted]
        parts = [MotionRegion(box, float(blobs.sizes[row]) / total) for box, row in zip(boxes, counted, strict=True)]
        return Motion(float(blobs.sizes[counted].sum()) / total, _join_least(parts))


def _change(plane: NDArray[np.uint8], background: NDArray[np.float32]) -> CellArray:
    """(rows, columns) mean change of each cell, without what the whole frame has in common (light)."""
    step = max(1, plane.shape[1] // SHIFT_WIDTH)
    light = _median_of((plane[::step, ::step] - background[::step, ::step]).ravel())
    dark = background if light >= 0 else np.maximum(background, np.float32(-light))  # no pixel gets darker than black
    expected = cv2.convertScaleAbs(dark, beta=light)
    return to_cells(np.asarray(cv2.absdiff(plane, expected), np.uint8)).astype(np.float32)


def _median_of(values: NDArray[np.float32]) -> float:
    """As np.median, in a third of the time for a thousand of them, whose order is lost.

    np.median loads numpy.ma besides, with the first call: 1.2 MB.
    """
    high = len(values) // 2
    low = high - 1 + len(values) % 2
    values.partition((low, high))
    return float((values[low] + values[high]) / np.float32(2))


def to_cells(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the plane halved until it is no wider than `cells_max`; halving is cheap, other ratios are not."""
    while plane.shape[1] > TUNING.background.cells_max:
        plane = halved(plane)
    return plane


def _box(sides: NDArray[np.float64]) -> Box:
    x1, y1, x2, y2 = (min(1.0, max(0.0, float(side))) for side in sides)
    return x1, y1, x2, y2


def _join_least(regions: list[MotionRegion]) -> tuple[MotionRegion, ...]:
    """At most `regions_max`: the least important ones are joined with what is nearest to them."""
    found = sorted(regions, key=lambda each: (-each.priority, each.box))
    while len(found) > TUNING.background.regions_max:
        least = found.pop()
        near = min(range(len(found)), key=lambda n: math.dist(_centre(found[n].box), _centre(least.box)))
        found[near] = MotionRegion(union_box(found[near].box, least.box), found[near].priority + least.priority)
    return tuple(found)


def union_box(one: Box, other: Box) -> Box:
    """Return the smallest box that holds both."""
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
