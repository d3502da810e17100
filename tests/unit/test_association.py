"""Pairing tracks with detections at the least price."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from appliance.base.box_arrays import iou_matrix
from appliance.track.association import IMPOSSIBLE, _hungarian_small, assign, contested_rows, hungarian, match_costs

BOX = (0.4, 0.4, 0.44, 0.5)
SURE = (0.001, 0.001)


@settings(deadline=None)
@given(st.data())
def test_no_permutation_is_cheaper_than_the_hungarian_one(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 5))
    columns = data.draw(st.integers(rows, 6))
    # Small whole numbers make ties and zeros common.
    table = data.draw(arrays.arrays(np.float64, (rows, columns), elements=st.integers(-3, 6).map(float)))
    chosen = hungarian(table)
    assert len(set(chosen)) == rows
    total = sum(table[row, column] for row, column in enumerate(chosen))
    assert total == min(
        sum(table[row, column] for row, column in enumerate(order))
        for order in itertools.permutations(range(columns), rows)
    )


@settings(deadline=None)
@given(arrays.arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(0, 5)), elements=st.floats(0, 4)))
def test_pairs_are_the_cheapest_when_a_row_alone_costs_the_limit(prices: np.ndarray) -> None:
    def total(pairs: list[tuple[int, int]]) -> float:
        return sum(prices[row, column] for row, column in pairs) + 2.0 * (len(prices) - len(pairs))

    found = assign(prices, 2.0)
    assert all(prices[row, column] <= 2.0 for row, column in found)
    assert len({row for row, _ in found}) == len({column for _, column in found}) == len(found)
    rows, columns = prices.shape
    possible = [
        list(zip(some, order, strict=True))
        for count in range(min(rows, columns) + 1)
        for some in itertools.combinations(range(rows), count)
        for order in itertools.permutations(range(columns), count)
    ]
    best = min(total(pairs) for pairs in possible if all(prices[row, column] <= 2.0 for row, column in pairs))
    assert abs(total(found) - best) < 1e-9


def test_greed_does_not_win() -> None:
    """The cheapest single pair (0.1) would leave the other track with a price of 1.9."""
    assert assign(np.array([[0.1, 0.2], [0.2, 1.9]])) == [(0, 1), (1, 0)]


def test_one_sure_pair_beats_two_doubtful_ones() -> None:
    assert assign(np.array([[0.1, 1.95], [1.95, IMPOSSIBLE]])) == [(0, 0)]


def test_nothing_pairs_with_nothing() -> None:
    assert assign(np.zeros((0, 3))) == []
    assert assign(np.zeros((3, 0))) == []
    assert assign(np.full((2, 2), IMPOSSIBLE)) == []


def test_overlap_is_intersection_over_union() -> None:
    a = np.array([[0, 0, 2, 2], [5, 5, 6, 6]], float)
    assert iou_matrix(a, np.array([[1, 1, 3, 3], [0, 0, 2, 2]], float)).tolist() == [[1 / 7, 1], [0, 0]]


def test_a_small_box_that_moved_by_its_own_width_is_still_near() -> None:
    moved = (0.441, 0.4, 0.481, 0.5)
    assert iou_matrix(np.array([BOX]), np.array([moved]))[0, 0] == 0
    assert 1 < match_costs(BOX, SURE, [moved], overlap_min=0.1, distance_max=0.8)[0] < 2


def test_near_is_not_enough_for_another_size() -> None:
    tall = (0.4, 0.1, 0.44, 0.38)
    assert match_costs(BOX, (0.1, 0.1), [tall], overlap_min=0.1, distance_max=5) == [IMPOSSIBLE]


def test_doubt_reaches_further_but_not_for_ever() -> None:
    def furthest(spread: float) -> float:
        steps = np.linspace(0, 1, 1001)
        found = [(BOX[0] + step, BOX[1], BOX[2] + step, BOX[3]) for step in steps.tolist()]
        costs = match_costs(BOX, (spread, spread), found, overlap_min=0.1, distance_max=0.8)
        return float(steps[np.isfinite(costs)].max())

    assert furthest(0.001) < furthest(0.02) < furthest(0.5) == furthest(5.0)


def test_what_is_taken_to_be_far_at_a_glance_is_neither_near_nor_touched() -> None:
    """A wide box that reaches over its own centre's reach, and boxes on either side of it."""
    wide = (0.2, 0.5, 0.8, 0.52)
    found = [(0.1, 0.5, 0.21, 0.52), (0.79, 0.5, 0.9, 0.52), (0.05, 0.5, 0.19, 0.52), (0.81, 0.5, 0.95, 0.52)]
    costs = match_costs(wide, SURE, found, overlap_min=1e-6, distance_max=0.1)
    assert [cost < IMPOSSIBLE for cost in costs] == [True, True, False, False]


def test_appearances_are_compared_only_where_there_is_a_choice() -> None:
    sure, torn, rivals = (
        [0.1, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE],
        [IMPOSSIBLE, 0.2, 0.3, IMPOSSIBLE],
        [[IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, 0.1]] * 2,
    )
    assert contested_rows([sure, torn, *rivals, [IMPOSSIBLE] * 4], 2.0) == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_small_tables_are_solved_alike_number_by_number(data: st.DataObject) -> None:
    """Ties too: the same columns, so that the size of a table decides nothing."""
    n = data.draw(st.integers(1, 6))
    m = data.draw(st.integers(n, 10))
    table = data.draw(arrays.arrays(float, (n, m), elements=st.sampled_from([0.0, 0.25, 0.3, 1.0, 2.0, 17.0])))
    assert _hungarian_small(table.tolist()) == hungarian(table)
