"""Who is who: the price of taking a detection for a track, and the cheapest way to pair them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from appliance.track.kalman import sizes, to_centre

Floats = NDArray[np.float64]
NEVER = np.inf
_SMALL = 400  # cells of a table up to which plain numbers are quicker than arrays


def overlap(a: Floats, b: Floats) -> Floats:
    """Intersection over union of boxes (N, 4) and (M, 4), (N, M)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    shared = sides[..., 0] * sides[..., 1]
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    return np.asarray(shared / np.maximum(area_a[:, None] + area_b[None] - shared, 1e-12))


def cover(a: Floats, b: Floats) -> Floats:
    """Share of the smaller of two boxes that lies in the other, of boxes (N, 4) and (M, 4), (N, M)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    smaller = np.maximum(np.minimum(area_a[:, None], area_b[None]), 1e-12)
    return np.asarray(sides[..., 0] * sides[..., 1] / smaller)


def distance(tracks: Floats, spread: Floats, found: Floats) -> Floats:
    """Distance of the centres of boxes (N, 4) and (M, 4) in object sizes, (N, M).

    The size is widened by the track's own uncertainty `spread` (N, 2), but at most doubled: a small box that moved by
    more than itself between two looks overlaps nothing and is still found, a stale one does not reach for everything.
    """
    a, b = to_centre(tracks), to_centre(found)
    reach = sizes(a)
    reach = reach + np.minimum(spread, reach)
    steps = (a[:, None, :2] - b[None, :, :2]) / reach[:, None]
    return np.asarray(np.sqrt((steps**2).sum(axis=2)))


def price(tracks: Floats, spread: Floats, found: Floats, *, overlap_min: float, distance_max: float) -> Floats:
    """(N, M) price of each pair: 0..1 where boxes overlap enough, 1..2 where they are only near and alike in size."""
    shared = overlap(tracks, found)
    apart = distance(tracks, spread, found)
    height_a, height_b = tracks[:, 3] - tracks[:, 1], found[:, 3] - found[:, 1]
    ratio = height_a[:, None] / np.maximum(height_b[None], 1e-9)
    near = (apart <= distance_max) & (ratio > 0.5) & (ratio < 2.0)
    far = np.where(near, 1.0 + apart / max(distance_max, 1e-9), NEVER)
    return np.asarray(np.where(shared >= overlap_min, 1.0 - shared, far))


def pair(prices: Floats, price_max: float = 2.0) -> list[tuple[int, int]]:
    """Pairs (row, column) of least total price, in row order; a row left alone costs `price_max`.

    One sure pair therefore beats two doubtful ones. The table falls into groups of rows and columns that could be
    confused with each other; most hold one pair. Larger ones go through the Hungarian algorithm.
    """
    possible = prices <= price_max
    pairs: list[tuple[int, int]] = []
    for rows, columns in _groups(possible):
        if len(rows) == len(columns) == 1:
            pairs.append((rows[0], columns[0]))
            continue
        # One more column per row stands for "nobody"; what is impossible is dearer than that.
        table = np.where(possible, prices, 2 * price_max + 1)[np.ix_(rows, columns)]
        nobody = np.full((len(rows), len(rows)), price_max)
        whole = np.concatenate([table, nobody], axis=1)
        chosen = _hungarian_small(whole.tolist()) if whole.size <= _SMALL else hungarian(whole)
        pairs += [(rows[row], columns[column]) for row, column in enumerate(chosen) if column < len(columns)]
    return sorted(pairs)


def hungarian(table: Floats) -> list[int]:
    """The column of each row that makes the total least. (n, m) finite, n <= m; O(n^2 m).

    Shortest augmenting paths with potentials (Jonker & Volgenant 1987); ties go to the lowest column.
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
    """What `hungarian` gives, number by number."""
    n, m = len(table), len(table[0])
    row_potential, column_potential = [0.0] * n, [0.0] * m
    row_of = [-1] * m
    for start in range(n):
        least, came_from, done = [math.inf] * m, [-1] * m, [False] * m
        row, column, shortest = start, -1, 0.0
        while True:
            base, prices, nearest = row_potential[row], table[row], math.inf
            chosen = -1
            for each in range(m):
                if done[each]:
                    continue
                reduced = shortest + prices[each] - base - column_potential[each]
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


def _groups(possible: NDArray[np.bool_]) -> list[tuple[list[int], list[int]]]:
    """Connected rows and columns of the table, each in order; rows without any column are left out."""
    columns_of: dict[int, list[int]] = {}
    rows_of: dict[int, list[int]] = {}
    for row, column in np.argwhere(possible).tolist():
        columns_of.setdefault(row, []).append(column)
        rows_of.setdefault(column, []).append(row)
    groups, grouped = [], set[int]()
    for first in columns_of:
        if first in grouped:
            continue
        rows, columns, new = {first}, set[int](), [first]
        while new:
            fresh = [column for column in columns_of[new.pop()] if column not in columns]
            columns.update(fresh)
            reached = {row for column in fresh for row in rows_of[column]} - rows
            rows |= reached
            new += reached
        grouped |= rows
        groups.append((sorted(rows), sorted(columns)))
    return groups
