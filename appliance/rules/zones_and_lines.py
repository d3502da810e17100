"""Debounced zone membership, dwell time and directed line crossing of a track."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import Literal

from appliance.rules.polygon_geometry import LEFT, RIGHT, Polygon, crossing, signed_area
from appliance.types import Point

# A little less than the time between two looks at the default 5 a second: there and at every slower rate two looks do.
# Cameras that are examined faster need more looks, so that a rule does not grow jumpier with the frame rate.
SETTLE_S = 0.15
# Where people touch on the picture a box is often both of them, or half of one, for a look or two: three looks at 5 a
# second, two at 3 a second and slower.
CROWDED_SETTLE_S = 0.29
# Looks are in a row while the object is not missed for longer than this between them.
ROW_S = 0.5
# Detectors place the foot of a person to +-5 % of the box height from look to look (one standard deviation on
# PETS09-S2L1): twice that is left by one look in twenty, and hardly ever by several in a row.
MARGIN = 0.10


@dataclass(slots=True)
class Debounce:
    """Looks in a row that say the same new thing. `since` is the time of the first; None: there is none."""

    since: float | None = None

    def add(self, t: float, settle_s: float = SETTLE_S) -> float | None:
        """One more look; the time of the first once the change is to be believed."""
        if self.since is None:
            self.since = t
        return self.since if t - self.since >= settle_s else None

    def clear(self) -> None:
        self.since = None


# Behind a pillar or a passing car people are hidden for a second or two; a longer loss begins a new stay.
LOSS_S = 3.0


@dataclass(slots=True)
class DwellTimer:
    """One unbroken stay. `began` is moved forward over time in which nobody looked; `told`: it has fired.

    Losses of at most LOSS_S count as presence. Of a time in which nobody looked at all (detector down, camera clock
    stepped) at most `gap_max_s` counts: nobody knows whether the object was there.
    """

    began: float
    seen: float
    told: bool = False

    def look(self, t: float, gap_max_s: float) -> None:
        """The object is seen inside at `t`."""
        unwatched = t - self.seen - gap_max_s
        if unwatched > 0:
            self.began += unwatched
        self.seen = t

    @property
    def seconds(self) -> float:
        """Seconds inside up to the last sighting."""
        return self.seen - self.began


Passage = Literal["entered", "left"]


@dataclass(slots=True)
class ZoneMembership:
    """One track's standing in one zone. `since`: first look of the streak that settled it. known: this is its
    first look, and it is known to have been inside before."""

    inside: bool = False
    since: float = 0.0
    known: bool = False
    streak: Debounce = field(default_factory=Debounce)


class Zone:
    """A named polygon in which feet are looked for.

    A track is inside once its foot was seen in the polygon in two looks in a row (see `Streak`), and outside once it
    was seen outside, farther from the edge than the margin, in as many. A track that is already inside when it is
    first seen enters like any other: to the zone it is new. Unless it is known to have stood there before (`begin`).
    """

    def __init__(self, name: str, points: Sequence[Point]) -> None:
        self.name = name
        self._polygon = Polygon(points)

    def begin(self, foot: Point, known_since: float | None) -> ZoneMembership:
        """The standing of a track that is seen for the first time. known_since: it stood at `foot` since then."""
        if known_since is None or not self._polygon.contains(foot):
            return ZoneMembership()
        return ZoneMembership(inside=True, since=known_since, known=True)

    def look(
        self, member: ZoneMembership, foot: Point, t: float, margin: float, aspect: float, settle_s: float = SETTLE_S
    ) -> Passage | None:
        """Take one sighting into account. margin: in picture heights; aspect: picture width / height."""
        member.known = False
        if self._agrees(member, foot, margin, aspect):
            member.streak.clear()
            return None
        since = member.streak.add(t, settle_s)
        if since is None:
            return None
        member.inside, member.since = not member.inside, since
        member.streak.clear()
        return "entered" if member.inside else "left"

    def _agrees(self, member: ZoneMembership, foot: Point, margin: float, aspect: float) -> bool:
        if self._polygon.contains(foot):
            return member.inside
        return not member.inside or self._polygon.edge_distance(foot, aspect) <= margin


Direction = Literal["left_to_right", "right_to_left"]


@dataclass(slots=True)
class LinePosition:
    """One track against one line.

    side: the side it is known to be on (0: not known). foot, lean: where it was last seen, and on which side of the
    line that is (see `geometry.lean`). through: whether the path since then went through the segment
    an odd number of times.
    """

    side: int = 0
    foot: Point | None = None
    lean: float = 0.0
    through: bool = False
    streak: Debounce = field(default_factory=Debounce)


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
        self, walk: LinePosition, foot: Point, t: float, margin: float, aspect: float, settle_s: float = SETTLE_S
    ) -> Direction | None:
        """Take one sighting into account. margin: in picture heights; aspect: picture width / height."""
        leaning = signed_area(foot, self._a, self._b)
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
