"""Where things stand in front of one camera: remembered over new runs of the camera and over restarts of the box."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from appliance.boxes import overlap
from appliance.track.appearance import Planes
from appliance.track.patch import Patch, alike, cut
from appliance.types import Box

PLACES_MAX = 64
FORGET_S = 12 * 3600.0  # of being seen no more; by then light and shadows are others, too
# The same car 16 s later, in our rendered car park: 0.98-1.00, 0.83-0.94 with somebody walking before it; two cars of
# one street -0.1 to 0.7.
SAME = 0.8
SAME_PLACE = 0.6  # intersection over union of its boxes: detectors place a parked car to a few per cent
_REST_GAP_S = 60.0  # seen again within this it has stood there all the time


@dataclass(slots=True, eq=False)
class Place:
    """One thing that stands. kind: its label, or `vehicle`; t: camera time; stood_s: how long it was seen to stand.

    patch: what the place looks like with it; None: there was no picture. number: its track number in the present run,
    0 if it has none. taken: a track follows it now.
    """

    kind: str
    box: Box
    t_first: float
    t_last: float
    stood_s: float = 0.0
    patch: Patch | None = None
    number: int = 0
    taken: bool = False
    patch_t: float = 0.0

    def see(self, t: float) -> None:
        """It stands there at `t`."""
        passed = t - self.t_last
        if 0 < passed <= _REST_GAP_S:
            self.stood_s += passed
        self.t_last = t

    def unchanged(self, planes: Planes) -> bool | None:
        """Whether the place looks as it did; None: that cannot be said."""
        if self.patch is None:
            return None
        now = cut(planes, self.box)
        return None if now is None else alike(self.patch, now) >= SAME


class Places:
    """The places of one camera. Owner: whoever looks at the camera; `snapshot` may be called from any thread.

    At most PLACES_MAX: of those that nothing follows, or else of all, the one not seen for longest makes room. A place
    is forgotten when its object leaves, or when it was not seen for FORGET_S. `changes` counts what came and went.
    """

    def __init__(self, known: Iterable[Place] = ()) -> None:
        self._places = [replace(place, number=0, taken=False) for place in known][-PLACES_MAX:]
        self.changes = 0

    def __len__(self) -> int:
        return len(self._places)

    def begin(self) -> None:
        """A run begins: track numbers of before mean nothing."""
        for place in self._places:
            place.number, place.taken = 0, False

    def forget(self, t: float) -> None:
        """Time has come to `t`. A clock that was set far back makes everything old."""
        kept = [place for place in self._places if place.taken or abs(t - place.t_last) <= FORGET_S]
        if len(kept) < len(self._places):
            self._places = kept
            self.changes += 1

    def recall(self, kind: str, box: Box, planes: Planes) -> Place | None:
        """The place whose object, which nothing follows at present, is seen at `box`; None: there is none.

        Where both were seen the place must look as it did; a place remembered without a picture is believed.
        """
        free = [place for place in self._places if not place.taken and place.kind == kind]
        there = [(overlap(place.box, box), place) for place in free]
        for shared, place in sorted(there, key=lambda pair: -pair[0]):
            if shared >= SAME_PLACE and place.unchanged(planes) is not False:
                return place
        return None

    def park(self, place: Place) -> None:
        """Something has come to stand; what is known to have stood there before is gone."""
        self._places = [
            each for each in self._places if each.taken or each.kind != place.kind or overlap(each.box, place.box) < 0.5
        ]
        if len(self._places) >= PLACES_MAX:
            self._places.remove(min(self._places, key=lambda each: (each.taken, each.t_last)))
        self._places.append(place)
        self.changes += 1

    def leave(self, place: Place) -> None:
        """Its object has moved away."""
        if place in self._places:
            self._places.remove(place)
            self.changes += 1

    def snapshot(self) -> tuple[Place, ...]:
        """All places as they are now, copies, oldest first."""
        return tuple(replace(place) for place in list(self._places))
