"""Builds what the site publishes over MQTT: zone occupancy, arming, faults, the system, and each alert."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from appliance.base.clock import Clock, iso_utc
from appliance.config import CameraConfig, MqttConfig
from appliance.evidence.privacy import PrivacyRules
from appliance.mqtt.discovery import OFF, ON, UNKNOWN, Topics, ZoneLabel, zone_labels
from appliance.rules.arming import Arming
from appliance.rules.line_polygon_geometry import foot
from appliance.rules.zones_and_lines import TUNING, Zone, ZoneMembership
from appliance.store.alert_rows import AlertRow, EvidenceRow
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraRow
from appliance.store.health_events import HealthEventRow
from appliance.types import SEVERITIES, FrameBoxes, TrackedObject


@dataclass(slots=True)
class _Presence:
    """One track in the zones of its camera. seen: the time of its last detection."""

    label: str
    seen: float
    members: dict[str, ZoneMembership] = field(default_factory=dict)


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


BOXES_SPAN_S = 10.0  # of examined frames that are read at once
BOXES_MAX = 600  # frames of one turn: two minutes at 5 a second
UNEXAMINED_HEARTBEATS = 3  # after so many without an inference nobody knows who is where
UNEXAMINED_S = 2.0  # and so long besides: the frame has to be examined, and to come here
_SUMMARY_CHARS_MAX = 255  # of a state in Home Assistant


class AlertMessages:
    """Builds the messages about alerts. Holds no state.

    A broker off the site hears of an alert what a notification's target off the site would: its events that
    `privacy.never` does not cover.
    """

    def __init__(
        self,
        mqtt: MqttConfig,
        site: str,
        public_url: str,
        cameras: Mapping[str, CameraConfig],
        privacy: PrivacyRules,
        alerts: AlertStore,
    ) -> None:
        self._mqtt = mqtt
        self._site = site
        self._base = public_url.rstrip("/")
        self._cameras = cameras
        self._privacy = privacy
        self._alerts = alerts

    def shows_stills_of(self, camera: str) -> bool:
        """Return True if stills of this camera are published at all.

        Stills are not redacted: where images leave redacted, they do not leave like this.
        """
        if not self._mqtt.pictures or camera not in self._cameras:
            return False
        redacted = self._cameras[camera].privacy.redacts_images
        return self._mqtt.local or not (redacted or self._privacy.is_image_free(camera))

    def build(self, row: AlertRow) -> dict[str, Any] | None:
        """None: privacy forbids any message. Raises StoreError."""
        alert = row.alert
        every = self._alerts.events_of(alert.id)
        events = [each for each in every if self._mqtt.local or self._privacy.level(each) != "never"]
        if not events:
            return None
        complete = len(events) == len(every)
        labels, rules = _unique(each.label for each in events), _unique(each.rule for each in events)
        return {
            "type": "alert",
            "version": 1,
            "site": self._site,
            "camera": alert.camera,
            "alert": alert.id,
            "severity": alert.severity if complete else max((each.severity for each in events), key=SEVERITIES.index),
            "standing": row.judged.standing,
            "verdict": row.judged.verdict,
            "review": row.reviewed.review,
            "rules": rules,
            "labels": labels,
            "zones": [zone for zone in _unique(each.zone for each in events) if zone],
            "score": max(each.score for each in events),
            "t": alert.t_start,
            "time": iso_utc(alert.t_start),
            "t_end": alert.t_end,
            "link": f"{self._base}/alerts/{quote(alert.id, safe='')}" if self._base else "",
            "summary": f"{' and '.join(labels) or 'something'}: {', '.join(rules)}"[:_SUMMARY_CHARS_MAX],
        }

    def still(self, row: AlertRow) -> EvidenceRow | None:
        """Return the still as it is now; None if there is none yet, or it may not be published.

        A better still may replace it.
        """
        if row.evidence.still != "ready" or not self.shows_stills_of(row.alert.camera):
            return None
        detail = self._alerts.get(row.alert.id)
        if detail is None:
            return None
        if not self._mqtt.local and any(self._privacy.level(event) != "free" for event in detail.events):
            return None
        piece = detail.piece("still")
        return None if piece is None or piece.state != "ready" else piece


class CameraZones:
    """One camera: who is in which zone, and when it was last examined. Owner: the publisher's thread."""

    def __init__(self, name: str, config: CameraConfig) -> None:
        self._name = name
        self._places = zone_labels(config)
        self._occupancy = ZoneOccupancy(config)
        self._unknown_after_s = UNEXAMINED_HEARTBEATS * config.detect.heartbeat_s + UNEXAMINED_S
        self._session = ""
        self._frame_t = float("-inf")
        self._examined_at = float("-inf")
        self.last_alert_t = float("-inf")

    def zone_states(
        self, row: CameraRow | None, boxes: BoxStore, clock: Clock, *, begun: bool, may_leave: bool
    ) -> Iterator[tuple[ZoneLabel, bytes]]:
        """Yield each zone and its state, from the frames that were examined since the last call. Raise StoreError.

        begun: it was called before, so frames that are new here are new. may_leave: else no state is known.
        """
        latest = boxes.latest(self._name) if self._places else None
        if row is not None and row.run != self._session:
            self._session = row.run
            self._occupancy.clear()
            self._frame_t = float("-inf")
        if latest is not None and row is not None and latest.t != self._frame_t:
            since = max(self._frame_t, latest.t - BOXES_SPAN_S) if self._frame_t < latest.t else latest.t
            frames = boxes.span(self._name, since, latest.t, BOXES_MAX, run=row.run)
            aspect = row.size[0] / row.size[1] if min(row.size) > 0 else 16 / 9
            self._occupancy.feed([each for each in frames if each.t > self._frame_t or each.t == latest.t], aspect)
            if begun or abs(clock.now() - latest.t) < self._unknown_after_s:
                self._examined_at = clock.monotonic()
            self._frame_t = latest.t
        looked = clock.monotonic() - self._examined_at < self._unknown_after_s
        known = may_leave and looked and row is not None and row.state == "live"
        occupied = self._occupancy.occupied()
        for place in self._places:
            yield place, ((ON if place in occupied else OFF) if known else UNKNOWN).encode()


