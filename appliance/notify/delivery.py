"""Delivers notices to one target: one message after the other, sent, retried with backoff, audited, counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Literal

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import StoreUnavailable
from appliance.base.telemetry import LogThrottle
from appliance.config import Target
from appliance.notify.message import MessageBuilder, MessageSender, NotificationMessage, SendResult
from appliance.notify.notice_policy import PRIVACY_FORBIDS, HealthNotices, NoticeInput, SystemStatus, decide_notice
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.audit import AuditKind, AuditRow
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.notices import ONE_INCIDENT, NewNotice, NoticeState, NoticeStore, OpenNotice, SentMessage
from appliance.types import SEVERITIES, AlertChange, Severity

POLL_S = 1.0  # a notice goes within a second of its alert
UNSTORED_MAX = 50  # alerts that the full disk does not take, kept in memory for one target
UNRECORDED_MAX = 1000  # messages that arrived and cannot be recorded yet
STILL_WAIT_S = 6.0  # for which a message with a picture waits for the still of its alert
BACKOFF_FIRST_S, BACKOFF_LAST_S = 2.0, 300.0  # a phone is told within minutes once the service is back
AWAY_S_MAX = 25.0  # a target that is away, or has trouble of its own, comes back by itself
LOCAL_BYTES = Metric(MetricName.NOTICE_LOCAL_BYTES)

Outcome = Literal["told", "updated", "withdrawn", "quiet", "forbidden", "given_up"]
"""How a notice ended: the first message arrived, a later one did, or why none was sent."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """How a target does. Counts are since the start.

    Attributes:
        host: for people; never a secret part of the address.
        failing_since: UTC seconds of the first failure since a message arrived; None: the last one arrived.
        waiting: messages that are held or to be sent.
        told: first messages about an alert that arrived; updated: later ones.
        withdrawn, quiet, forbidden, given_up: alerts about which no message was sent, by the reason.
        failures: attempts that did not arrive.
    """

    name: str
    kind: str
    host: str
    failing_since: float | None = None
    error: str = ""
    waiting: int = 0
    told: int = 0
    updated: int = 0
    withdrawn: int = 0
    quiet: int = 0
    forbidden: int = 0
    given_up: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class UnstoredAlert:
    """An alert that waits in memory because the disk is full; change: the one that made the notice."""

    notice: NewNotice
    change: AlertChange
    why: str


class LoopSignal:
    """Wakes an event loop from any thread. A signal that is fired while no loop listens is dropped.

    State: the loop that listens, and what it calls.
    """

    def __init__(self) -> None:
        self._listener: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None

    def fire(self) -> None:
        """Any thread; never waits."""
        listener = self._listener
        if listener is not None:
            loop, call = listener
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(call)

    @contextlib.contextmanager
    def listening(self, call: Callable[[], None]) -> Iterator[None]:
        """Inside, `call` is called in the running loop for each `fire`."""
        self._listener = asyncio.get_running_loop(), call
        try:
            yield
        finally:
            self._listener = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierDeps:
    """The parts that the senders of all targets share.

    due: fired when an alert or a verdict was written. armed: true if a target's `schedule` covers a time;
    in_quiet_hours: the same for its `quiet_hours`. quiet_reason: why a target (its name) gets no message now about an
    alert of a camera and these rules, or ''. still: the still of an alert, for a target that is on the site or not;
    empty: none may go; None: it is not cut yet. snooze_link: the link for a message to a target (its name), or ''.
    """

    notices: NoticeStore
    alerts: AlertStore
    messages: MessageBuilder
    status: SystemStatus
    meter: Meter
    clock: Clock
    health: HealthEventStore
    armed: Callable[[Target, float], bool]
    in_quiet_hours: Callable[[Target, float], bool] = lambda target, t: False
    quiet_reason: Callable[[str, str, tuple[str, ...]], str] = lambda target, camera, rules: ""
    still: Callable[[AlertDetail, bool], bytes | None] = lambda detail, local: b""
    snooze_link: Callable[[str, NotificationMessage], str] = lambda target, message: ""
    due: LoopSignal = field(default_factory=LoopSignal)


class TargetSender:
    """Delivers the notices of one target.

    Owner: the notifier's loop. State: since when each held notice is held, and messages that arrived and could not be
    recorded because the disk is full (at most UNRECORDED_MAX): none is sent twice.
    Invariant: one message at a time. A delivery is recorded after it, so a kill in between means that the message is
    sent again, with the same id.
    """

    def __init__(self, name: str, target: Target, deps: NotifierDeps, sender: MessageSender) -> None:
        self.name = name
        self.target = target
        self._deps = deps
        self._connection = TargetConnection(name, target, sender, deps.meter, deps.clock)
        self._clock = deps.clock
        self._health = HealthNotices(target, deps.health, deps.messages, partial(deps.armed, target), deps.clock)
        self._held_since: dict[str, float] = {}
        self._unrecorded: dict[str, SentMessage] = {}
        self._unstored: deque[UnstoredAlert] = deque(maxlen=UNSTORED_MAX)
        self._throttle = LogThrottle(logger, deps.clock)
        self._outcomes: Counter[Outcome] = Counter()
        self._waiting = 0

    @property
    def status(self) -> TargetStatus:
        """Any thread may read it."""
        return TargetStatus(
            name=self.name,
            kind=self.target.kind,
            host=self.target.host,
            failing_since=self._connection.failing_since,
            error=self._connection.error,
            waiting=self._waiting,
            failures=self._connection.failures,
            **{str(outcome): count for outcome, count in self._outcomes.items()},
        )

    def send_unstored(self, alert: UnstoredAlert) -> None:
        """Send a message about it although it is not stored yet. Any thread."""
        self._unstored.append(alert)

    def count(self, outcome: Outcome) -> None:
        """One more notice ended like this."""
        self._outcomes[outcome] += 1

    def follow(self, before: TargetSender) -> None:
        """Go on from a sender of the same target: it knows of the same faults.

        One that could not be notified cannot until a message arrives.
        """
        self._connection.failing_since, self._connection.error = (
            before._connection.failing_since,
            before._connection.error,
        )
        self._health.follow(before._health)

    async def close(self) -> None:
        await self._connection.close()

    async def run_once(self, stopping: Callable[[], bool] = lambda: False) -> float:
        """Send what is due, or less when the target fails. Returns after how many seconds at most to call again.

        Raises StoreError.
        """
        if self._connection.rests:
            return POLL_S
        while self._unstored and not stopping():
            alert = self._unstored.popleft()
            if not await self._deliver_unstored(alert):
                self._unstored.appendleft(alert)
                return POLL_S
        if not stopping() and await self._deliver_health():
            return 0.0
        items = self._deps.notices.open(self.name)
        self._waiting = len(items)
        open_ids = {item.row.id for item in items}
        self._held_since = {name: at for name, at in self._held_since.items() if name in open_ids}
        for item in items:
            if stopping():
                return POLL_S
            if await self._handle(item):
                return 0.0  # sending took a while: the other alerts may have changed
        now = self._clock.now()
        return min((item.row.window.due_t - now for item in items if item.row.window.due_t > now), default=POLL_S)

    async def _handle(self, item: OpenNotice) -> bool:
        """Act on a notice; return True if an attempt to send was made."""
        row = item.row
        if row.id in self._unrecorded:
            self._record(row.id, item)
            return False
        if row.window.expire_t <= self._clock.now():
            return False  # the notifier gives it up
        decision = decide_notice(self._notice_input(item))
        if decision.kind == "send":
            if _awaits_still(self._deps, self.target, item):
                return False
            return await self._deliver(item)
        if decision.kind == "drop":
            self._end(item, decision.state, decision.reason)
        elif decision.kind == "keep":
            self._end(item, "told", "")
        return False

    def _notice_input(self, item: OpenNotice) -> NoticeInput:
        row, now = item.row, self._clock.now()
        held_since = self._held_since.setdefault(row.id, self._clock.monotonic())
        return NoticeInput(
            now=now,
            due_t=row.window.due_t,
            held_s=self._clock.monotonic() - held_since,
            hold_s=self.target.hold_s,
            standing=item.standing,
            severity=item.severity,
            delivery=item.delivery,
            cloud_answers=self._deps.status.cloud_answers,
            sent_standing=row.standing or None,
            sent_severity=row.severity or None,
            maybe_delivered=row.doubtful,
            quiet_reason="" if row.messages else _quiet_reason(self._deps, self.name, self.target, item, now),
        )

    async def _deliver(self, item: OpenNotice) -> bool:
        row, notices = item.row, self._deps.notices
        message = _message(self._deps, self.name, self.target, item)
        if message is None:
            self._end(item, "forbidden", PRIVACY_FORBIDS)
            return False
        with contextlib.suppress(StoreUnavailable):  # the message is sent all the same, and recorded later
            notices.begin_attempt(row)
        result = await self._connection.send(message)
        if result.ok:
            self.count("updated" if row.messages else "told")
            self._unrecorded[row.id] = _sent_message(self.name, self.target, message, result, self._clock.now())
            self._record(row.id, item)
        elif result.refused:
            self._end(item, "given_up", result.error, untold=result.status is not None)
        else:
            with contextlib.suppress(StoreUnavailable):
                notices.record_failure(row, result.error, doubtful=result.maybe)
        return True

    async def _deliver_health(self) -> bool:
        """Send a message about a health event if one is due; return True if there may be another.

        Raise StoreError. In quiet hours events wait: those that still last afterwards are sent then. So do events that
        nobody wants at this hour.
        """
        if self._deps.in_quiet_hours(self.target, self._clock.now()):
            return False
        notice = self._health.due()
        if notice is None:
            return False
        result = await self._connection.send(notice.message)
        if result.later:
            self._health.put_off(notice)
        elif result.ok or result.refused:
            self._health.concluded(notice, told=result.ok)
        if result.ok and not self.target.local:
            state = "over" if notice.message.over else "lasts"
            why = f"told {self.name}; health event {notice.event.id}: {notice.event.kind}, {state}"
            row = _audit_row(self._clock.now(), notice.message.camera, "notice", result.payload, why)
            _audit_health(self._deps.notices, self.name, row)
        return result.ok or result.refused

    async def _deliver_unstored(self, alert: UnstoredAlert) -> bool:
        """Send the message of an alert that is not stored; return False if the target does not take it now."""
        if alert.notice.id in self._unrecorded or alert.notice.forbidden:
            return True
        if alert.notice.expire_t <= self._clock.now():
            return True  # the notifier gives it up, and counts it, once it is stored
        found = alert.change.alert
        if _rests(self._deps, self.target, found.severity) or self._deps.quiet_reason(
            self.name, found.camera, found.rules
        ):
            return True
        message = self._deps.messages.unstored(alert.notice.id, alert.change, alert.why, local=self.target.local)
        result = await self._connection.send(message)
        if result.ok:
            self.count("told")
            if len(self._unrecorded) < UNRECORDED_MAX:
                self._unrecorded[alert.notice.id] = _sent_message(
                    self.name, self.target, message, result, self._clock.now()
                )
        return result.ok or result.refused

    def _record(self, notice: str, item: OpenNotice) -> None:
        """Write down what arrived, as soon as the disk takes it."""
        try:
            self._deps.notices.record_delivery(item.row, self._unrecorded[notice])
        except StoreUnavailable as error:
            self._throttle.report(f"a delivery to {self.name} cannot be recorded yet: {error}")
            return
        del self._unrecorded[notice]

    def _end(self, item: OpenNotice, state: NoticeState, reason: str, *, untold: bool = False) -> None:
        """Record that no more is sent. While the disk is full this is tried later, and delays no other message."""
        try:
            self._deps.notices.end(item.row, state, reason, untold=untold)
        except StoreUnavailable as error:
            self._throttle.report(f"it cannot be recorded yet that {self.name} gets no message of an alert: {error}")
            return
        if state in {"withdrawn", "quiet", "forbidden", "given_up"}:
            logger.info("%s gets no message of alert %s: %s", self.name, item.row.alert, reason)
            self.count(state)


def _awaits_still(deps: NotifierDeps, target: Target, item: OpenNotice) -> bool:
    """Return True if the still that goes with the first message may yet come in time."""
    row = item.row
    if not target.picture or row.messages or not 0 <= deps.clock.now() - row.created_t < STILL_WAIT_S:
        return False
    detail = deps.alerts.get(row.alert)
    return detail is not None and deps.still(detail, target.local) is None


def _message(deps: NotifierDeps, name: str, target: Target, item: OpenNotice) -> NotificationMessage | None:
    """None: privacy forbids any message."""
    row, standing = item.row, item.standing
    detail = deps.alerts.get(row.alert)
    if detail is None:
        return None
    message = deps.messages.build(row, detail, standing, local=target.local)
    if message is None:
        return None
    image = deps.still(detail, target.local) if target.picture and not message.update else b""
    return replace(
        message,
        degraded=deps.status.degraded(row.camera, unverified=standing == "unverified"),
        snooze=deps.snooze_link(name, message),
        image=image or b"",
    )


def _quiet_reason(deps: NotifierDeps, name: str, target: Target, item: OpenNotice, now: float) -> str:
    """Why the target is told nothing now: its profile, a snooze, its quiet hours, a repetition; or ''."""
    quiet = deps.quiet_reason(name, item.row.camera, item.rules)
    if not quiet and _rests(deps, target, item.severity):
        quiet = "not told: quiet hours"
    quiet = quiet or (_repeat_reason(deps.notices, name, target, item, now) if target.repeat_s else "")
    return quiet or (_incident_reason(deps.notices, name, item) if item.incident else "")


def _rests(deps: NotifierDeps, target: Target, severity: Severity) -> bool:
    """Return True if the target is in its quiet hours, and this is not urgent."""
    return deps.in_quiet_hours(target, deps.clock.now()) and severity not in target.urgent


def _incident_reason(notices: NoticeStore, name: str, item: OpenNotice) -> str:
    """Why a message about another alert of the same incident is enough, or ''."""
    rank = SEVERITIES.index(item.severity)
    for each in notices.delivered_of_incident(name, item.incident, item.row.alert):
        if each.severity and SEVERITIES.index(each.severity) >= rank:
            return f"{ONE_INCIDENT}{each.camera}"
    return ""


def _repeat_reason(notices: NoticeStore, name: str, target: Target, item: OpenNotice, now: float) -> str:
    """Why a message would be a repetition, or ''."""
    rank = SEVERITIES.index(item.severity)
    recent = notices.delivered_since(name, item.row.camera, now - target.repeat_s)
    known = {
        rule for each in recent if each.severity and SEVERITIES.index(each.severity) >= rank for rule in each.rules
    }
    if not set(item.rules) <= known:
        return ""
    return f"not told again: {', '.join(item.rules)} was told less than {target.repeat_s:g} s before"


def _audit_health(notices: NoticeStore, name: str, row: AuditRow) -> None:
    try:
        notices.audit.write(row)
    except StoreUnavailable as error:  # it has left, and must not be sent twice
        logger.warning("%s was told, which cannot be recorded: %s (%s)", name, row.why, error)


def _sent_message(
    name: str, target: Target, message: NotificationMessage, result: SendResult, now: float
) -> SentMessage:
    what = f"alert {message.alert}: {', '.join(message.finding.rules)}, {message.finding.standing}"
    audit = _audit_row(now, message.camera, "notice", result.payload, f"told {name}; {what}")
    shown = f"shown to {name}; still of alert {message.alert}"
    image = _audit_row(now, message.camera, "frame", message.image, shown)
    return SentMessage(
        standing=message.finding.standing,
        severity=message.severity,
        rules=message.finding.rules,
        t=now,
        audit=None if target.local else audit,
        audit_image=None if target.local or not message.image else image,
    )


def _audit_row(now: float, camera: str, kind: AuditKind, sent: bytes, why: str) -> AuditRow:
    digest = sha256(sent).hexdigest()
    return AuditRow(t=now, camera=camera, escalation="", kind=kind, bytes=len(sent), sha256=digest, why=why)


class TargetConnection:
    """Sends to one target. Owner: the notifier's loop; its figures may be read by any thread.

    failing_since: UTC seconds of the first failure since a message arrived; None: the last one arrived. failures:
    attempts that did not arrive.
    """

    def __init__(self, name: str, target: Target, sender: MessageSender, meter: Meter, clock: Clock) -> None:
        self.failing_since: float | None = None
        self.error = ""
        self.failures = 0
        self._name = name
        self._target = target
        self._sender = sender
        self._meter = meter
        self._clock = clock
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_LAST_S)
        self._try_at = float("-inf")
        self._throttle = LogThrottle(logger, clock)

    @property
    def rests(self) -> bool:
        """True while a failure is too recent to try again."""
        return self._clock.monotonic() < self._try_at

    async def send(self, message: NotificationMessage) -> SendResult:
        """Send one message and return what came of it."""
        result = await self._sender.send(message)
        self._count_bytes(message.camera, result.sent)
        if result.ok:
            self._succeeded()
        elif not result.refused:
            self._failed(result)
        elif result.status is not None:
            self._note_failure(result)
        return result

    async def close(self) -> None:
        """Close the connection."""
        await self._sender.close()

    def _count_bytes(self, camera: str, sent: int) -> None:
        add = self._meter.add
        if self._target.local:
            add(camera, LOCAL_BYTES, sent)
            return
        add(camera, Metric(MetricName.UPLINK_BYTES), sent)
        add(camera, Metric(MetricName.UPLINK_BYTES, "notice"), sent)

    def _succeeded(self) -> None:
        if self.failing_since is not None:
            logger.info("%s takes messages again", self._name)
        self._backoff.reset()
        self.failing_since, self.error = None, ""

    def _failed(self, result: SendResult) -> None:
        wait_s = self._backoff.next_s()
        if result.status is None or result.status >= 500:
            wait_s = min(wait_s, AWAY_S_MAX)
        wait_s = max(wait_s, result.after_s or 0.0)
        self._try_at = self._clock.monotonic() + wait_s
        self._note_failure(result)

    def _note_failure(self, result: SendResult) -> None:
        """Say what the target did, also of one message that it refuses: others go on at once."""
        self._throttle.report(f"a message to {self._name} failed: {result.error}")
        self.failing_since = self._clock.now() if self.failing_since is None else self.failing_since
        self.error = result.error
        self.failures += 1
