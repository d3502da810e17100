"""The state of one track: votes, filter, standstill, appearance; tentative, confirmed or lost; how long it is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes
from appliance.track.kalman import Kalman, sizes, to_centre
from appliance.track.standstill import is_same_place
from appliance.track.stationary_objects import StationaryObject
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, TrackedObject

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Track:
    """One object. Owner: its Tracker. It is tentative, then unconfirmed, then confirmed; lost once it is missed.

    group: the class it may be mistaken within; votes: sum of scores by class. last: its last box as detected, score:
    that box's; filter: where it is by now. number: 0 until it is confirmed.
    detections: how many; undetected_s: seconds in which it was looked for since the last; unseen_s: the same, but a
    parked one whose place looks as it did counts as seen; missed: frames that looked for it and did not see it since.
    appearance: the mean of what it looked like while clear of others (`appearance.describe`), of appearance_samples.
    stationary: where it is parked; stood_s: how long it was known to stand there before this track began.
    to_return: detections in its place that are wanted before it is believed to be back there.
    came_in: its first box was cut off by the frame's border. last_report: as it was last returned.
    is_vehicle: what may drive off. tentative: not None while it is too doubtful to count.
    """

    group: int
    votes: dict[int, float]
    last: Box
    score_sum: float
    t: float
    is_vehicle: bool = False
    number: int = 0
    detections: int = 1
    unseen_s: float = 0.0
    undetected_s: float = 0.0
    missed: int = 0
    appearance: Floats | None = None
    appearance_samples: int = 0
    stationary: StationaryObject | None = None
    stood_s: float | None = None
    last_report: TrackedObject | None = None
    tentative: TentativePath | None = None
    to_return: int = 0
    came_in: bool = field(init=False)
    score: float = field(init=False)
    filter: Kalman = field(init=False)
    standstill: Standstill = field(init=False)

    def __post_init__(self) -> None:
        self.came_in = self.at_edge()
        self.score = self.score_sum
        self.filter = Kalman(self.last)
        self.standstill = Standstill(self.last, self.t)

    def update(self, class_id: int, score: float, box: Box, t: float) -> None:
        """Note that it was detected at `box` at `t`."""
        self.votes[class_id] = self.votes.get(class_id, 0.0) + score
        self.detections += 1
        self.score_sum += score
        if self.tentative is not None:
            self.tentative.update(box, score)
            if self.tentative.walks:
                self.tentative = None
            elif score >= TUNING.scores.spawn_score_min:  # a track would begin with this box by itself
                self.tentative, self.detections, self.score_sum = None, 1, score
        # A doubtful box is most often one that two people share, or half of one.
        self.filter.correct(box, 1 + 3 * (1 - score))
        self.last, self.score = box, score
        self.to_return = (
            TUNING.losing.return_detections_min - 1 if self._is_out_of_sight() else max(0, self.to_return - 1)
        )
        self.standstill.update(box, t)
        self.unseen_s = self.undetected_s = 0.0
        self.missed = 0

    def keep_unseen(self) -> None:
        """Note that it was not detected in this frame, but is there all the same."""
        self.unseen_s, self.missed, self.to_return = 0.0, 0, 0

    def update_appearance(self, sample: Floats) -> None:
        """Learn the appearance of an object that was seen clear of others in this frame."""
        self.appearance_samples += 1
        share = max(1 / self.appearance_samples, 1 / TUNING.appearance.appearance_samples_max)
        self.appearance = sample if self.appearance is None else self.appearance + share * (sample - self.appearance)

    def is_confirmable(self) -> bool:
        needed = 2 if self.score_sum >= TUNING.scores.confirm_score * self.detections else 3
        return self.tentative is None and self.detections >= needed

    def class_id(self) -> int:
        """Return the class with most votes; the first of equals."""
        return max(self.votes, key=lambda class_id: (self.votes[class_id], -class_id))

    @property
    def at_rest(self) -> bool:
        """It stands still, or is parked."""
        return self.stationary is not None or self.standstill.at_rest

    def at_edge(self) -> bool:
        """Return True if its last box was cut off by the frame's border: it may have walked out."""
        return min(self.last[:2]) <= TUNING.losing.edge or max(self.last[2:]) >= 1 - TUNING.losing.edge

    def has_left(self) -> bool:
        """Return True if it went out of the frame, as far as is known. It ages whatever region is examined."""
        return self.missed >= TUNING.losing.left_misses and self.stationary is None and self.at_edge()

    def is_hidden(self) -> bool:
        """Return True if it stood, was not seen for a moment, and was not found in its place often enough since.

        Only a box at that place may belong to it: an object that passes there is another, and takes over neither its
        number nor its place.
        """
        return self.stands and (self.to_return > 0 or self._is_out_of_sight())

    def is_place(self, box: Box, planes: Planes) -> bool:
        """Return True if `box` is where it stands, and the place does not look as if another stood there."""
        return self.is_in_place(box) and (self.stationary is None or self.stationary.unchanged(planes) is not False)

    def is_in_place(self, box: Box) -> bool:
        """Return True if `box` is where it stands."""
        return is_same_place(self.standstill.box if self.stationary is None else self.stationary.box, box)

    def is_other_size(self, box: Box) -> bool:
        """Return True if it is a vehicle, whole in the frame, and `box` is twice or half as high.

        Such a box belongs to an object before it.
        """
        if not self.is_vehicle or self.at_edge():
            return False
        was, now = self.last[3] - self.last[1], box[3] - box[1]
        return max(was, now) >= TUNING.losing.vehicle_growth_max * min(was, now)

    def comes_in(self, box: Box) -> bool:
        """Return True if `box` belongs to an object that comes in where this one goes out.

        This one was on its way out at a border of the frame that cuts it off, and `box` reaches further in than it can
        be. Call it with the filter at the time of this frame.
        """
        if self.stationary is not None:
            return False
        x, y, width, height = self.filter.speed
        pace = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        wide, tall = sizes(to_centre(self.last))
        for side, size in enumerate((wide, tall, wide, tall)):
            inner = (side + 2) % 4
            low = side < 2  # the left or upper border: outwards is towards 0
            outer = self.filter.box[side]
            cut = (
                min(self.last[side], outer) <= TUNING.losing.edge
                if low
                else max(self.last[side], outer) >= 1 - TUNING.losing.edge
            )
            sign = 1 if low else -1
            if cut and sign * pace[inner] < -TUNING.losing.leaving_speed_min * size:
                return sign * (box[inner] - self.filter.box[inner]) > TUNING.losing.leaving_step_max * size
        return False

    def _is_out_of_sight(self) -> bool:
        return self.stands and self.missed > 0 and self.unseen_s > TUNING.losing.out_of_sight_s

    @property
    def stands(self) -> bool:
        """It is stationary, or a vehicle at rest."""
        return self.stationary is not None or (self.is_vehicle and self.standstill.at_rest)

    def is_settled(self) -> bool:
        """Return True if no change of it is to be expected within the next seconds."""
        if self.has_left():
            return True
        if not self.number or not self.at_rest:
            return False
        return self.missed == 0 or self.missed > TUNING.losing.still_misses

    def is_awaited(self) -> bool:
        """Return True if it is kept although it was missed."""
        if self.stationary is not None:
            return self.unseen_s <= TUNING.losing.hidden_s
        keep_s = TUNING.losing.left_s if self.at_edge() else TUNING.losing.lost_s
        return self.unseen_s <= keep_s or (self.at_rest and self.missed < TUNING.losing.still_misses)


class TentativePath:
    """The path of a box that is too doubtful to begin a track. State: its first and last place, its path and scores.

    Clutter that a network half believes in stays where it is, trembles or flickers; a person in rain, or at the edge of
    what the network can see, is detected again and again, each time a bit further on: `walks` is that.
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
        if not is_same_place(self.box, box):
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
