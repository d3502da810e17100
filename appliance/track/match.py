"""Who is who in one look: which box is which track."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from appliance.track.appearance import likeness
from appliance.track.association import NEVER, contested, pair, prices
from appliance.track.look import HIGH, Look, apart
from appliance.track.patience import LOST_S
from appliance.track.trace import Trace
from appliance.types import Box

# Chosen on PETS09-S2L1 with three networks at 3.3, 5 and 10 looks a second, each for a reason that does not depend on
# the clip, and checked on footage that was not used. Figures: docs/accuracy.md, fixtures/accuracy.json.
OVERLAP_MIN = 0.1
DISTANCE_MAX = 0.8
LOW_OVERLAP_MIN = 0.4
# For who was doubtful the last time, too: in rain, in infrared, far away no better box is to be expected of them, and a
# filter that was corrected by such boxes is further off. Who was sure just now is more likely hidden, and the doubtful
# box somebody else's. But a box of another height is of a part of them, and would lead the filter astray.
POOR_OVERLAP_MIN = 0.2
POOR_GROWTH = 1.5
# Looks differ by 0.05 +- 0.05 for the same person and by 0.23 +- 0.10 for another (`likeness`): another one costs as
# much as no overlap at all, and all that looks say is a preference; it forbids nothing.
LOOKS_WEIGHT = 6.0
PRICE_MAX = 2.0 + LOOKS_WEIGHT
SITTINGS_MIN = 3  # a portrait counts in full from so many looks on
GAP_OVERLAP_MIN = 0.5


class Matching:
    """The tracks as one look finds them. slow: the look before was long ago.

    Lives for one look; what it decides is written into `Look.taken`.
    """

    def __init__(self, tracks: Sequence[Trace], look: Look, *, slow: bool) -> None:
        self._tracks = tracks
        self._look = look
        self._slow = slow

    def match(self, held: Sequence[int]) -> None:
        """Who is who: the sure boxes first, then the doubtful ones for who is left, then those who are new,
        and what may be nobody."""
        look = self._look
        rows = self._matchable(held)
        known = [row for row in rows if self._tracks[row].number]
        fresh = [row for row in rows if not self._tracks[row].number and self._tracks[row].faint is None]
        faint = [row for row in rows if self._tracks[row].faint is not None]
        self._associate(known, look.free(HIGH))
        left = [row for row in known if row not in look.taken]
        if left:
            self._associate(left, look.free(0.0, HIGH), doubtful=True)
        if fresh:
            self._associate(fresh, look.free(HIGH))
        if faint:
            self._associate(faint, look.free(0.0))

    def _matchable(self, held: Sequence[int]) -> list[int]:
        """The tracks that a box of this look may be: not those that are known to stand elsewhere."""
        rows = [row for row in range(len(self._tracks)) if row not in held]
        parts = self._look.parts
        if not parts:
            return rows
        tracks = self._tracks
        return [row for row in rows if not (tracks[row].at_rest and apart(tracks[row].filter.box, parts))]

    def _associate(self, rows: list[int], free: list[int], *, doubtful: bool = False) -> None:
        """Pair tracks `rows` with the detections `free`, which nobody has yet; adds to `look.taken`.

        doubtful: the detections are, and must overlap; to be near is not enough.
        """
        if not rows or not free:
            return
        boxes = [self._look.boxes[index] for index in free]
        groups = [self._look.groups[index] for index in free]
        overlap_min, distance_max = (POOR_OVERLAP_MIN, 0.0) if doubtful else (OVERLAP_MIN, DISTANCE_MAX)
        table = []
        for row in rows:
            track = self._tracks[row]
            # After a gap only a box in the same place is believed to be the same; and who walked may have stopped.
            gone = track.unseen_s > LOST_S
            expected = track.last if gone and self._slow else track.filter.box
            costs = prices(expected, track.filter.spread(), boxes, overlap_min=overlap_min, distance_max=distance_max)
            if doubtful:
                costs = [
                    cost if _continues(track, expected, box, 1 - cost) else NEVER
                    for cost, box in zip(costs, boxes, strict=True)
                ]
            dearest = 1 - GAP_OVERLAP_MIN if gone else PRICE_MAX
            mine = (cost <= dearest and group == track.group for cost, group in zip(costs, groups, strict=True))
            table.append([cost if may else NEVER for cost, may in zip(costs, mine, strict=True)])
        if self._look.planes:
            self._compare_looks(table, rows, free)
        for row, column in pair(table, PRICE_MAX):
            self._look.taken[rows[row]] = free[column]

    def _compare_looks(self, table: list[list[float]], rows: list[int], free: list[int]) -> None:
        """Make those dearer that look different, where there is a choice: looks forbid nothing, they only prefer."""
        torn = [
            (row, track.portrait, track.sittings)
            for row in contested(table, PRICE_MAX)
            if (track := self._tracks[rows[row]]).portrait is not None
        ]
        if not torn:
            return
        columns = [column for column in range(len(free)) if any(table[row][column] < NEVER for row, _, _ in torn)]
        seen = np.array(self._look.appearance([free[column] for column in columns]))
        alike = likeness(np.array([portrait for _, portrait, _ in torn]), seen).tolist()
        for (row, _, sittings), line in zip(torn, alike, strict=True):
            weight = LOOKS_WEIGHT * min(1.0, sittings / SITTINGS_MIN)
            for column, each in zip(columns, line, strict=True):
                table[row][column] += weight * (1 - each)


def _continues(track: Trace, expected: Box, box: Box, shared: float) -> bool:
    """Whether a doubtful box that overlaps by `shared` with where `track` is expected may be of it."""
    if track.score >= HIGH or shared >= LOW_OVERLAP_MIN:
        return shared >= LOW_OVERLAP_MIN
    growth = (box[3] - box[1]) / max(expected[3] - expected[1], 1e-9)
    return 1 / POOR_GROWTH < growth < POOR_GROWTH
