"""What was asked about and still stands there: a parked car is not asked about each time it is found anew."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.boxes import overlap
from appliance.escalate.router.sightings import Sighting, Sightings
from appliance.types import SEVERITIES, Box, FrameBoxes, Severity

PLACES_MAX = 64
SAME_PLACE = 0.8  # intersection over union: a parked car's box breathes, somebody else's stands elsewhere
STANDS_S = 30.0  # somebody who waits moves within that; what does not is furniture
STIRS = 0.25  # own heights
BLINK_S = 3.0  # unseen for no longer than this it was there all the time


@dataclass(slots=True)
class _Place:
    """there_s: for how long it was seen there, since it was asked about or before."""

    rule: str
    label: str
    severity: Severity
    box: Box
    last_t: float
    there_s: float

    def see(self, t: float) -> None:
        gone_s = t - self.last_t
        self.there_s += gone_s if 0 < gone_s <= BLINK_S else 0.0
        self.last_t = t


class AskedPlaces:
    """Places of one camera about which the cloud was asked. Owner: its planner.

    Kept over new runs of the camera: the car is still there when the stream comes back. A place is forgotten when
    nothing of its label was seen in it for `repeat_s`; at most PLACES_MAX, of which the one asked about first makes
    room.
    """

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._places: list[_Place] = []

    def look(self, boxes: FrameBoxes, sightings: Sightings) -> None:
        """Keep up what is still there; who only walks through a place does not stand in it."""
        if not self._places:
            return
        seen = (sightings.of(found.track) for found in boxes.objects)
        standing = [each for each in seen if each is not None and each.moved < STIRS]
        self._places = [place for place in self._places if abs(boxes.t - place.last_t) <= self._repeat_s]
        for place in self._places:
            if any(each.label == place.label and overlap(each.box, place.box) >= SAME_PLACE for each in standing):
                place.see(boxes.t)

    def note(self, rule: str, severity: Severity, seen: Sighting) -> None:
        """The cloud is asked about this."""
        if self._repeat_s <= 0:
            return
        there_s = seen.seconds if seen.moved < STIRS else 0.0
        self._places.append(_Place(rule, seen.label, severity, seen.box, seen.t_last, there_s))
        del self._places[:-PLACES_MAX]

    def knows(self, rule: str, severity: Severity, seen: Sighting) -> bool:
        """Whether the same rule was asked about this very thing, no less gravely, and it stands there for long."""
        rank = SEVERITIES.index(severity)
        return seen.moved < STIRS and any(
            place.rule == rule
            and place.label == seen.label
            and rank <= SEVERITIES.index(place.severity)
            and place.there_s >= STANDS_S
            and overlap(seen.box, place.box) >= SAME_PLACE
            for place in self._places
        )
