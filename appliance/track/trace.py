"""What is remembered of one object besides its filter."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.places import Place
from appliance.track.rest import Rest
from appliance.types import Box, TrackedObject

Floats = NDArray[np.float64]

SURE = 0.6  # with a mean score from here on two looks confirm, below three do
# A picture of an object is the mean of the looks at it, but never older than about so many.
_SITTINGS = 10
# The nearest that a cut-off box comes to the picture's border, in shares; as in appliance/rules/geometry.py.
_EDGE = 0.015


@dataclass(slots=True, eq=False)
class Trace:
    """One object. Owner: its Tracker.

    group: the class it may be mistaken within. votes: score by class. number: 0 until it is confirmed. box: where it
    was last seen, as the detector said; `last` the same as numbers. undetected_s: seconds in which it was looked for
    since a box was last found; unseen_s: the same, but a parked one whose place looks as it did is seen without a box.
    missed: looks that did not see it since. portrait: the mean of what it looked like whenever it stood clear of
    others (see `appearance.describe`), None before; sittings: how many looks that were. place: where it is parked;
    stood_s: how long it was known to stand there before this track began. told: what was last said of it.
    """

    group: int
    votes: Floats
    box: Floats
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
    last: Box = field(init=False)
    rest: Rest = field(init=False)

    def __post_init__(self) -> None:
        self.last = _plain(self.box)
        self.rest = Rest(self.last, self.t)

    def see(self, class_id: int, score: float, box: Floats, t: float) -> None:
        """It was found in this look, at `t`."""
        self.votes[class_id] += score
        self.looks += 1
        self.score_sum += score
        self.box, self.last = box, _plain(box)
        self.rest.see(self.last, t)
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

    def deserves_number(self) -> bool:
        return self.looks >= (2 if self.score_sum >= SURE * self.looks else 3)

    @property
    def at_rest(self) -> bool:
        """It stands still, or is parked."""
        return self.place is not None or self.rest.at_rest

    def at_edge(self) -> bool:
        """Whether it was last seen cut off by the picture's border: it may have walked out."""
        return min(self.last[:2]) <= _EDGE or max(self.last[2:]) >= 1 - _EDGE


def _plain(box: Floats) -> Box:
    x1, y1, x2, y2 = box.tolist()
    return (x1, y1, x2, y2)
