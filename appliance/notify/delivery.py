"""Delivers notices to one target: one message after the other, held, sent, retried with backoff, audited and
counted.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from appliance import savings
from appliance.backoff import Backoff
from appliance.clock import Clock
from appliance.config import Target
from appliance.errors import StoreUnavailable
from appliance.notify.message import MessageBuilder, NotificationMessage
from appliance.notify.notice_policy import PRIVACY_FORBIDS, NoticeInput, decide_notice
from appliance.notify.ntfy_webhook import HttpRequest, request_for
from appliance.store.alerts import AlertStore
from appliance.store.audit import AuditRow
from appliance.store.notices import NewNotice, NoticeState, NoticeStore, OpenNotice, SentMessage
from appliance.telemetry import LogThrottle
from appliance.types import SEVERITIES, Alert

if TYPE_CHECKING:
    from appliance.notify.http_sender import SendResult

logger = logging.getLogger(__name__)


class MessageSender(Protocol):
    """The way to a target; see post.py."""

    async def send(self, request: HttpRequest) -> SendResult: ...

    async def close(self) -> None: ...


class SystemStatusPort(Protocol):
    """See around.py."""

    @property
    def answers(self) -> bool: ...

    def degraded(self, camera: str, *, unverified: bool) -> tuple[str, ...]: ...


class NoticeByteMeter(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """How a target does. failing_since: UTC seconds of the first failure since a message arrived; None: it is well.

    Counts are since the start: messages that arrived (told: the first about an alert), alerts that were dropped before
    anybody was told, and tries that failed.
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
    """An alert that waits in memory because the disk takes nothing."""

    notice: NewNotice
    alert: Alert
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierDeps:
    """What all lanes share."""

    notices: NoticeStore
    alerts: AlertStore
    composer: MessageBuilder
    around: SystemStatusPort
    counts: NoticeByteMeter
    clock: Clock


POLL_S = 1.0
BACKOFF_FIRST_S, BACKOFF_LAST_S = 2.0, 300.0
UNSTORED_MAX = 50
UNRECORDED_MAX = 1000
LOCAL_BYTES = "notice_local_bytes"


