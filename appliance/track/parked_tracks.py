"""Binds tracks to stationary objects: a patch of the frame tells whether a vehicle that is no longer detected still
stands there.
"""

from __future__ import annotations

from appliance.geometry import iou
from appliance.track.appearance import Planes
from appliance.track.parked_vehicles import (
    SAME_PLACE_IOU_MIN,
    StationaryObject,
    StationaryObjects,
    blend_patches,
    cut_patch,
)
from appliance.track.track_state import Track

VEHICLE = "vehicle"
PARKED_S = 5.0  # a vehicle that stands for so long has parked, or waits at a light: both are the same vehicle still
STANDS_S = 30.0  # anything else that does not stir for so long is furniture
HOLD_S = 120.0  # for so long, and no longer than it had stood, a place that looks the same is believed without a box
# Of the difference to what is seen now, a second: shadows wander, and headlights of three seconds leave a third.
_LEARN_PER_S = 0.1
_LEARN_MAX = 0.5
_LEARN_EVERY_S = 1.0


class ParkedTracks:
    """Binds tracks to the `Places` of a camera. Owner: the Tracker; it says what is found and what is not."""

    def __init__(self, places: StationaryObjects) -> None:
        self._places = places

    def begin(self) -> None:
        """The first look of a run. Not when this is made: the answers of the run before may still be on their way."""
        self._places.begin()

    def forget(self, t: float) -> None:
        self._places.forget(t)

    def recall(self, track: Track, kind: str, planes: Planes) -> StationaryObject | None:
        """The place at which `track`, new as it is, was known to stand; it is bound to it."""
        place = self._places.recall(kind, track.last, planes)
        if place is not None:
            place.taken = True
            track.stationary, track.stood_s = place, round(place.stood_s, 1)
        return place

    def found(self, track: Track, kind: str, t: float, planes: Planes, *, clear: bool) -> None:
        """A box was found for `track`. It parks, stands, or has moved away: then its place is forgotten at once.

        clear: nothing else is before it or close by.
        """
        place = track.stationary
        if place is None:
            if (
                clear
                and track.standstill.seconds >= (PARKED_S if kind == VEHICLE else STANDS_S)
                and track.standstill.at_rest
            ):
                self._park(track, kind, t, planes)
            return
        if iou(place.box, track.last) >= SAME_PLACE_IOU_MIN:
            place.see(t)
            if clear:
                _update_patch(place, t, planes)
        elif place.unchanged(planes) is not True:  # else the box is of a part of it, or of who stands before it
            self.release(track)

    def holds(self, track: Track, planes: Planes) -> bool:
        """No box was found for `track`, but its place looks as it did, so it is there."""
        place = track.stationary
        if place is None or track.undetected_s > min(HOLD_S, place.stood_s):
            return False
        return place.unchanged(planes) is True

    def release(self, track: Track) -> None:
        """It stands there no longer."""
        if track.stationary is not None:
            self._places.leave(track.stationary)
        track.stationary = track.stood_s = None

    @staticmethod
    def part(track: Track) -> None:
        """The track is given up; the place remembers that something stood there, and under which number."""
        if track.stationary is not None:
            track.stationary.number, track.stationary.taken = track.number, False
            track.stationary = None

    def follow(self, track: Track, known: Track) -> None:
        """`track` goes on as `known`: with its place, unless it turned up elsewhere."""
        place = known.stationary
        if place is None:
            return
        if iou(place.box, track.last) < SAME_PLACE_IOU_MIN:
            self.release(known)
            return
        track.stationary, track.stood_s = place, known.stood_s
        known.stationary = known.stood_s = None

    def _park(self, track: Track, kind: str, t: float, planes: Planes) -> None:
        rest = track.standstill
        track.stationary = StationaryObject(
            kind=kind,
            box=rest.box,
            t_first=t - rest.seconds,
            t_last=t,
            stood_s=rest.seconds,
            patch=cut_patch(planes, rest.box),
            number=track.number,
            taken=True,
            patch_t=t,
        )
        self._places.park(track.stationary)


def _update_patch(place: StationaryObject, t: float, planes: Planes) -> None:
    passed = t - place.patch_t
    if 0 <= passed < _LEARN_EVERY_S:
        return
    now = cut_patch(planes, place.box)
    if now is not None:
        share = min(_LEARN_MAX, _LEARN_PER_S * abs(passed))
        place.patch = now if place.patch is None else blend_patches(place.patch, now, share)
    place.patch_t = t
