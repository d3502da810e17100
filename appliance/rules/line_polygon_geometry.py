"""Plane geometry of the rules: inside a polygon, left or right of a line, and whether a step crossed a segment.

Coordinates are shares of the frame, y grows downwards. Left and right are those of a person who walks on the frame
from the first point of a line to its second: walking up the screen, left is the left of the screen; walking down
(`[[0.4, 0.2], [0.4, 0.8]]`), left is the right of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from appliance.types import Box, Point

LEFT = -1  # sign of the cross product
RIGHT = 1  # the other sign
_EDGE = 1e-9  # rounding of a cross product of shares
_FRAME_EDGE = 0.01  # share of the frame: feet below it are cut off by the picture's border


def foot(box: Box) -> Point:
    """Return where the object stands: the middle of the box's lower edge."""
    return (box[0] + box[2]) / 2, box[3]


def at_frame_edge(box: Box) -> bool:
    """Return True if the box touches the border of the frame, so that the object may be walking out of view."""
    return min(box[0], box[1]) <= _FRAME_EDGE or max(box[2], box[3]) >= 1 - _FRAME_EDGE


def is_cut_off(box: Box) -> bool:
    """Return True if the upper or lower border of the frame may hide a part of the object.

    Then its height is not known.
    """
    return box[1] <= _FRAME_EDGE or box[3] >= 1 - _FRAME_EDGE


def to_frame_edge(point: Point) -> Point:
    """Move a corner of a zone, or an end of a line, to the border of the frame if it is within a hundredth of it.

    A point that is drawn there is meant to reach the border. Boxes are cut off there, so feet stand on the border
    itself, beyond what was drawn.
    """
    return _to_edge(point[0]), _to_edge(point[1])


def _to_edge(share: float) -> float:
    if share <= _FRAME_EDGE + _EDGE:
        return 0.0
    return 1.0 if share >= 1 - _FRAME_EDGE - _EDGE else share


def signed_area(point: Point, a: Point, b: Point) -> float:
    """Return twice the signed area of a, b, point: negative left of the line a→b, positive right of it, 0 on it."""
    return (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])


def crossing(start: Point, end: Point, a: Point, b: Point) -> int:
    """Return the side (LEFT, RIGHT) on which the step start→end arrives through the segment a-b.

    0 means that it does not cross the segment. A point exactly on the line counts as right of it, so that of two steps
    that meet on the line exactly one crosses. Both ends of the segment belong to it.
    """
    before, after = signed_area(start, a, b), signed_area(end, a, b)
    if (before >= 0) == (after >= 0):
        return 0
    share = before / (before - after)
    hit = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
    ab = (b[0] - a[0], b[1] - a[1])
    along = ((hit[0] - a[0]) * ab[0] + (hit[1] - a[1]) * ab[1]) / (ab[0] ** 2 + ab[1] ** 2)
    if not -_EDGE <= along <= 1 + _EDGE:
        return 0
    return RIGHT if after >= 0 else LEFT


class Polygon:
    """A closed polygon; its edges and corners belong to it.

    The edge rule matters at the border of the frame: the foot of a box that is cut off by the lower border has
    y = 1 and must be inside a zone that reaches down to 1, or nearly so (`to_frame_edge`). Two zones that share an edge
    both claim a point on it.
    """

    __slots__ = ("_edges", "_x_max", "_x_min", "_y_max", "_y_min")

    def __init__(self, points: Sequence[Point]) -> None:
        reaching = [to_frame_edge(each) for each in points]
        points = reaching if len(set(reaching)) >= 3 else points  # a strip along the border keeps its width
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        self._x_min, self._x_max = min(xs) - _EDGE, max(xs) + _EDGE
        self._y_min, self._y_max = min(ys) - _EDGE, max(ys) + _EDGE
        following = [*points[1:], points[0]]
        self._edges = [(a[0], a[1], b[0], b[1]) for a, b in zip(points, following, strict=True) if a != b]

    def contains(self, point: Point) -> bool:
        """Return True if the point is inside by the even-odd rule, or within 1e-9 of an edge."""
        x, y = point
        if not (self._x_min <= x <= self._x_max and self._y_min <= y <= self._y_max):
            return False
        inside = False
        for ax, ay, bx, by in self._edges:
            turn = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
            if abs(turn) <= _EDGE and _distance(x, y, ax, ay, bx, by) <= _EDGE:
                return True
            if (ay > y) != (by > y) and (turn > 0) == (by > ay):
                inside = not inside
        return inside

    def edge_distance(self, point: Point, aspect: float) -> float:
        """Return the distance of `point` from the nearest edge, in frame heights (aspect: width / height)."""
        x, y = point[0] * aspect, point[1]
        return min(_distance(x, y, ax * aspect, ay, bx * aspect, by) for ax, ay, bx, by in self._edges)


def _distance(x: float, y: float, ax: float, ay: float, bx: float, by: float) -> float:
    dx, dy = bx - ax, by - ay
    along = ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)
    along = min(1.0, max(0.0, along))
    return hypot(x - ax - along * dx, y - ay - along * dy)
