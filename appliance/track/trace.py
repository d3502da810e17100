"""What is remembered of one object besides its filter."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.faint import Faint
from appliance.track.kalman import Kalman
from appliance.track.places import Place
from appliance.track.rest import Rest
from appliance.types import Box, TrackedObject

Floats = NDArray[np.float64]

BEGIN = 0.5  # a track begins only from here on; rules start at the same score unless told otherwise
SURE = 0.6  # with a mean score from here on two looks confirm, below three do
# A picture of an object is the mean of the looks at it, but never older than about so many.
_SITTINGS = 10
# The nearest that a cut-off box comes to the picture's border, in shares; as in appliance/rules/geometry.py.
_EDGE = 0.015


@dataclass(slots=True, eq=False)
class Trace:
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
    portrait: Floats | None = None
    sittings: int = 0
    place: Place | None = None
    stood_s: float | None = None
    told: TrackedObject | None = None
    faint: Faint | None = None
    score: float = field(init=False)
    filter: Kalman = field(init=False)
    rest: Rest = field(init=False)

    def __post_init__(self) -> None:
        self.score = self.score_sum
        self.filter = Kalman(self.last)
        self.rest = Rest(self.last, self.t)

    def see(self, class_id: int, score: float, box: Box, t: float) -> None:
        """It was found in this look, at `t`."""
        self.votes[class_id] = self.votes.get(class_id, 0.0) + score
        self.looks += 1
        self.score_sum += score
        if self.faint is not None:
            self.faint.see(box, score)
            self._judge(score)
        # A doubtful box is most often one that two people share, or half of one.
        self.filter.correct(box, 1 + 3 * (1 - score))
        self.last, self.score = box, score
        self.rest.see(box, t)
        self.unseen_s = self.undetected_s = 0.0
        self.missed = 0

    def hold(self) -> None:
        """It was not found in this look, but is there all the same."""
        self.unseen_s, self.missed = 0.0, 0

    def sit(self, looks_like: Floats) -> None:
        """It was seen clear of others in this look."""
        self.sittings += 1
        share = max(1 / self.sittings, 1 / _SITTINGS)
        self.portrait = looks_like if self.portrait is None else self.portrait + share * (looks_like - self.portrait)

    def _judge(self, score: float) -> None:
        """Whether it is a guess still: not when it walks, and not from a look on that begins a track by itself."""
        if self.faint is None:
            return
        if self.faint.walks:
            self.faint = None
        elif score >= BEGIN:
            self.faint, self.looks, self.score_sum = None, 1, score

    def deserves_number(self) -> bool:
        return self.faint is None and self.looks >= (2 if self.score_sum >= SURE * self.looks else 3)

    def class_id(self) -> int:
        """What it is by most votes; of equals the first."""
        return max(self.votes, key=lambda class_id: (self.votes[class_id], -class_id))

    @property
    def at_rest(self) -> bool:
        """It stands still, or is parked."""
        return self.place is not None or self.rest.at_rest

    def at_edge(self) -> bool:
        """Whether it was last seen cut off by the picture's border: it may have walked out."""
        return min(self.last[:2]) <= _EDGE or max(self.last[2:]) >= 1 - _EDGE
