"""Remembers the stationary objects of one camera, mainly parked vehicles, over sessions and restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes
from appliance.types import Box, iou

Patch = NDArray[np.float32]
"""(PATCH_ROWS * PATCH_COLUMNS,) brightness of the cells of a place, mean 0, length 1: light that changes everywhere at
once, by clouds or exposure, leaves it as it is."""

PATCH_ROWS, PATCH_COLUMNS = 12, 16  # a car keeps its windows; smaller ones look alike, larger ones follow each leaf
_SIDE_MIN = 12  # pixels: a place that is smaller says too little
_CONTRAST_MIN = 4.0  # grey levels between its cells (standard deviation): below it noise is correlated with noise
STATIONARY_MAX = 64  # per camera
FORGET_S = 12 * 3600.0  # unseen; by then light and shadows have changed, too
# The same car 16 s later, in our rendered car park: 0.98-1.00, 0.83-0.94 with a person walking before it; two cars of
# one street -0.1 to 0.7.
SAME_CORRELATION_MIN = 0.8
PARKED_IOU_MIN = 0.6  # intersection over union of its boxes: detectors place a parked car to a few per cent
_SEEN_GAP_S = 60.0  # seen again within this it has stood there all the time


@dataclass(slots=True, eq=False)
class StationaryObject:
    """One object that stands still.

    kind: its label, or `vehicle`. t_first, t_last: camera time; stood_s: the time for which it was seen standing.
    patch: the image of the place with it, as of patch_t; None: there was no frame. number: its track number in the
    present session, 0 if none. taken: a track is bound to it now.
    """

    kind: str
    box: Box
    t_first: float
    t_last: float
    stood_s: float = 0.0
    patch: Patch | None = None
    number: int = 0
    taken: bool = False
    patch_t: float = 0.0

    def seen(self, t: float) -> None:
        """Note that the object stands there at `t`."""
        passed = t - self.t_last
        if 0 < passed <= _SEEN_GAP_S:
            self.stood_s += passed
        self.t_last = t

    def unchanged(self, planes: Planes) -> bool | None:
        """Return True if the place looks the same as before; None if that cannot be judged."""
        if self.patch is None:
            return None
        now = cut_patch(planes, self.box)
        return None if now is None else patch_correlation(self.patch, now) >= SAME_CORRELATION_MIN


class StationaryObjects:
    """The stationary objects of one camera. Owner: its tracker; `snapshot` may be called from any thread.

    There are at most STATIONARY_MAX. Beyond that the one not seen for longest is dropped, first among those without a
    track. An object is forgotten when it leaves, or when it was not seen for FORGET_S. `changes` counts additions and
    removals.
    """

    def __init__(self, known: Iterable[StationaryObject] = ()) -> None:
        self._objects = [replace(each, number=0, taken=False) for each in known][-STATIONARY_MAX:]
        self.changes = 0

    def __len__(self) -> int:
        return len(self._objects)

    def knows(self, t: float) -> bool:
        """Return True if any object is known that is not too old at `t`."""
        return any(abs(t - each.t_last) <= FORGET_S for each in self._objects)

    def begin(self) -> None:
        """Begin a session: track numbers of the one before mean nothing."""
        for each in self._objects:
            each.number, each.taken = 0, False

    def forget(self, t: float) -> None:
        """Forget objects that are old at `t`. A clock that was set far back makes everything old."""
        kept = [each for each in self._objects if each.taken or abs(t - each.t_last) <= FORGET_S]
        if len(kept) < len(self._objects):
            self._objects = kept
            self.changes += 1

    def recall(self, kind: str, box: Box, planes: Planes) -> StationaryObject | None:
        """Return the object seen at `box` to which no track is bound at present; None if there is none.

        With planes, the place must look the same as before; a place without a patch is accepted.
        """
        free = [each for each in self._objects if not each.taken and each.kind == kind]
        there = [(iou(each.box, box), each) for each in free]
        for shared, place in sorted(there, key=lambda pair: -pair[0]):
            if shared >= PARKED_IOU_MIN and place.unchanged(planes) is not False:
                return place
        return None

    def park(self, place: StationaryObject) -> None:
        """Add an object that has stopped; forget earlier objects at that place."""
        self._objects = [
            each for each in self._objects if each.taken or each.kind != place.kind or iou(each.box, place.box) < 0.5
        ]
        if len(self._objects) >= STATIONARY_MAX:
            self._objects.remove(min(self._objects, key=lambda each: (each.taken, each.t_last)))
        self._objects.append(place)
        self.changes += 1

    def leave(self, place: StationaryObject) -> None:
        """Note that the object has moved away."""
        if place in self._objects:
            self._objects.remove(place)
            self.changes += 1

    def snapshot(self) -> tuple[StationaryObject, ...]:
        """Return copies of all objects as they are now, oldest first."""
        return tuple(replace(each) for each in list(self._objects))


def cut_patch(planes: Planes, box: Box) -> Patch | None:
    """Return the image in `box` (shares of the frame); None if there is no frame, or too little to see in it.

    Each cell is the mean of its pixels. It takes about 0.02 ms.
    """
    if not planes:
        return None
    height, width = planes[0].shape
    x1, x2 = max(0, round(box[0] * width)), min(width, round(box[2] * width))
    y1, y2 = max(0, round(box[1] * height)), min(height, round(box[3] * height))
    if x2 - x1 < _SIDE_MIN or y2 - y1 < _SIDE_MIN:
        return None
    cells = cv2.resize(planes[0][y1:y2, x1:x2], (PATCH_COLUMNS, PATCH_ROWS), interpolation=cv2.INTER_AREA)
    return normalised_patch(cells.ravel())


def normalised_patch(cells: NDArray[np.generic]) -> Patch | None:
    """Return `cells` with mean 0 and length 1; None if they hardly differ."""
    values = np.asarray(cells, np.float32)
    values = values - values.mean()
    length = float(np.sqrt(np.dot(values, values)))
    if length < _CONTRAST_MIN * PATCH_ROWS**0.5 * PATCH_COLUMNS**0.5:
        return None
    return np.asarray(values / np.float32(length), np.float32)


def patch_correlation(a: Patch, b: Patch) -> float:
    """Return the normalised cross-correlation: 1 the same, 0 nothing in common, below 0 the opposite.

    It is rounded, so that the last bit of a sum decides nothing.
    """
    return round(float(np.dot(a, b)), 4)


def blend_patches(a: Patch, b: Patch, share: float) -> Patch:
    """Return `a` moved towards `b` by `share`."""
    mixed = a + np.float32(share) * (b - a)
    length = float(np.sqrt(np.dot(mixed, mixed)))
    return np.asarray(mixed / np.float32(length), np.float32) if length > 1e-3 else b
