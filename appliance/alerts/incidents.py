"""Joins alerts of several cameras to one incident where somebody walks from a zone into one that adjoins it.

In doubt two alerts stay two incidents. An alert that opens on a camera belongs to the incident of an earlier alert if

- its track was first seen in a zone that `alerts.adjoining` names, in the middle of a session, on a camera that was
  examined all the time, and no track of the same label was lost there just before (it may be the same object);
- tracks of the same label were last seen in the zones beyond, at most `seconds` before (or a moment after, where the
  views overlap), each having walked into its zone from elsewhere in its picture;
- these are all the tracks of their alerts, so that nobody in them went elsewhere, and the alerts are of one incident;
- no more tracks appeared beyond those zones than left through them.

Appearance is not compared. A track that left continues in at most one other track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.config import AdjoiningConfig, CameraConfig
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.types import AlertChange, FrameBoxes, TrackedObject

OVERLAP_S = 2.0  # views that overlap show somebody twice for about two steps
SPLIT_S = 5.0  # the tracker follows an object that was hidden for 3 s; one that took longer comes back as another track
EXAMINED_S_MAX = 10.0  # without an inference for longer, a track may have come from anywhere; a heartbeat is 4 s
LATE_S_MAX = 30.0  # an event that follows its track's arrival later (a long dwell) opens an incident of its own
REMEMBERED_S = 60.0  # above LATE_S_MAX, the longest `seconds` (15 s) and SPLIT_S together, so no doubt is forgotten
ALERTS_REMEMBERED = 256  # of a site in one minute, with the same margin

_Place = tuple[str, str]
"""A camera and one of its zones."""


@dataclass(slots=True)
class _Walk:
    """A track as far as adjoining zones matter; `alert`: the last alert that one of its events is in."""

    label: str
    t_first: float
    first: frozenset[str]
    t_last: float
    last: frozenset[str]
    alert: str = ""
    handed_on: bool = False
    joined: bool = False


class IncidentLinker:
    """Decides which alerts of different cameras are one incident. Pure: no clock, no I/O.

    Owner: the core, which feeds it every frame and every change of an alert. State: the tracks of the last minute on
    cameras that a border names, and the incidents of the last alerts.
    """

    def __init__(self, adjoining: Sequence[AdjoiningConfig], cameras: Mapping[str, CameraConfig]) -> None:
        self._beyond: dict[_Place, list[tuple[_Place, float]]] = defaultdict(list)
        for border in adjoining:
            a, b = border.places
            self._beyond[a].append((b, border.seconds))
            self._beyond[b].append((a, border.seconds))
        self._zones: dict[str, dict[str, Polygon]] = defaultdict(dict)
        for camera, zone in self._beyond:
            if camera in cameras:
                self._zones[camera][zone] = Polygon(cameras[camera].zones[zone])
        self._walks: dict[str, dict[int, _Walk]] = {camera: {} for camera in self._zones}
        self._examined: dict[str, float | None] = dict.fromkeys(self._zones)
        self._incidents: dict[str, str] = {}
        self._tracks: dict[str, tuple[int, ...]] = {}

    def begin(self, camera: str) -> None:
        """Begin a session of a camera: its track numbers mean nothing any more."""
        if camera in self._zones:
            self._walks[camera].clear()
            self._examined[camera] = None

    def see(self, frame: FrameBoxes) -> None:
        """Follow the tracks of a frame."""
        if frame.camera not in self._zones:
            return
        if not frame.looked:
            self._examined[frame.camera] = None
            return
        before = self._examined[frame.camera]
        self._examined[frame.camera] = frame.t
        may_arrive = before is not None and frame.t - before <= EXAMINED_S_MAX
        walks = self._walks[frame.camera]
        for found in frame.objects:
            places = self._places(frame.camera, found)
            walk = walks.get(found.track)
            if walk is None:
                first = places if may_arrive and found.stood_s is None else frozenset()
                walks[found.track] = _Walk(found.label, frame.t, first, frame.t, places)
            else:
                walk.t_last, walk.last = frame.t, places
        for track in [track for track, walk in walks.items() if walk.t_last < frame.t - REMEMBERED_S]:
            del walks[track]

    def place(self, change: AlertChange) -> str:
        """Return the incident that an alert belongs to: the id of its first alert; '': so far it is its own."""
        alert, event = change.alert, change.event
        if alert.camera not in self._zones or event is None:
            return self._incidents.get(alert.id, "")
        walk = self._walks[alert.camera].get(event.track)
        if walk is not None:
            if change.kind == "opened" and event.t - walk.t_first <= LATE_S_MAX:
                self._join(alert.camera, alert.id, walk)
            walk.alert = alert.id
        self._tracks[alert.id] = alert.tracks
        for known in (self._tracks, self._incidents):
            while len(known) > ALERTS_REMEMBERED:
                known.pop(next(iter(known)))
        return self._incidents.get(alert.id, "")

    def _join(self, camera: str, alert: str, arrived: _Walk) -> None:
        left = self._left(camera, arrived)
        if not left or self._was_split(camera, arrived):
            return
        if not all(walk.alert and place[1] not in walk.first for place, walk in left):
            return
        if sum(len(self._tracks.get(alert, ())) for alert in {walk.alert for _, walk in left}) > len(left):
            return
        incidents = {self._incidents.get(walk.alert, walk.alert) for _, walk in left}
        since = min(walk.t_last for _, walk in left) - OVERLAP_S
        if len(incidents) > 1 or self._arrivals({place for place, _ in left}, arrived.label, since) > len(left):
            return
        incident = incidents.pop()
        self._incidents |= {alert: incident, incident: incident}
        arrived.joined = True
        for _, walk in left:
            walk.handed_on = True

    def _left(self, camera: str, arrived: _Walk) -> list[tuple[_Place, _Walk]]:
        """Return the tracks that may have arrived here, each with the zone in which it was last seen."""
        found: dict[int, tuple[_Place, _Walk]] = {}
        for zone in arrived.first:
            for place, within_s in self._beyond[(camera, zone)]:
                for walk in self._walks.get(place[0], {}).values():
                    in_time = -OVERLAP_S <= arrived.t_first - walk.t_last <= within_s
                    if in_time and walk.label == arrived.label and place[1] in walk.last and not walk.handed_on:
                        found[id(walk)] = place, walk
        return list(found.values())

    def _was_split(self, camera: str, arrived: _Walk) -> bool:
        """Return True if a track was lost on this camera shortly before another appeared."""
        return any(
            0 < arrived.t_first - walk.t_last <= SPLIT_S and walk.label == arrived.label
            for walk in self._walks[camera].values()
        )

    def _arrivals(self, left_through: set[_Place], label: str, since: float) -> int:
        """Return how many tracks appeared since then beyond these zones, without those that were joined."""
        beyond = {place for left in left_through for place, _ in self._beyond[left]}
        return sum(
            any((camera, zone) in beyond for zone in walk.first)
            for camera, walks in self._walks.items()
            for walk in walks.values()
            if walk.label == label and walk.t_first >= since and not walk.joined
        )

    def _places(self, camera: str, found: TrackedObject) -> frozenset[str]:
        point = foot(found.box)
        return frozenset(zone for zone, polygon in self._zones[camera].items() if polygon.contains(point))
