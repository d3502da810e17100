"""From the boxes of single looks to objects that keep their number: one tracker per camera."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from appliance.boxes import overlap
from appliance.track.anchor import VEHICLE, Anchors
from appliance.track.appearance import Planes
from appliance.track.birth import guesses, is_part, newcomers
from appliance.track.faint import Faint
from appliance.track.look import HIGH, Look, clipped, watched
from appliance.track.match import Matching
from appliance.track.patience import LOST_S, has_left, is_awaited, is_settled
from appliance.track.places import SAME_PLACE, Places
from appliance.track.relink import RELINK_S, recognise, take_over
from appliance.track.report import report
from appliance.track.trace import Trace
from appliance.types import Box, Detections, TrackedObject

VEHICLES = frozenset({"car", "truck", "bus", "van"})

# See `match` for how these were chosen.
LOW = 0.2  # below it seven boxes in eight are on nobody, and a track that was lost clings to them
CLEAR_OF = 0.15  # two boxes that overlap more share pixels enough to spoil a portrait
GAP_S = 60.0
SLOW_S = 1.0  # looks that are further apart say nothing of the little speed that boxes of what rests seem to have
TRACKS_MAX = 300


class Tracker:
    """Two-stage association (ByteTrack, arXiv 2110.06864) over Kalman predictions, helped by what objects look like.

    State: one `Trace` per object; those lately given up; where things are parked. Owned by the thread that looks at
    the camera. The same detections at the same times give the same objects, bit for bit. Numbers
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
        self._tracks: list[Trace] = []
        self._absent: list[Trace] = []
        self._t: float | None = None
        self._steady_t = 0.0
        self._slow = False
        self._last_number = 0

    def update(
        self, detections: Detections, t: float, planes: Planes = (), parts: Sequence[Box] = ()
    ) -> tuple[TrackedObject, ...]:
        """One look at time `t` (seconds); the confirmed objects seen in it, by number.

        planes: the whole picture, for what objects and places look like; without it boxes alone decide. parts: of
        the picture, those that were looked at (boxes are shares of the whole); none: all. Tracks outside of them were
        not looked for: they are neither missed nor aged (those that have left are), and those at rest are returned as
        they were last. A parked object that was looked for and not found is returned as it was as long as its place
        looks the same.

        A look in which nothing was found must be told too (`Detections.empty()`); one that failed must not. A `t` that
        does not advance (camera clock set back) counts as no time passed. Raises ValueError if `t` is not finite.
        """
        looked_for = self._advance(t, parts)
        look = Look(detections.select(detections.scores >= LOW), self._group_of, planes, parts)
        held = self._hold(look, looked_for)
        Matching(self._tracks, look, slow=self._slow).match(held)
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
        return tuple(clipped(each.filter.box) for each in self._tracks if each.faint is None and not is_settled(each))

    @property
    def unconfirmed(self) -> bool:
        """A track was seen in the last look and has no number yet."""
        return any(not (track.number or track.missed or track.faint) for track in self._tracks)

    def _advance(self, t: float, parts: Sequence[Box]) -> list[bool]:
        """Time has come to `t`: filters move on, memories age. For each track, whether this look looks for it."""
        if not math.isfinite(t):
            raise ValueError(f"the time of a look must be finite, not {t}")
        if self._t is None:
            self._anchors.begin()
        passed = 0.0 if self._t is None else max(0.0, t - self._t)
        self._t, self._steady_t = t, self._steady_t + passed
        self._slow = passed > SLOW_S
        looked_for = []
        for track in self._tracks:
            track.filter.predict(min(passed, LOST_S), still=(self._slow or bool(parts)) and track.at_rest)
            expected = not parts or watched(track.filter.box, parts)
            looked_for.append(expected)
            if expected or has_left(track):
                track.unseen_s += passed
                track.undetected_s += passed
        for track in self._absent:
            track.unseen_s += passed
        self._absent = [track for track in self._absent if track.unseen_s <= RELINK_S]
        self._anchors.forget(t)
        keep = [track.unseen_s <= GAP_S for track in self._tracks]
        self._keep(keep)
        return [expected for expected, kept in zip(looked_for, keep, strict=True) if kept]

    def _hold(self, look: Look, looked_for: Sequence[bool]) -> list[int]:
        """Which of the parked tracks that were looked for have no box at their place, but a place that looks as it
        did."""
        held = []
        for row, (track, expected) in enumerate(zip(self._tracks, looked_for, strict=True)):
            if track.place is None or not expected:
                continue
            there = track.place.box
            found = any(
                group == track.group and overlap(there, box) >= SAME_PLACE
                for group, box in zip(look.groups, look.boxes, strict=True)
            )
            if not found and self._anchors.holds(track, look.planes):
                held.append(row)
        return held

    def _take(self, look: Look, looked_for: Sequence[bool], held: Sequence[int]) -> None:
        """Take in what was found, and count what was not."""
        clear = self._clear(look)
        portraits = dict(zip(clear, look.appearance(clear), strict=True)) if look.planes else {}
        for track, expected in zip(self._tracks, looked_for, strict=True):
            track.missed += expected
        for row in held:
            self._tracks[row].hold()
        for row, index in sorted(look.taken.items()):
            track = self._tracks[row]
            track.see(look.class_ids[index], look.scores[index], look.boxes[index], self._steady_t)
            if index in portraits:
                track.sit(portraits[index])
            if track.number:
                self._anchors.found(track, self._kind(track), self._t or 0.0, look.planes, clear=index in clear)

    def _clear(self, look: Look) -> list[int]:
        """Which of the boxes taken show one well-seen object alone; where another is expected counts too."""
        taken = list(look.taken.values())
        boxes = [look.boxes[index] for index in taken]
        boxes += [each.filter.box for row, each in enumerate(self._tracks) if each.number and row not in look.taken]
        alone = [True] * len(boxes)
        for first, second in itertools.combinations(range(len(boxes)), 2):
            if overlap(boxes[first], boxes[second]) > CLEAR_OF:
                alone[first] = alone[second] = False
        return [index for index, free in zip(taken, alone, strict=False) if free and look.scores[index] >= HIGH]

    def _confirm(self, look: Look) -> list[TrackedObject]:
        """Number the tracks that have earned it, oldest first, and return all numbered ones seen in this look."""
        seen = []
        for row, index in sorted(look.taken.items()):
            track = self._tracks[row]
            if not track.number and track.deserves_number():
                self._number(track, look.planes)
            if track.number:
                track.told = report(track, look.scores[index], self._labels)
                seen.append(track.told)
        return seen

    def _standing(self, look: Look, looked_for: Sequence[bool], held: Sequence[int]) -> list[TrackedObject]:
        """What stands there unseen: parked and held by its place, or at rest where nobody looked."""
        told = [self._tracks[row].told for row in held]
        for row, (track, expected) in enumerate(zip(self._tracks, looked_for, strict=True)):
            if not expected and row not in look.taken and track.at_rest and not track.missed:
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

    def _begin(self, look: Look, held: Sequence[int]) -> None:
        room = TRACKS_MAX - len(self._tracks)
        fresh = newcomers(look, [self._tracks[row] for row in held], room)
        doubtful = guesses(look, self._tracks, fresh, room - len(fresh))
        for index in (*fresh, *doubtful):
            score, box = look.scores[index], look.boxes[index]
            track = Trace(look.groups[index], {look.class_ids[index]: score}, box, score, self._steady_t)
            track.faint = Faint(box, score) if index in doubtful else None
            self._tracks.append(track)

    def _give_up(self) -> None:
        """Drop the tracks that this look has missed and that have been unseen for too long."""
        keep = [not track.missed or (track.number > 0 and is_awaited(track)) for track in self._tracks]
        for row, track in enumerate(self._tracks):
            if track.faint is not None and is_part(track, self._tracks):
                keep[row] = False
        self._absent += [track for track, kept in zip(self._tracks, keep, strict=True) if track.number and not kept]
        del self._absent[:-TRACKS_MAX]
        self._keep(keep)

    def _keep(self, keep: Sequence[bool]) -> None:
        if all(keep):
            return
        for track, kept in zip(self._tracks, keep, strict=True):
            if not kept:
                self._anchors.part(track)
        self._tracks = [track for track, kept in zip(self._tracks, keep, strict=True) if kept]

    def _kind(self, track: Trace) -> str:
        """What it may be mistaken within, by a name that another network knows, too."""
        label = self._labels[track.group]
        return VEHICLE if label in VEHICLES else label


def _groups(labels: tuple[str, ...]) -> tuple[int, ...]:
    """For each class the first class it may be mistaken for: itself, or for a vehicle the first kind of vehicle."""
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return tuple(vehicle if label in VEHICLES else index for index, label in enumerate(labels))
