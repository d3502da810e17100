"""The worker: pulls escalations as it has slots for them, has them handled, and drains when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from appliance.backoff import Backoff
from appliance.broker import NatsLink, end_tasks, until_set
from appliance.clock import Clock
from appliance.errors import EngineError, UplinkError
from appliance.telemetry import LogThrottle
from appliance.wire import PRIORITIES
from cloud_worker import stream_setup
from cloud_worker.backlog_monitor import BacklogMonitor
from cloud_worker.concurrency_slots import ConcurrencySlots
from cloud_worker.config import WorkerConfig
from cloud_worker.escalation_handler import PUBLISH_S_MAX, ArchivePort, EscalationHandler, NullArchive
from cloud_worker.fair_queue import FairQueue, SiteQueue
from cloud_worker.judge import Judge
from cloud_worker.metrics import WorkerCounts, WorkerMetrics
from cloud_worker.pull_consumer import Delivery, NoConsumer, pull_next
from cloud_worker.status_server import StatusServer

logger = logging.getLogger(__name__)

PULL_PAUSE_S = 1.0
ARCHIVE_DRAIN_S = 10.0


class Worker:
    """Owner of the link, of the places for questions, and of the tasks that judge them.

    Invariant: a question is fetched only when there is a place for it, so that what this worker does not judge is free
    for the others. `ready()` and `status.port` are for whoever watches it.
    """

    def __init__(
        self, config: WorkerConfig, judge: Judge, link: NatsLink, clock: Clock, shelf: ArchivePort | None = None,
        numbers: WorkerMetrics | None = None,
    ) -> None:  # fmt: skip
        self._config = config.worker
        self._streams = config.streams
        self._judge = judge
        self._link = link
        self._clock = clock
        self._shelf = shelf or NullArchive()
        self.numbers = numbers or WorkerMetrics()
        self._clerk = EscalationHandler(config.worker, judge, link, clock, self.numbers, self._shelf)
        self._news = asyncio.Event()
        self._places = ConcurrencySlots(config.worker.concurrency, self._news.set, clock)
        self._lanes = FairQueue()
        self._lookout = BacklogMonitor(self._lanes, judge.worker, self.numbers, clock, self._news.set)
        self._made: set[tuple[str, str]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._judging: dict[asyncio.Task[None], Delivery] = {}
        self._stop = asyncio.Event()
        self._warm = False
        self._said: set[str] = set()
        self._repeats = LogThrottle(logger, clock)
        self.status = StatusServer(config.status, self.numbers.text, self.unready)
        self._watch()

    @property
    def counts(self) -> WorkerCounts:
        return WorkerCounts.of(self.numbers)

    @property
    def judging(self) -> int:
        """Questions in hand."""
        return len(self._judging)

    def unready(self) -> str:
        """Why no questions are taken now; empty when they are."""
        if self._stop.is_set():
            return "stopping"
        if not self._link.state.up:
            return self._link.state.error or "not connected"
        if not self._warm:
            return f"warming up{': ' + self._clerk.breaker.why if self._clerk.breaker.why else ''}"
        return f"the judge is away: {self._clerk.breaker.why}" if self._clerk.breaker.why else ""

    def stop(self) -> None:
        """Take no more questions, finish those at hand, and let `run()` return."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop()`. Raises MissingPart when the port for /metrics is taken."""
        await self.status.start()
        keepers = [asyncio.create_task(self._link.run(), name="link"), asyncio.create_task(self._beat(), name="beat")]
        backoff = Backoff(0.5, 15.0)
        try:
            while not self._stop.is_set():
                try:
                    await until_set(self._stop, self.run_once())
                    backoff.reset()
                except UplinkError as error:
                    self._repeats.report(error)
                    await until_set(self._stop, asyncio.sleep(backoff.next_s()))
            await self._drain()
        finally:
            self.status.close()
            await end_tasks(*keepers, *self._serving)
            await asyncio.to_thread(self._shelf.close, ARCHIVE_DRAIN_S if self._stop.is_set() else 0.0)
            logger.info("ended: %s", self.counts)

    async def run_once(self) -> None:
        """Serve one connection. Raises UplinkError when it is lost or the broker refuses."""
        client = await self._link.client()
        jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
        for difference in await stream_setup.ensure_streams(jetstream, self._streams):
            self._say_once(difference)
        self._made.clear()
        bell = await client.subscribe(
            stream_setup.ESCALATION_SUBJECTS, cb=self._lookout.on_message, pending_bytes_limit=2**20
        )
        lost = self._link.while_up(asyncio.Event().wait())
        work = (lost, self._lookout.run(jetstream), self._dispatch(client, jetstream))
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(*tasks)
            with contextlib.suppress(nats.errors.Error, OSError):
                await bell.unsubscribe()

    async def _warm_up(self) -> None:
        """Try the judge until it answers; questions stay with the broker, for workers that are ready, until then."""
        backoff = Backoff(1.0, 30.0)
        while True:
            try:
                said = await self._clerk.breaker.call(self._judge.check)
            except EngineError as error:
                self._repeats.report(f"not ready: {error}")
                await asyncio.sleep(backoff.next_s())
                continue
            self._warm = True
            logger.info("ready: %s", said)
            return

    async def _dispatch(self, client: Client, jetstream: JetStreamContext) -> None:
        if not self._warm:
            await self._warm_up()
        logger.info("waiting for questions, %d at a time", self._places.total)
        while True:
            self._news.clear()
            open_to, now = self._places.open_priorities(), self._clock.monotonic()
            lane = self._lanes.next(open_to, now)
            if lane is not None:
                self._places.acquire(lane.priority)
                task = asyncio.create_task(self._serve(client, jetstream, lane))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
                continue
            due = self._lanes.next_due(open_to)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if due is None else max(0.001, due - now))

    async def _serve(self, client: Client, jetstream: JetStreamContext, lane: SiteQueue) -> None:
        """Fetch one question of the lane and bring it to its end. The place is given back in any case."""
        task = asyncio.current_task()
        assert task is not None
        try:
            delivery = await self._fetch(client, jetstream, lane)
            if delivery is None:
                return
            self._judging[task] = delivery
            if self._stop.is_set():
                await delivery.nak()
                return
            await self._clerk.handle(delivery)
        finally:
            self._judging.pop(task, None)
            self._places.release(lane.priority)

    async def _fetch(self, client: Client, jetstream: JetStreamContext, lane: SiteQueue) -> Delivery | None:
        found, name = None, (lane.site, lane.priority)
        try:
            if name not in self._made:
                for difference in await stream_setup.ensure_consumer(jetstream, *name, self._config.ack_wait_s):
                    self._say_once(difference)
                self._made.add(name)
            found = await pull_next(client, self._link, *name)
        except NoConsumer:  # the next look, at the sweep's call, makes it again
            self._made.discard(name)
        except UplinkError as error:
            self._repeats.report(error)
            await until_set(self._stop, asyncio.sleep(PULL_PAUSE_S if self._link.state.up else 0.0))
        finally:
            now = self._clock.monotonic()
            if found is None:
                self._lanes.empty(lane, now)
            else:
                self._lanes.served(lane, now)
                self._news.set()
        return found

    async def _beat(self) -> None:
        """Tell the broker of every question held that it is being worked on, three times per ack_wait."""
        while True:
            await asyncio.sleep(self._config.ack_wait_s / 3)
            for delivery in list(self._judging.values()):
                await delivery.in_progress()

    async def _drain(self) -> None:
        """Let what is being judged finish for a while, and give back the rest."""
        if self._serving:
            logger.info("finishing %d questions", len(self._judging))
            await asyncio.wait(list(self._serving), timeout=self._config.drain_s)
        left = dict(self._judging)
        await end_tasks(*self._serving)
        for delivery in left.values():
            await delivery.nak()
        client = self._link.connected
        if client is not None:
            with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await client.flush(2)

    def _watch(self) -> None:
        """The numbers that are asked for when somebody reads them."""
        watch = self.numbers.add_gauge
        watch("vedette_worker_ready", "1 while questions are taken.", (), lambda: {(): float(not self.unready())})
        watch("vedette_worker_places", "Questions that may be judged at a time.", (),
              lambda: {(): float(self._places.total)})  # fmt: skip
        watch("vedette_worker_judging", "Questions in hand.", ("priority",),
              lambda: {(p,): float(self._places.in_use(p)) for p in PRIORITIES})  # fmt: skip
        watch("vedette_worker_backlog", "Questions stored at the broker, those in hand included.", ("priority",),
              lambda: {(p,): float(self._lookout.stored.of(p)) for p in PRIORITIES})  # fmt: skip
        watch("vedette_worker_backlog_sites", "Sites with a question stored at the broker.", (),
              lambda: {(): float(len({site for site, _ in self._lookout.stored.counts}))})  # fmt: skip
        watch("vedette_worker_archive_waiting", "Verdicts that are not archived yet.", (),
              lambda: {(): float(self._shelf.waiting())})  # fmt: skip

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < 1000:
            self._said.add(sentence)
            logger.warning("%s", sentence)