class TargetSender:
    """Owner: the notifier's loop. State: since when what is held is held, when to try again after a failure, and
    messages that arrived and could not be noted because the disk is full (at most UNNOTED_MAX): none is sent twice.

    Invariant: one message at a time. What arrived is noted after that, so a kill in between means that it is sent
    again, with the same id.
    """

    def __init__(self, name: str, target: Target, means: NotifierDeps, post: MessageSender) -> None:
        self.name = name
        self.target = target
        self._means = means
        self._post = post
        self._clock = means.clock
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_LAST_S)
        self._try_at = float("-inf")
        self._held_since: dict[str, float] = {}
        self._unnoted: dict[str, SentMessage] = {}
        self._unwritten: deque[UnstoredAlert] = deque(maxlen=UNSTORED_MAX)
        self._repeats = LogThrottle(logger, means.clock)
        self.state = TargetStatus(name=name, kind=target.kind, host=target.host)

    def send_unstored(self, each: UnstoredAlert) -> None:
        """Tell it although it is not stored yet. From any thread."""
        self._unwritten.append(each)

    async def close(self) -> None:
        await self._post.close()

    async def run_once(self, stopping: Callable[[], bool] = lambda: False) -> float:
        """Do all that is due, or less when the target fails; returns after how many seconds at most to come again.

        Raises StoreError.
        """
        if self._clock.monotonic() < self._try_at:
            return POLL_S
        while self._unwritten and not stopping():
            each = self._unwritten.popleft()
            if not await self._tell_unwritten(each):
                self._unwritten.appendleft(each)
                return POLL_S
        items = self._means.notices.open(self.name)
        self.state = replace(self.state, waiting=len(items))
        open_ids = {item.row.id for item in items}
        self._held_since = {name: at for name, at in self._held_since.items() if name in open_ids}
        for item in items:
            if stopping():
                return POLL_S
            if await self._take(item):
                return 0.0  # a while has passed: what is to be said of the others may have changed
        now = self._clock.now()
        return min((item.row.due_t - now for item in items if item.row.due_t > now), default=POLL_S)

    async def _take(self, item: OpenNotice) -> bool:
        """True: something was sent."""
        row = item.row
        if row.id in self._unnoted:
            self._note(row.id, item)
            return False
        if row.expire_t <= self._clock.now():
            return False  # the clerk gives it up
        move = decide_notice(self._case(item))
        if move.kind == "tell":
            return await self._tell(item)
        if move.kind == "drop":
            self._end(item, move.state, move.reason)
        elif move.kind == "rest":
            self._end(item, "told", "")
        return False

    def _case(self, item: OpenNotice) -> NoticeInput:
        row, now = item.row, self._clock.now()
        held_since = self._held_since.setdefault(row.id, self._clock.monotonic())
        return NoticeInput(
            now=now,
            due_t=row.due_t,
            held_s=self._clock.monotonic() - held_since,
            hold_s=self.target.hold_s,
            standing=item.standing,
            severity=item.severity,
            delivery=item.delivery,
            answers=self._means.around.answers,
            told=row.standing or None,
            told_severity=row.severity or None,
            doubtful=row.doubtful,
            repeated=self._repeated(item, now) if self.target.repeat_s and not row.messages else "",
        )

    def _repeated(self, item: OpenNotice, now: float) -> str:
        """Why it would be a repetition, or ''."""
        rank = SEVERITIES.index(item.severity)
        lately = self._means.notices.delivered_since(self.name, item.row.camera, now - self.target.repeat_s)
        known = {
            rule for each in lately if each.severity and SEVERITIES.index(each.severity) >= rank for rule in each.rules
        }
        if not set(item.rules) <= known:
            return ""
        return f"not told again: {', '.join(item.rules)} was told less than {self.target.repeat_s:g} s before"

    async def _tell(self, item: OpenNotice) -> bool:
        row, notices = item.row, self._means.notices
        message = self._message(item)
        if message is None:
            self._end(item, "forbidden", PRIVACY_FORBIDS)
            return False
        with contextlib.suppress(StoreUnavailable):  # a person is told all the same, and it is noted later
            notices.begin_attempt(row)
        reply, told = await self._send(message)
        if reply.ok:
            self.count("updated" if row.messages else "told")
            self._unnoted[row.id] = told
            self._note(row.id, item)
        elif reply.refused:
            self._end(item, "given_up", reply.error)
        else:
            with contextlib.suppress(StoreUnavailable):
                notices.record_failure(row, reply.error, doubtful=reply.maybe)
        return True

    def _message(self, item: OpenNotice) -> NotificationMessage | None:
        """None: nothing may be told of it."""
        row, standing = item.row, item.standing
        detail = self._means.alerts.get(row.alert)
        message = detail and self._means.composer.build(row, detail, standing, local=self.target.local)
        if not isinstance(message, NotificationMessage):
            return None
        return replace(message, degraded=self._means.around.degraded(row.camera, unverified=standing == "unverified"))

    async def _tell_unwritten(self, each: UnstoredAlert) -> bool:
        """False: the target does not take it now."""
        if each.notice.id in self._unnoted or each.notice.forbidden:
            return True
        message = self._means.composer.unstored(each.notice.id, each.alert, each.why)
        reply, told = await self._send(message)
        if reply.ok:
            self.count("told")
            if len(self._unnoted) < UNRECORDED_MAX:
                self._unnoted[each.notice.id] = told
        return reply.ok or reply.refused

    async def _send(self, message: NotificationMessage) -> tuple[SendResult, SentMessage]:
        now = self._clock.now()
        request = request_for(self.target, message, now)
        reply = await self._post.send(request)
        self._count(message.camera, reply.sent)
        if reply.ok:
            self._is_well()
        elif not reply.refused:
            self._failed(reply)
        return reply, SentMessage(
            standing=message.standing,
            severity=message.severity,
            rules=message.rules,
            t=self._clock.now(),
            audit=None if self.target.local else self._audit(message, request),
        )

    def _audit(self, message: NotificationMessage, request: HttpRequest) -> AuditRow:
        what = f"alert {message.alert}: {', '.join(message.rules)}, {message.standing}"
        return AuditRow(
            t=self._clock.now(),
            camera=message.camera,
            escalation="",
            kind="notice",
            bytes=len(request.body),
            sha256=sha256(request.body).hexdigest(),
            why=f"told {self.name}; {what}",
        )

    def _note(self, notice: str, item: OpenNotice) -> None:
        """What arrived, as soon as the disk takes it."""
        told = self._unnoted[notice]
        try:
            self._means.notices.record_delivery(item.row, told)
        except StoreUnavailable as error:
            self._repeats.report(f"{self.name} was told, which cannot be noted yet: {error}")
            return
        del self._unnoted[notice]

    def _end(self, item: OpenNotice, state: NoticeState, reason: str) -> None:
        """While the disk is full it is tried again, and holds up nothing that is to be told."""
        try:
            self._means.notices.end(item.row, state, reason)
        except StoreUnavailable as error:
            self._repeats.report(f"it cannot be noted yet that {self.name} is not told of an alert: {error}")
            return
        if state != "told":  # else what was told is so again, and need not be told anew
            logger.info("%s is not told of alert %s: %s", self.name, item.row.alert, reason)
            self.count(state)

    def count(self, state: str) -> None:
        """One more that ended like this: told, updated, withdrawn, quiet, forbidden or given_up."""
        self.state = replace(self.state, **{state: getattr(self.state, state) + 1})

    def _count(self, camera: str, sent: int) -> None:
        add = self._means.counts.add
        if self.target.local:
            add(camera, LOCAL_BYTES, sent)
            return
        add(camera, savings.UPLINK, sent)
        add(camera, f"{savings.UPLINK}_notice", sent)

    def _is_well(self) -> None:
        if self.state.failing_since is not None:
            logger.info("%s takes messages again", self.name)
        self._backoff.reset()
        self.state = replace(self.state, failing_since=None, error="")

    def _failed(self, reply: SendResult) -> None:
        wait_s = max(self._backoff.next_s(), reply.after_s or 0.0)
        self._try_at = self._clock.monotonic() + wait_s
        self._repeats.report(f"{self.name} could not be told: {reply.error}")
        self.state = replace(
            self.state,
            failing_since=self._clock.now() if self.state.failing_since is None else self.state.failing_since,
            error=reply.error,
            failures=self.state.failures + 1,
        )
