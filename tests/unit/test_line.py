"""Directed crossings: one for each time somebody really goes through."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.rules.zones_and_lines import Line, LinePosition
from appliance.types import Point

# Walked down the screen: its left is the right of the screen.
DOOR = Line("door", (0.5, 0.2), (0.5, 0.8))
WEST: Point = (0.4, 0.5)
EAST: Point = (0.6, 0.5)


def walk(feet: list[Point], every_s: float = 0.2, margin: float = 0.01) -> list[str]:
    state = LinePosition()
    passed = [DOOR.update(state, at, index * every_s, margin, 1.0) for index, at in enumerate(feet)]
    return [direction for direction in passed if direction]


def test_eastward_over_a_line_drawn_downwards_is_right_to_left() -> None:
    assert walk([WEST, EAST, EAST]) == ["right_to_left"]
    assert walk([EAST, WEST, WEST]) == ["left_to_right"]


def test_there_and_back_are_two_crossings() -> None:
    assert walk([WEST, EAST, EAST, WEST, WEST]) == ["right_to_left", "left_to_right"]


def test_a_single_frame_beyond_the_line_is_not_believed() -> None:
    assert walk([WEST, EAST, WEST, EAST, WEST, WEST]) == []


def test_hovering_on_the_line_says_nothing_until_it_is_really_crossed() -> None:
    noise = random.Random(3)
    hover = [(0.5 + noise.gauss(0, 0.004), 0.5) for _ in range(300)]
    assert walk([WEST, *hover, WEST, WEST], margin=0.015) == []
    assert walk([WEST, *hover, EAST, EAST], margin=0.015) == ["right_to_left"]


def test_around_the_end_of_the_line_is_not_through_it() -> None:
    below_west, below_east = (0.4, 0.9), (0.6, 0.9)
    assert walk([WEST, below_west, below_east, below_east, EAST]) == []
    assert walk([WEST, below_west, below_east, below_east, EAST, WEST, WEST]) == ["left_to_right"]


@pytest.mark.parametrize(("end", "crossed"), [(0.99, ["right_to_left"]), (0.97, [])])
def test_a_line_drawn_nearly_to_the_border_is_crossed_by_feet_that_the_border_cuts_off(
    end: float, crossed: list[str]
) -> None:
    line, state = Line("way", (0.5, 0.2), (0.5, end)), LinePosition()
    feet = [(0.4, 1.0), (0.48, 1.0), (0.56, 1.0), (0.62, 1.0)]
    passed = [line.update(state, at, index * 0.2, 0.01, 1.0) for index, at in enumerate(feet)]
    assert [direction for direction in passed if direction] == crossed


def test_a_track_born_on_the_line_has_not_crossed_it() -> None:
    assert walk([(0.499, 0.5), EAST, EAST]) == []


def test_a_slow_step_over_the_line_counts_once_it_is_clear_of_it() -> None:
    feet = [(0.47 + 0.003 * step, 0.5) for step in range(21)]
    assert walk(feet) == ["right_to_left"]


@pytest.mark.parametrize("every_s", [0.04, 0.1, 0.2, 1.0])
def test_a_steady_walk_through_fires_once_at_any_rate(every_s: float) -> None:
    steps = round(4 / every_s)
    assert walk([(0.3 + 0.4 * step / steps, 0.5) for step in range(steps + 1)], every_s) == ["right_to_left"]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=40))
def test_crossings_of_a_line_across_the_frame_alternate(feet: list[Point]) -> None:
    line, state = Line("all", (0.5, -1.0), (0.5, 2.0)), LinePosition()
    passed = [line.update(state, at, index * 0.2, 0.01, 1.0) for index, at in enumerate(feet)]
    said = [direction for direction in passed if direction]
    assert all(one != other for one, other in itertools.pairwise(said))
