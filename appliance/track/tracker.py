"""From the boxes of single looks to objects that keep their number: one tracker per camera."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from appliance.track.anchor import VEHICLE, Anchors
from appliance.track.appearance import Planes, describe
from appliance.track.association import overlap
from appliance.track.kalman import KalmanBank
from appliance.track.look import Look, watched
from appliance.track.match import HIGH, Matching
from appliance.track.patience import LOST_S, is_awaited, is_settled
from appliance.track.places import SAME_PLACE, Places
from appliance.track.relink import RELINK_S, recognise, take_over
from appliance.track.trace import Trace
from appliance.types import Box, Detections, TrackedObject

VEHICLES = frozenset({"car", "truck", "bus", "van"})

# See `match` for how these were chosen.
BEGIN = 0.5  # a track begins only from here on; rules start at the same score unless told otherwise
LOW = 0.2  # below it seven boxes in eight are on nobody, and a track that was lost clings to them
CLEAR_OF = 0.15  # two boxes that overlap more share pixels enough to spoil a portrait
GAP_S = 60.0
SLOW_S = 1.0  # looks that are further apart say nothing of the little speed that boxes of what rests seem to have
TRACKS_MAX = 300


class Tracker:
    """Two-stage association (ByteTrack, arXiv 2110.06864) over Kalman predictions, helped by what objects look like.

    State: one filter and one `Trace` per object, same row; those lately given up; where things are parked. Owned by the
    thread that looks at the camera. The same detections at the same times give the same objects, bit for bit. Numbers
    count up from 1 in the order of confirmation; a track is confirmed, and first returned, at its second look, or its
    third if its scores are poor, and then gets a new number or, when it is recognised (`relink`, `anchor`), the one it
    had. A track is given up after LOST_S unseen, LEFT_S at the picture's border, but never before one look has missed
    it; one at rest must be missed REST_MISSES times, one that parks is waited for for HIDDEN_S.
    """

    def __init__(self, labels: tuple[str, ...], places: Places | None = None) -> None:
        """places: what is known to be parked there from before; None: nothing, and nobody will ask."""
        self._labels = labels
        self._group_of = _groups(labels)
        self._anchors = Anchors(Places() if places is None else places)
        self._filters = KalmanBank()
        self._tracks: list[Trace] = []
        self._absent: list[Trace] = []
        self._t: float | None = None
        self._steady_t = 0.0
        self._slow = False
        self._last_number = 0

    def update(
        self, detections: Detections, t: float, planes: Planes = (), region: Box | None = None
    ) -> tuple[TrackedObject, ...]:
        """One look at time `t` (seconds); the confirmed objects seen in it, by number.

        planes: the whole picture, for what objects and places look like; without it boxes alone decide. region: the
        part of the picture that was looked at (boxes are shares of the whole); None: all of it. Tracks outside it were
        not looked for: they are neither missed nor aged, and those at rest are returned as they were last. A parked
        object that was looked for and not found is returned as it was as long as its place looks the same.

        A look in which nothing was found must be told too (`Detections.empty()`); one that failed must not. A `t` that
        does not advance (camera clock set back) counts as no time passed. Raises ValueError if `t` is not finite.
        """
        looked_for = self._advance(t, region)
        look = self._look(detections, planes, region)
        held = self._hold(look, [row for row, expected in enumerate(looked_for) if expected])
        Matching(self._tracks, self._filters, look, slow=self._slow).match(held)
        self._take(look, looked_for, held)
        seen = [*self._confirm(look), *self._standing(look, looked_for, held)]
        self._begin(look, held)
        self._give_up()
        return tuple(sorted(seen, key=lambda each: each.track))

    @property
    def unsettled(self) -> tuple[Box, ...]:
        """Where what is followed asks for a look soon: boxes (shares) of what moves, is new, or was missed just now.
        Empty: all that is followed stands still, or has been hidden for some looks where it stood, and a look every few
        seconds is enough."""
        rows = [row for row, each in enumerate(self._tracks) if not is_settled(each)]
        if not rows:
            return ()
        boxes = np.clip(self._filters.boxes()[rows], 0.0, 1.0).tolist()
        return tuple((x1, y1, x2, y2) for x1, y1, x2, y2 in boxes)

    def _look(self, detections: Detections, planes: Planes, region: Box | None) -> Look:
        found = detections.select(detections.scores >= LOW)
        return Look(
            boxes=found.boxes.astype(np.float64),
            scores=found.scores.astype(np.float64),
            class_ids=found.class_ids,
            groups=self._group_of[found.class_ids],
            appearance=describe(planes, found.boxes),
            planes=planes,
            region=region,
        )

    def _advance(self, t: float, region: Box | None) -> list[bool]:
        """Time has come to `t`: filters move on, memories age. For each track, whether this look looks for it."""
        if not math.isfinite(t):
            raise ValueError(f"the time of a look must be finite, not {t}")
        if self._t is None:
            self._anchors.begin()
        passed = 0.0 if self._t is None else max(0.0, t - self._t)
        self._t, self._steady_t = t, self._steady_t + passed
        self._slow = passed > SLOW_S
        still = None
        if region is not None or self._slow:
            still = np.array([track.at_rest for track in self._tracks], bool)
        self._filters.predict(min(passed, LOST_S), still)
        looked_for = [True] * len(self._tracks)
        if region is not None:
            looked_for = watched(self._filters.boxes(), region).tolist()
        for track, expected in zip(self._tracks, looked_for, strict=True):
            if expected:
                track.unseen_s += passed
                track.undetected_s += passed
        for track in self._absent:
            track.unseen_s += passed
        self._absent = [track for track in self._absent if track.unseen_s <= RELINK_S]
        self._anchors.forget(t)
        keep = [track.unseen_s <= GAP_S for track in self._tracks]
        self._keep(keep)
        return [expected for expected, kept in zip(looked_for, keep, strict=True) if kept]

    def _hold(self, look: Look, rows: Iterable[int]) -> list[int]:
        """Which of the parked tracks `rows` have no box at their place, but a place that looks as it did."""
        parked, places = [], []
        for row in rows:
            place = self._tracks[row].place
            if place is not None:
                parked.append(row)
                places.append(place.box)
        if not parked:
            return []
        groups = np.array([self._tracks[row].group for row in parked])
        same = (overlap(np.array(places), look.boxes) >= SAME_PLACE) & (groups[:, None] == look.groups[None])
        found = same.any(axis=1).tolist()
        return [
            row
            for row, seen in zip(parked, found, strict=True)
            if not seen and self._anchors.holds(self._tracks[row], look.planes)
        ]

    def _take(self, look: Look, looked_for: list[bool], held: list[int]) -> None:
        """Take in what was found, and count what was not."""
        rows = sorted(look.taken)
        picked = [look.taken[row] for row in rows]
        clear = self._clear(look, picked)
        if rows:
            # A doubtful box is most often one that two people share, or half of one.
            doubt = 1 + 3 * (1 - look.scores[picked])
            self._filters.correct(np.array(rows, np.intp), look.boxes[picked], doubt)
        for track, expected in zip(self._tracks, looked_for, strict=True):
            track.missed += expected
        for row in held:
            self._tracks[row].hold()
        for row, index, alone in zip(rows, picked, clear, strict=True):
            track = self._tracks[row]
            track.see(int(look.class_ids[index]), float(look.scores[index]), look.boxes[index], self._steady_t)
            if alone and look.appearance is not None:
                track.sit(look.appearance[index])
            if track.number:
                self._anchors.found(track, self._kind(track), self._t or 0.0, look.planes, clear=alone)

    def _clear(self, look: Look, picked: list[int]) -> list[bool]:
        """Which of the boxes `picked` show one well-seen object alone; where another is expected counts too."""
        boxes = look.boxes[picked]
        hidden = [row for row, track in enumerate(self._tracks) if track.number and row not in look.taken]
        shared = overlap(boxes, np.concatenate([boxes, self._filters.boxes()[hidden]]) if hidden else boxes)
        np.fill_diagonal(shared, 0.0)
        alone: list[bool] = ((shared <= CLEAR_OF).all(axis=1) & (look.scores[picked] >= HIGH)).tolist()
        return alone

    def _confirm(self, look: Look) -> list[TrackedObject]:
        """Number the tracks that have earned it, oldest first, and return all numbered ones seen in this look."""
        seen = []
        expected = self._filters.boxes()
        for row in sorted(look.taken):
            track = self._tracks[row]
            if not track.number and track.deserves_number():
                self._number(track, look.planes)
            if track.number:
                track.told = self._report(track, look.taken[row], expected[row], look)
                seen.append(track.told)
        return seen

    def _standing(self, look: Look, looked_for: list[bool], held: list[int]) -> list[TrackedObject]:
        """What stands there unseen: parked and held by its place, or at rest where nobody looked."""
        told = [self._tracks[row].told for row in held]
        for row, track in enumerate(self._tracks[: len(looked_for)]):
            if not looked_for[row] and row not in look.taken and track.at_rest and not track.missed:
                told.append(track.told)
        return [each for each in told if each is not None]

    def _number(self, track: Trace, planes: Planes) -> None:
        place = self._anchors.recall(track, self._kind(track), planes)
        if place is not None and place.number:
            track.number = place.number
            self._absent = [each for each in self._absent if each.number != track.number]
            return
        missing = [each for each in self._tracks if each.number and each.missed]
        known = None if place is not None else recognise(track, [*missing, *self._absent])
        if known is None:
            self._last_number += 1
            track.number = self._last_number
            return
        self._anchors.follow(track, known)
        take_over(track, known)
        self._absent = [each for each in self._absent if each is not known]

    def _report(self, track: Trace, index: int, expected: NDArray[np.float64], look: Look) -> TrackedObject:
        """The box as the detector said when it was sure; the less so, the more of what the filter makes of it."""
        score = float(look.scores[index])
        trust = max(0.0, 2 * score - 1)
        box = trust * look.boxes[index] + (1 - trust) * expected
        x1, y1, x2, y2 = (round(min(1.0, max(0.0, side)), 4) for side in box.tolist())
        return TrackedObject(
            track=track.number,
            label=self._labels[int(track.votes.argmax())],
            score=round(score, 3),
            box=(x1, y1, x2, y2),
            stood_s=track.stood_s,
        )

    def _begin(self, look: Look, held: list[int]) -> None:
        used = sorted(look.taken.values())
        boxes = self._filters.boxes()[held]
        groups = np.array([self._tracks[row].group for row in held], np.intp)
        fresh: list[int] = []
        for index in look.free(look.scores >= BEGIN):
            if len(self._tracks) + len(fresh) < TRACKS_MAX and not look.doubles(index, used + fresh, boxes, groups):
                fresh.append(index)
        if fresh:
            self._filters.add(look.boxes[fresh])
        for index in fresh:
            class_id, score = int(look.class_ids[index]), float(look.scores[index])
            votes = np.zeros(len(self._labels))
            votes[class_id] = score
            self._tracks.append(Trace(int(look.groups[index]), votes, look.boxes[index], score, self._steady_t))

    def _give_up(self) -> None:
        """Drop the tracks that this look has missed and that have been unseen for too long."""
        keep = [not track.missed or (track.number > 0 and is_awaited(track)) for track in self._tracks]
        self._absent += [track for track, kept in zip(self._tracks, keep, strict=True) if track.number and not kept]
        del self._absent[:-TRACKS_MAX]
        self._keep(keep)

    def _keep(self, keep: list[bool]) -> None:
        if not all(keep):
            self._filters.keep(np.array(keep, bool))
            for track, kept in zip(self._tracks, keep, strict=True):
                if not kept:
                    self._anchors.part(track)
            self._tracks = [track for track, kept in zip(self._tracks, keep, strict=True) if kept]

    def _kind(self, track: Trace) -> str:
        """What it may be mistaken within, by a name that another network knows, too."""
        label = self._labels[track.group]
        return VEHICLE if label in VEHICLES else label


def _groups(labels: tuple[str, ...]) -> NDArray[np.intp]:
    """For each class the first class it may be mistaken for: itself, or for a vehicle the first kind of vehicle."""
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return np.array([vehicle if label in VEHICLES else index for index, label in enumerate(labels)], np.intp)
