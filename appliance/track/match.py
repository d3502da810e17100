"""Who is who in one look: which box is which track."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import likeness
from appliance.track.association import pair, price
from appliance.track.kalman import KalmanBank
from appliance.track.look import Look, apart
from appliance.track.patience import LOST_S
from appliance.track.trace import Trace

# Chosen on PETS09-S2L1 with three networks at 3.3, 5 and 10 looks a second, each for a reason that does not depend on
# the clip, and checked on footage that was not used. Figures: docs/accuracy.md, fixtures/accuracy.json.
HIGH = 0.4  # scores from here on take part in the first stage, lower ones only continue what is known
OVERLAP_MIN = 0.1
DISTANCE_MAX = 0.8
LOW_OVERLAP_MIN = 0.4
# Looks differ by 0.05 +- 0.05 for the same person and by 0.23 +- 0.10 for another (`likeness`): another one costs as
# much as no overlap at all, and all that looks say is a preference; it forbids nothing.
LOOKS_WEIGHT = 6.0
SITTINGS_MIN = 3  # a portrait counts in full from so many looks on
GAP_OVERLAP_MIN = 0.5


class Matching:
    """The tracks and their filters, same rows, as one look finds them. slow: the look before was long ago.

    Lives for one look; what it decides is written into `Look.taken`.
    """

    def __init__(self, tracks: Sequence[Trace], filters: KalmanBank, look: Look, *, slow: bool) -> None:
        self._tracks = tracks
        self._filters = filters
        self._look = look
        self._slow = slow

    def match(self, held: list[int]) -> None:
        """Who is who: the sure boxes first, then the doubtful ones for who is left, then those who are new."""
        look = self._look
        rows = self._matchable(held)
        high, low = look.scores >= HIGH, look.scores < HIGH
        known = [row for row in rows if self._tracks[row].number]
        fresh = [row for row in rows if not self._tracks[row].number]
        self._associate(known, high, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)
        left = [row for row in known if row not in look.taken]
        self._associate(left, low, overlap_min=LOW_OVERLAP_MIN, distance_max=0.0)
        self._associate(fresh, high, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)

    def _matchable(self, held: list[int]) -> list[int]:
        """The tracks that a box of this look may be: not those that are known to stand elsewhere."""
        rows = [row for row in range(len(self._tracks)) if row not in held]
        if self._look.region is None:
            return rows
        away = apart(self._filters.boxes(), self._look.region)
        return [row for row in rows if not (away[row] and self._tracks[row].at_rest)]

    def _associate(
        self, rows: list[int], wanted: NDArray[np.bool_], *, overlap_min: float, distance_max: float
    ) -> None:
        """Pair tracks `rows` with the `wanted` detections that nobody has yet; adds to `look.taken`."""
        look = self._look
        free = look.free(wanted)
        if not rows or not free:
            return
        tracks = [self._tracks[row] for row in rows]
        # After a gap only a box in the same place is believed to be the same object; and who walked may have stopped.
        gone = np.array([track.unseen_s > LOST_S for track in tracks])
        expected = self._filters.boxes()[rows]
        if self._slow and gone.any():
            expected[gone] = np.array([track.last for track in tracks])[gone]
        prices = price(
            expected,
            self._filters.spread()[rows],
            look.boxes[free],
            overlap_min=overlap_min,
            distance_max=distance_max,
        )
        groups = np.array([track.group for track in tracks])
        prices[groups[:, None] != look.groups[free][None]] = np.inf
        prices[gone[:, None] & (prices > 1 - GAP_OVERLAP_MIN)] = np.inf
        seen = [index for index, track in enumerate(tracks) if track.portrait is not None]
        if look.appearance is not None and seen:
            portraits = np.array([tracks[index].portrait for index in seen])
            weights = np.array([LOOKS_WEIGHT * min(1.0, tracks[index].sittings / SITTINGS_MIN) for index in seen])
            prices[seen] += weights[:, None] * (1 - likeness(portraits, look.appearance[free]))
        for row, column in pair(prices, price_max=2.0 + LOOKS_WEIGHT):
            look.taken[rows[row]] = free[column]
