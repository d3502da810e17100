"""The state of one track: votes, filter, standstill, appearance; tentative, confirmed or lost; how long it is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes
from appliance.track.kalman import Kalman, sizes, to_centre
from appliance.track.standstill import Standstill, TentativePath, is_unmoved
from appliance.track.stationary_objects import StationaryObject
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, TrackedObject

Floats = NDArray[np.float64]


@dataclass(slots=True)
class ScoreSums:
    """The scores of a track's boxes. by_class: their sums; last: of its last box."""

    by_class: dict[int, float]
    last: float
    total: float
    detections: int = 1

    def add(self, class_id: int, score: float) -> None:
        self.by_class[class_id] = self.by_class.get(class_id, 0.0) + score
        self.last, self.total, self.detections = score, self.total + score, self.detections + 1

    @property
    def class_id(self) -> int:
        """The class with most votes; the first of equals."""
        return max(self.by_class, key=lambda class_id: (self.by_class[class_id], -class_id))


@dataclass(slots=True)
class Absence:
    """The time for which a track was looked for and not found.

    undetected_s: seconds of search since its last detection; unseen_s: the same, but a parked one whose place looks
    unchanged counts as seen; missed: examined frames since then without it. to_return: detections at its place that are
    needed until it counts as back.
    """

    unseen_s: float = 0.0
    undetected_s: float = 0.0
    missed: int = 0
    to_return: int = 0

    def keep_unseen(self) -> None:
        """Record that it was not detected in this frame, but is still there."""
        self.unseen_s, self.missed, self.to_return = 0.0, 0, 0


