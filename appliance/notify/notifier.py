"""Notifies people of alerts: one thread with an event loop, one sender a target, and a task that follows changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from appliance.base.clock import Clock, ClockStepDetector
from appliance.base.errors import StoreUnavailable, UsageError, lacks_files
from appliance.base.service_loop import ServiceLoop
from appliance.base.telemetry import LogThrottle
from appliance.config import AppriseTarget, PushTarget, Target
from appliance.notify.apprise_sender import AppriseSender
from appliance.notify.delivery import POLL_S, NotifierDeps, TargetSender, TargetStatus, UnstoredAlert
from appliance.notify.http_sender import HttpSender
from appliance.notify.message import MessageSender
from appliance.notify.notice_policy import is_news
from appliance.notify.push_means import PushMeans
from appliance.notify.push_sender import PushSender
from appliance.store.database import Database
from appliance.store.notices import NewNotice, NoticeRow, OpenNotice
from appliance.types import AlertChange

MakeSender = Callable[[str, Target, Clock], MessageSender]
EXPIRE_EVERY_S = 10.0  # notices live for minutes
STOP_S_MAX = 3.0  # what is being sent when the appliance stops may arrive within this time

logger = logging.getLogger(__name__)


def new_sender(name: str, target: Target, clock: Clock, push: PushMeans | None = None) -> MessageSender:
    """Make the sender of the target's kind.

    Raise UsageError if its certificate, address or package cannot be used.
    """
    if isinstance(target, PushTarget):
        if push is None:
            raise UsageError("only a running appliance knows the browsers that are notified")
        return PushSender(target, name, push, clock)
    if isinstance(target, AppriseTarget):
        return AppriseSender(target, clock)
    return HttpSender(target, clock)


class Notifier:
    """Delivers the notices of all targets.

    Owner of the notice rows once they are written, and of the loop that talks to the targets; `run()` blocks the one
    thread it is given. `stop()`, `wake()` and `notify_unstored()` may be called, and `statuses` read, from any thread.
    Invariant: a target that is slow, hangs or fails delays no other target.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        deps: NotifierDeps,
        db: Database,
        make_sender: MakeSender = new_sender,
    ) -> None:
        """Make the senders of the enabled targets; raise UsageError if a target cannot be used."""
        self._notices = deps.notices
        self._due = deps.due
        self._db = db
        self._clock = deps.clock
        self._targets = {name: target for name, target in targets.items() if target.enabled}
        self._senders = {
            name: TargetSender(name, target, deps, _made(name, target, deps.clock, make_sender))
            for name, target in self._targets.items()
        }
        self._steps = ClockStepDetector(self._clock)
        self._step_s = 0.0
        self._throttle = LogThrottle(logger, self._clock)
        self._rev = -1
        self._expire_at = float("-inf")
        self._stopped = threading.Event()
        self._wakes: tuple[asyncio.Event, ...] = ()
        self._event_loop = ServiceLoop()

    @property
    def statuses(self) -> tuple[TargetStatus, ...]:
        return tuple(sender.status for sender in self._senders.values())

    def follow(self, before: Notifier) -> None:
        """Go on from another notifier, for targets that are the same. Call it before `run`."""
        for name, sender in self._senders.items():
            if before._targets.get(name) == self._targets[name]:
                sender.follow(before._senders[name])

    def run(self) -> None:
        """Deliver until `stop()`. Raises StoreError. May be called again after it failed."""
        self._event_loop.run(self._main())

    def stop(self) -> None:
        self._stopped.set()
        self.wake()

    def wake(self) -> None:
        """Wake the senders: an alert or a verdict was written."""
        self._due.fire()

    def notify_unstored(self, change: AlertChange, notices: Sequence[NewNotice], why: str) -> None:
        """Send an alert that the disk does not take: its targets get their message all the same, without waiting."""
        for notice in notices:
            if notice.target in self._senders:
                self._senders[notice.target].send_unstored(UnstoredAlert(notice, change, why))
        self.wake()

    async def _main(self) -> None:
        jobs: dict[str, Callable[[], Awaitable[float]]] = {"notify changes": self._follow_changes}
        for sender in self._senders.values():
            jobs[f"notify {sender.name}"] = partial(sender.run_once, self._stopped.is_set)
        self._wakes = tuple(asyncio.Event() for _ in jobs)
        tasks = [
            asyncio.create_task(self._repeat(job, wake, name), name=name)
            for wake, (name, job) in zip(self._wakes, jobs.items(), strict=True)
        ]
        try:
            with self._due.listening(self._wake_all):
                done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._stopped.is_set() and pending:  # let messages that are being sent arrive
                    more, pending = await asyncio.wait(pending, timeout=STOP_S_MAX)
                    done |= more
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():  # after a failure they are used again
            await sender.close()

    async def _repeat(self, job: Callable[[], Awaitable[float]], wake: asyncio.Event, name: str) -> None:
        """Run `job` until stopped, at the latest after the seconds it returns; also while the disk is full."""
        while not self._stopped.is_set():
            wake.clear()
            wait_s = POLL_S
            try:
                wait_s = await job()
            except StoreUnavailable as error:
                self._throttle.report(f"{name} waits: {error}")
            except OSError as error:
                if not lacks_files(error):
                    raise
                self._throttle.report(f"{name} waits: too many files are open in this process")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), min(wait_s, POLL_S))

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _follow_changes(self) -> float:
        """Reopen notices whose alert has changed, and give up those that cannot be sent. Raises StoreError."""
        self._step_s += self._steps.step_s()
        if self._step_s:  # before anything expires by it; one that cannot be recorded now, next time
            self._notices.clock_stepped(self._step_s)
            self._step_s = 0.0
        rev = self._db.rev()
        if rev != self._rev:
            self._reopen_changed()
            self._rev = rev
        if self._clock.monotonic() >= self._expire_at:
            self._expire()
            self._expire_at = self._clock.monotonic() + EXPIRE_EVERY_S
        return POLL_S

    def _reopen_changed(self) -> None:
        while True:
            items, upto = self._notices.changed()
            changed = [item.row for item in items if item.row.target in self._senders and _is_news(item)]
            for row in changed:
                logger.info("%s gets an update of alert %s", row.target, row.alert)
            if upto <= self._rev:
                return
            longest_s = max((self._targets[row.target].expire_hours * 3600 for row in changed), default=0.0)
            self._notices.mark_changed(changed, upto, longest_s)
            self._rev = upto
            if changed:
                self._wake_all()

    def _expire(self) -> None:
        """Give up, visibly, notices that are too old, too many, or of a target that no longer exists."""
        now = self._clock.now()
        for row in self._notices.undeliverable(now, tuple(self._targets)):
            hours, why = (row.window.expire_t - row.created_t) / 3600, row.reason or "it could not be sent"
            is_late = row.window.expire_t <= now
            gone = "given up: the site file has no such target (any more)"
            self._give_up(row, f"given up after {hours:.3g} h: {why}" if is_late else gone)
        for row in self._notices.overflow():
            self._give_up(row, "given up: too many messages wait for this target")

    def _give_up(self, row: NoticeRow, why: str) -> None:
        self._notices.end(row, "given_up", why)
        logger.warning("%s gets no message of alert %s: %s", row.target, row.alert, why)
        if row.target in self._senders:
            self._senders[row.target].count("given_up")


def _made(name: str, target: Target, clock: Clock, make_sender: MakeSender) -> MessageSender:
    try:
        return make_sender(name, target, clock)
    except UsageError as error:
        raise type(error)(f"notify.{name}: {error}") from None


def _is_news(item: OpenNotice) -> bool:
    """Return True if the alert says something else now than the last message did."""
    row = item.row
    return is_news(item.standing, item.severity, row.standing or None, row.severity or None)
