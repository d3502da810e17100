"""Computes zone membership, dwell time and directed line crossing of a track, debounced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot, log
from typing import Literal

from appliance.rules.line_polygon_geometry import (
    LEFT,
    RIGHT,
    Polygon,
    crossing,
    foot,
    is_cut_off,
    signed_area,
    to_frame_edge,
)
from appliance.types import Box, Point, iou


@dataclass(frozen=True, slots=True)
class RuleTuning:
    """The tuned constants of the rules. Times in seconds of frame time; figures are for the default 5 frames a second.

    settle_s: a change is believed once it was seen in a row for so long: a little less than the time between two
    frames, so that at 5 a second and slower two frames do. Cameras that are examined faster need more, so that a rule
    does not grow jumpier with the frame rate.
    crowded_settle_s: the same beside neighbours: there a box is often two people, or half of one, for a frame or two.
    neighbour_overlap_min, neighbour_heights: neighbours are boxes of which one lies in the other to such a part, or
    whose feet are so near to each other, in heights. Boxes that only touch are of two objects that a detector keeps
    apart.
    row_s: detections are in a row while the object is not missed for longer between them.
    loss_s: behind a pillar or a passing car people are hidden for a second or two; a longer loss breaks a stay off.
    margin: share of the box's height. Detectors place the foot of a person to +-5 % of it from frame to frame (one
    standard deviation on PETS09-S2L1): twice that is exceeded in one frame of twenty, hardly ever in several in a row.
    start_s: what is first reported within so long after a session's first examined frame was there when it began.
    start_overlap_max: it stands where it stood as long as its box overlaps that of then by more (intersection over
    union); boxes of what stands breathe, and people who pass before a car cut its box.
    start_far_heights: so many heights away from there it has left, whoever stands there now: a tracker's mistake among
    neighbours reaches less far.
    start_growth_min, start_jump_max: logarithms of ratios of sides. A fifth larger, step by step, has come nearer:
    smoothed boxes of what stands change by a tenth. A third at once is a part that something hid or shows, or in one
    box alone a slip; who walks three metres before a camera grows by a tenth from look to look.
    start_boxes: the first size and the first foot are the means of so many boxes. One box is often wrong by a tenth,
    and then what stands seems to have grown.
    pending_s: a passage is over in a moment, the track may be certain enough only a few frames later.
    forget_s, tracks_max: bound what is remembered.
    """

    settle_s: float = 0.15
    crowded_settle_s: float = 0.29
    row_s: float = 0.5
    loss_s: float = 3.0
    margin: float = 0.10
    start_s: float = 3.0
    start_overlap_max: float = 0.3
    start_far_heights: float = 1.5
    start_growth_min: float = 0.18
    start_jump_max: float = 0.3
    start_boxes: int = 5
    neighbour_overlap_min: float = 0.1
    neighbour_heights: float = 0.3
    pending_s: float = 3.0
    forget_s: float = 60.0
    tracks_max: int = 512


TUNING = RuleTuning()
Direction = Literal["left_to_right", "right_to_left"]
Passage = Literal["entered", "left"]


@dataclass(slots=True)
class Debounce:
    """Detections in a row that show the same change. `since`: time of the first; None: there is none."""

    since: float | None = None

    def add(self, t: float, settle_s: float = TUNING.settle_s) -> float | None:
        """Add one more detection; return the time of the first once the change is to be believed."""
        if self.since is None:
            self.since = t
        return self.since if t - self.since >= settle_s else None

    def clear(self) -> None:
        self.since = None


class StartPlace:
    """Where a track stood when the session began. State: that box, and how its size and its foot have changed since.

    It is left once the box overlaps that of then no more and no other box stands there: a tracker that moves numbers
    on by one among people who stand side by side has moved nobody. It is also left by a person who walks straight
    towards the camera or away from it, and whose box stays in place: the box grows (or shrinks) both ways, step by
    step, and its foot comes nearer (or goes further). A part that appears at once was hidden; a box that changes its
    height alone is cut off.
    """

    __slots__ = ("_boxes", "_first", "_first_foot", "_foot", "_jumps", "_now", "box", "debounce")

    def __init__(self, box: Box) -> None:
        self.box = box
        self.debounce = Debounce()
        self._boxes, self._jumps = 0, False
        self._first = self._now = _log_sides(box)
        self._first_foot = self._foot = box[3]

    def is_left(self, box: Box, t: float, settle_s: float, others: Iterable[Box], aspect: float) -> bool:
        """Note that its object is at `box`; return True if it is believed to have moved off.

        others: boxes of other tracks in this frame; aspect: frame width / height.
        """
        self._follow(box)
        gone = iou(self.box, box) <= TUNING.start_overlap_max
        if gone and self._heights_away(box, aspect) < TUNING.start_far_heights:
            gone = all(iou(self.box, other) <= TUNING.start_overlap_max for other in others)
        if gone or self._comes_or_goes():
            return self.debounce.add(t, settle_s) is not None
        self.debounce.clear()
        return False

    def _follow(self, box: Box) -> None:
        """Take half of what has changed since the last box.

        A jump is not walking: the first such box counts for nothing, and with the second the origin moves, too.
        """
        self._boxes += 1
        settling = self._boxes <= TUNING.start_boxes
        self._foot += (box[3] - self._foot) / 2
        if settling:
            self._first_foot += (box[3] - self._first_foot) / self._boxes
        if is_cut_off(box):
            return
        sides = _log_sides(box)
        off = [side - now for side, now in zip(sides, self._now, strict=True)]
        jumped = abs(off[1]) > TUNING.start_jump_max  # of the height: widths swing with the legs
        self._jumps = jumped and not self._jumps
        if self._jumps:
            return
        if jumped:
            self._first = (self._first[0] + off[0], self._first[1] + off[1])
        elif settling:
            wide, tall = ((side - first) / self._boxes for side, first in zip(sides, self._first, strict=True))
            self._first = (self._first[0] + wide, self._first[1] + tall)
        share = 1.0 if jumped else 0.5
        self._now = (self._now[0] + share * off[0], self._now[1] + share * off[1])

    def _comes_or_goes(self) -> bool:
        wider, taller = (now - first for now, first in zip(self._now, self._first, strict=True))
        nearer = (self._foot - self._first_foot) / max(self.box[3] - self.box[1], 1e-9)
        sign = 1 if taller > 0 else -1
        least = TUNING.start_growth_min
        return sign * taller >= least and sign * wider >= least / 2 and sign * nearer >= TUNING.margin

    def _heights_away(self, box: Box, aspect: float) -> float:
        x, y = ((box[side] + box[side + 2] - self.box[side] - self.box[side + 2]) / 2 for side in (0, 1))
        return hypot(x * aspect, y) / max(self.box[3] - self.box[1], 1e-9)


def _log_sides(box: Box) -> tuple[float, float]:
    """Return the logarithms of width and height."""
    return log(max(box[2] - box[0], 1e-6)), log(max(box[3] - box[1], 1e-6))


@dataclass(slots=True)
class DwellTimer:
    """One unbroken stay in a zone. `began` is moved forward over time that was not examined; `fired`: its event is out.

    Losses of at most TUNING.loss_s count as presence. At most `gap_max_s` of a time that was not examined at all
    (detector down, camera clock stepped) count: nobody knows whether the object was there.
    """

    began: float
    seen: float
    fired: bool = False

    def update(self, t: float, gap_max_s: float) -> None:
        """Note that the object is seen inside at `t`."""
        unexamined_s = t - self.seen - gap_max_s
        if unexamined_s > 0:
            self.began += unexamined_s
        self.seen = t

    @property
    def seconds(self) -> float:
        """Seconds inside up to the last sighting."""
        return self.seen - self.began


@dataclass(slots=True)
class ZoneMembership:
    """The membership of one track in one zone.

    `since`: when the change that settled it was first seen. known: this is its first detection, and it is known to have
    been inside before. from_start: it has been inside since the session began, as far as is known. outside: detections
    in a row that show that it was not.
    """

    inside: bool = False
    since: float = 0.0
    known: bool = False
    from_start: bool = False
    debounce: Debounce = field(default_factory=Debounce)
    outside: Debounce = field(default_factory=Debounce)


class Zone:
    """A named polygon in which feet are looked for.

    A track is inside once its foot was in the polygon in two frames in a row (see `Debounce`), and outside once it was
    outside, farther from the edge than the margin, in as many. A track that is already inside when it is first seen
    enters like any other, unless it is known to have stood there before (`begin`); what a rule makes of one that was
    there when the session began is the rule's business (`from_start`).
    """

    def __init__(self, name: str, points: Sequence[Point]) -> None:
        self.name = name
        self._polygon = Polygon(points)

    def begin(self, foot: Point, known_since: float | None, *, at_start: bool = False) -> ZoneMembership:
        """Return the membership of a track that is seen for the first time.

        known_since: it has stood at `foot` since then. at_start: the session has just begun.
        """
        inside = self._polygon.contains(foot)
        if known_since is None or not inside:
            return ZoneMembership(from_start=at_start and inside)
        return ZoneMembership(inside=True, since=known_since, known=True)

    def update(
        self,
        member: ZoneMembership,
        foot: Point,
        t: float,
        margin: float,
        aspect: float,
        settle_s: float = TUNING.settle_s,
    ) -> Passage | None:
        """Take one detection into account. margin: in frame heights; aspect: frame width / height."""
        member.known = False
        if self._agrees(member, foot, margin, aspect):
            member.debounce.clear()
            if member.from_start and not member.inside:
                self._doubt_start(member, foot, t, margin, aspect, settle_s)
            return None
        member.outside.clear()
        since = member.debounce.add(t, settle_s)
        if since is None:
            return None
        member.inside, member.since = not member.inside, since
        member.from_start = member.from_start and member.inside
        member.debounce.clear()
        return "entered" if member.inside else "left"

    def _doubt_start(
        self, member: ZoneMembership, foot: Point, t: float, margin: float, aspect: float, settle_s: float
    ) -> None:
        """Note that it is seen outside before it was believed inside: its first box may have been a slip."""
        if self._polygon.edge_distance(foot, aspect) <= margin:
            member.outside.clear()
        elif member.outside.add(t, settle_s) is not None:
            member.from_start = False

    def _agrees(self, member: ZoneMembership, foot: Point, margin: float, aspect: float) -> bool:
        if self._polygon.contains(foot):
            return member.inside
        return not member.inside or self._polygon.edge_distance(foot, aspect) <= margin


@dataclass(slots=True)
class LinePosition:
    """One track against one line.

    side: the side it is known to be on (0: not known). foot, lean: where it was last seen, and on which side of the
    line that is (`signed_area`). through: whether the path since then crossed the segment an odd number of times.
    """

    side: int = 0
    foot: Point | None = None
    lean: float = 0.0
    through: bool = False
    debounce: Debounce = field(default_factory=Debounce)


class Line:
    """A segment from a to b. Left and right are those of someone who walks from a to b on the frame.

    It reaches the border of the frame if it nearly does (`to_frame_edge`).

    A crossing is believed when the path went through the segment *and* the foot was then clear of the line (by the
    margin) on the other side in two frames in a row. So a track that hovers on the line fires nothing, one that crosses
    and stays across fires once, and one that walks around the end of the segment does not fire.
    """

    def __init__(self, name: str, a: Point, b: Point) -> None:
        self.name = name
        self._a, self._b = to_frame_edge(a), to_frame_edge(b)

    def update(
        self,
        position: LinePosition,
        foot: Point,
        t: float,
        margin: float,
        aspect: float,
        settle_s: float = TUNING.settle_s,
    ) -> Direction | None:
        """Take one detection into account. margin: in frame heights; aspect: frame width / height."""
        leaning = signed_area(foot, self._a, self._b)
        changed = position.foot is not None and (leaning >= 0) != (position.lean >= 0)
        if changed and position.foot is not None and crossing(position.foot, foot, self._a, self._b):
            position.through = not position.through
        position.foot, position.lean = foot, leaning
        here = self._side(leaning, margin, aspect)
        if position.side in (0, here):
            position.side, position.through = here, False
        if here in (0, position.side):
            position.debounce.clear()
            return None
        if position.debounce.add(t, settle_s) is None:
            return None
        crossed, position.side, position.through = position.through, here, False
        position.debounce.clear()
        if not crossed:
            return None
        return "left_to_right" if here == RIGHT else "right_to_left"

    def _side(self, leaning: float, margin: float, aspect: float) -> int:
        """Return LEFT or RIGHT; 0 within the margin (frame heights) of the endless line."""
        length = hypot((self._b[0] - self._a[0]) * aspect, self._b[1] - self._a[1])
        if abs(leaning) * aspect <= margin * length:
            return 0
        return RIGHT if leaning > 0 else LEFT


def are_neighbours(a: Box, b: Box, aspect: float) -> bool:
    """Return True if two objects are so near to each other that a detector may take them for one, or one for two."""
    # Asked of each pair in each frame: what is far apart is known by comparisons alone.
    tall_a, tall_b = a[3] - a[1], b[3] - b[1]
    if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
        shared = (min(a[2], b[2]) - max(a[0], b[0])) * (min(a[3], b[3]) - max(a[1], b[1]))
        if shared >= TUNING.neighbour_overlap_min * min((a[2] - a[0]) * tall_a, (b[2] - b[0]) * tall_b):
            return True
    reach = TUNING.neighbour_heights * (tall_a if tall_a < tall_b else tall_b)
    down = a[3] - b[3]
    if not -reach <= down <= reach:
        return False
    (ax, _), (bx, _) = foot(a), foot(b)
    return hypot((ax - bx) * aspect, down) <= reach
