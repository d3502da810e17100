"""One multi-object tracker per camera: detections of single frames in, objects that keep their number out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from appliance.geometry import iou
from appliance.track.appearance import Planes
from appliance.track.matching import HIGH_SCORE, FrameObservation, TwoStageMatcher, clipped, inside_regions
from appliance.track.parked_tracks import VEHICLE, ParkedTracks
from appliance.track.parked_vehicles import SAME_PLACE_IOU_MIN, StationaryObjects
from appliance.track.spawn_reid import (
    REID_S,
    covers_known_track,
    inherit_identity,
    reidentify,
    spawn_confident,
    spawn_tentative,
)
from appliance.track.track_state import LOST_S, TentativePath, Track, has_left, is_awaited, is_settled
from appliance.types import Box, Detections, TrackedObject


def _tracked_object(track: Track, score: float, labels: Sequence[str]) -> TrackedObject:
    """The box as the detector said when it was sure (`score`); the less so, the more of what the filter makes of it."""
    trust = max(0.0, 2 * score - 1)
    rest = 1 - trust
    seen, expected = track.last, track.filter.box
    return TrackedObject(
        track=track.number,
        label=labels[track.class_id()],
        score=round(score, 3),
        box=(
            _round_side(trust * seen[0] + rest * expected[0]),
            _round_side(trust * seen[1] + rest * expected[1]),
            _round_side(trust * seen[2] + rest * expected[2]),
            _round_side(trust * seen[3] + rest * expected[3]),
        ),
        stood_s=track.stood_s,
    )


def _round_side(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)


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

    def __init__(self, labels: tuple[str, ...], places: StationaryObjects | None = None) -> None:
        """places: what is known to be parked there from before; None: nothing, and nobody will ask."""
        self._labels = labels
        self._group_of = _confusion_groups(labels)
        self._anchors = ParkedTracks(StationaryObjects() if places is None else places)
        self._tracks: list[Track] = []
        self._absent: list[Track] = []
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
        look = FrameObservation(detections.select(detections.scores >= LOW), self._group_of, planes, parts)
        held = self._hold(look, looked_for)
        TwoStageMatcher(self._tracks, look, slow=self._slow).match(held)
        self._take(look, looked_for, held)
        seen = [*self._confirm(look), *self._standing(look, looked_for, held)]
        self._begin(look, held)
        self._give_up()
        return tuple(sorted(seen, key=lambda each: each.track))

    @property
    def active_boxes(self) -> tuple[Box, ...]:
        """Where what is followed asks for a look soon: boxes (shares) of what moves, is new, or was missed just now.
        Empty: all that is followed stands still, or has been hidden for some looks where it stood, and a look every few
        seconds is enough."""
        return tuple(
            clipped(each.filter.box) for each in self._tracks if each.tentative is None and not is_settled(each)
        )

    @property
    def has_unconfirmed(self) -> bool:
        """A track was seen in the last look and has no number yet."""
        return any(not (track.number or track.missed or track.tentative) for track in self._tracks)

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
            expected = not parts or inside_regions(track.filter.box, parts)
            looked_for.append(expected)
            if expected or has_left(track):
                track.unseen_s += passed
                track.undetected_s += passed
        for track in self._absent:
            track.unseen_s += passed
        self._absent = [track for track in self._absent if track.unseen_s <= REID_S]
        self._anchors.forget(t)
        keep = [track.unseen_s <= GAP_S for track in self._tracks]
        self._keep(keep)
        return [expected for expected, kept in zip(looked_for, keep, strict=True) if kept]

    def _hold(self, look: FrameObservation, looked_for: Sequence[bool]) -> list[int]:
        """Which of the parked tracks that were looked for have no box at their place, but a place that looks as it
        did."""
        held = []
        for row, (track, expected) in enumerate(zip(self._tracks, looked_for, strict=True)):
            if track.stationary is None or not expected:
                continue
            there = track.stationary.box
            found = any(
                group == track.group and iou(there, box) >= SAME_PLACE_IOU_MIN
                for group, box in zip(look.groups, look.boxes, strict=True)
            )
            if not found and self._anchors.holds(track, look.planes):
                held.append(row)
        return held

    def _take(self, look: FrameObservation, looked_for: Sequence[bool], held: Sequence[int]) -> None:
        """Take in what was found, and count what was not."""
        clear = self._clear(look)
        portraits = dict(zip(clear, look.appearance(clear), strict=True)) if look.planes else {}
        for track, expected in zip(self._tracks, looked_for, strict=True):
            track.missed += expected
        for row in held:
            self._tracks[row].hold()
        for row, index in sorted(look.taken.items()):
            track = self._tracks[row]
            track.update(look.class_ids[index], look.scores[index], look.boxes[index], self._steady_t)
            if index in portraits:
                track.update_appearance(portraits[index])
            if track.number:
                self._anchors.found(track, self._kind(track), self._t or 0.0, look.planes, clear=index in clear)

    def _clear(self, look: FrameObservation) -> list[int]:
        """Which of the boxes taken show one well-seen object alone; where another is expected counts too."""
        taken = list(look.taken.values())
        boxes = [look.boxes[index] for index in taken]
        boxes += [each.filter.box for row, each in enumerate(self._tracks) if each.number and row not in look.taken]
        alone = [True] * len(boxes)
        for first, second in itertools.combinations(range(len(boxes)), 2):
            if iou(boxes[first], boxes[second]) > CLEAR_OF:
                alone[first] = alone[second] = False
        return [index for index, free in zip(taken, alone, strict=False) if free and look.scores[index] >= HIGH_SCORE]

    def _confirm(self, look: FrameObservation) -> list[TrackedObject]:
        """Number the tracks that have earned it, oldest first, and return all numbered ones seen in this look."""
        seen = []
        for row, index in sorted(look.taken.items()):
            track = self._tracks[row]
            if not track.number and track.is_confirmable():
                self._number(track, look.planes)
            if track.number:
                track.last_report = _tracked_object(track, look.scores[index], self._labels)
                seen.append(track.last_report)
        return seen

    def _standing(self, look: FrameObservation, looked_for: Sequence[bool], held: Sequence[int]) -> list[TrackedObject]:
        """What stands there unseen: parked and held by its place, or at rest where nobody looked."""
        told = [self._tracks[row].last_report for row in held]
        for row, (track, expected) in enumerate(zip(self._tracks, looked_for, strict=True)):
            if not expected and row not in look.taken and track.at_rest and not track.missed:
                told.append(track.last_report)
        return [each for each in told if each is not None]

    def _number(self, track: Track, planes: Planes) -> None:
        place = self._anchors.recall(track, self._kind(track), planes)
        if place is not None and place.number:
            track.number = place.number
            self._absent = [each for each in self._absent if each.number != track.number]
            return
        missing = [each for each in self._tracks if each.number and each.missed]
        known = None if place is not None else reidentify(track, [*missing, *self._absent])
        if known is None:
            self._last_number += 1
            track.number = self._last_number
            return
        self._anchors.follow(track, known)
        inherit_identity(track, known)
        self._absent = [each for each in self._absent if each is not known]

    def _begin(self, look: FrameObservation, held: Sequence[int]) -> None:
        room = TRACKS_MAX - len(self._tracks)
        fresh = spawn_confident(look, [self._tracks[row] for row in held], room)
        doubtful = spawn_tentative(look, self._tracks, fresh, room - len(fresh))
        for index in (*fresh, *doubtful):
            score, box = look.scores[index], look.boxes[index]
            track = Track(look.groups[index], {look.class_ids[index]: score}, box, score, self._steady_t)
            track.tentative = TentativePath(box, score) if index in doubtful else None
            self._tracks.append(track)

    def _give_up(self) -> None:
        """Drop the tracks that this look has missed and that have been unseen for too long."""
        keep = [not track.missed or (track.number > 0 and is_awaited(track)) for track in self._tracks]
        for row, track in enumerate(self._tracks):
            if track.tentative is not None and covers_known_track(track, self._tracks):
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

    def _kind(self, track: Track) -> str:
        """What it may be mistaken within, by a name that another network knows, too."""
        label = self._labels[track.group]
        return VEHICLE if label in VEHICLES else label


def _confusion_groups(labels: tuple[str, ...]) -> tuple[int, ...]:
    """For each class the first class it may be mistaken for: itself, or for a vehicle the first kind of vehicle."""
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return tuple(vehicle if label in VEHICLES else index for index, label in enumerate(labels))
