"""What is remembered of one object besides its filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    was last seen, as the detector said. missed: looks since then. portrait: the mean of what it looked like whenever
    it stood clear of others (see `appearance.describe`), None before; sittings: how many looks that were.
    """

    group: int
    votes: Floats
    box: Floats
    score_sum: float
    number: int = 0
    looks: int = 1
    unseen_s: float = 0.0
    missed: int = 0
    portrait: Floats | None = None
    sittings: int = 0

    def see(self, class_id: int, score: float, box: Floats) -> None:
        """It was found in this look."""
        self.votes[class_id] += score
        self.looks += 1
        self.score_sum += score
        self.box = box
        self.unseen_s, self.missed = 0.0, 0

    def sit(self, looks_like: Floats) -> None:
        """It was seen clear of others in this look."""
        self.sittings += 1
        share = max(1 / self.sittings, 1 / _SITTINGS)
        self.portrait = looks_like if self.portrait is None else self.portrait + share * (looks_like - self.portrait)

    def deserves_number(self) -> bool:
        return self.looks >= (2 if self.score_sum >= SURE * self.looks else 3)

    def at_edge(self) -> bool:
        """Whether it was last seen cut off by the picture's border: it may have walked out."""
        return bool(self.box[:2].min() <= _EDGE or self.box[2:].max() >= 1 - _EDGE)