def arming_states(
    arming: Arming, topics: Topics, cameras: Collection[str], *, local: bool
) -> Iterator[tuple[str, bytes, str]]:
    """Yield topic, state and camera ('': the site). local: the broker is on the site, where people's names stay."""
    state = arming.in_force()
    yield topics.armed, (ON if arming.reports else OFF).encode(), ""
    facts: dict[str, Any] = {
        "profile": state.name,
        "by": state.by,
        "until": _time(state.until_t),
        "next": state.following,
    }
    if local:
        facts |= {"who": state.who, "why": state.why}
    yield topics.profile, json_body(facts), ""
    for name in cameras:
        paused = arming.pauses.paused(name)
        whole = [row for row in paused if not row.rule]
        facts = {
            "state": OFF if whole else ON, "until": _time(whole[0].until_t) if whole else None,
            "rules_paused": [row.rule for row in paused if row.rule],
        }  # fmt: skip
        yield topics.reports(name), json_body(facts), name


def system_state(
    rows: Iterable[CameraRow | None], reasons: Collection[str], to_review: int, detector_load: float | None
) -> bytes:
    """Return the state of the appliance. rows: of the published cameras; None: it was never connected."""
    known = list(rows)
    return json_body({
        "alerts_to_review": to_review,
        "cameras": len(known),
        "cameras_live": sum(row is not None and row.state == "live" for row in known),
        "detector_load": None if detector_load is None else round(100 * detector_load),
        "problem": ON if reasons else OFF,
        "reasons": list(reasons),
    })  # fmt: skip


def camera_problem(row: CameraRow | None, faults: Iterable[HealthEventRow], *, may_leave: bool) -> bytes:
    """Return the state of a camera's health."""
    if not may_leave or row is None or row.state == "connecting":
        return json_body({"state": UNKNOWN, "reasons": []})
    reasons = [fault.reason for fault in faults]
    if row.state != "live":
        reasons.append(row.reason or f"the camera is {row.state}")
    return json_body({"state": ON if reasons else OFF, "reasons": reasons, "camera_state": row.state})


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _time(t: float | None) -> str | None:
    return None if t is None else iso_utc(t)


def json_body(body: Mapping[str, Any]) -> bytes:
    """Return compact JSON."""
    return json.dumps(body, separators=(",", ":")).encode()
