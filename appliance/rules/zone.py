"""Membership of a zone, with inertia: a box that flickers at the edge enters once and leaves once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from appliance.rules.geometry import Polygon
from appliance.rules.settle import SETTLE_S, Streak
from appliance.types import Point

Passage = Literal["entered", "left"]


@dataclass(slots=True)
class Membership:
    """One track's standing in one zone. `since`: first look of the streak that settled it. known: this is its
    first look, and it is known to have been inside before."""

    inside: bool = False
    since: float = 0.0
    known: bool = False
    streak: Streak = field(default_factory=Streak)


class Zone:
    """A named polygon in which feet are looked for.

    A track is inside once its foot was seen in the polygon in two looks in a row (see `Streak`), and outside once it
    was seen outside, farther from the edge than the margin, in as many. A track that is already inside when it is
    first seen enters like any other: to the zone it is new. Unless it is known to have stood there before (`begin`).
    """

    def __init__(self, name: str, points: Sequence[Point]) -> None:
        self.name = name
        self._polygon = Polygon(points)

    def begin(self, foot: Point, known_since: float | None) -> Membership:
        """The standing of a track that is seen for the first time. known_since: it stood at `foot` since then."""
        if known_since is None or not self._polygon.contains(foot):
            return Membership()
        return Membership(inside=True, since=known_since, known=True)

    def look(
        self, member: Membership, foot: Point, t: float, margin: float, aspect: float, settle_s: float = SETTLE_S
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

    def _agrees(self, member: Membership, foot: Point, margin: float, aspect: float) -> bool:
        if self._polygon.contains(foot):
            return member.inside
        return not member.inside or self._polygon.edge_distance(foot, aspect) <= margin
