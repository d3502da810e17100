"""Who is seen but poorly: a box that is too doubtful to begin a track with, until it has been seen to walk."""

from __future__ import annotations

import math

from appliance.track.kalman import sizes, to_centre
from appliance.types import Box

LOOKS_MIN = 3
SCORE_MIN = 0.3  # the mean of the looks
WALK_MIN = 0.3  # sizes of the object: boxes of what stands breathe by less (see `rest`)
# The way from look to look is at most so many times the way in all: who walks gets somewhere, what trembles does not.
DETOUR_MAX = 1.6
STEP_MAX = 0.7  # and no one step is more of that: a box that jumps once, since something passed, does not walk


class Faint:
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
        seen = self._looks >= LOOKS_MIN and self._score_sum >= SCORE_MIN * self._looks
        return seen and far >= WALK_MIN and self._way <= DETOUR_MAX * far and self._longest <= STEP_MAX * far


def _apart(a: Box, b: Box) -> float:
    """Of two centred boxes, in sizes of the first."""
    width, height = sizes(a)
    return math.hypot((b[0] - a[0]) / width, (b[1] - a[1]) / height)
