"""How much has moved, and where: a priority for the detector, never a permission to skip a camera.

A fine brightness plane is compared with a slowly following background, cell by cell. Each cell learns how far it
usually is off (sensor noise at night, leaves, rain), and how widely that varies; what goes beyond is movement. Cells
that moved and touch are one blob, and a blob has to bring more than those that come and go at once: a bar that rain,
snow and insects raise, up to BAR_MAX and never beyond, and that whoever stays in the picture gets over with time.
What changes everywhere at once (infrared switch, exposure, a shaken camera) is a whole change, and learnt anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.ingest.blobs import Blobs, Cells
from appliance.ingest.picture import halved
from appliance.types import Box

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
BAR_MIN = 3.0
BAR_MAX = 100.0
BAR_KEPT = 0.998
BAR_ABOVE = 1.6


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the picture in which something moved. box: shares of the picture; priority: 0..1."""

    box: Box
    priority: float


@dataclass(frozen=True, slots=True)
class Motion:
    """What moved. priority: 0 (nothing) to 1; regions: where, the most important first; whole: the whole picture
    changed (light, infrared, the camera was moved, the first picture), so that regions say nothing."""

    priority: float
    regions: tuple[Region, ...] = ()
    whole: bool = False


class Gate:
    """State: background, what is usual for each cell, the blobs of the last picture, the bar. Owner: one camera run.

    Deterministic in the planes it is given. All planes of a run have one size. eager: the bar stays at its lowest: rain
    costs looks, and nobody has to bring evidence for a second one.
    """

    def __init__(self, *, eager: bool = False) -> None:
        self._eager = eager
        self._background: NDArray[np.float32] | None = None
        self._usual: Cells = np.zeros((0, 0), np.float32)
        self._spread: Cells = self._usual
        self._before: Cells = self._usual
        self._looks = 0
        self._blobs = Blobs.none()
        self._bar = BAR_MIN

    @property
    def bar(self) -> float:
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
        before, self._blobs = self._blobs, self._blobs.next(change, self._before, above, moved)
        self._before = change
        self._raise(before)
        return self._told(moved.shape)

    def peek(self, plane: NDArray[np.uint8]) -> float:
        """The priority that `measure` would tell, without learning anything."""
        if self._background is None or self._background.shape != plane.shape:
            return 1.0
        change = _change(plane, self._background)
        above = change - self._bound()
        moved = above > 0
        share = float(np.count_nonzero(moved)) / moved.size
        if share == 0.0 or share > WHOLE_SHARE:
            return share
        blobs = self._blobs.next(change, self._before, above, moved)
        return float(blobs.sizes[blobs.evidence >= self._bar].sum()) / moved.size

    def _begin(self, plane: NDArray[np.uint8]) -> None:
        self._background = plane.astype(np.float32)
        self._before = _change(plane, self._background)
        self._usual, self._spread = np.zeros_like(self._before), np.zeros_like(self._before)
        self._looks, self._blobs, self._bar = 0, Blobs.none(), BAR_MIN

    def _whole(self, plane: NDArray[np.uint8], change: Cells) -> None:
        """The new picture is the background; how noisy it is has to be found out again."""
        assert self._background is not None
        np.copyto(self._background, plane)
        self._blobs, self._before = Blobs.none(), np.zeros_like(change)
        if self._looks >= LEARN_LOOKS:
            self._looks = 1
        else:  # it goes on: a camera that shakes is learnt, as all that goes on is
            self._learn(change, np.ones(change.shape, np.bool_))

    def _bound(self) -> Cells:
        return np.asarray(self._usual + SPREADS * self._spread + FLOOR, np.float32)

    def _learn(self, change: Cells, moved: NDArray[np.bool_]) -> None:
        """Mostly from cells at rest, so that a person walking by does not blind the place they walked through."""
        self._looks += 1
        if self._looks <= LEARN_LOOKS:
            # All are learnt from, but what sticks out of the whole picture is something, and not noise.
            seen = np.minimum(change, min(NOISE_MAX, LEARN_ABOVE * float(np.median(change)) + 1.0))
            pace: Cells | float = 1.0 / self._looks
        else:
            seen = np.minimum(change, NOISE_MAX)
            pace = np.where(moved, np.float32(RESTLESS_SHARE), np.float32(NOISE_SHARE))
        off = seen - self._usual
        self._usual += pace * off
        self._spread += pace * (np.abs(off) - self._spread)

    def _raise(self, before: Blobs) -> None:
        """What was there for a moment and is gone tells how much is nothing."""
        self._bar = max(BAR_MIN, BAR_KEPT * self._bar)
        fleeting = before.fleeting(self._blobs)
        if not self._eager:
            self._bar = max(self._bar, min(BAR_MAX, BAR_ABOVE * fleeting))

    def _told(self, shape: tuple[int, ...]) -> Motion:
        blobs = self._blobs
        counted = np.flatnonzero(blobs.evidence >= self._bar)
        if len(counted) == 0:
            return Motion(0.0)
        total = shape[0] * shape[1]
        whole = np.array([shape[1], shape[0], shape[1], shape[0]], float)
        boxes = [_box(blobs.boxes[row] / whole) for row in counted]
        parts = [Region(box, float(blobs.sizes[row]) / total) for box, row in zip(boxes, counted, strict=True)]
        return Motion(float(blobs.sizes[counted].sum()) / total, _few(parts))


def _change(plane: NDArray[np.uint8], background: NDArray[np.float32]) -> Cells:
    """Mean change of each cell, without what the whole picture has in common."""
    step = max(1, plane.shape[1] // 40)
    light = _median((plane[::step, ::step] - background[::step, ::step]).ravel())
    expected = cv2.convertScaleAbs(background, beta=light)
    return cells(np.asarray(cv2.absdiff(plane, expected), np.uint8)).astype(np.float32)


def _median(values: NDArray[np.float32]) -> float:
    """As np.median, in a third of the time for a thousand of them."""
    high = len(values) // 2
    low = high - 1 + len(values) % 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / np.float32(2))


def cells(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The plane halved until it is no wider than CELLS_MAX; halving is what is cheap, other ratios are not."""
    while plane.shape[1] > CELLS_MAX:
        plane = halved(plane)
    return plane


def _box(sides: NDArray[np.float64]) -> Box:
    x1, y1, x2, y2 = (min(1.0, max(0.0, float(side))) for side in sides)
    return x1, y1, x2, y2


def _few(regions: list[Region]) -> tuple[Region, ...]:
    """At most REGIONS_MAX: the least important ones are joined with what is nearest to them."""
    found = sorted(regions, key=lambda each: (-each.priority, each.box))
    while len(found) > REGIONS_MAX:
        least = found.pop()
        near = min(range(len(found)), key=lambda n: math.dist(_centre(found[n].box), _centre(least.box)))
        found[near] = Region(joined(found[near].box, least.box), found[near].priority + least.priority)
    return tuple(found)


def joined(one: Box, other: Box) -> Box:
    """The smallest box that holds both."""
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
