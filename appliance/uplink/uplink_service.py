"""The uplink as one service: a thread with an event loop for the link, the sending of escalations and the verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance.backoff import Backoff
from appliance.broker import LinkState, NatsLink, end_tasks
from appliance.clock import Clock, ClockStepDetector
from appliance.config import UplinkConfig as Settings
from appliance.errors import StoreUnavailable, UplinkError
from appliance.store.rows import EscalationRow
from appliance.uplink.cloud_breaker import CloudBreaker
from appliance.uplink.commit_batcher import CommitBatcher
from appliance.uplink.jetstream_publisher import JetStreamPublisher
from appliance.uplink.message_builder import AllowAll, EgressPolicy, EscalationMessageBuilder
from appliance.uplink.outbox import Outbox, OutboxQuota
from appliance.uplink.rate_limiter import ByteMeter, RateLimiter, UplinkLimits
from appliance.uplink.send_queue import SendQueue
from appliance.uplink.send_workers import POLL_S, EscalationSender, SendWorkers
from appliance.uplink.verdict_consumer import VerdictConsumer, VerdictCounts, VerdictStore

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S = 60.0
UPKEEP_EVERY_S = 10.0
RESENDS_AT_ONCE = 16


class UplinkLoop:
    """Owner of the sending side: one task with a few lanes, so that a long way to the broker does not slow it down.

    See lanes.py for what goes when, parcels.py for what it consists of, toll.py for what it may weigh, sender.py for
    what is noted of it. Questions that nobody answers are asked again. While the database cannot be written nothing is
    sent, for it could not be noted.
    """

    def __init__(
        self,
        link: NatsLink,
        outbox: Outbox,
        root: Path,
        meter: ByteMeter,
        clock: Clock,
        limits: UplinkLimits | None = None,
        border: EgressPolicy | None = None,
        *,
        notary: CommitBatcher | None = None,
    ) -> None:
        """border: what may leave; None: all. notary: shared with who else writes in this loop."""
        limits = limits or UplinkLimits()
        self._link = link
        self._outbox = outbox
        self._clock = clock
        self._courier = JetStreamPublisher(link)
        self._toll = RateLimiter(limits, meter, clock, lambda: link.state)
        self._room = OutboxQuota(outbox, root, limits.outbox_mb_max, meter.add)
        self.breaker = CloudBreaker(limits.silent_s, clock)
        self._parcels = EscalationMessageBuilder(link, self._courier, outbox, root, border or AllowAll())
        self._sender = EscalationSender(
            self._courier, outbox, notary or CommitBatcher(outbox.db), self._toll, self.breaker, clock, self._waits
        )
        self._lanes = SendWorkers(SendQueue(outbox.db), self._parcels, self._sender, self._toll, self.breaker, clock)
        self._said = ""
        self._noted = True
        self._steps = ClockStepDetector(clock)
        self._step_s = 0.0
        self._began = False
        self._expire_at = self._room_at = float("-inf")
        self.waits_for = ""

    def wake(self) -> None:
        """There may be something to send (call it in the loop's thread); without it, it is seen within POLL_S."""
        self._lanes.wake()

    def verdict_received(self) -> None:
        """A verdict came: somebody is there. Call it in the loop's thread."""
        if self.breaker.verdict_received():
            self._lanes.wake()

    async def run(self) -> None:
        """Send until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 30.0)
        while True:
            self._toll.charge_overhead()
            try:
                self._look_after()
                if await self._has_link():
                    await self.run_once()
                    self._is_fine()
                    backoff.reset()
                    await self._lanes.pause(POLL_S)
            except StoreUnavailable as error:
                self._noted = False
                self._waits(str(error))
                await asyncio.sleep(backoff.next_s())
            except UplinkError as error:
                self._waits(str(error))
                self.breaker.publish_failed(str(error))
                await asyncio.sleep(backoff.next_s())

    async def run_once(self) -> int:
        """Send all that is ready and may go, and again what was not answered for long; return how many questions went.

        Raises UplinkError when the link or the streams are not there, StoreUnavailable when the disk is full: nothing
        is lost, the outbox waits.
        """
        self._lanes.clear()
        if not self._noted:
            self._outbox.probe()
            self._noted = True
        count = await self._lanes.run_once()
        if not self.breaker.blocks:
            for row in self._outbox.next_resend(self._clock.now(), RESENDS_AT_ONCE):
                count += await self._ask_again(row)
        return count

    async def _ask_again(self, row: EscalationRow) -> int:
        """Send an unanswered question again, and before it the pictures that the broker no longer has."""
        pictures = self._outbox.media_of(row.id)
        if self._parcels.apply_egress_policy(row, pictures):
            self._outbox.reopen(row, ())
            self._lanes.wake()
            return 0
        lost = await self._courier.find_lost(row.site, pictures)
        if lost:
            self._outbox.reopen(row, lost)
            self._lanes.wake()
            return 0
        return await self._sender.resend(row)

    async def _has_link(self) -> bool:
        """Wait for the link, but not so long that nothing expires meanwhile."""
        try:
            await asyncio.wait_for(self._link.client(), UPKEEP_EVERY_S)
        except asyncio.TimeoutError:
            self.breaker.link_lost(self._link.state.error or "the link is down")
            return False
        if self.breaker.state.name != "closed":
            self.breaker.link_restored()
        return True

    def _look_after(self) -> None:
        """What is due now and then, link or not."""
        self._see_to_the_clock()
        self.breaker.check_silence(self._outbox.unanswered_s(self._clock.now()))
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self._outbox.expire(self._clock.now())
            self._expire_at = now + EXPIRE_EVERY_S
        if now >= self._room_at:
            self._room.run_once()
            self._room_at = now + UPKEEP_EVERY_S

    def _see_to_the_clock(self) -> None:
        """A step is seen to once, before anything expires by it: one that could not be noted is seen to again."""
        self._step_s += self._steps.step_s()
        if not self._began:  # what was missed has in it what was seen since
            self._step_s = self._outbox.clock_missed_s() or self._step_s
        if self._began and not self._step_s:
            return
        self._outbox.clock_stepped(self._step_s)
        if self._step_s:
            logger.warning("the clock was stepped by %+.0f s: open questions are no older for that", self._step_s)
        self._step_s, self._began = 0.0, True

    def close(self) -> None:
        """The link has ended: count the last of what it sent."""
        self._toll.charge_overhead()

    def _waits(self, why: str) -> None:
        self.waits_for = why
        if why != self._said:
            logger.warning("the outbox waits: %s", why)
            self._said = why

    def _is_fine(self) -> None:
        why = self._toll.daily_cap.reason
        if why:
            self._waits(why)
            return
        if self.waits_for:
            logger.info("the outbox is being sent again")
        self.waits_for = self._said = ""


class UplinkService:
    """Owner of the event loop that talks to the broker; `run()` blocks the one thread it is given.

    `stop()` and `wake()` may be called from any thread. When one of the three tasks fails (the database refused, or a
    bug), `run()` ends with that error.
    """

    def __init__(
        self,
        settings: Settings,
        site: str,
        outbox: Outbox,
        root: Path,
        meter: ByteMeter,
        alerts: VerdictStore,
        clock: Clock,
        *,
        changed: Callable[[], None] = lambda: None,
        border: EgressPolicy | None = None,
    ) -> None:
        self._link = NatsLink(settings, f"vedette {site}", clock, inbox=f"_INBOX.{site}")
        notary = CommitBatcher(outbox.db)
        limits = UplinkLimits.of(settings)
        self._uplink = UplinkLoop(self._link, outbox, root, meter, clock, limits, border, notary=notary)
        self._verdicts = VerdictConsumer(
            self._link, site, alerts, notary, clock, changed, self._uplink.verdict_received
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_now = asyncio.Event()
        self._stopped = threading.Event()

    @property
    def link(self) -> LinkState:
        """With the state of the breaker."""
        breaker = self._uplink.breaker.state
        return replace(
            self._link.state,
            breaker=breaker.name,
            breaker_since=breaker.since,
            breaker_why=breaker.why,
            trips=breaker.trips,
        )

    @property
    def waits_for(self) -> str:
        """Why the outbox is not being sent although the link is up; empty when it is."""
        return self._uplink.waits_for

    @property
    def verdicts(self) -> VerdictCounts:
        return self._verdicts.counts

    def run(self) -> None:
        """Talk to the broker until `stop()`. Raises StoreError."""
        asyncio.run(self._main())

    def stop(self) -> None:
        self._stopped.set()
        self._in_loop(self._stop_now.set)

    def wake(self) -> None:
        """A question became ready."""
        self._in_loop(self._uplink.wake)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()  # before the look at `_stopped`: a stop in between is then not lost
        if self._stopped.is_set():
            self._loop = None
            return
        tasks = {
            asyncio.create_task(self._link.run(), name="link"),
            asyncio.create_task(self._uplink.run(), name="uplink"),
            asyncio.create_task(self._verdicts.run(), name="verdicts"),
        }
        stopping = asyncio.create_task(self._stop_now.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                task.result()
        finally:
            self._loop = None
            await end_tasks(*tasks, stopping)
            self._uplink.close()

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed: there is nobody to tell any more
                loop.call_soon_threadsafe(call)