@dataclass(slots=True, eq=False)
class Track:
    """One object. Owner: its Tracker. It is tentative, then unconfirmed, then confirmed; lost once it is missed.

    group: the class it may be mistaken within. last: its last detected box; filter: its present position. number: 0
    until it is confirmed. appearance: the mean appearance while clear of others (`appearance.describe`), of
    appearance_samples. stationary: its parked place; stood_s: the time for which it had stood there before this track
    began. first: its first box. last_report: the object as last returned. is_vehicle: it may drive off. tentative: not
    None while it is too doubtful to count.
    """

    group: int
    scores: ScoreSums
    first: Box
    last: Box
    filter: Kalman
    standstill: Standstill
    is_vehicle: bool = False
    tentative: TentativePath | None = None
    number: int = 0
    absence: Absence = field(default_factory=Absence)
    appearance: Floats | None = None
    appearance_samples: int = 0
    stationary: StationaryObject | None = None
    stood_s: float | None = None
    last_report: TrackedObject | None = None

    @classmethod
    def begin(cls, group: int, class_id: int, score: float, box: Box, t: float) -> Track:
        """Return a new track of one detection."""
        return cls(group, ScoreSums({class_id: score}, score, score), box, box, Kalman(box), Standstill(box, t))

    def update(self, class_id: int, score: float, box: Box, t: float) -> None:
        """Note that it was detected at `box` at `t`."""
        self.scores.add(class_id, score)
        if self.tentative is not None:
            self.tentative.update(box, score)
            if self.tentative.walks:
                self.tentative = None
            elif score >= TUNING.scores.spawn_score_min:  # a track would begin with this box by itself
                self.tentative, self.scores.detections, self.scores.total = None, 1, score
        # A doubtful box is most often one that two people share, or half of one.
        self.filter.correct(box, 1 + 3 * (1 - score))
        self.last = box
        returns = TUNING.losing.return_detections_min
        self.absence = Absence(to_return=max(0, (returns if self._is_out_of_sight() else self.absence.to_return) - 1))
        self.standstill.update(box, t)

    def update_appearance(self, sample: Floats) -> None:
        """Learn the appearance of an object that was seen clear of others in this frame."""
        self.appearance_samples += 1
        share = max(1 / self.appearance_samples, 1 / TUNING.appearance.appearance_samples_max)
        self.appearance = sample if self.appearance is None else self.appearance + share * (sample - self.appearance)

    def is_confirmable(self) -> bool:
        seen = self.scores.detections
        needed = 2 if self.scores.total >= TUNING.scores.confirm_score * seen else 3
        return self.tentative is None and seen >= needed

    @property
    def at_rest(self) -> bool:
        """It stands still, or is parked."""
        return self.stationary is not None or self.standstill.at_rest

    @property
    def came_in(self) -> bool:
        """Its first box was cut off by the frame's border."""
        return _is_cut(self.first)

    def at_edge(self) -> bool:
        """Return True if its last box was cut off by the frame's border: it may have walked out."""
        return _is_cut(self.last)

    def has_left(self) -> bool:
        """Return True if it probably left the frame. It then ages whichever region is examined."""
        return self.absence.missed >= TUNING.losing.left_misses and self.stationary is None and self.at_edge()

    def is_hidden(self) -> bool:
        """Return True if it stood, was then unseen, and was not found at its place often enough since.

        Only a box at that place may belong to it: a passing object is another one, and gets neither its number nor its
        place.
        """
        return self.stands and (self.absence.to_return > 0 or self._is_out_of_sight())

    def is_place(self, box: Box, planes: Planes) -> bool:
        """Return True if `box` is at its place, and the place does not look like another object."""
        return self.is_in_place(box) and (self.stationary is None or self.stationary.unchanged(planes) is not False)

    @property
    def place(self) -> Box:
        """Where it stands, or stood last."""
        return self.standstill.box if self.stationary is None else self.stationary.box

    def is_in_place(self, box: Box) -> bool:
        """Return True if `box` is where it stands."""
        return is_unmoved(self.place, box)

    @property
    def is_hidden_vehicle(self) -> bool:
        """Return True if it is a vehicle that was hidden while moving: the next one may follow the same path."""
        return self.is_vehicle and not self.stands and self._was_out_of_sight()

    def is_other_vehicle(self, box: Box) -> bool:
        """Return True if it is a vehicle, completely in the frame, and size or place of `box` show another one.

        A box of twice or half the height is an object in front of it. After it was hidden, a box that differs by a
        third in height, or appears behind it, is another vehicle. With boxes alone this is the only evidence, so it is
        waited for only briefly.
        """
        if not self.is_vehicle or self.at_edge():
            return False
        if not self.is_hidden_vehicle:
            return _growth(self.last, box) >= TUNING.losing.vehicle_growth_max
        if self.appearance is None and self.absence.unseen_s > TUNING.losing.vehicle_hidden_s:
            return True
        return self.is_behind(box) or not self.is_as_high(box)

    def is_as_high(self, box: Box) -> bool:
        """Return True if `box` has about its last height, or its expected height."""
        return min(_growth(self.last, box), _growth(self.filter.box, box)) < TUNING.losing.hidden_growth_max

    def is_behind(self, box: Box) -> bool:
        """Return True if it moved, and `box` is behind the place where it was last found."""
        (x, y, *_), (at_x, at_y, *_) = to_centre(self.last), to_centre(box)
        wide, tall = sizes(to_centre(self.last))
        pace_x, pace_y = self.filter.speed[0] / wide, self.filter.speed[1] / tall
        pace = math.hypot(pace_x, pace_y)
        ahead = ((at_x - x) / wide * pace_x + (at_y - y) / tall * pace_y) / max(pace, 1e-9)
        return pace >= TUNING.losing.leaving_speed_min and ahead < -TUNING.losing.behind_max

    def comes_in(self, box: Box) -> bool:
        """Return True if `box` belongs to an object that enters where this one leaves.

        This one was leaving at a border of the frame that cuts it, and `box` reaches further in than is possible for
        it. Call it with the filter at the time of this frame.
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
        return self.stands and self._was_out_of_sight()

    def _was_out_of_sight(self) -> bool:
        return self.absence.missed > 0 and self.absence.unseen_s > TUNING.losing.out_of_sight_s

    @property
    def stands(self) -> bool:
        """It is stationary, or a vehicle at rest."""
        return self.stationary is not None or (self.is_vehicle and self.standstill.at_rest)

    def is_settled(self) -> bool:
        """Return True if no change is expected within the next seconds."""
        if self.has_left():
            return True
        if not self.number or not self.at_rest:
            return False
        return self.absence.missed == 0 or self.absence.missed > TUNING.losing.still_misses

    def is_awaited(self) -> bool:
        """Return True if it is kept although it was missed."""
        if self.stationary is not None:
            return self.absence.unseen_s <= TUNING.losing.hidden_s
        keep_s = TUNING.losing.left_s if self.at_edge() else TUNING.losing.lost_s
        return self.absence.unseen_s <= keep_s or (self.at_rest and self.absence.missed < TUNING.losing.still_misses)


def _is_cut(box: Box) -> bool:
    return min(box[:2]) <= TUNING.losing.edge or max(box[2:]) >= 1 - TUNING.losing.edge


def _growth(a: Box, b: Box) -> float:
    """Return the ratio of the heights, the larger by the smaller."""
    was, now = max(a[3] - a[1], 1e-9), max(b[3] - b[1], 1e-9)
    return max(was, now) / min(was, now)
