"""Computes the cost of assigning a detection to a track, and the assignment of least total cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.track.kalman import sizes, to_centre
from appliance.types import Box, iou

Floats = NDArray[np.float64]
IMPOSSIBLE = math.inf
_SMALL = 400  # cells of a table up to which plain numbers are quicker than arrays


def overlap_of_smaller(a: Box, b: Box) -> float:
    """Return the share of the smaller of two boxes that lies in the other."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    if width <= 0:
        return 0.0
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    return width * height / max(min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1])), 1e-12)


def match_costs(
    track: Box, spread: tuple[float, float], found: Sequence[Box], *, overlap_min: float, distance_max: float
) -> list[float]:
    """Return the cost of each box of `found`: 0..1 if it overlaps enough, 1..2 if only near and of similar size.

    The distance is that of the centres, in object sizes. The size is increased by the track's own uncertainty `spread`
    (see `Kalman`), but at most doubled. So a small box that moved by more than its size between two frames is still
    matched, and a stale track does not match distant boxes.
    """
    x, y, width, height = to_centre(track)
    size_x, size_y = sizes((x, y, width, height))
    reach_x, reach_y = size_x + min(spread[0], size_x), size_y + min(spread[1], size_y)
    # Most boxes are far away, and left and right tell: what is further off than this neither touches nor is near.
    aside = max(distance_max * reach_x, width / 2) + 1e-9
    left, right = x - aside, x + aside
    costs = []
    for box in found:
        if box[2] < left or box[0] > right:
            costs.append(IMPOSSIBLE)
            continue
        shared = iou(track, box)
        if shared >= overlap_min:
            costs.append(1.0 - shared)
            continue
        at_x, at_y, _, tall = to_centre(box)
        step_x, step_y = (x - at_x) / reach_x, (y - at_y) / reach_y
        apart = math.sqrt(step_x * step_x + step_y * step_y)
        near = apart <= distance_max and 0.5 < (track[3] - track[1]) / max(tall, 1e-9) < 2.0
        costs.append(1.0 + apart / max(distance_max, 1e-9) if near else IMPOSSIBLE)
    return costs


def assign(costs: Floats | Sequence[Sequence[float]], cost_max: float = 2.0) -> list[tuple[int, int]]:
    """Return pairs (row, column) of least total cost, in row order; an unmatched row costs `cost_max`.

    One sure pair therefore beats two doubtful ones. The table is split into groups of rows and columns that could be
    confused with each other; most have one pair. Larger ones use the Hungarian algorithm.
    """
    table: Sequence[Sequence[float]] = costs.tolist() if isinstance(costs, np.ndarray) else costs
    pairs: list[tuple[int, int]] = []
    for rows, columns in _groups(table, cost_max):
        if len(rows) == len(columns) == 1:
            pairs.append((rows[0], columns[0]))
            continue
        # One more column per row stands for "unmatched"; what is impossible costs more than that.
        never, unmatched = 2 * cost_max + 1, [cost_max] * len(rows)
        group = [[table[row][column] for column in columns] for row in rows]
        whole = [[cost if cost <= cost_max else never for cost in line] + unmatched for line in group]
        small = len(rows) * len(whole[0]) <= _SMALL
        chosen = _hungarian_small(whole) if small else hungarian(np.array(whole))
        pairs += [(rows[row], columns[column]) for row, column in enumerate(chosen) if column < len(columns)]
    return sorted(pairs)


def contested_rows(table: Sequence[Sequence[float]], cost_max: float) -> list[int]:
    """Return the rows of a table of costs that have several columns, or share their only column with another row."""
    return sorted(row for rows, columns in _groups(table, cost_max) if len(rows) + len(columns) > 2 for row in rows)


