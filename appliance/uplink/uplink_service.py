"""The uplink as one service: a thread with an event loop for the link, the sending of escalations and the verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nats.aio.msg import Msg

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import StoreError, StoreUnavailable, UplinkError, lacks_files
from appliance.base.service_loop import ServiceLoop
from appliance.broker.nats_connection import NATS_ERRORS, LinkState
from appliance.broker.nats_link import BrokerChoice, NatsLink, end_tasks, stay_subscribed
from appliance.config import UplinkConfig
from appliance.store.alerts import AlertStore
from appliance.store.escalations import EscalationRow
from appliance.store.meter import Meter
from appliance.store.outbox import Outbox
from appliance.store.outbox_queue import SendQueue
from appliance.uplink.jetstream_publisher import JetStreamPublisher, check_serving
from appliance.uplink.outbox_limits import OutboxQuota, OutboxUpkeep
from appliance.uplink.send_limits import CloudBreaker, RateLimiter
from appliance.uplink.send_workers import (
    POLL_S,
    EgressPolicy,
    EscalationMessageBuilder,
    EscalationSender,
    OutboxCheck,
    SendWorkers,
)
from appliance.uplink.verdict_consumer import VerdictConsumer, VerdictCounts
from appliance.uplink.worker_announcements import PoolMonitor, PoolState
from appliance.wire import PRIORITIES, wanted_subject

LINK_WAIT_S = 10.0  # so long the loop waits for a link at a time, before its upkeep
DRAIN_S_MAX = 8.0  # to have the answers of a region that is left: a model's, or one that the disk refused once
DRAIN_POLL_S = 0.1  # between two looks at whether all have come: some 80 within DRAIN_S_MAX
RESENDS_AT_ONCE = 16  # escalations that a reconnection sends at first: the link shows what it bears
RETRY_S = 0.2  # sooner than verdicts are read again: a worker takes a site that reads and does not answer to want all

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkDeps:
    """Parts that the uplink works on. root: the storage folder. alerts: takes the verdicts.

    settles_here: the appliance may settle escalations itself, so workers must ask whether one is still wanted.
    """

    outbox: Outbox
    meter: Meter
    alerts: AlertStore
    root: Path
    settles_here: bool = False


def _settled_elsewhere(settings: UplinkConfig, deps: UplinkDeps) -> bool:
    """Return True if another region, or the appliance, may settle an escalation that a worker still has."""
    return len({each.region for each in settings.addresses}) > 1 or deps.settles_here


class UplinkService:
    """Owner of the event loop that talks to the broker; `run()` blocks the one thread it is given.

    `stop()` and `wake()` may be called from any thread. When one of the tasks fails (the database refused, or a
    bug), `run()` ends with that error, and may be called again.
    """

    def __init__(
        self,
        settings: UplinkConfig,
        site: str,
        deps: UplinkDeps,
        clock: Clock,
        egress_policy: EgressPolicy,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Build the uplink's parts; `run` starts them.

        changed: called when an alert has a verdict. egress_policy: decides which data may leave.
        """
        self._link = NatsLink(
            settings,
            f"vedette {site}",
            clock,
            inbox=f"_INBOX.{site}",
            choice=BrokerChoice(settings.addresses, settings.failover_s, settings.failback_s, clock),
            serves=partial(check_serving, site),
            drain=self._drain,
        )
        self._sending = UplinkLoop(settings, self._link, deps, clock, egress_policy)
        self._verdicts = VerdictConsumer(
            self._link, site, deps.alerts, deps.outbox.commits, clock, changed, self._sending.verdict_received
        )
        self._pool = PoolMonitor(self._link, clock)
        self._wanted = WantedResponder(self._link, site, deps.outbox) if _settled_elsewhere(settings, deps) else None
        self._event_loop = ServiceLoop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_now = asyncio.Event()
        self._stopped = threading.Event()

    @property
    def link(self) -> LinkState:
        """With the state of the breaker."""
        breaker = self._sending.breaker.state
        return replace(self._link.state, breaker=breaker.name, breaker_why=breaker.why, trips=breaker.trips)

    @property
    def pool(self) -> PoolState:
        """The workers, as they announce themselves."""
        return self._pool.state

    @property
    def waits_for(self) -> str:
        """Why the outbox is not being sent although the link is up; empty when it is."""
        return self._sending.waits_for

    @property
    def verdicts(self) -> VerdictCounts:
        return self._verdicts.counts

    def run(self) -> None:
        """Talk to the broker until `stop()`. Raises StoreError."""
        self._event_loop.run(self._main())

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped.set()
        self._in_loop(self._stop_now.set)

    def wake(self) -> None:
        """Start sending: an escalation became ready."""
        self._in_loop(self._sending.wake)

    async def _drain(self) -> None:
        await self._sending.drain()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()  # before `_stopped` is read: a stop in between is then not lost
        if self._stopped.is_set():
            self._loop = None
            return
        tasks = {
            asyncio.create_task(self._link.run(), name="link"),
            asyncio.create_task(self._sending.run(), name="uplink"),
            asyncio.create_task(self._verdicts.run(), name="verdicts"),
            asyncio.create_task(self._pool.run(), name="pool"),
        }
        if self._wanted is not None:
            tasks.add(asyncio.create_task(self._wanted.run(), name="wanted"))
        stopping = asyncio.create_task(self._stop_now.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                task.result()
        finally:
            self._loop = None
            await end_tasks(*tasks, stopping)
            self._sending.close()

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed, and its tasks with it
                loop.call_soon_threadsafe(call)


class UplinkLoop:
    """The sending side: one task with a few workers, so that a long round trip to the broker does not slow it down.

    outbox_queue.py sets the order and send_limits.py the rate; send_workers.py builds and publishes the messages and
    records the outcome. Escalations without a verdict are sent again. While the database cannot be written nothing is
    sent, because it could not be recorded. Owner: the service's event loop. State: since when a region accepts nothing,
    and why the outbox waits.
    """

    def __init__(
        self, settings: UplinkConfig, link: NatsLink, deps: UplinkDeps, clock: Clock, policy: EgressPolicy
    ) -> None:
        outbox = deps.outbox
        self._link = link
        self._outbox = outbox
        self._clock = clock
        self._publisher = JetStreamPublisher(link)
        self._commits = outbox.commits
        self._region = ""
        self._limiter = RateLimiter(settings, deps.meter, clock, lambda: link.state)
        quota = OutboxQuota(outbox, deps.root, settings.outbox_mb_max, deps.meter)
        self._rows = OutboxUpkeep(outbox, quota, deps.meter, clock)
        self.breaker = CloudBreaker(settings.silent_s, clock)
        self._check = OutboxCheck(link, self._publisher, outbox, policy)
        self._sender = EscalationSender(self._publisher, outbox, self._limiter, self.breaker, clock, self._waits)
        elsewhere_s = settings.failover_s if _settled_elsewhere(settings, deps) else 0.0
        self._builder = EscalationMessageBuilder(deps.root, elsewhere_s)
        self._workers = SendWorkers(
            SendQueue(outbox.queue),
            self._check,
            self._builder,
            self._sender,
            self._limiter,
            self.breaker,
            clock,
        )
        self._reported = ""
        self._writable = True
        self._failover_s = settings.failover_s
        self._useless_at: float | None = None
        self._drained_connect = 0
        self.waits_for = ""

    def wake(self) -> None:
        """Look for work at once (call it in the loop's thread); without this call within POLL_S."""
        self._workers.wake()

    def verdict_received(self) -> None:
        """Note that a worker answers: a verdict came. Call it in the loop's thread."""
        if self.breaker.verdict_received():
            self._workers.wake()

    async def run(self) -> None:
        """Send until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 10.0)
        while True:
            self._limiter.charge_overhead()
            try:
                self._upkeep()
                if await self._has_link():
                    await self._follow_region()
                    if self._link.state.connects != self._drained_connect:
                        await self.run_once()
                    self._restarted()
                    self._useless_at = None
                    backoff.reset()
                    await self._workers.pause(POLL_S)
            except StoreUnavailable as error:
                self._writable = False
                self._waits(str(error))
                await asyncio.sleep(backoff.next_s())
            except OSError as error:
                if not lacks_files(error):
                    raise
                self._waits("too many files are open in this process")
                await asyncio.sleep(backoff.next_s())
            except UplinkError as error:
                self._waits(str(error))
                self.breaker.publish_failed(str(error))
                self._leave_useless(str(error))
                await asyncio.sleep(backoff.next_s())

    async def run_once(self) -> int:
        """Send all ready escalations, and again those without a verdict for long; return how many were sent.

        Raise UplinkError if the link or the streams are missing, StoreUnavailable if the disk is full. Nothing is lost;
        the outbox waits.
        """
        self._workers.clear()
        if not self._writable:
            self._outbox.probe()
            self._writable = True
        count = await self._workers.run_once()
        if not self.breaker.blocks:
            for row in self._outbox.queue.next_resend(self._clock.now(), RESENDS_AT_ONCE):
                count += await self._resend(row)
        return count

    async def _resend(self, row: EscalationRow) -> int:
        """Send an unanswered escalation again, and before it the media that the broker no longer has."""
        media = self._outbox.media_of(row.id)
        if self._check.apply_egress_policy(row, media):
            self._outbox.reopen(row, ())
            self._workers.wake()
            return 0
        lost = await self._publisher.find_lost(row.site, media)
        if lost:
            self._outbox.reopen(row, lost)
            self._workers.wake()
            return 0
        return await self._sender.resend(row, self._builder.escalation(row, PRIORITIES[-1]))

    async def _has_link(self) -> bool:
        """Wait for the link, but not so long that nothing expires meanwhile."""
        try:
            await asyncio.wait_for(self._link.client(), LINK_WAIT_S)
        except asyncio.TimeoutError:
            self.breaker.link_lost(self._link.state.error or "the link is down")
            return False
        if self.breaker.one_at_a_time:
            self.breaker.link_restored()
        return True

    async def drain(self) -> None:
        """Stop sending over this connection; return when all sent escalations are answered, or after DRAIN_S_MAX.

        The link is about to change to a better region, where escalations without a verdict would be paid for again.
        """
        self._drained_connect, deadline = self._link.state.connects, self._clock.monotonic() + DRAIN_S_MAX
        self._workers.end()
        with contextlib.suppress(StoreError):  # the sending meets it, too
            while self._clock.monotonic() < deadline:
                if not self._workers.busy and self._outbox.queue.unanswered_s(self._clock.now()) is None:
                    return
                await asyncio.sleep(DRAIN_POLL_S)

    async def _follow_region(self) -> None:
        """After a change of region send escalations without a verdict again, with the evidence that is missing there.

        The former region may still judge its escalations at a cost; the first verdict counts.
        """
        region = self._link.state.region
        if region and region != self._region:
            count = await self._commits.commit(lambda: self._outbox.region_changed(region))
            self._region = region
            if count:
                logger.warning("%d escalations without a verdict go to the region %s, too", count, region)

    def _leave_useless(self, why: str) -> None:
        """Leave a region that accepts nothing for failover_s, for example a cluster without a majority."""
        now = self._clock.monotonic()
        if self._link.client_now is None:
            self._useless_at = None
        elif self._useless_at is None:
            self._useless_at = now
        elif now - self._useless_at >= self._failover_s and self._link.abandon(why):
            self._useless_at = None

    def _upkeep(self) -> None:
        """Do the work that is due now and then, link or not."""
        self._rows.run_once()
        self.breaker.check_silence(self._outbox.queue.unanswered_s(self._clock.now()))
        if self.breaker.state.name == "open" and self.breaker.silent and self._link.abandon(self.breaker.state.why):
            self.breaker.region_left()

    def close(self) -> None:
        """Count the last of what the link sent: it has ended."""
        self._limiter.charge_overhead()

    def _waits(self, why: str) -> None:
        self.waits_for = why
        if why != self._reported:
            logger.warning("the outbox waits: %s", why)
            self._reported = why

    def _restarted(self) -> None:
        why = self._limiter.daily_cap.reason
        if why:
            self._waits(why)
            return
        if self.waits_for:
            logger.info("the outbox is being sent again")
        self.waits_for = self._reported = ""


class WantedResponder:
    """Owner of one subscription, one task. State: none."""

    def __init__(self, link: NatsLink, site: str, outbox: Outbox) -> None:
        self._link = link
        self._subject = wanted_subject(site)
        self._outbox = outbox

    async def run(self) -> None:
        """Answer until cancelled. Where the broker does not let us, workers judge without asking."""
        await stay_subscribed(self._link, self._subject, self._answer, retry_s=RETRY_S)

    async def _answer(self, message: Msg) -> None:
        with contextlib.suppress(StoreError, UnicodeDecodeError, *NATS_ERRORS):  # no answer: it is judged
            wanted = self._outbox.queue.is_open(message.data.decode("ascii"))
            await message.respond(b"yes" if wanted else b"no")
