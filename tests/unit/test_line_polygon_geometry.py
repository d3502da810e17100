"""Inside, left, right, across: the sums that every rule stands on."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.rules.line_polygon_geometry import LEFT, RIGHT, Polygon, at_frame_edge, crossing, foot, signed_area
from appliance.types import Point

SQUARE = Polygon([(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)])
HORSESHOE = Polygon([(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.6, 0.9), (0.6, 0.4), (0.4, 0.4), (0.4, 0.9), (0.1, 0.9)])

share = st.integers(0, 10_000).map(lambda n: n / 10_000)
point = st.tuples(share, share)


@st.composite
def star_polygons(draw: st.DrawFn) -> list[Point]:
    """Simple polygons of 3-12 corners around a centre that is inside them."""
    turns = sorted(draw(st.sets(st.integers(0, 359), min_size=5, max_size=12)))
    gaps = [(b - a) % 360 for a, b in zip(turns, [*turns[1:], turns[0]], strict=True)]
    assume(max(gaps) < 170)
    radii = draw(st.lists(st.floats(0.05, 0.45), min_size=len(turns), max_size=len(turns)))
    return [
        (round(0.5 + r * math.cos(math.radians(a)), 4), round(0.5 + r * math.sin(math.radians(a)), 4))
        for a, r in zip(turns, radii, strict=True)
    ]


def test_an_object_stands_on_the_middle_of_its_lower_edge() -> None:
    assert foot((0.25, 0.25, 0.75, 0.5)) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("where", "inside"),
    [((0.5, 0.5), True), ((0.1, 0.5), False), ((0.5, 0.9), False), ((0.9, 0.9), False), ((0.21, 0.79), True)],
)
def test_a_point_is_inside_a_square_or_not(where: Point, inside: bool) -> None:
    assert SQUARE.contains(where) is inside


@pytest.mark.parametrize("where", [(0.2, 0.2), (0.8, 0.8), (0.2, 0.5), (0.5, 0.2), (0.8, 0.3), (0.3, 0.8)])
def test_edges_and_corners_belong_to_the_zone(where: Point) -> None:
    assert SQUARE.contains(where)


def test_a_foot_cut_off_by_the_lower_border_of_the_frame_is_in_a_zone_that_reaches_it() -> None:
    assert Polygon([(0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0)]).contains(foot((0.4, 0.6, 0.5, 1.0)))


@pytest.mark.parametrize(("edge", "inside"), [(0.99, True), (0.995, True), (0.98, False)])
def test_a_zone_drawn_nearly_to_the_border_reaches_it(edge: float, inside: bool) -> None:
    low, high = round(1 - edge, 4), edge
    zone = Polygon([(low, low), (high, low), (high, high), (low, high)])
    corners = [(0.0, 0.0), (1.0, 0.5), (0.5, 1.0), (1.0, 1.0)]
    assert [zone.contains(each) for each in corners] == [inside] * 4


def test_a_strip_along_the_border_stays_a_strip() -> None:
    strip = Polygon([(0.0, 0.992), (1.0, 0.992), (1.0, 1.0), (0.0, 1.0)])
    assert strip.contains((0.5, 0.995))
    assert strip.edge_distance((0.5, 0.5), 1.0) == pytest.approx(0.492)


def test_the_bay_of_a_horseshoe_is_outside() -> None:
    assert not HORSESHOE.contains((0.5, 0.7))
    assert HORSESHOE.contains((0.2, 0.7))
    assert HORSESHOE.contains((0.7, 0.7))


def test_the_distance_to_the_edge_is_in_frame_heights() -> None:
    assert SQUARE.edge_distance((0.1, 0.5), aspect=2.0) == pytest.approx(0.2)
    assert SQUARE.edge_distance((0.5, 0.1), aspect=2.0) == pytest.approx(0.1)


def test_left_is_left_of_the_screen_when_walking_up_it() -> None:
    up = ((0.5, 0.8), (0.5, 0.2))
    assert signed_area((0.2, 0.5), *up) < 0
    assert crossing((0.2, 0.5), (0.8, 0.5), *up) == RIGHT
    assert crossing((0.8, 0.5), (0.2, 0.5), *up) == LEFT


def test_left_is_right_of_the_screen_when_walking_down_it() -> None:
    down = ((0.5, 0.2), (0.5, 0.8))
    assert crossing((0.2, 0.5), (0.8, 0.5), *down) == LEFT


def test_a_step_around_the_end_of_the_segment_does_not_cross_it() -> None:
    assert crossing((0.2, 0.9), (0.8, 0.9), (0.5, 0.2), (0.5, 0.8)) == 0


def test_a_step_over_the_very_end_of_the_segment_crosses_it() -> None:
    assert crossing((0.25, 0.75), (0.75, 0.75), (0.5, 0.25), (0.5, 0.75)) == LEFT


def test_an_object_at_the_border_of_the_frame_may_be_leaving_it() -> None:
    assert at_frame_edge((0.0, 0.4, 0.1, 0.6))
    assert at_frame_edge((0.4, 0.6, 0.5, 0.995))
    assert not at_frame_edge((0.4, 0.6, 0.5, 0.9))


@given(star_polygons(), st.floats(0, 1), st.data())
def test_every_point_of_every_edge_is_inside(corners: list[Point], along: float, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(corners) - 1))
    a, b = corners[index], corners[(index + 1) % len(corners)]
    assert Polygon(corners).contains((a[0] + along * (b[0] - a[0]), a[1] + along * (b[1] - a[1])))


@given(star_polygons(), st.floats(0, 0.99), st.data())
def test_a_star_contains_the_way_from_its_centre_to_each_corner(
    corners: list[Point], along: float, data: st.DataObject
) -> None:
    corner = data.draw(st.sampled_from(corners))
    assert Polygon(corners).contains((0.5 + along * (corner[0] - 0.5), 0.5 + along * (corner[1] - 0.5)))


@given(star_polygons(), point, st.integers(0, 11))
def test_it_does_not_matter_where_the_drawing_began_or_which_way_it_went(
    corners: list[Point], where: Point, turn: int
) -> None:
    turned = corners[turn % len(corners) :] + corners[: turn % len(corners)]
    assert Polygon(corners).contains(where) == Polygon(turned).contains(where) == Polygon(turned[::-1]).contains(where)


@given(star_polygons(), st.floats(1.001, 3), st.data())
def test_far_beyond_the_farthest_corner_is_outside(corners: list[Point], reach: float, data: st.DataObject) -> None:
    angle = data.draw(st.floats(0, 6.28))
    assert not Polygon(corners).contains((0.5 + 0.46 * reach * math.cos(angle), 0.5 + 0.46 * reach * math.sin(angle)))


@given(point, point, point, point)
def test_stepping_back_crosses_back(start: Point, end: Point, a: Point, b: Point) -> None:
    assume(a != b)
    assert crossing(start, end, a, b) == -crossing(end, start, a, b)


@given(point, point, point, point)
def test_turning_the_line_around_swaps_left_and_right(start: Point, end: Point, a: Point, b: Point) -> None:
    assume(a != b)
    assume(signed_area(start, a, b) != 0)
    assume(signed_area(end, a, b) != 0)
    assert crossing(start, end, a, b) == -crossing(start, end, b, a)


@given(st.lists(point, min_size=2, max_size=12), point, point)
def test_along_any_path_left_and_right_crossings_of_an_endless_line_alternate(
    path: list[Point], a: Point, b: Point
) -> None:
    assume(math.dist(a, b) > 0.01)
    dx, dy = b[0] - a[0], b[1] - a[1]
    far_a, far_b = (a[0] - 1000 * dx, a[1] - 1000 * dy), (a[0] + 1000 * dx, a[1] + 1000 * dy)
    sides = [side for p, q in itertools.pairwise(path) if (side := crossing(p, q, far_a, far_b))]
    assert all(first == -second for first, second in itertools.pairwise(sides))
