"""Publishes the site to an MQTT broker from the store: the present state (retained), and alerts as they change."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import PreconditionError, StoreUnavailable
from appliance.base.telemetry import LogThrottle
from appliance.config import DAYS, CameraConfig, MqttConfig
from appliance.evidence.privacy import PrivacyRules
from appliance.mqtt.broker_session import BrokerSession, ReceivedMessage
from appliance.mqtt.discovery import OFF, ON, ONLINE, Topics, discovery_messages
from appliance.mqtt.site_state import AlertMessages, CameraZones, arming_states, camera_problem, json_body, system_state
from appliance.rules.arming import Arming
from appliance.store.alert_rows import AlertRow, EvidenceRow
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertStore, existing_alerts
from appliance.store.audit import TO_BROKER, AuditKind, AuditRow, AuditStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.users import AccessLog

POLL_S = 0.5  # home automation reacts within a second
READ_EVERY_S = 1.0  # states of cameras and arming; each reading is one query
SYSTEM_EVERY_S = 30.0  # counting alerts reads all of them
AUDIT_EVERY_S = 60.0  # one row for all states of a camera: nobody reads one for each time that somebody walks by
ALERTS_QUEUED_MAX = 500  # a day of a busy site; older ones are on the dashboard
ALERTS_KNOWN_MAX = 256  # of which it is remembered what was published last
KNOWN_AT_START = 8  # alerts of each camera that were published before, the newest
NEW_S_MAX = 3600.0  # an older alert of which that is not remembered is none that has just begun
STALE_MAX = 1000  # retained topics of parts that are gone, removed in turns
STILL_BYTES_MAX = 2 * 1024 * 1024  # as evidence.privacy
AUDIT_ROWS_MAX = 1000  # that wait while the disk is full
_PURPOSE = "mqtt"
_COMMANDS = {ON.encode(): True, OFF.encode(): False}
PAUSE_S = 3600.0  # of a camera that is switched off over MQTT
COMMAND_BYTES_MAX = 64  # the longest command is a profile's name
_WHO = "MQTT"

logger = logging.getLogger(__name__)


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


class _Commands:
    """Carries out commands of home automation, the last of each kind.

    State: those that wait, and what was done and is not in the access log yet. Owner: the publisher's thread. A
    retained command is refused: it would come again with every connection, whatever was decided since.
    """

    def __init__(
        self, mqtt: MqttConfig, topics: Topics, cameras: Collection[str], deps: MqttDeps, drop: Callable[[str], None]
    ) -> None:
        """drop: told why a command was refused."""
        self._who = mqtt.host
        self._choose, self._arm = topics.choose, topics.arm
        self._switches = {f"{topics.reports(name)}/set": name for name in cameras}
        self._topics = {topics.arm, topics.choose, *self._switches} if mqtt.commands else set()
        self._deps = deps
        self._drop = drop
        self._waiting: dict[str, bytes] = {}
        self._unlogged: list[str] = []

    def takes(self, message: ReceivedMessage) -> bool:
        """Keep a command, or refuse it; return False if the message is none."""
        if message.topic not in self._topics:
            return False
        wrong = message.topic != self._choose and message.body not in _COMMANDS
        if message.retained or wrong or len(message.body) > COMMAND_BYTES_MAX:
            self._drop("a command that is retained, or neither ON nor OFF, was refused")
        else:
            self._waiting[message.topic] = message.body
        return True

    def run(self) -> None:
        """Do what was commanded. Raises StoreError: what is not done is tried again."""
        for topic, body in list(self._waiting.items()):
            try:
                done = self._obey(topic, body)
            except PreconditionError as error:
                self._drop(f"a command was refused: {error}")
                done = ""
            del self._waiting[topic]
            if done:
                logger.warning("over MQTT: %s", done)
                self._unlogged.append(done)
        while self._unlogged:
            self._deps.log.write(_WHO, self._who, self._unlogged[0])
            del self._unlogged[0]

    def _obey(self, topic: str, body: bytes) -> str:
        """Carry out a command and return what was done, for the log; '' if nothing changed.

        Raise PreconditionError or StoreError.
        """
        arming = self._deps.arming
        if topic == self._choose:
            profile = body.decode("ascii", "replace")
            if profile == arming.profile:
                return ""
            arming.choose(profile, None, _WHO)
            return f"chose the profile {profile}"
        armed = _COMMANDS[body]
        if topic == self._arm:
            return ("armed the site" if armed else "disarmed the site") if arming.arm(armed=armed, who=_WHO) else ""
        camera = self._switches[topic]
        if armed:
            return f"ended the pause of {camera}" if arming.pauses.end(camera) else ""
        arming.pauses.begin(camera, "", self._deps.clock.now() + PAUSE_S, _WHO)
        return f"paused {camera}"


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


@dataclass(frozen=True, slots=True)
class _State:
    """The message that holds now under one topic. camera: whose facts leave with it; '': of none; None: no facts."""

    body: bytes
    camera: str | None = None


class _EgressAudit:
    """Counts bytes, and writes an audit row for all that left the site; for a local broker nothing did.

    State: rows that wait for the disk, and the states of each camera since the last row. Owner: the publisher's thread.
    """

    def __init__(self, mqtt: MqttConfig, deps: MqttDeps, throttle: LogThrottle) -> None:
        self._mqtt = mqtt
        self._meter, self._clock, self._throttle = deps.meter, deps.clock, throttle
        self._store = AuditStore(deps.db)
        self._states: dict[str, _StatesSent] = {}
        self._rows: deque[AuditRow] = deque(maxlen=AUDIT_ROWS_MAX)
        self._at = float("-inf")

    def count_bytes(self, amount: int) -> None:
        if self._mqtt.local:
            self._meter.add("", Metric(MetricName.NOTICE_LOCAL_BYTES), amount)
            return
        self._meter.add("", Metric(MetricName.UPLINK_BYTES), amount)
        self._meter.add("", Metric(MetricName.UPLINK_BYTES, _PURPOSE), amount)

    def add_state(self, camera: str, body: bytes) -> None:
        if not self._mqtt.local:
            self._states.setdefault(camera, _StatesSent()).add(body)

    def note(self, camera: str, kind: AuditKind, body: bytes, what: str) -> None:
        if not self._mqtt.local:
            self._rows.append(self._row(camera, kind, len(body), sha256(body).hexdigest(), what))

    def write(self, *, everything: bool = False) -> None:
        if everything or self._clock.monotonic() - self._at >= AUDIT_EVERY_S:
            self._at = self._clock.monotonic()
            for camera, sent in self._states.items():
                what = f"{sent.count} states of zones, health and the last alert"
                self._rows.append(self._row(camera, "notice", sent.size, sent.digest, what))
            self._states.clear()
        try:
            while self._rows:
                self._store.write(self._rows[0])
                self._rows.popleft()
        except StoreUnavailable as error:
            self._throttle.report(f"what left over MQTT is recorded later: {error}")

    def _row(self, camera: str, kind: AuditKind, size: int, digest: str, what: str) -> AuditRow:
        why = f"{TO_BROKER}{self._mqtt}; {what}"
        return AuditRow(
            t=self._clock.now(), camera=camera, escalation="", kind=kind, bytes=size, sha256=digest, why=why
        )


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
        self._throttle = LogThrottle(logger, deps.clock)
        self._audit = _EgressAudit(mqtt, deps, self._throttle)
        cameras = {
            name: camera
            for name, camera in cameras.items()
            if camera.enabled and (mqtt.local or not _never_leaves(camera))
        }
        self._messages = AlertMessages(mqtt, site, public_url, cameras, deps.privacy, deps.alerts)
        self._topics = Topics(mqtt, site)
        self._cameras = {name: CameraZones(name, camera) for name, camera in cameras.items()}
        self._states: dict[str, _State] = {}
        self._last: dict[str, str] = {}
        self._stills: dict[str, EvidenceRow] = {}
        self._sent: dict[str, str] = {}
        self._queue: deque[tuple[str, str, bytes]] = deque()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._stale: deque[str] = deque(maxlen=STALE_MAX)
        self._read_at = self._system_at = float("-inf")
        self._alerts_rev = deps.db.rev()
        self._begun = False
        self._commands = _Commands(mqtt, self._topics, cameras, deps, self._drop)
        self._dropped = 0
        self._connections = 0
        self._stopped = threading.Event()
        shown = [name for name in cameras if self._messages.shows_stills_of(name)]
        profiles = deps.arming.config.names if mqtt.commands else ()
        for each in discovery_messages(self._topics, site, cameras, shown, public_url, profiles=profiles):
            self._states[each.topic] = _State(json_body(each.body))
        self._states[self._topics.availability] = _State(ONLINE.encode())
        for name in cameras:
            if name not in shown:  # what was kept there before
                self._states[self._topics.still(name)] = _State(b"")
        self._session = BrokerSession(
            mqtt,
            mqtt.client_id or f"vedette-{site}",
            self._topics.availability,
            deps.clock,
            self._receive,
            self._audit.count_bytes,
        )

    @property
    def status(self) -> MqttStatus:
        session = self._session
        return MqttStatus(
            connected=session.connected, error=session.error, messages=session.messages, dropped=self._dropped
        )

    def run(self) -> None:
        """Publish until `stop()`. Raises StoreError."""
        try:
            while not self._stopped.is_set():
                self.run_once()
        finally:
            self._session.close()
            self._audit.write(everything=True)

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
        self._audit.write()

    # The present state.

    def _read(self) -> None:
        deps = self._deps
        now, rows = self._clock.now(), {row.name: row for row in deps.cameras.all()}
        faults = deps.health.open()
        for name, camera in self._cameras.items():
            may_leave = self._mqtt.local or deps.privacy.lets_facts_leave(name, now)
            row, begun = rows.get(name), self._begun
            for place, state in camera.zone_states(row, deps.boxes, self._clock, begun=begun, may_leave=may_leave):
                self._states[self._topics.zone(name, place)] = _State(state, name)
            own = [fault for fault in faults if fault.camera == name]
            problem = camera_problem(row, own, may_leave=may_leave)
            self._states[self._topics.problem(name)] = _State(problem, name)
        self._commands.run()
        for topic, body, name in arming_states(deps.arming, self._topics, self._cameras, local=self._mqtt.local):
            self._states[topic] = _State(body, name)
        self._read_alerts()
        self._clear_erased()
        if self._clock.monotonic() - self._system_at >= SYSTEM_EVERY_S:
            self._system_at = self._clock.monotonic()
            warning = deps.warning()
            reasons = [*(fault.reason for fault in faults if not fault.camera), *([warning] if warning else [])]
            shown = [rows.get(name) for name in self._cameras]
            # A broker off the site does not learn that there are cameras of which nothing leaves, not even by a number.
            to_review = deps.alerts.counts(None if self._mqtt.local else self._cameras).to_review
            state = system_state(shown, reasons, to_review, deps.detector_load())
            self._states[self._topics.system] = _State(state, "")

    def _read_alerts(self) -> None:
        if not self._begun:
            for name in self._cameras:
                for row in self._deps.alerts.page(limit=KNOWN_AT_START, wanted=AlertQuery(camera=name)):
                    if row.rev <= self._alerts_rev:  # a newer one is news, and comes below
                        self._take_alert(row, queue=False)
            self._begun = True
        rows = self._deps.alerts.changed_since(self._alerts_rev)
        for row in rows:
            self._take_alert(row, queue=True)
            self._alerts_rev = row.rev

    def _take_alert(self, row: AlertRow, *, queue: bool) -> None:
        alert, camera = row.alert, self._cameras.get(row.alert.camera)
        facts = self._messages.build(row) if camera is not None else None
        if camera is None or facts is None:
            return
        body = json_body(facts)
        if alert.t_start >= camera.last_alert_t:
            camera.last_alert_t = alert.t_start
            self._last[alert.camera] = alert.id
            self._states[self._topics.last_alert(alert.camera)] = _State(body, alert.camera)
            still = self._messages.still(row)
            if still is not None:
                self._states.pop(self._topics.still(alert.camera), None)
                self._stills[alert.camera] = still
        known = self._known.pop(alert.id, None)
        self._known[alert.id] = body
        if len(self._known) > ALERTS_KNOWN_MAX:
            self._known.popitem(last=False)
        if queue and known != body:
            if len(self._queue) >= ALERTS_QUEUED_MAX:
                self._queue.popleft()
                self._drop(f"over {ALERTS_QUEUED_MAX} alerts wait for the broker {self._mqtt}: the oldest is dropped")
            is_new = known is None and self._clock.now() - row.created_t < NEW_S_MAX
            self._queue.append((alert.camera, alert.id, json_body({**facts, "update": not is_new})))

    def _clear_erased(self) -> None:
        """Clear what the broker keeps of alerts that are erased."""
        existing = existing_alerts(
            self._deps.db, {*self._last.values(), *(still.alert for still in self._stills.values())}
        )
        for camera, alert in list(self._last.items()):
            if alert not in existing:
                del self._last[camera]
                self._states[self._topics.last_alert(camera)] = _State(b"", camera)
        for camera, still in list(self._stills.items()):
            if still.alert not in existing:
                self._clear_still(camera)

    def _clear_still(self, camera: str) -> None:
        del self._stills[camera]
        self._states[self._topics.still(camera)] = _State(b"", camera)

    # To the broker.

    def _send(self) -> None:
        for topic, state in self._states.items():
            if not self._send_state(topic, state):
                return
        while self._queue:
            camera, alert, body = self._queue[0]
            if not self._session.publish(self._topics.alerts, body, retain=False):
                return
            self._queue.popleft()
            self._audit.note(camera, "notice", body, f"alert {alert}")
        for camera, still in list(self._stills.items()):
            if not self._send_still(camera, still):
                return
        while self._stale:
            if not self._session.publish(self._stale[0], b"", retain=True):
                return
            self._stale.popleft()

    def _send_state(self, topic: str, state: _State) -> bool:
        """Send a state; return False if the broker takes no more now."""
        digest = sha256(state.body).hexdigest()
        if self._sent.get(topic) == digest:
            return True
        if not self._session.publish(topic, state.body, retain=True):
            return False
        self._sent[topic] = digest
        if state.camera is not None:
            self._audit.add_state(state.camera, state.body)
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
            self._clear_still(camera)
            self._drop(f"the still of the last alert of {camera} is gone, or too long for the broker")
            return True
        if not self._session.publish(topic, image, retain=True):
            return False
        self._sent[topic] = sent
        self._audit.note(camera, "frame", image, still.path)
        return True

    def _receive(self, message: ReceivedMessage) -> None:
        """Keep a command; note which retained messages are to be cleared: of entities and cameras that are no more."""
        if self._commands.takes(message):
            return
        known = message.topic in self._states or message.topic in map(self._topics.still, self._stills)
        if message.retained and message.body and not known and len(self._stale) < STALE_MAX:
            self._stale.append(message.topic)
            if message.topic.endswith("/last_alert"):  # the still is longer than what we take from a broker
                self._stale.append(f"{message.topic}/still")

    def _drop(self, why: str) -> None:
        self._dropped += 1
        self._throttle.report(why)


def _never_leaves(camera: CameraConfig) -> bool:
    """Nothing of this camera leaves at any time: not even its name need be known elsewhere."""
    return any(
        not never.zones and set(never.days) == set(DAYS) and "00:00-24:00" in never.hours
        for never in camera.privacy.never
    )
