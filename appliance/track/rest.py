"""Whether an object stands still, judged by its boxes."""

from __future__ import annotations

import math

from appliance.types import Box

RESTS_S = 2.0
_LOOKS_MIN = 3
# Of the object's size (geometric mean of its sides): boxes of who stands breathe by a third of that from look to look.
_STEP = 0.25
_GROWTH = 1.3
# The place is the mean of the first so many boxes, and then stays: who creeps away leaves it all the same.
_BOXES_MAX = 5


class Rest:
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
