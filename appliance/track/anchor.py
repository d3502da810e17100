"""What parks is held by its place: a picture of it says whether it still stands there when the detector does not."""

from __future__ import annotations

from appliance.boxes import overlap
from appliance.track.appearance import Planes
from appliance.track.patch import blend, cut
from appliance.track.places import SAME_PLACE, Place, Places
from appliance.track.trace import Trace

VEHICLE = "vehicle"
PARKED_S = 5.0  # a vehicle that stands for so long has parked, or waits at a light: both are the same vehicle still
STANDS_S = 30.0  # anything else that does not stir for so long is furniture
HOLD_S = 120.0  # for so long, and no longer than it had stood, a place that looks the same is believed without a box
# Of the difference to what is seen now, a second: shadows wander, and headlights of three seconds leave a third.
_LEARN_PER_S = 0.1
_LEARN_MAX = 0.5
_LEARN_EVERY_S = 1.0


class Anchors:
    """Binds tracks to the `Places` of a camera. Owner: the Tracker; it says what is found and what is not."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def begin(self) -> None:
        """The first look of a run. Not when this is made: the answers of the run before may still be on their way."""
        self._places.begin()

    def forget(self, t: float) -> None:
        self._places.forget(t)

    def recall(self, track: Trace, kind: str, planes: Planes) -> Place | None:
        """The place at which `track`, new as it is, was known to stand; it is bound to it."""
        place = self._places.recall(kind, track.last, planes)
        if place is not None:
            place.taken = True
            track.place, track.stood_s = place, round(place.stood_s, 1)
        return place

    def found(self, track: Trace, kind: str, t: float, planes: Planes, *, clear: bool) -> None:
        """A box was found for `track`. It parks, stands, or has moved away: then its place is forgotten at once.

        clear: nothing else is before it or close by.
        """
        place = track.place
        if place is None:
            if clear and track.rest.seconds >= (PARKED_S if kind == VEHICLE else STANDS_S) and track.rest.at_rest:
                self._park(track, kind, t, planes)
            return
        if overlap(place.box, track.last) >= SAME_PLACE:
            place.see(t)
            if clear:
                _learn(place, t, planes)
        elif place.unchanged(planes) is not True:  # else the box is of a part of it, or of who stands before it
            self.release(track)

    def holds(self, track: Trace, planes: Planes) -> bool:
        """No box was found for `track`, but its place looks as it did, so it is there."""
        place = track.place
        if place is None or track.undetected_s > min(HOLD_S, place.stood_s):
            return False
        return place.unchanged(planes) is True

    def release(self, track: Trace) -> None:
        """It stands there no longer."""
        if track.place is not None:
            self._places.leave(track.place)
        track.place = track.stood_s = None

    @staticmethod
    def part(track: Trace) -> None:
        """The track is given up; the place remembers that something stood there, and under which number."""
        if track.place is not None:
            track.place.number, track.place.taken = track.number, False
            track.place = None

    def follow(self, track: Trace, known: Trace) -> None:
        """`track` goes on as `known`: with its place, unless it turned up elsewhere."""
        place = known.place
        if place is None:
            return
        if overlap(place.box, track.last) < SAME_PLACE:
            self.release(known)
            return
        track.place, track.stood_s = place, known.stood_s
        known.place = known.stood_s = None

    def _park(self, track: Trace, kind: str, t: float, planes: Planes) -> None:
        rest = track.rest
        track.place = Place(
            kind=kind,
            box=rest.box,
            t_first=t - rest.seconds,
            t_last=t,
            stood_s=rest.seconds,
            patch=cut(planes, rest.box),
            number=track.number,
            taken=True,
            patch_t=t,
        )
        self._places.park(track.place)


def _learn(place: Place, t: float, planes: Planes) -> None:
    passed = t - place.patch_t
    if 0 <= passed < _LEARN_EVERY_S:
        return
    now = cut(planes, place.box)
    if now is not None:
        share = min(_LEARN_MAX, _LEARN_PER_S * abs(passed))
        place.patch = now if place.patch is None else blend(place.patch, now, share)
    place.patch_t = t
