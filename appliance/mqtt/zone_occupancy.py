"""Finds which zones of a camera are occupied and by which labels, from stored boxes and the geometry of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from appliance.config import CameraConfig, LineRule
from appliance.rules.line_polygon_geometry import foot
from appliance.rules.zones_and_lines import TUNING, Zone, ZoneMembership
from appliance.types import FrameBoxes, TrackedObject


@dataclass(frozen=True, slots=True)
class ZoneLabel:
    """A zone and a label that a rule looks for in it."""

    zone: str
    label: str


@dataclass(slots=True)
class _Presence:
    """One track in the zones of its camera. seen: the time of its last detection."""

    label: str
    seen: float
    members: dict[str, ZoneMembership] = field(default_factory=dict)


def zone_labels(camera: CameraConfig) -> tuple[ZoneLabel, ...]:
    """Each zone of a rule with each label that its rules want, in the order of the site file."""
    found = [(rule.zone, label) for rule in camera.rules if not isinstance(rule, LineRule) for label in rule.labels]
    return tuple(ZoneLabel(zone, label) for zone, label in dict.fromkeys(found))


class ZoneOccupancy:
    """The occupied zones of one camera.

    A track is inside as a rule would have it: its foot was in the zone in frames in a row (`Zone`). It is gone when no
    frame has shown it for TUNING.loss_s. State: the tracks of the last frames, at most TUNING.tracks_max. Owner: one
    thread. A frame on which the detector failed changes nothing.
    """

    def __init__(self, camera: CameraConfig) -> None:
        wanted = {each.zone for each in zone_labels(camera)}
        self._zones = tuple(Zone(name, points) for name, points in camera.zones.items() if name in wanted)
        self._tracks: dict[int, _Presence] = {}
        self._latest = float("-inf")

    def clear(self) -> None:
        """Another session of the camera: its track numbers mean other objects."""
        self._tracks.clear()
        self._latest = float("-inf")

    def feed(self, frames: Iterable[FrameBoxes], aspect: float) -> None:
        """Take examined frames into account, oldest first. aspect: frame width / height."""
        for frame in frames:
            if not frame.looked:
                continue
            if frame.t < self._latest:  # the camera's clock was set back
                self.clear()
            self._latest = frame.t
            for each in frame.objects:
                self._move(each, frame.t, aspect)
            gone = [track for track, each in self._tracks.items() if frame.t - each.seen > TUNING.loss_s]
            for track in gone:
                del self._tracks[track]

    def occupied(self) -> frozenset[ZoneLabel]:
        """Return the zones in which something stands or moves, with the label of it."""
        return frozenset(
            ZoneLabel(zone, each.label)
            for each in self._tracks.values()
            for zone, member in each.members.items()
            if member.inside
        )

    def _move(self, found: TrackedObject, t: float, aspect: float) -> None:
        point, height = foot(found.box), found.box[3] - found.box[1]
        track = self._tracks.pop(found.track, None)  # in the order of the last detection
        if track is None:
            if len(self._tracks) >= TUNING.tracks_max:
                del self._tracks[next(iter(self._tracks))]
            track = _Presence(found.label, t, {zone.name: zone.begin(point, None) for zone in self._zones})
        self._tracks[found.track] = track
        track.label, track.seen = found.label, t
        for zone in self._zones:
            zone.update(track.members[zone.name], point, t, TUNING.margin * height, aspect)
