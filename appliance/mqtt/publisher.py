"""Publishes the site to an MQTT broker from the store: what is so now (retained), and alerts as they change."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import PreconditionError, StoreUnavailable
from appliance.base.telemetry import LogThrottle
from appliance.config import DAYS, CameraConfig, MqttConfig
from appliance.evidence.privacy import PrivacyRules
from appliance.mqtt.broker_session import BrokerSession, ReceivedMessage
from appliance.mqtt.discovery import OFF, ON, ONLINE, UNKNOWN, Topics, discovery_messages
from appliance.mqtt.zone_occupancy import ZoneOccupancy, zone_labels
from appliance.rules.arming import Arming
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertStore
from appliance.store.audit import AuditKind, AuditRow, AuditStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraRow, CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventRow, HealthEventStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.rows import AlertRow, EvidenceRow
from appliance.store.users import AccessLog
from appliance.types import SEVERITIES

POLL_S = 0.5  # home automation reacts within a second
READ_EVERY_S = 1.0  # states of cameras and arming; each reading is one query
SYSTEM_EVERY_S = 30.0  # counting alerts reads all of them
AUDIT_EVERY_S = 60.0  # one row for all states of a camera: nobody reads one for each time that somebody walks by
BOXES_SPAN_S = 10.0  # of examined frames that are read at once
BOXES_MAX = 600  # frames of one turn: two minutes at 5 a second
UNEXAMINED_HEARTBEATS = 3  # after so many without an inference nobody knows who is where
UNEXAMINED_S = 2.0  # and so long besides: the frame has to be examined, and to come here
ALERTS_QUEUED_MAX = 500  # a day of a busy site; older ones are on the dashboard
ALERTS_KNOWN_MAX = 256  # of which it is remembered what was published last
STALE_MAX = 1000  # retained topics of parts that are gone, removed in turns
STILL_BYTES_MAX = 2 * 1024 * 1024  # as evidence.privacy
AUDIT_ROWS_MAX = 1000  # that wait while the disk is full
_PURPOSE = "mqtt"
_COMMANDS = {ON.encode(): True, OFF.encode(): False}
PAUSE_S = 3600.0  # of a camera that is switched off over MQTT
COMMAND_BYTES_MAX = 64  # the longest command is a profile's name
_WHO = "MQTT"
_SUMMARY_CHARS_MAX = 255  # of a state in Home Assistant

logger = logging.getLogger(__name__)


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
        every = self._alerts.events_of(row.id)
        events = [each for each in every if self._mqtt.local or self._privacy.level(each) != "never"]
        if not events:
            return None
        complete = len(events) == len(every)
        labels, rules = _unique(each.label for each in events), _unique(each.rule for each in events)
        return {
            "type": "alert",
            "version": 1,
            "site": self._site,
            "camera": row.camera,
            "alert": row.id,
            "severity": row.severity if complete else max((each.severity for each in events), key=SEVERITIES.index),
            "standing": row.standing,
            "verdict": row.verdict,
            "review": row.review,
            "rules": rules,
            "labels": labels,
            "zones": [zone for zone in _unique(each.zone for each in events) if zone],
            "score": max(each.score for each in events),
            "t": row.t_start,
            "time": iso_utc(row.t_start),
            "t_end": row.t_end,
            "link": f"{self._base}/alerts/{quote(row.id, safe='')}" if self._base else "",
            "summary": f"{' and '.join(labels) or 'something'}: {', '.join(rules)}"[:_SUMMARY_CHARS_MAX],
        }

    def still(self, row: AlertRow) -> EvidenceRow | None:
        """Return the still as it is now; None if there is none yet, or it may not be published.

        A better still may replace it.
        """
        if row.still != "ready" or not self.shows_stills_of(row.camera):
            return None
        detail = self._alerts.get(row.id)
        if detail is None:
            return None
        if not self._mqtt.local and any(self._privacy.level(event) != "free" for event in detail.events):
            return None
        piece = detail.piece("still")
        return None if piece is None or piece.state != "ready" else piece


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttStatus:
    """How the broker does. Counts are since the start. error: why it cannot be used, or ''."""

    connected: bool
    error: str = ""
    messages: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttDeps:
    """The parts that the publisher reads and counts with.

    warning: what is wrong with the appliance, or ''. detector_load: the share of the time that the detector works,
    None: not known.
    """

    db: Database
    root: Path
    alerts: AlertStore
    boxes: BoxStore
    cameras: CameraStore
    health: HealthEventStore
    privacy: PrivacyRules
    arming: Arming
    log: AccessLog
    meter: Meter
    clock: Clock
    warning: Callable[[], str]
    detector_load: Callable[[], float | None]


class _WatchedCamera:
    """One camera: who is in which zone, and when it was last examined."""

    def __init__(self, config: CameraConfig) -> None:
        self.places = zone_labels(config)
        self.occupancy = ZoneOccupancy(config)
        self.unknown_after_s = UNEXAMINED_HEARTBEATS * config.detect.heartbeat_s + UNEXAMINED_S
        self.session = ""
        self.frame_t = float("-inf")
        self.examined_at = float("-inf")
        self.last_alert_t = float("-inf")


@dataclass(slots=True)
class _StatesSent:
    """The states of one camera that left the site since the last audit row."""

    count: int = 0
    size: int = 0
    digest: str = ""

    def add(self, body: bytes) -> None:
        self.count += 1
        self.size += len(body)
        self.digest = sha256(self.digest.encode() + body).hexdigest()


class MqttPublisher:
    """Publishes one site to one broker.

    Owner: `run()` blocks the one thread it is given, and does all there is to do; `stop()` may be called and `status`
    read from any thread. It reads the store and never the pipeline. State: what is so now by topic, what the broker
    was sent of that, and alerts that wait (at most ALERTS_QUEUED_MAX: the oldest goes, and is counted).
    Invariant: after each connection everything that is so now is sent once, as the broker may have forgotten it.
    """

    def __init__(
        self, mqtt: MqttConfig, site: str, cameras: Mapping[str, CameraConfig], public_url: str, deps: MqttDeps
    ) -> None:
        """cameras: of the site file. public_url: of the dashboard; '': messages carry no link.

        Raises UsageError: the package is not installed, or the certificate cannot be read."""
        self._mqtt = mqtt
        self._deps = deps
        self._clock = deps.clock
        self._audit = AuditStore(deps.db)
        cameras = {
            name: camera
            for name, camera in cameras.items()
            if camera.enabled and (mqtt.local or not _never_leaves(camera))
        }
        self._messages = AlertMessages(mqtt, site, public_url, cameras, deps.privacy, deps.alerts)
        self._topics = Topics(mqtt, site)
        self._cameras = {name: _WatchedCamera(camera) for name, camera in cameras.items()}
        self._states: dict[str, bytes] = {}
        self._camera_of: dict[str, str] = {}
        self._stills: dict[str, EvidenceRow] = {}
        self._sent: dict[str, str] = {}
        self._queue: deque[tuple[str, str, bytes]] = deque()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._stale: deque[str] = deque(maxlen=STALE_MAX)
        self._states_sent: dict[str, _StatesSent] = {}
        self._audit_rows: deque[AuditRow] = deque(maxlen=AUDIT_ROWS_MAX)
        self._audit_at = self._read_at = self._system_at = float("-inf")
        self._alerts_rev = deps.db.rev()
        self._begun = False
        self._commands: dict[str, bytes] = {}
        self._messages_sent = self._dropped = 0
        self._connections = 0
        self._throttle = LogThrottle(logger, deps.clock)
        self._stopped = threading.Event()
        shown = [name for name in cameras if self._messages.shows_stills_of(name)]
        profiles = deps.arming.config.names if mqtt.commands else ()
        for each in discovery_messages(self._topics, site, cameras, shown, public_url, profiles=profiles):
            self._states[each.topic] = _json(each.body)
        self._states[self._topics.availability] = ONLINE.encode()
        for name in cameras:
            if name not in shown:  # what was kept there before
                self._states[self._topics.still(name)] = b""
        self._session = BrokerSession(
            mqtt,
            mqtt.client_id or f"vedette-{site}",
            self._topics.availability,
            deps.clock,
            self._receive,
            self._count_bytes,
        )

    @property
    def status(self) -> MqttStatus:
        session = self._session
        return MqttStatus(
            connected=session.connected, error=session.error, messages=self._messages_sent, dropped=self._dropped
        )

    def run(self) -> None:
        """Publish until `stop()`. Raises StoreError."""
        try:
            while not self._stopped.is_set():
                self.run_once()
        finally:
            self._session.close()
            self._write_audit(everything=True)

    def stop(self) -> None:
        self._stopped.set()

    def run_once(self) -> None:
        """Talk to the broker, read what is new, and send it. Raises StoreError."""
        if not self._session.run_once(POLL_S):
            self._clock.sleep(POLL_S, self._stopped)
        if self._session.connections != self._connections:
            self._connections = self._session.connections
            self._sent.clear()
            self._session.subscribe(self._topics.configs)
            self._session.subscribe(self._topics.of_cameras)
            if self._mqtt.commands:
                for topic in (self._topics.arm, self._topics.choose, self._topics.pauses):
                    self._session.subscribe(topic)
        if self._clock.monotonic() - self._read_at >= READ_EVERY_S:
            self._read_at = self._clock.monotonic()
            try:
                self._read()
            except StoreUnavailable as error:
                self._throttle.report(f"mqtt waits: {error}")
        self._send()
        self._write_audit()

    # What is so now.

    def _read(self) -> None:
        deps = self._deps
        now, rows = self._clock.now(), {row.name: row for row in deps.cameras.all()}
        faults = deps.health.open()
        for name, camera in self._cameras.items():
            may_leave = self._mqtt.local or deps.privacy.lets_facts_leave(name, now)
            self._read_zones(name, camera, rows.get(name), may_leave=may_leave)
            own = [fault for fault in faults if fault.camera == name]
            self._set(self._topics.problem(name), _problem(rows.get(name), own, may_leave=may_leave), name)
        self._take_commands()
        self._read_arming()
        self._read_alerts()
        if self._clock.monotonic() - self._system_at >= SYSTEM_EVERY_S:
            self._system_at = self._clock.monotonic()
            self._read_system(rows, [fault for fault in faults if not fault.camera])

    def _take_commands(self) -> None:
        """Do what was commanded, the last of each kind. Raises StoreError: what is not done is tried again."""
        for topic, body in list(self._commands.items()):
            try:
                done = self._obey(topic, body)
            except PreconditionError as error:
                self._drop(f"a command was refused: {error}")
                done = ""
            if done:
                logger.warning("over MQTT: %s", done)
                self._deps.log.write(_WHO, self._mqtt.host, done)
            del self._commands[topic]

    def _obey(self, topic: str, body: bytes) -> str:
        """Carry out a command and return what was done, for the log; '' if nothing changed.

        Raise PreconditionError or StoreError.
        """
        arming = self._deps.arming
        if topic == self._topics.choose:
            profile = body.decode("ascii", "replace")
            if profile == arming.profile:
                return ""
            arming.choose(profile, None, _WHO)
            return f"chose the profile {profile}"
        armed = _COMMANDS[body]
        if topic == self._topics.arm:
            return ("armed the site" if armed else "disarmed the site") if arming.arm(armed=armed, who=_WHO) else ""
        camera = next(name for name in self._cameras if topic == f"{self._topics.reports(name)}/set")
        if armed:
            return f"ended the pause of {camera}" if arming.resume(camera) else ""
        arming.pause(camera, "", self._clock.now() + PAUSE_S, _WHO)
        return f"paused {camera}"

    def _read_arming(self) -> None:
        arming = self._deps.arming
        state = arming.in_force()
        self._set(self._topics.armed, (ON if arming.reports else OFF).encode(), "")
        facts = {"profile": state.name, "by": state.by, "until": _time(state.until_t), "next": state.following}
        if self._mqtt.local:  # names of people stay on the site
            facts |= {"who": state.who, "why": state.why}
        self._set(self._topics.profile, _json(facts), "")
        for name in self._cameras:
            paused = arming.paused(name)
            whole = [row for row in paused if not row.rule]
            self._set(self._topics.reports(name), _json({
                "state": OFF if whole else ON, "until": _time(whole[0].until_t) if whole else None,
                "rules_paused": [row.rule for row in paused if row.rule],
            }), name)  # fmt: skip

    def _read_zones(self, name: str, camera: _WatchedCamera, row: CameraRow | None, *, may_leave: bool) -> None:
        latest = self._deps.boxes.latest(name) if camera.places else None
        if row is not None and row.run != camera.session:
            camera.session = row.run
            camera.occupancy.clear()
            camera.frame_t = float("-inf")
        if latest is not None and row is not None and latest.t != camera.frame_t:
            since = max(camera.frame_t, latest.t - BOXES_SPAN_S) if camera.frame_t < latest.t else latest.t
            frames = self._deps.boxes.span(name, since, latest.t, BOXES_MAX, run=row.run)
            aspect = row.size[0] / row.size[1] if min(row.size) > 0 else 16 / 9
            camera.occupancy.feed([each for each in frames if each.t > camera.frame_t or each.t == latest.t], aspect)
            if self._begun or abs(self._clock.now() - latest.t) < camera.unknown_after_s:
                camera.examined_at = self._clock.monotonic()
            camera.frame_t = latest.t
        looked = self._clock.monotonic() - camera.examined_at < camera.unknown_after_s
        known = may_leave and looked and row is not None and row.state == "live"
        occupied = camera.occupancy.occupied()
        for place in camera.places:
            state = (ON if place in occupied else OFF) if known else UNKNOWN
            self._set(self._topics.zone(name, place), state.encode(), name)

    def _read_alerts(self) -> None:
        if not self._begun:
            for name in self._cameras:
                for row in self._deps.alerts.page(limit=1, wanted=AlertQuery(camera=name)):
                    if row.rev <= self._alerts_rev:  # a newer one is news, and comes below
                        self._take_alert(row, queue=False)
            self._begun = True
        rows = self._deps.alerts.changed_since(self._alerts_rev)
        for row in rows:
            self._take_alert(row, queue=True)
            self._alerts_rev = row.rev

    def _take_alert(self, row: AlertRow, *, queue: bool) -> None:
        camera = self._cameras.get(row.camera)
        facts = self._messages.build(row) if camera is not None else None
        if camera is None or facts is None:
            return
        body = _json(facts)
        if row.t_start >= camera.last_alert_t:
            camera.last_alert_t = row.t_start
            self._set(self._topics.last_alert(row.camera), body, row.camera)
            still = self._messages.still(row)
            if still is not None:
                self._stills[row.camera] = still
        known = self._known.pop(row.id, None)
        self._known[row.id] = body
        if len(self._known) > ALERTS_KNOWN_MAX:
            self._known.popitem(last=False)
        if queue and known != body:
            if len(self._queue) >= ALERTS_QUEUED_MAX:
                self._queue.popleft()
                self._drop(f"over {ALERTS_QUEUED_MAX} alerts wait for the broker {self._mqtt}: the oldest is dropped")
            self._queue.append((row.camera, row.id, _json({**facts, "update": known is not None})))

    def _read_system(self, rows: Mapping[str, CameraRow], faults: list[HealthEventRow]) -> None:
        warning, load = self._deps.warning(), self._deps.detector_load()
        reasons = [*(fault.reason for fault in faults), *([warning] if warning else [])]
        facts = {
            "alerts_to_review": self._deps.alerts.counts().to_review,
            "cameras": len(self._cameras),
            "cameras_live": sum(rows[name].state == "live" for name in self._cameras if name in rows),
            "detector_load": None if load is None else round(100 * load),
            "problem": ON if reasons else OFF,
            "reasons": reasons,
        }
        self._set(self._topics.system, _json(facts), "")

    def _set(self, topic: str, body: bytes, camera: str) -> None:
        self._states[topic] = body
        self._camera_of[topic] = camera

    # To the broker.

    def _send(self) -> None:
        for topic, body in self._states.items():
            if not self._send_state(topic, body):
                return
        while self._queue:
            camera, alert, body = self._queue[0]
            if not self._publish(self._topics.alerts, body, retain=False):
                return
            self._queue.popleft()
            self._note(camera, "notice", body, f"alert {alert}")
        for camera, still in self._stills.items():
            if not self._send_still(camera, still):
                return
        while self._stale:
            if not self._publish(self._stale[0], b"", retain=True):
                return
            self._stale.popleft()

    def _send_state(self, topic: str, body: bytes) -> bool:
        """Send a state; return False if the broker takes no more now."""
        digest = sha256(body).hexdigest()
        if self._sent.get(topic) == digest:
            return True
        if not self._publish(topic, body, retain=True):
            return False
        self._sent[topic] = digest
        if topic in self._camera_of and not self._mqtt.local:
            self._states_sent.setdefault(self._camera_of[topic], _StatesSent()).add(body)
        return True

    def _send_still(self, camera: str, still: EvidenceRow) -> bool:
        """Send a still; return False if the broker takes no more now."""
        topic, sent = self._topics.still(camera), f"{still.path} {still.sha256}"
        if self._sent.get(topic) == sent:
            return True
        try:
            image = (self._deps.root / still.path).read_bytes()
        except OSError:  # retention was faster
            image = b""
        if not image or len(image) > STILL_BYTES_MAX or not self._session.takes(topic, image):
            self._sent[topic] = sent
            self._drop(f"the still of the last alert of {camera} is gone, or too long for the broker")
            return True
        if not self._publish(topic, image, retain=True):
            return False
        self._sent[topic] = sent
        self._note(camera, "frame", image, still.path)
        return True

    def _publish(self, topic: str, body: bytes, *, retain: bool) -> bool:
        if not self._session.publish(topic, body, retain=retain):
            return False
        self._messages_sent += 1
        return True

    def _receive(self, message: ReceivedMessage) -> None:
        """Keep a command for `_read`; note which retained messages are to be cleared.

        Those are what the broker kept of entities and cameras that are no more. A retained command is refused: it would
        come again with every connection, whatever was decided since.
        """
        if self._mqtt.commands and self._is_command(message.topic):
            wrong = message.topic != self._topics.choose and message.body not in _COMMANDS
            if message.retained or wrong or len(message.body) > COMMAND_BYTES_MAX:
                self._drop("a command that is retained, or neither ON nor OFF, was refused")
            else:
                self._commands[message.topic] = message.body
            return
        if message.retained and message.body and message.topic not in self._states and len(self._stale) < STALE_MAX:
            self._stale.append(message.topic)
            if message.topic.endswith("/last_alert"):  # the still is longer than what we take from a broker
                self._stale.append(f"{message.topic}/still")

    def _is_command(self, topic: str) -> bool:
        switches = (f"{self._topics.reports(name)}/set" for name in self._cameras)
        return topic in {self._topics.arm, self._topics.choose, *switches}

    def _drop(self, why: str) -> None:
        self._dropped += 1
        self._throttle.report(why)

    # What left.

    def _count_bytes(self, amount: int) -> None:
        if self._mqtt.local:
            self._deps.meter.add("", Metric(MetricName.NOTICE_LOCAL_BYTES), amount)
            return
        self._deps.meter.add("", Metric(MetricName.UPLINK_BYTES), amount)
        self._deps.meter.add("", Metric(MetricName.UPLINK_BYTES, _PURPOSE), amount)

    def _note(self, camera: str, kind: AuditKind, body: bytes, what: str) -> None:
        if not self._mqtt.local:
            self._audit_rows.append(self._audit_row(camera, kind, len(body), sha256(body).hexdigest(), what))

    def _audit_row(self, camera: str, kind: AuditKind, size: int, digest: str, what: str) -> AuditRow:
        why = f"published to the MQTT broker {self._mqtt}; {what}"
        return AuditRow(
            t=self._clock.now(), camera=camera, escalation="", kind=kind, bytes=size, sha256=digest, why=why
        )

    def _write_audit(self, *, everything: bool = False) -> None:
        if everything or self._clock.monotonic() - self._audit_at >= AUDIT_EVERY_S:
            self._audit_at = self._clock.monotonic()
            for camera, sent in self._states_sent.items():
                what = f"{sent.count} states of zones, health and the last alert"
                self._audit_rows.append(self._audit_row(camera, "notice", sent.size, sent.digest, what))
            self._states_sent.clear()
        try:
            while self._audit_rows:
                self._audit.write(self._audit_rows[0])
                self._audit_rows.popleft()
        except StoreUnavailable as error:
            self._throttle.report(f"what left over MQTT is recorded later: {error}")


def _never_leaves(camera: CameraConfig) -> bool:
    """Nothing of this camera leaves at any time: not even its name need be known elsewhere."""
    return any(
        not never.zones and set(never.days) == set(DAYS) and "00:00-24:00" in never.hours
        for never in camera.privacy.never
    )


def _problem(row: CameraRow | None, faults: list[HealthEventRow], *, may_leave: bool) -> bytes:
    if not may_leave or row is None or row.state == "connecting":
        return _json({"state": UNKNOWN, "reasons": []})
    reasons = [fault.reason for fault in faults]
    if row.state != "live":
        reasons.append(row.reason or f"the camera is {row.state}")
    return _json({"state": ON if reasons else OFF, "reasons": reasons, "camera_state": row.state})


def _time(t: float | None) -> str | None:
    return None if t is None else iso_utc(t)


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
