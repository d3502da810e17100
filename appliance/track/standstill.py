"""Distinguishes standing boxes from walking ones. Needs no pixels: the core uses it, too, and never loads OpenCV."""

from __future__ import annotations

import math

from appliance.track.kalman import sizes, to_centre
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box


def is_unmoved(a: Box, b: Box) -> bool:
    """Return True if two boxes may be detections of the same unmoved object."""
    width_a, height_a, width_b, height_b = a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]
    if not (_same_length(width_a, width_b) and _same_length(height_a, height_b)):
        return False
    # Each direction by its own side would be harsh on the narrow ones: shares of width and height are of two lengths.
    size = math.sqrt(max(width_a * height_a, 1e-12))
    apart = max(abs(a[0] + a[2] - b[0] - b[2]), abs(a[1] + a[3] - b[1] - b[3])) / 2
    return apart <= TUNING.still.still_step_max * size


def _same_length(a: float, b: float) -> bool:
    return a <= TUNING.still.still_growth_max * b and b <= TUNING.still.still_growth_max * a


class TentativePath:
    """The path of a box that is too doubtful to begin a track. State: its first and last place, its path and scores.

    Clutter with low scores stays at its place, trembles or flickers. A person in rain, or at the limit of the network,
    is detected repeatedly, each time a bit further on: then `walks` is true.
    """

    __slots__ = ("_count", "_first", "_last", "_longest", "_path", "_score_sum")

    def __init__(self, box: Box, score: float) -> None:
        self._first = self._last = to_centre(box)
        self._count, self._score_sum, self._path, self._longest = 1, score, 0.0, 0.0

    def update(self, box: Box, score: float) -> None:
        """Note that it was detected again, in the very next examined frame."""
        here = to_centre(box)
        step = _distance(self._last, here)
        self._path, self._longest = self._path + step, max(self._longest, step)
        self._last = here
        self._count += 1
        self._score_sum += score

    @property
    def walks(self) -> bool:
        distance = _distance(self._first, self._last)
        return (
            self._count >= TUNING.spawning.path_detections_min
            and self._score_sum >= TUNING.spawning.path_score_min * self._count
            and distance >= TUNING.spawning.path_distance_min
            and self._path <= TUNING.spawning.path_detour_max * distance
            and self._longest <= TUNING.spawning.path_step_max * distance
        )


class Standstill:
    """The place where an object stands, and since when.

    State: `box`, the mean of its first boxes there; from when to when it was found there. It is at rest once it was
    found there for `still_s` of the tuning, in `still_detections_min` frames. A box elsewhere, or of another size,
    begins anew.
    """

    __slots__ = ("_averaged", "box", "detections", "since", "until")

    def __init__(self, box: Box, t: float) -> None:
        self.box, self.since, self.until = box, t, t
        self.detections = self._averaged = 1

    def update(self, box: Box, t: float) -> None:
        """Note that it was found at `box` at `t`."""
        if not is_unmoved(self.box, box):
            self.box, self.since, self.until = box, t, t
            self.detections = self._averaged = 1
            return
        self.detections += 1
        self.until = max(self.until, t)
        if self._averaged < TUNING.still.still_boxes_max:
            self._averaged += 1
            share = 1 / self._averaged
            x1, y1, x2, y2 = (old + share * (new - old) for old, new in zip(self.box, box, strict=True))
            self.box = (x1, y1, x2, y2)

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def at_rest(self) -> bool:
        return self.detections >= TUNING.still.still_detections_min and self.until - self.since >= TUNING.still.still_s


def _distance(a: Box, b: Box) -> float:
    """Return the distance between two centred boxes, in sizes of the first."""
    width, height = sizes(a)
    return math.hypot((b[0] - a[0]) / width, (b[1] - a[1]) / height)
