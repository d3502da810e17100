"""Binds tracks to stationary objects: a patch of the frame tells whether an undetected vehicle still stands there."""

from __future__ import annotations

from appliance.base.geometry import iou
from appliance.track.appearance import Planes
from appliance.track.stationary_objects import (
    PARKED_IOU_MIN,
    StationaryObject,
    StationaryObjects,
    blend_patches,
    cut_patch,
)
from appliance.track.track_state import Track
from appliance.track.tracker_tuning import TUNING

VEHICLE = "vehicle"


class ParkedTracks:
    """Binds tracks to the `StationaryObjects` of a camera. Owner: the Tracker, which reports what was detected."""

    def __init__(self, places: StationaryObjects) -> None:
        self._places = places

    def begin(self) -> None:
        """Begin a session with its first frame.

        This is not in `__init__`, because answers of the last session may still be on their way.
        """
        self._places.begin()

    def forget(self, t: float) -> None:
        self._places.forget(t)

    def recall(self, track: Track, kind: str, planes: Planes) -> StationaryObject | None:
        """Bind `track`, just confirmed, to the place at which it was known to stand, and return that place."""
        place = self._places.recall(kind, track.last, planes)
        if place is not None:
            place.taken = True
            track.stationary, track.stood_s = place, round(place.stood_s, 1)
        return place

    def detected(self, track: Track, kind: str, t: float, planes: Planes, *, clear: bool) -> None:
        """Note that a box was found for `track`: it parks, stands, or has moved away.

        If it has moved away, its place is forgotten at once. clear: nothing else is before the object or close by.
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
        """Return True if `track`, for which no box was found, is there all the same: its place is unchanged."""
        place = track.stationary
        if place is None or track.undetected_s > min(TUNING.parking.believed_s, place.stood_s):
            return False
        return place.unchanged(planes) is True

    def release(self, track: Track) -> None:
        """Release the place of the track: it stands there no longer."""
        if track.stationary is not None:
            self._places.leave(track.stationary)
        track.stationary = track.stood_s = None

    @staticmethod
    def detach(track: Track) -> None:
        """End the track; the place remembers that something stood there, and under which number."""
        if track.stationary is not None:
            track.stationary.number, track.stationary.taken = track.number, False
            track.stationary = None

    def hand_over(self, track: Track, known: Track) -> None:
        """Continue `known` as `track`: with its place, unless it turned up elsewhere."""
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
        self._places.park(track.stationary)


def _update_patch(place: StationaryObject, t: float, planes: Planes) -> None:
    passed = t - place.patch_t
    if 0 <= passed < TUNING.parking.patch_every_s:
        return
    now = cut_patch(planes, place.box)
    if now is not None:
        share = min(TUNING.parking.patch_rate_max, TUNING.parking.patch_rate_per_s * abs(passed))
        place.patch = now if place.patch is None else blend_patches(place.patch, now, share)
    place.patch_t = t
