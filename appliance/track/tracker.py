"""From the boxes of single looks to objects that keep their number: one tracker per camera."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.track.association import overlap, pair, price
from appliance.track.kalman import KalmanBank
from appliance.types import Detections, TrackedObject

VEHICLES = frozenset({"car", "truck", "bus", "van"})

# Tuned together on PETS09-S2L1 with three networks at 1, 2, 3.3, 5 and 10 looks a second, and checked on footage that
# was not tuned on; each sits on a plateau. Figures: fixtures/accuracy.json.
HIGH = 0.4  # scores from here on take part in the first stage, lower ones only continue what is known
BEGIN = 0.5  # a track begins only from here on; rules start at the same score unless told otherwise
SURE = 0.6  # with a mean score from here on two looks confirm, below three do
OVERLAP_MIN = 0.1
DISTANCE_MAX = 0.8
LOW_OVERLAP_MIN = 0.4
DOUBLE_OVERLAP = 0.8
LOST_S = 2.5
GAP_OVERLAP_MIN = 0.5
GAP_S = 60.0
TRACKS_MAX = 300


@dataclass(slots=True)
class _Track:
    """What is remembered of one object besides its filter; `number` 0 until it is confirmed."""

    group: int
    votes: NDArray[np.float64]
    number: int = 0
    looks: int = 0
    score_sum: float = 0.0
    unseen_s: float = 0.0
    missed: int = 0


class Tracker:
    """Two-stage association (ByteTrack, arXiv 2110.06864) over Kalman predictions.

    State: one filter and one `_Track` per object, same row. Owned by the thread that looks at the camera. The same
    detections at the same times give the same objects, bit for bit. Numbers count up from 1 in the order of
    confirmation and are never used again; a track is confirmed, and first returned, at its second look, or its third
    if its scores are poor. A track is given up after LOST_S unseen, but never before one look has missed it.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._group_of = _groups(labels)
        self._filters = KalmanBank()
        self._tracks: list[_Track] = []
        self._t: float | None = None
        self._last_number = 0

    def update(self, detections: Detections, t: float) -> tuple[TrackedObject, ...]:
        """One look at time `t` (seconds); the confirmed objects seen in it, by number.

        A look in which nothing was found must be told too (`Detections.empty()`); one that failed must not. A `t` that
        does not advance (camera clock set back) counts as no time passed. Raises ValueError if `t` is not finite.
        """
        self._advance(t)
        self._forget(stale=True)
        scores = detections.scores
        high, low = np.flatnonzero(scores >= HIGH), np.flatnonzero(scores < HIGH)
        taken: dict[int, int] = {}
        known = [row for row, track in enumerate(self._tracks) if track.number]
        fresh = [row for row, track in enumerate(self._tracks) if not track.number]
        self._associate(known, high, detections, taken, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)
        left = [row for row in known if row not in taken]
        self._associate(left, low, detections, taken, overlap_min=LOW_OVERLAP_MIN, distance_max=0.0)
        self._associate(fresh, high, detections, taken, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)
        self._take(taken, detections)
        self._miss(taken)
        seen = self._confirm(taken, detections)
        self._begin(high, taken, detections)
        self._forget(stale=False)
        return seen

    def _advance(self, t: float) -> None:
        if not math.isfinite(t):
            raise ValueError(f"the time of a look must be finite, not {t}")
        passed = 0.0 if self._t is None else max(0.0, t - self._t)
        self._t = t
        self._filters.predict(min(passed, LOST_S))
        for track in self._tracks:
            track.unseen_s += passed

    def _associate(
        self,
        rows: list[int],
        found: NDArray[np.intp],
        detections: Detections,
        taken: dict[int, int],
        *,
        overlap_min: float,
        distance_max: float,
    ) -> None:
        """Pair tracks `rows` with those detections `found` that nobody has yet; adds row: detection to `taken`."""
        used = set(taken.values())
        free = [int(index) for index in found if int(index) not in used]
        if not rows or not free:
            return
        boxes = detections.boxes[free].astype(np.float64)
        prices = price(
            self._filters.boxes()[rows],
            self._filters.spread()[rows],
            boxes,
            overlap_min=overlap_min,
            distance_max=distance_max,
        )
        groups = np.array([self._tracks[row].group for row in rows])
        prices[groups[:, None] != self._group_of[detections.class_ids[free]][None]] = np.inf
        # After a gap only a box in the same place is believed to be the same object.
        gone = np.array([self._tracks[row].unseen_s > LOST_S for row in rows])
        prices[gone[:, None] & (prices > 1 - GAP_OVERLAP_MIN)] = np.inf
        for row, column in pair(prices):
            taken[rows[row]] = free[column]

    def _take(self, taken: dict[int, int], detections: Detections) -> None:
        rows = sorted(taken)
        picked = [taken[row] for row in rows]
        if rows:
            self._filters.correct(np.array(rows, np.intp), detections.boxes[picked])
        for row, index in zip(rows, picked, strict=True):
            track, score = self._tracks[row], float(detections.scores[index])
            track.votes[detections.class_ids[index]] += score
            track.looks += 1
            track.score_sum += score
            track.unseen_s, track.missed = 0.0, 0

    def _miss(self, taken: dict[int, int]) -> None:
        for row, track in enumerate(self._tracks):
            if row not in taken:
                track.missed += 1

    def _confirm(self, taken: dict[int, int], detections: Detections) -> tuple[TrackedObject, ...]:
        """Number the tracks that have earned it, oldest first, and return all numbered ones seen in this look."""
        seen = []
        for row in sorted(taken):
            track = self._tracks[row]
            if not track.number and track.looks >= (2 if track.score_sum >= SURE * track.looks else 3):
                self._last_number += 1
                track.number = self._last_number
            if track.number:
                seen.append(self._report(track, taken[row], detections))
        return tuple(sorted(seen, key=lambda each: each.track))

    def _report(self, track: _Track, index: int, detections: Detections) -> TrackedObject:
        x1, y1, x2, y2 = (round(min(1.0, max(0.0, float(side))), 4) for side in detections.boxes[index])
        score = round(float(detections.scores[index]), 3)
        return TrackedObject(
            track=track.number, label=self._labels[int(track.votes.argmax())], score=score, box=(x1, y1, x2, y2)
        )

    def _begin(self, high: NDArray[np.intp], taken: dict[int, int], detections: Detections) -> None:
        used = sorted(taken.values())
        fresh: list[int] = []
        for index in map(int, high):
            if index in used or detections.scores[index] < BEGIN or len(self._tracks) + len(fresh) >= TRACKS_MAX:
                continue
            if not self._doubles(index, used + fresh, detections):
                fresh.append(index)
        if fresh:
            self._filters.add(detections.boxes[fresh])
        for index in fresh:
            class_id, score = int(detections.class_ids[index]), float(detections.scores[index])
            votes = np.zeros(len(self._labels))
            votes[class_id] = score
            self._tracks.append(_Track(int(self._group_of[class_id]), votes, looks=1, score_sum=score))

    def _doubles(self, index: int, others: list[int], detections: Detections) -> bool:
        """Whether a box is one of `others` again under another name of its group: a van that is also a truck."""
        group = self._group_of[detections.class_ids]
        others = [other for other in others if group[other] == group[index]]
        if not others:
            return False
        boxes = detections.boxes.astype(np.float64)
        return bool((overlap(boxes[[index]], boxes[others]) > DOUBLE_OVERLAP).any())

    def _forget(self, *, stale: bool) -> None:
        """Drop tracks: after a gap those out of reach (`stale`), after a look those that it and LOST_S gave up."""
        if stale:
            keep = np.array([track.unseen_s <= GAP_S for track in self._tracks], bool)
        else:
            keep = np.array([self._alive(track) for track in self._tracks], bool)
        if not keep.all():
            self._filters.keep(keep)
            self._tracks = [track for track, kept in zip(self._tracks, keep, strict=True) if kept]

    @staticmethod
    def _alive(track: _Track) -> bool:
        if not track.number:
            return track.missed == 0
        return track.missed == 0 or track.unseen_s <= LOST_S


def _groups(labels: tuple[str, ...]) -> NDArray[np.intp]:
    """For each class the first class it may be mistaken for: itself, or for a vehicle the first kind of vehicle."""
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return np.array([vehicle if label in VEHICLES else index for index, label in enumerate(labels)], np.intp)