def hungarian(table: Floats) -> list[int]:
    """Return the column of each row that makes the total least.

    table: (n, m), finite, n <= m. It takes O(n^2 m) steps by shortest augmenting paths with potentials (Jonker &
    Volgenant 1987); ties go to the lowest column.
    """
    n, m = table.shape
    row_potential = np.zeros(n)
    column_potential = np.zeros(m)
    row_of = np.full(m, -1, np.intp)
    for start in range(n):
        least = np.full(m, np.inf)
        came_from = np.full(m, -1, np.intp)
        done = np.zeros(m, bool)
        row, column, shortest = start, -1, 0.0
        while True:
            reduced = shortest + table[row] - row_potential[row] - column_potential
            better = ~done & (reduced < least)
            least[better] = reduced[better]
            came_from[better] = column
            column = int(np.where(done, np.inf, least).argmin())
            shortest = float(least[column])
            if row_of[column] < 0:
                break
            done[column] = True
            row = int(row_of[column])
        row_potential[start] += shortest
        row_potential[row_of[done]] += shortest - least[done]
        column_potential[done] -= shortest - least[done]
        while column >= 0:
            before = int(came_from[column])
            row_of[column] = start if before < 0 else row_of[before]
            column = before
    chosen = [-1] * n
    for taken in np.flatnonzero(row_of >= 0):
        chosen[int(row_of[taken])] = int(taken)
    return chosen


def _hungarian_small(table: list[list[float]]) -> list[int]:
    """Return what `hungarian` does, computed number by number."""
    n, m = len(table), len(table[0])
    row_potential, column_potential = [0.0] * n, [0.0] * m
    row_of = [-1] * m
    for start in range(n):
        least, came_from, done = [math.inf] * m, [-1] * m, [False] * m
        row, column, shortest = start, -1, 0.0
        while True:
            base, costs, nearest = row_potential[row], table[row], math.inf
            chosen = -1
            for each in range(m):
                if done[each]:
                    continue
                reduced = shortest + costs[each] - base - column_potential[each]
                if reduced < least[each]:
                    least[each], came_from[each] = reduced, column
                if least[each] < nearest:
                    nearest, chosen = least[each], each
            column, shortest = chosen, nearest
            if row_of[column] < 0:
                break
            done[column] = True
            row = row_of[column]
        row_potential[start] += shortest
        for each in range(m):
            if done[each]:
                row_potential[row_of[each]] += shortest - least[each]
                column_potential[each] -= shortest - least[each]
        while column >= 0:
            before = came_from[column]
            row_of[column] = start if before < 0 else row_of[before]
            column = before
    found = [-1] * n
    for column, row in enumerate(row_of):
        if row >= 0:
            found[row] = column
    return found


def _groups(table: Sequence[Sequence[float]], cost_max: float) -> list[tuple[list[int], list[int]]]:
    """Return the connected rows and columns of the table, each in order; rows without any column are left out."""
    columns_of: dict[int, list[int]] = {}
    rows_of: dict[int, list[int]] = {}
    for row, line in enumerate(table):
        columns = [column for column, cost in enumerate(line) if cost <= cost_max]
        if columns:
            columns_of[row] = columns
            for column in columns:
                rows_of.setdefault(column, []).append(row)
    groups, grouped = [], set[int]()
    for first, columns in columns_of.items():
        if len(columns) == 1 == len(rows_of[columns[0]]):
            groups.append(([first], columns))
        elif first not in grouped:
            groups.append(_group(first, columns_of, rows_of))
            grouped.update(groups[-1][0])
    return groups


def _group(first: int, columns_of: dict[int, list[int]], rows_of: dict[int, list[int]]) -> tuple[list[int], list[int]]:
    """Return the rows that share columns with the row `first`, directly or indirectly, and those columns."""
    rows, columns, new = {first}, set[int](), [first]
    while new:
        fresh = [column for column in columns_of[new.pop()] if column not in columns]
        columns.update(fresh)
        reached = {row for column in fresh for row in rows_of[column]} - rows
        rows |= reached
        new += reached
    return sorted(rows), sorted(columns)
