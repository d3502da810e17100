"""Notifies people of alerts: one thread with an event loop, a sender for each target, and a check for what has
changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from appliance.clock import Clock, ClockStepDetector
from appliance.config import Target
from appliance.errors import StoreUnavailable
from appliance.notify.delivery import POLL_S, MessageSender, NotifierDeps, TargetSender, TargetStatus, UnstoredAlert
from appliance.notify.http_sender import HttpSender
from appliance.notify.notice_policy import NoticeInput, decide_notice
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.notices import NewNotice, NoticeRow, OpenNotice
from appliance.telemetry import LogThrottle
from appliance.types import Alert

logger = logging.getLogger(__name__)

LINK_GRACE_S = 3.0  # a link that has just begun to connect, after a start say, may be up in a moment
_DEGRADED_MAX = 4


class NotifierLinkState(Protocol):
    """The uplink now; see appliance.broker."""

    @property
    def up(self) -> bool: ...

    @property
    def since(self) -> float: ...

    @property
    def breaker(self) -> str: ...


class SystemStatus:
    """Owner: the notifier's thread. link None: there is no uplink."""

    def __init__(
        self,
        link: Callable[[], NotifierLinkState] | None,
        health: HealthEventStore,
        warning: Callable[[], str],
        clock: Clock,
    ) -> None:
        """warning: what is not well with the box itself, or ''."""
        self._link = link
        self._health = health
        self._warning = warning
        self._clock = clock

    @property
    def answers(self) -> bool:
        """A question that is on its way may be answered soon."""
        if self._link is None:
            return False
        link = self._link()
        if link.breaker != "closed":
            return False
        return link.up or 0 <= self._clock.now() - link.since < LINK_GRACE_S

    def degraded(self, camera: str, *, unverified: bool) -> tuple[str, ...]:
        """What a person should know beside the alert, one sentence each, at most 4. Raises StoreError."""
        found = [self._warning()]
        if unverified and self._link is not None and not self.answers:
            down = "the cloud cannot be reached" if not self._link().up else "the cloud does not answer"
            found.append(f"{down} now, so nobody has checked it")
        found += [
            f"{'the camera' if event.camera else 'the box'} is not well: {event.reason}"
            for event in self._health.open()
            if event.camera in {camera, ""}
        ]
        return tuple(text.rstrip(".") for text in found if text)[:_DEGRADED_MAX]


TIDY_EVERY_S = 10.0
STOP_S_MAX = 3.0


class Notifier:
    """Owner of the notice rows from their birth on, and of the loop that talks to the targets; `run()` blocks the one
    thread it is given.

    `stop()`, `wake()` and `unwritten()` may be called from any thread, and `states` read. Invariant: a target that is
    slow, hangs or fails holds up nobody but itself.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        means: NotifierDeps,
        db: Database,
        post: Callable[[Target, Clock], MessageSender] = HttpSender,
    ) -> None:
        self._means = means
        self._db = db
        self._clock = means.clock
        self._make_post = post
        self._targets = {name: target for name, target in targets.items() if target.enabled}
        self._lanes: dict[str, TargetSender] = {
            name: TargetSender(name, target, means, post(target, means.clock)) for name, target in self._targets.items()
        }
        self._steps = ClockStepDetector(self._clock)
        self._repeats = LogThrottle(logger, self._clock)
        self._rev = -1
        self._tidy_at = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._wakes: tuple[asyncio.Event, ...] = ()

    @property
    def states(self) -> tuple[TargetStatus, ...]:
        return tuple(lane.state for lane in self._lanes.values())

    def run(self) -> None:
        """Until `stop()`. Raises StoreError."""
        asyncio.run(self._main())

    def stop(self) -> None:
        self._stopped.set()
        self.wake()

    def wake(self) -> None:
        """An alert or a verdict was written."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self._wake_all)

    def notify_unstored(self, alert: Alert, notices: Sequence[NewNotice], why: str) -> None:
        """The disk does not take this alert: who is to be told is told all the same, without waiting."""
        for each in notices:
            if each.target in self._lanes:
                self._lanes[each.target].send_unstored(UnstoredAlert(each, alert, why))
        self.wake()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakes = tuple(asyncio.Event() for _ in range(len(self._lanes) + 1))
        tasks = [asyncio.create_task(self._repeat(self._clerk, self._wakes[0], "notify clerk"), name="notify clerk")]
        for wake, lane in zip(self._wakes[1:], self._lanes.values(), strict=True):
            job = partial(lane.run_once, self._stopped.is_set)
            tasks.append(asyncio.create_task(self._repeat(job, wake, lane.name), name=f"notify {lane.name}"))
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set() and pending:  # let what is on its way arrive
                more, pending = await asyncio.wait(pending, timeout=STOP_S_MAX)
                done |= more
            for task in done:
                task.result()
        finally:
            self._loop = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for lane in self._lanes.values():
                await lane.close()

    async def _repeat(self, job: Callable[[], Awaitable[float]], wake: asyncio.Event, name: str) -> None:
        """Again and again until stopped, at the latest when `job` says so; while the disk is full, too."""
        while not self._stopped.is_set():
            wake.clear()
            again_s = POLL_S
            try:
                again_s = await job()
            except StoreUnavailable as error:
                self._repeats.report(f"{name} waits: {error}")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), min(again_s, POLL_S))

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _clerk(self) -> float:
        """What has changed since it was told, and what is over. Raises StoreError."""
        step_s = self._steps.step_s()
        if step_s:
            self._means.notices.clock_stepped(step_s)
        rev = self._db.rev()
        if rev != self._rev:
            self._follow()
            self._rev = rev
        if self._clock.monotonic() >= self._tidy_at:
            self._tidy()
            self._tidy_at = self._clock.monotonic() + TIDY_EVERY_S
        return POLL_S

    def _follow(self) -> None:
        while True:
            items, upto = self._means.notices.changed()
            again = [item.row for item in items if item.row.target in self._lanes and self._is_news(item)]
            for row in again:
                logger.info("%s is told anew of alert %s", row.target, row.alert)
            before = self._rev
            if upto <= before:
                return
            longest_s = max((self._targets[row.target].expire_hours * 3600 for row in again), default=0.0)
            self._means.notices.mark_changed(again, upto, longest_s)
            self._rev = upto
            if again:
                self._wake_all()

    def _is_news(self, item: OpenNotice) -> bool:
        row = item.row
        case = NoticeInput(
            now=self._clock.now(), due_t=row.due_t, held_s=0.0, hold_s=0.0, standing=item.standing,
            severity=item.severity, delivery=item.delivery, answers=False, told=row.standing or None,
            told_severity=row.severity or None,
        )  # fmt: skip
        return decide_notice(case).kind == "tell"

    def _tidy(self) -> None:
        """Give up, visibly, what is too old, too much, or for a target that there is not (any more)."""
        notices = self._means.notices
        for row in notices.overdue(self._clock.now()):
            hours = (row.expire_t - row.created_t) / 3600
            self._give_up(row, f"given up after {hours:.3g} h: {row.reason or 'it could not be sent'}")
        for row in notices.overflow():
            self._give_up(row, "given up: too many messages wait for this target")
        for row in notices.unknown_targets(tuple(self._targets)):
            self._give_up(row, "given up: the site file has no such target (any more)")

    def _give_up(self, row: NoticeRow, why: str) -> None:
        self._means.notices.end(row, "given_up", why)
        logger.warning("%s is not told of alert %s: %s", row.target, row.alert, why)
        if row.target in self._lanes:
            self._lanes[row.target].count("given_up")
