"""Tracks the objects of one camera: from detections of single frames to objects that keep their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.track.appearance import Planes
from appliance.track.matching import (
    FrameObservation,
    TwoStageMatcher,
    clipped,
    covers_known_track,
    inherit_identity,
    inside_regions,
    reidentify,
    spawn_confident,
    spawn_tentative,
)
from appliance.track.standstill import TentativePath
from appliance.track.stationary_objects import (
    PARKED_IOU_MIN,
    StationaryObject,
    StationaryObjects,
    blend_patches,
    cut_patch,
)
from appliance.track.track_state import Track
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, Detections, TrackedObject, contained_share, iou

VEHICLE = "vehicle"  # the kind of all of VEHICLES
VEHICLES = frozenset({"car", "truck", "bus", "van"})


@dataclass(frozen=True, slots=True)
class UnreportedTrack:
    """A track that is not reported, as last detected. detections: how often; tentative: too doubtful to count yet."""

    label: str
    box: Box
    score: float
    detections: int
    tentative: bool


class Tracker:
    """Two-stage association (ByteTrack, arXiv 2110.06864) over Kalman predictions, helped by appearance.

    State: one `Track` per object, recently lost tracks, and parked places. Owner: the thread that examines the camera.
    The same detections at the same times give the same objects, bit for bit. Numbers count up from 1 in the order of
    confirmation. A track is confirmed, and first returned, at its second detection, or its third if its scores are low.
    Then it gets a new number, or its old one if it was re-identified or parked there. A track is removed when it is no
    longer awaited (`Track.is_awaited`), but never before one frame has missed it.
    """

    def __init__(self, labels: tuple[str, ...], places: StationaryObjects | None = None) -> None:
        """places: the known parked objects; None: none are known, and none are kept."""
        self._labels = labels
        self._group_of = _confusion_groups(labels)
        self._parked = ParkedTracks(StationaryObjects() if places is None else places)
        self._tracks: list[Track] = []
        self._lost: list[Track] = []
        self._t: float | None = None
        self._steady_t = 0.0
        self._slow = False
        self._last_number = 0

    def update(
        self, detections: Detections, t: float, planes: Planes = (), parts: Sequence[Box] = ()
    ) -> tuple[TrackedObject, ...]:
        """Track one examined frame at time `t` (seconds); return the confirmed objects in it, by number.

        planes: the whole frame, for the appearance of objects and places; without it only boxes decide. parts: the
        examined regions of the frame (boxes are shares of the whole); none: all of it. Tracks outside the regions do
        not count as missed and do not age, unless they have left; those at rest are returned with their last box. A
        parked object that was looked for and not detected is returned with its last box while its place looks the same.

        A frame in which nothing was detected must be given too (`Detections.empty()`); one on which the detector failed
        must not. A `t` that does not advance (camera clock set back) counts as no time passed. Raise ValueError if `t`
        is not finite.
        """
        expected = self._predict(t, parts)
        frame = FrameObservation(
            detections.select(detections.scores >= TUNING.scores.score_min), self._group_of, planes, parts
        )
        held = self._held_by_place(frame, expected)
        TwoStageMatcher(self._tracks, frame, slow=self._slow).match(held)
        self._correct(frame, expected, held)
        seen = [*self._confirm(frame), *self._standing(frame, expected, held)]
        self._spawn(frame, held)
        self._prune()
        return tuple(sorted(seen, key=lambda each: each.track))

    @property
    def active_boxes(self) -> tuple[Box, ...]:
        """Boxes (shares) of tracks that need another detection soon: they move, are new, or were missed just now.

        Empty: all tracked objects stand still, or have been hidden at their places for some frames. Then an inference
        every few seconds is enough.
        """
        return tuple(clipped(each.filter.box) for each in self._tracks if not (each.tentative or each.is_settled()))

    @property
    def has_unconfirmed(self) -> bool:
        """A track was detected in the last frame and has no number yet."""
        return any(not (track.number or track.absence.missed or track.tentative) for track in self._tracks)

    @property
    def unreported(self) -> tuple[UnreportedTrack, ...]:
        """Tracks without a number that the last frame detected, oldest first: for explanations."""
        return tuple(
            UnreportedTrack(
                self._labels[each.scores.class_id],
                each.last,
                each.scores.last,
                each.scores.detections,
                each.tentative is not None,
            )
            for each in self._tracks
            if not each.number and not each.absence.missed
        )

    def _predict(self, t: float, parts: Sequence[Box]) -> list[bool]:
        """Advance filters and ages to `t`; return for each track whether this frame looks for it."""
        if not math.isfinite(t):
            raise ValueError(f"the time of a frame must be finite, not {t}")
        if self._t is None:  # not in `__init__`: answers of the last session may still be on their way then
            self._parked.places.begin()
        passed = 0.0 if self._t is None else max(0.0, t - self._t)
        self._t, self._steady_t = t, self._steady_t + passed
        self._slow = passed > TUNING.still.slow_s
        expected = []
        for track in self._tracks:
            track.filter.predict(min(passed, TUNING.losing.lost_s), still=(self._slow or bool(parts)) and track.at_rest)
            looked_for = not parts or inside_regions(track.filter.box, parts)
            expected.append(looked_for)
            if looked_for or track.has_left():
                track.absence.unseen_s += passed
                track.absence.undetected_s += passed
        for track in self._lost:
            track.absence.unseen_s += passed
        self._lost = [track for track in self._lost if track.absence.unseen_s <= TUNING.reid.reid_s]
        self._parked.places.forget(t)
        keep = [track.absence.unseen_s <= TUNING.losing.gap_s for track in self._tracks]
        self._keep(keep)
        return [looked_for for looked_for, kept in zip(expected, keep, strict=True) if kept]

    def _held_by_place(self, frame: FrameObservation, expected: Sequence[bool]) -> list[int]:
        """Return the parked tracks that have no box at their place, while the place looks as it did.

        Only tracks that were looked for count.
        """
        held = []
        for row, (track, looked_for) in enumerate(zip(self._tracks, expected, strict=True)):
            if track.stationary is None or not looked_for:
                continue
            place = track.stationary.box
            detected = any(
                group == track.group and iou(place, box) >= PARKED_IOU_MIN
                for group, box in zip(frame.groups, frame.boxes, strict=True)
            )
            if not detected and self._parked.still_there(track, frame.planes):
                held.append(row)
        return held

    def _correct(self, frame: FrameObservation, expected: Sequence[bool], held: Sequence[int]) -> None:
        """Take in what was detected, and count what was missed."""
        numbered = [each for row, each in enumerate(self._tracks) if each.number and row not in frame.taken]
        clear = frame.clear([each.filter.box for each in numbered])
        appearances = dict(zip(clear, frame.appearance(clear), strict=True)) if frame.planes else {}
        for track, looked_for in zip(self._tracks, expected, strict=True):
            track.absence.missed += looked_for
        for row in held:
            self._tracks[row].absence.keep_unseen()
        for row, index in sorted(frame.taken.items()):
            track = self._tracks[row]
            track.update(frame.class_ids[index], frame.scores[index], frame.boxes[index], self._steady_t)
            if index in appearances:
                track.update_appearance(appearances[index])
            if track.number:
                self._parked.detected(track, self._kind(track), self._t or 0.0, frame.planes, clear=index in clear)

    def _confirm(self, frame: FrameObservation) -> list[TrackedObject]:
        """Give numbers to the tracks that are confirmed now, oldest first.

        Return all numbered tracks that this frame detected.
        """
        seen = []
        for row, index in sorted(frame.taken.items()):
            track = self._tracks[row]
            if not track.number and track.is_confirmable():
                self._number(track, frame.planes)
            if track.number:
                track.last_report = _tracked_object(track, frame.scores[index], self._labels)
                seen.append(track.last_report)
        return seen

    def _standing(self, frame: FrameObservation, expected: Sequence[bool], held: Sequence[int]) -> list[TrackedObject]:
        """Return the standing objects that were not detected.

        They are parked and held by their place, or at rest where nothing was examined.
        """
        reports = [self._tracks[row].last_report for row in held]
        for row, (track, looked_for) in enumerate(zip(self._tracks, expected, strict=True)):
            if not looked_for and row not in frame.taken and track.at_rest and not track.absence.missed:
                reports.append(track.last_report)
        return [each for each in reports if each is not None]

    def _number(self, track: Track, planes: Planes) -> None:
        place = self._parked.recall(track, self._kind(track), planes)
        if place is not None and place.number:
            track.number = place.number
            self._lost = [each for each in self._lost if each.number != track.number]
            return
        missed = [each for each in self._tracks if each.number and each.absence.missed]
        known = None if place is not None else reidentify(track, [*missed, *self._lost])
        if known is None:
            self._last_number += 1
            track.number = self._last_number
            return
        self._parked.hand_over(track, known)
        inherit_identity(track, known)
        self._lost = [each for each in self._lost if each is not known]

    def _spawn(self, frame: FrameObservation, held: Sequence[int]) -> None:
        room = TUNING.losing.tracks_max - len(self._tracks)
        confident = spawn_confident(frame, [self._tracks[row] for row in held], _covered(self._tracks, frame), room)
        tentative = spawn_tentative(frame, self._tracks, confident, room - len(confident))
        for index in (*confident, *tentative):
            score, box = frame.scores[index], frame.boxes[index]
            track = Track.begin(frame.groups[index], frame.class_ids[index], score, box, self._steady_t)
            track.is_vehicle = self._kind(track) == VEHICLE
            track.tentative = TentativePath(box, score) if index in tentative else None
            self._tracks.append(track)

    def _prune(self) -> None:
        """Remove the tracks that this frame has missed and that are no longer awaited; numbered ones become lost."""
        keep = [not track.absence.missed or (track.number > 0 and track.is_awaited()) for track in self._tracks]
        for row, track in enumerate(self._tracks):
            if track.tentative is not None and covers_known_track(track, self._tracks):
                keep[row] = False
        self._lost += [track for track, kept in zip(self._tracks, keep, strict=True) if track.number and not kept]
        del self._lost[: -TUNING.losing.tracks_max]
        self._keep(keep)

    def _keep(self, keep: Sequence[bool]) -> None:
        if all(keep):
            return
        for track, kept in zip(self._tracks, keep, strict=True):
            if not kept:
                self._parked.detach(track)
        self._tracks = [track for track, kept in zip(self._tracks, keep, strict=True) if kept]

    def _kind(self, track: Track) -> str:
        """Return the kind within which it may be mistaken, by a name that another network knows, too."""
        label = self._labels[track.group]
        return VEHICLE if label in VEHICLES else label


def _covered(tracks: Sequence[Track], frame: FrameObservation) -> list[Track]:
    """Return the hidden stationary tracks with something that moves before their places.

    What is detected at such a place may be the same object, half hidden, and its patch cannot tell yet.
    """
    hidden = [
        each
        for row, each in enumerate(tracks)
        if each.stationary is not None and row not in frame.taken and each.is_hidden()
    ]
    if not hidden:
        return []
    moving = [each.filter.box for each in tracks if each.number and not each.at_rest]
    new = [frame.boxes[index] for index in frame.free(TUNING.scores.score_min)]
    return [
        track
        for track in hidden
        if any(
            contained_share(track.place, box) >= TUNING.parking.covered_min
            for box in (*moving, *new)
            if not track.is_in_place(box)
        )
    ]


def _tracked_object(track: Track, score: float, labels: Sequence[str]) -> TrackedObject:
    """Return the object with its box as detected if the detector was confident.

    The lower `score`, the more weight the filter's box has.
    """
    trust = max(0.0, 2 * score - 1)
    x1, y1, x2, y2 = (
        round(min(1.0, max(0.0, trust * seen + (1 - trust) * expected)), 4)
        for seen, expected in zip(track.last, track.filter.box, strict=True)
    )
    return TrackedObject(
        track=track.number,
        label=labels[track.scores.class_id],
        score=round(score, 3),
        box=(x1, y1, x2, y2),
        stood_s=track.stood_s,
    )


def _confusion_groups(labels: tuple[str, ...]) -> tuple[int, ...]:
    """Return for each class the first class it may be mistaken for.

    It is the class itself, or for a vehicle the first kind of vehicle.
    """
    vehicle = next((index for index, label in enumerate(labels) if label in VEHICLES), -1)
    return tuple(vehicle if label in VEHICLES else index for index, label in enumerate(labels))


class ParkedTracks:
    """Binds tracks to the `StationaryObjects` of a camera, `places`. Owner: the Tracker, which reports detections.

    A patch of the frame tells whether an undetected vehicle still stands there.
    """

    def __init__(self, places: StationaryObjects) -> None:
        self.places = places

    def recall(self, track: Track, kind: str, planes: Planes) -> StationaryObject | None:
        """Bind the newly confirmed `track` to the known place at which it stands, and return that place."""
        place = self.places.recall(kind, track.last, planes)
        if place is not None:
            place.taken = True
            track.stationary, track.stood_s = place, round(place.stood_s, 1)
        return place

    def detected(self, track: Track, kind: str, t: float, planes: Planes, *, clear: bool) -> None:
        """Record that a box was found for `track`: it parks, stands, or has moved away.

        If it has moved away, its place is forgotten at once. clear: no other object is in front of it or close by.
        """
        place = track.stationary
        if place is None:
            needed_s = TUNING.parking.parked_s if kind == VEHICLE else TUNING.parking.furniture_s
            if clear and track.standstill.seconds >= needed_s and track.standstill.at_rest:
                self._park(track, kind, t, planes)
            return
        if iou(place.box, track.last) >= PARKED_IOU_MIN:
            place.seen(t)
            if clear:
                _update_patch(place, t, planes)
        elif place.unchanged(planes) is not True:  # else the box is a part of it, or of someone before it
            self.release(track)

    def still_there(self, track: Track, planes: Planes) -> bool:
        """Return True if `track` is still there although no box was found: its place is unchanged."""
        place = track.stationary
        if place is None or track.absence.undetected_s > min(TUNING.parking.believed_s, place.stood_s):
            return False
        return place.unchanged(planes) is True

    def release(self, track: Track) -> None:
        """Release the place of the track: it stands there no longer."""
        if track.stationary is not None:
            self.places.leave(track.stationary)
        track.stationary = track.stood_s = None

    @staticmethod
    def detach(track: Track) -> None:
        """End the track; the place keeps the object and its number."""
        if track.stationary is not None:
            track.stationary.number, track.stationary.taken = track.number, False
            track.stationary = None

    def hand_over(self, track: Track, known: Track) -> None:
        """Continue `known` as `track`: with its place, unless it reappeared elsewhere."""
        place = known.stationary
        if place is None:
            return
        if iou(place.box, track.last) < PARKED_IOU_MIN:
            self.release(known)
            return
        track.stationary, track.stood_s = place, known.stood_s
        known.stationary = known.stood_s = None

    def _park(self, track: Track, kind: str, t: float, planes: Planes) -> None:
        still = track.standstill
        track.stationary = StationaryObject(
            kind=kind,
            box=still.box,
            t_first=t - still.seconds,
            t_last=t,
            stood_s=still.seconds,
            patch=cut_patch(planes, still.box),
            number=track.number,
            taken=True,
            patch_t=t,
        )
        self.places.park(track.stationary)


def _update_patch(place: StationaryObject, t: float, planes: Planes) -> None:
    passed = t - place.patch_t
    if 0 <= passed < TUNING.parking.patch_every_s:
        return
    now = cut_patch(planes, place.box)
    if now is not None:
        share = min(TUNING.parking.patch_rate_max, TUNING.parking.patch_rate_per_s * abs(passed))
        place.patch = now if place.patch is None else blend_patches(place.patch, now, share)
    place.patch_t = t
