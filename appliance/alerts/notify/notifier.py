"""Tells people of alerts: one thread with a loop, a lane for each target, and a clerk who looks for changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from appliance.alerts.notify.lane import POLL_S, Lane
from appliance.alerts.notify.policy import Case, decide
from appliance.alerts.notify.ports import Means, Sends, TargetState, Unwritten
from appliance.alerts.notify.post import Post
from appliance.clock import Clock, StepWatch
from appliance.config import Target
from appliance.errors import StoreUnavailable
from appliance.store.database import Database
from appliance.store.notices import NewNotice, NoticeRow, OpenNotice
from appliance.telemetry import Repeats
from appliance.types import Alert

TIDY_EVERY_S = 10.0
STOP_S_MAX = 3.0

logger = logging.getLogger(__name__)


class Notifier:
    """Owner of the notice rows from their birth on, and of the loop that talks to the targets; `run()` blocks the one
    thread it is given.

    `stop()`, `wake()` and `unwritten()` may be called from any thread, and `states` read. Invariant: a target that is
    slow, hangs or fails holds up nobody but itself.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        means: Means,
        db: Database,
        post: Callable[[Target, Clock], Sends] = Post,
    ) -> None:
        self._means = means
        self._db = db
        self._clock = means.clock
        self._make_post = post
        self._targets = {name: target for name, target in targets.items() if target.enabled}
        self._lanes: dict[str, Lane] = {
            name: Lane(name, target, means, post(target, means.clock)) for name, target in self._targets.items()
        }
        self._steps = StepWatch(self._clock)
        self._repeats = Repeats(logger, self._clock)
        self._rev = -1
        self._tidy_at = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._wakes: tuple[asyncio.Event, ...] = ()

    @property
    def states(self) -> tuple[TargetState, ...]:
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

    def unwritten(self, alert: Alert, notices: Sequence[NewNotice], why: str) -> None:
        """The disk does not take this alert: who is to be told is told all the same, without waiting."""
        for each in notices:
            if each.target in self._lanes:
                self._lanes[each.target].unwritten(Unwritten(each, alert, why))
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
            self._means.notices.follow(again, upto, longest_s)
            self._rev = upto
            if again:
                self._wake_all()

    def _is_news(self, item: OpenNotice) -> bool:
        row = item.row
        case = Case(
            now=self._clock.now(), due_t=row.due_t, held_s=0.0, hold_s=0.0, standing=item.standing,
            severity=item.severity, delivery=item.delivery, answers=False, told=row.standing or None,
            told_severity=row.severity or None,
        )  # fmt: skip
        return decide(case).kind == "tell"

    def _tidy(self) -> None:
        """Give up, visibly, what is too old, too much, or for a target that there is not (any more)."""
        notices = self._means.notices
        for row in notices.overdue(self._clock.now()):
            hours = (row.expire_t - row.created_t) / 3600
            self._give_up(row, f"given up after {hours:.3g} h: {row.reason or 'it could not be sent'}")
        for row in notices.too_many():
            self._give_up(row, "given up: too many messages wait for this target")
        for row in notices.strangers(tuple(self._targets)):
            self._give_up(row, "given up: the site file has no such target (any more)")

    def _give_up(self, row: NoticeRow, why: str) -> None:
        self._means.notices.end(row, "given_up", why)
        logger.warning("%s is not told of alert %s: %s", row.target, row.alert, why)
        if row.target in self._lanes:
            self._lanes[row.target].count("given_up")
