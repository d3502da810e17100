"""Directed crossing of a line by the path of a track's foot."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot
from typing import Literal

from appliance.rules.geometry import LEFT, RIGHT, crossing, lean
from appliance.rules.settle import SETTLE_S, Streak
from appliance.types import Point

Direction = Literal["left_to_right", "right_to_left"]


@dataclass(slots=True)
class Walk:
    """One track against one line.

    side: the side it is known to be on (0: not known). foot, lean: where it was last seen, and on which side of the
    line that is (see `geometry.lean`). through: whether the path since then went through the segment
    an odd number of times.
    """

    side: int = 0
    foot: Point | None = None
    lean: float = 0.0
    through: bool = False
    streak: Streak = field(default_factory=Streak)


class Line:
    """A segment from a to b. Left and right are those of someone who walks from a to b on the picture.

    A crossing is believed when the path went through the segment *and* the foot was then seen clear of the line (by
    the margin) on the other side in two looks in a row. So a track that hovers on the line says nothing, one that
    goes through and stays through fires once, and one that walks around the end of the segment does not fire.
    """

    def __init__(self, name: str, a: Point, b: Point) -> None:
        self.name = name
        self._a = a
        self._b = b

    def look(
        self, walk: Walk, foot: Point, t: float, margin: float, aspect: float, settle_s: float = SETTLE_S
    ) -> Direction | None:
        """Take one sighting into account. margin: in picture heights; aspect: picture width / height."""
        leaning = lean(foot, self._a, self._b)
        changed = walk.foot is not None and (leaning >= 0) != (walk.lean >= 0)
        if changed and walk.foot is not None and crossing(walk.foot, foot, self._a, self._b):
            walk.through = not walk.through
        walk.foot, walk.lean = foot, leaning
        here = self._side(leaning, margin, aspect)
        if walk.side in (0, here):
            walk.side, walk.through = here, False
        if here in (0, walk.side):
            walk.streak.clear()
            return None
        if walk.streak.add(t, settle_s) is None:
            return None
        crossed, walk.side, walk.through = walk.through, here, False
        walk.streak.clear()
        if not crossed:
            return None
        return "left_to_right" if here == RIGHT else "right_to_left"

    def _side(self, leaning: float, margin: float, aspect: float) -> int:
        """LEFT or RIGHT; 0 within the margin (picture heights) of the endless line."""
        length = hypot((self._b[0] - self._a[0]) * aspect, self._b[1] - self._a[1])
        if abs(leaning) * aspect <= margin * length:
            return 0
        return RIGHT if leaning > 0 else LEFT
