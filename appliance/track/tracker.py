"""From the boxes of single looks to objects that keep their number: one tracker per camera."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes, describe, likeness
from appliance.track.association import cover, overlap, pair, price
from appliance.track.kalman import KalmanBank
from appliance.track.relink import RELINK_S, recognise, take_over
from appliance.track.trace import Trace
from appliance.types import Detections, TrackedObject

VEHICLES = frozenset({"car", "truck", "bus", "van"})

# Chosen on PETS09-S2L1 with three networks at 3.3, 5 and 10 looks a second, each for a reason that does not depend on
# the clip, and checked on footage that was not used. Figures: docs/accuracy.md, fixtures/accuracy.json.
HIGH = 0.4  # scores from here on take part in the first stage, lower ones only continue what is known
BEGIN = 0.5  # a track begins only from here on; rules start at the same score unless told otherwise
LOW = 0.2  # below it seven boxes in eight are on nobody, and a track that was lost clings to them
OVERLAP_MIN = 0.1
DISTANCE_MAX = 0.8
LOW_OVERLAP_MIN = 0.4
# Looks differ by 0.05 +- 0.05 for the same person and by 0.23 +- 0.10 for another (`likeness`): another one costs as
# much as no overlap at all, and all that looks say is a preference; it forbids nothing.
LOOKS_WEIGHT = 6.0
SITTINGS_MIN = 3  # a portrait counts in full from so many looks on
CLEAR_OF = 0.15  # two boxes that overlap more share pixels enough to spoil a portrait
# A newcomer whose box lies to such a part in one that is taken (or the other way round) is the same object twice.
DOUBLE = 0.7
LOST_S = 2.5
LEFT_S = 1.0  # who was last seen cut off by the picture's border has more likely left than been hidden
GAP_OVERLAP_MIN = 0.5
GAP_S = 60.0
TRACKS_MAX = 300


@dataclass(slots=True)
class _Look:
    """One look while it is being understood. taken: track row to detection."""

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    class_ids: NDArray[np.int32]
    groups: NDArray[np.intp]
    appearance: NDArray[np.float64] | None
    taken: dict[int, int] = field(default_factory=dict)

    def free(self, wanted: NDArray[np.bool_]) -> list[int]:
        used = set(self.taken.values())
        return [index for index in np.flatnonzero(wanted).tolist() if index not in used]


class Tracker:
    """Two-stage association (ByteTrack, arXiv 2110.06864) over Kalman predictions, helped by what objects look like.

    State: one filter and one `Trace` per object, same row; those lately given up. Owned by the thread that looks at
    the camera. The same detections at the same times give the same objects, bit for bit. Numbers count up from 1 in
    the order of confirmation; a track is confirmed, and first returned, at its second look, or its third if its
    scores are poor, and then gets a new number or, when it is recognised (`relink`), the one it had. A track is given
    up after LOST_S unseen, LEFT_S at the picture's border, but never before one look has missed it.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._group_of = _groups(labels)
        self._filters = KalmanBank()
        self._tracks: list[Trace] = []
        self._absent: list[Trace] = []
        self._t: float | None = None
        self._last_number = 0

    def update(self, detections: Detections, t: float, planes: Planes = ()) -> tuple[TrackedObject, ...]:
        """One look at time `t` (seconds); the confirmed objects seen in it, by number.

        planes: the picture, for what objects look like; without it boxes alone decide. A look in which nothing was
        found must be told too (`Detections.empty()`); one that failed must not. A `t` that does not advance (camera
        clock set back) counts as no time passed. Raises ValueError if `t` is not finite.
        """
        self._advance(t)
        look = self._look(detections, planes)
        high, low = look.scores >= HIGH, look.scores < HIGH
        known = [row for row, track in enumerate(self._tracks) if track.number]
        fresh = [row for row, track in enumerate(self._tracks) if not track.number]
        self._associate(known, high, look, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)
        left = [row for row in known if row not in look.taken]
        self._associate(left, low, look, overlap_min=LOW_OVERLAP_MIN, distance_max=0.0)
        self._associate(fresh, high, look, overlap_min=OVERLAP_MIN, distance_max=DISTANCE_MAX)
        self._take(look)
        seen = self._confirm(look)
        self._begin(look)
        self._give_up()
        return seen

    def _look(self, detections: Detections, planes: Planes) -> _Look:
        found = detections.select(detections.scores >= LOW)
        return _Look(
            boxes=found.boxes.astype(np.float64),
            scores=found.scores.astype(np.float64),
            class_ids=found.class_ids,
            groups=self._group_of[found.class_ids],
            appearance=describe(planes, found.boxes),
        )

    def _advance(self, t: float) -> None:
        if not math.isfinite(t):
            raise ValueError(f"the time of a look must be finite, not {t}")
        passed = 0.0 if self._t is None else max(0.0, t - self._t)
        self._t = t
        self._filters.predict(min(passed, LOST_S))
        for track in (*self._tracks, *self._absent):
            track.unseen_s += passed
        self._absent = [track for track in self._absent if track.unseen_s <= RELINK_S]
        self._keep([track.unseen_s <= GAP_S for track in self._tracks])

    def _associate(
        self, rows: list[int], wanted: NDArray[np.bool_], look: _Look, *, overlap_min: float, distance_max: float
    ) -> None:
        """Pair tracks `rows` with the `wanted` detections that nobody has yet; adds to `look.taken`."""
        free = look.free(wanted)
        if not rows or not free:
            return
        tracks = [self._tracks[row] for row in rows]
        prices = price(
            self._filters.boxes()[rows],
            self._filters.spread()[rows],
            look.boxes[free],
            overlap_min=overlap_min,
            distance_max=distance_max,
        )
        groups = np.array([track.group for track in tracks])
        prices[groups[:, None] != look.groups[free][None]] = np.inf
        # After a gap only a box in the same place is believed to be the same object.
        gone = np.array([track.unseen_s > LOST_S for track in tracks])
        prices[gone[:, None] & (prices > 1 - GAP_OVERLAP_MIN)] = np.inf
        seen = [index for index, track in enumerate(tracks) if track.portrait is not None]
        if look.appearance is not None and seen:
            portraits = np.array([tracks[index].portrait for index in seen])
            weights = np.array([LOOKS_WEIGHT * min(1.0, tracks[index].sittings / SITTINGS_MIN) for index in seen])
            prices[seen] += weights[:, None] * (1 - likeness(portraits, look.appearance[free]))
        for row, column in pair(prices, price_max=2.0 + LOOKS_WEIGHT):
            look.taken[rows[row]] = free[column]

    def _take(self, look: _Look) -> None:
        rows = sorted(look.taken)
        picked = [look.taken[row] for row in rows]
        clear = self._clear(look, picked)
        if rows:
            # A doubtful box is most often one that two people share, or half of one.
            doubt = 1 + 3 * (1 - look.scores[picked])
            self._filters.correct(np.array(rows, np.intp), look.boxes[picked], doubt)
        for track in self._tracks:
            track.missed += 1
        for row, index, alone in zip(rows, picked, clear, strict=True):
            track = self._tracks[row]
            track.see(int(look.class_ids[index]), float(look.scores[index]), look.boxes[index])
            if alone and look.appearance is not None:
                track.sit(look.appearance[index])

    def _clear(self, look: _Look, picked: list[int]) -> list[bool]:
        """Which of the boxes `picked` show one well-seen object alone; where another is expected counts too."""
        boxes = look.boxes[picked]
        shared = overlap(boxes, boxes)
        np.fill_diagonal(shared, 0.0)
        hidden = [row for row, track in enumerate(self._tracks) if track.number and row not in look.taken]
        shared = np.concatenate([shared, overlap(boxes, self._filters.boxes()[hidden])], axis=1)
        alone = (shared <= CLEAR_OF).all(axis=1) & (look.scores[picked] >= HIGH)
        return [bool(each) for each in alone]

    def _confirm(self, look: _Look) -> tuple[TrackedObject, ...]:
        """Number the tracks that have earned it, oldest first, and return all numbered ones seen in this look."""
        seen = []
        expected = self._filters.boxes()
        for row in sorted(look.taken):
            track = self._tracks[row]
            if not track.number and track.deserves_number():
                self._number(track)
            if track.number:
                seen.append(self._report(track, look.taken[row], expected[row], look))
        return tuple(sorted(seen, key=lambda each: each.track))

    def _number(self, track: Trace) -> None:
        missing = [each for each in self._tracks if each.number and each.missed]
        known = recognise(track, [*missing, *self._absent])
        if known is None:
            self._last_number += 1
            track.number = self._last_number
            return
        take_over(track, known)
        self._absent = [each for each in self._absent if each is not known]

    def _report(self, track: Trace, index: int, expected: NDArray[np.float64], look: _Look) -> TrackedObject:
        """The box as the detector said when it was sure; the less so, the more of what the filter makes of it."""
        score = float(look.scores[index])
        trust = max(0.0, 2 * score - 1)
        box = trust * look.boxes[index] + (1 - trust) * expected
        x1, y1, x2, y2 = (round(min(1.0, max(0.0, float(side))), 4) for side in box)
        return TrackedObject(
            track=track.number,
            label=self._labels[int(track.votes.argmax())],
            score=round(score, 3),
            box=(x1, y1, x2, y2),
        )

    def _begin(self, look: _Look) -> None:
        used = sorted(look.taken.values())
        fresh: list[int] = []
        for index in look.free(look.scores >= BEGIN):
            if len(self._tracks) + len(fresh) < TRACKS_MAX and not _doubles(index, used + fresh, look):
                fresh.append(index)
        if fresh:
            self._filters.add(look.boxes[fresh])
        for index in fresh:
            class_id, score = int(look.class_ids[index]), float(look.scores[index])
            votes = np.zeros(len(self._labels))
            votes[class_id] = score
            self._tracks.append(Trace(int(look.groups[index]), votes, look.boxes[index], score))

    def _give_up(self) -> None:
        """Drop the tracks that this look has missed and that have been unseen for too long."""
        keep = [
            not track.missed or (track.number > 0 and track.unseen_s <= _patience_s(track)) for track in self._tracks
        ]
        self._absent += [track for track, kept in zip(self._tracks, keep, strict=True) if track.number and not kept]
        del self._absent[:-TRACKS_MAX]
        self._keep(keep)

    def _keep(self, keep: list[bool]) -> None:
        if not all(keep):
            self._filters.keep(np.array(keep, bool))
            self._tracks = [track for track, kept in zip(self._tracks, keep, strict=True) if kept]


def _patience_s(track: Trace) -> float:
    return LEFT_S if track.at_edge() else LOST_S


def _doubles(index: int, others: list[int], look: _Look) -> bool:
    """Whether a box is one of `others` again: half a person, or a van that is also a truck."""
    others = [other for other in others if look.groups[other] == look.groups[index]]
    return bool(others) and bool((cover(look.boxes[[index]], look.boxes[others]) > DOUBLE).any())


def _groups(labels: tuple[str, ...]) -> NDArray[np.intp]:
    """For each class the first class it may be mistaken for: itself, or for a vehicle the first kind of vehicle."""
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return np.array([vehicle if label in VEHICLES else index for index, label in enumerate(labels)], np.intp)
