"""The state of one track: votes, filter, standstill, appearance; tentative, confirmed or lost, and for how long it is
awaited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.kalman import Kalman, sizes, to_centre
from appliance.track.parked_vehicles import StationaryObject
from appliance.types import Box, TrackedObject

PATH_DETECTIONS_MIN = 3
PATH_SCORE_MIN = 0.3  # the mean of the looks
PATH_WALK_MIN = 0.3  # sizes of the object: boxes of what stands breathe by less (see `rest`)
# The way from look to look is at most so many times the way in all: who walks gets somewhere, what trembles does not.
PATH_DETOUR_MAX = 1.6
PATH_STEP_MAX = 0.7  # and no one step is more of that: a box that jumps once, since something passed, does not walk


class TentativePath:
    """A doubtful box followed from look to look. State: where it was first and last, its way and its scores.

    Clutter that a network half believes in stays where it is, or trembles, or flickers; somebody who walks in rain or
    at the edge of what the network can see is found again and again, each time a bit further on: `walks` is that.
    """

    __slots__ = ("_begun", "_last", "_longest", "_looks", "_score_sum", "_way")

    def __init__(self, box: Box, score: float) -> None:
        self._begun = self._last = to_centre(box)
        self._looks, self._score_sum, self._way, self._longest = 1, score, 0.0, 0.0

    def see(self, box: Box, score: float) -> None:
        """It was found again, in the very next look at it."""
        here = to_centre(box)
        step = _apart(self._last, here)
        self._way, self._longest = self._way + step, max(self._longest, step)
        self._last = here
        self._looks += 1
        self._score_sum += score

    @property
    def walks(self) -> bool:
        far = _apart(self._begun, self._last)
        seen = self._looks >= PATH_DETECTIONS_MIN and self._score_sum >= PATH_SCORE_MIN * self._looks
        return (
            seen
            and far >= PATH_WALK_MIN
            and self._way <= PATH_DETOUR_MAX * far
            and self._longest <= PATH_STEP_MAX * far
        )


def _apart(a: Box, b: Box) -> float:
    """Of two centred boxes, in sizes of the first."""
    width, height = sizes(a)
    return math.hypot((b[0] - a[0]) / width, (b[1] - a[1]) / height)


RESTS_S = 2.0
_LOOKS_MIN = 3
# Of the object's size (geometric mean of its sides): boxes of who stands breathe by a third of that from look to look.
_STEP = 0.25
_GROWTH = 1.3
# The place is the mean of the first so many boxes, and then stays: who creeps away leaves it all the same.
_BOXES_MAX = 5


class Standstill:
    """The place where an object stands, and since when. State: the mean of its boxes there.

    It rests when it was found there for RESTS_S, and in three looks. A box elsewhere, or of another size, begins anew.
    """

    __slots__ = ("_count", "box", "looks", "since", "until")

    def __init__(self, box: Box, t: float) -> None:
        self.box, self.since, self.until = box, t, t
        self.looks = self._count = 1

    def see(self, box: Box, t: float) -> None:
        """It was found at `box` at `t`."""
        if not near(self.box, box):
            self.box, self.since, self.until = box, t, t
            self.looks = self._count = 1
            return
        self.looks += 1
        self.until = max(self.until, t)
        if self._count < _BOXES_MAX:
            self._count += 1
            share = 1 / self._count
            x1, y1, x2, y2 = (old + share * (new - old) for old, new in zip(self.box, box, strict=True))
            self.box = (x1, y1, x2, y2)

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def at_rest(self) -> bool:
        return self.looks >= _LOOKS_MIN and self.until - self.since >= RESTS_S


def near(a: Box, b: Box) -> bool:
    """Whether two boxes may be looks at the same unmoved thing."""
    width_a, height_a, width_b, height_b = a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]
    if not (_alike(width_a, width_b) and _alike(height_a, height_b)):
        return False
    # Each direction by its own side would be harsh on the narrow ones: shares of width and height are of two lengths.
    size = math.sqrt(max(width_a * height_a, 1e-12))
    return max(abs(a[0] + a[2] - b[0] - b[2]), abs(a[1] + a[3] - b[1] - b[3])) / 2 <= _STEP * size


def _alike(a: float, b: float) -> bool:
    return a <= _GROWTH * b and b <= _GROWTH * a


Floats = NDArray[np.float64]

SPAWN_SCORE_MIN = 0.5  # a track begins only from here on; rules start at the same score unless told otherwise
CONFIRM_SCORE = 0.6  # with a mean score from here on two looks confirm, below three do
# A picture of an object is the mean of the looks at it, but never older than about so many.
_SITTINGS = 10
# The nearest that a cut-off box comes to the picture's border, in shares; as in appliance/rules/polygon_geometry.py.
_EDGE = 0.015


@dataclass(slots=True, eq=False)
class Track:
    """One object. Owner: its Tracker.

    group: the class it may be mistaken within. votes: score by class. number: 0 until it is confirmed. last: where it
    was last seen, as the detector said; score: with which; filter: where it is by now. undetected_s: seconds in which
    it was looked for since a box was last found; unseen_s: the same, but a parked one whose place looks as it did is
    seen without a box. missed: looks that did not see it since. portrait: the mean of what it looked like whenever it
    stood clear of others (see `appearance.describe`), None before; sittings: how many looks that were. place: where it
    is parked; stood_s: how long it was known to stand there before this track began. told: what was last said of it.
    faint: it began with a box too doubtful for a track, and is no more than a guess as long as this is not None.
    """

    group: int
    votes: dict[int, float]
    last: Box
    score_sum: float
    t: float
    number: int = 0
    looks: int = 1
    unseen_s: float = 0.0
    undetected_s: float = 0.0
    missed: int = 0
    appearance: Floats | None = None
    appearance_samples: int = 0
    stationary: StationaryObject | None = None
    stood_s: float | None = None
    last_report: TrackedObject | None = None
    tentative: TentativePath | None = None
    score: float = field(init=False)
    filter: Kalman = field(init=False)
    standstill: Standstill = field(init=False)

    def __post_init__(self) -> None:
        self.score = self.score_sum
        self.filter = Kalman(self.last)
        self.standstill = Standstill(self.last, self.t)

    def update(self, class_id: int, score: float, box: Box, t: float) -> None:
        """It was found in this look, at `t`."""
        self.votes[class_id] = self.votes.get(class_id, 0.0) + score
        self.looks += 1
        self.score_sum += score
        if self.tentative is not None:
            self.tentative.see(box, score)
            self._judge(score)
        # A doubtful box is most often one that two people share, or half of one.
        self.filter.correct(box, 1 + 3 * (1 - score))
        self.last, self.score = box, score
        self.standstill.see(box, t)
        self.unseen_s = self.undetected_s = 0.0
        self.missed = 0

    def hold(self) -> None:
        """It was not found in this look, but is there all the same."""
        self.unseen_s, self.missed = 0.0, 0

    def update_appearance(self, looks_like: Floats) -> None:
        """It was seen clear of others in this look."""
        self.appearance_samples += 1
        share = max(1 / self.appearance_samples, 1 / _SITTINGS)
        self.appearance = (
            looks_like if self.appearance is None else self.appearance + share * (looks_like - self.appearance)
        )

    def _judge(self, score: float) -> None:
        """Whether it is a guess still: not when it walks, and not from a look on that begins a track by itself."""
        if self.tentative is None:
            return
        if self.tentative.walks:
            self.tentative = None
        elif score >= SPAWN_SCORE_MIN:
            self.tentative, self.looks, self.score_sum = None, 1, score

    def is_confirmable(self) -> bool:
        return self.tentative is None and self.looks >= (2 if self.score_sum >= CONFIRM_SCORE * self.looks else 3)

    def class_id(self) -> int:
        """What it is by most votes; of equals the first."""
        return max(self.votes, key=lambda class_id: (self.votes[class_id], -class_id))

    @property
    def at_rest(self) -> bool:
        """It stands still, or is parked."""
        return self.stationary is not None or self.standstill.at_rest

    def at_edge(self) -> bool:
        """Whether it was last seen cut off by the picture's border: it may have walked out."""
        return min(self.last[:2]) <= _EDGE or max(self.last[2:]) >= 1 - _EDGE


LOST_S = 2.5
LEFT_S = 1.0  # who was last seen cut off by the picture's border has more likely left than been hidden
LEFT_MISSES = 2  # and is not looked for any more, though known again until then
# What parks may be hidden by a lorry; what rests and is seen every few seconds must be missed more than once or twice.
HIDDEN_S = 60.0
REST_MISSES = 3


def is_settled(track: Track) -> bool:
    """Whether nothing is to be expected of it within the next seconds."""
    if has_left(track):
        return True
    if not track.number or not track.at_rest:
        return False
    return track.missed == 0 or track.missed > REST_MISSES


def has_left(track: Track) -> bool:
    """Whether it went out of the picture, as far as can be told. It ages wherever one looks."""
    return track.missed >= LEFT_MISSES and track.stationary is None and track.at_edge()


def is_awaited(track: Track) -> bool:
    """Whether a track that was missed is waited for."""
    if track.stationary is not None:
        return track.unseen_s <= HIDDEN_S
    patience_s = LEFT_S if track.at_edge() else LOST_S
    return track.unseen_s <= patience_s or (track.at_rest and track.missed < REST_MISSES)
