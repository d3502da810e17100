"""The worker: pulls escalations while it has free slots, has them handled, and drains when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import EngineError, UplinkError
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_connection import NATS_ERRORS, broker_errors
from appliance.broker.nats_link import NatsLink, end_tasks, until_set
from cloud_worker import stream_setup
from cloud_worker.config import SpotConfig, WorkerConfig
from cloud_worker.escalation_handler import ArchivePort, EscalationHandler, NullArchive
from cloud_worker.fair_queue import BacklogMonitor, ConcurrencySlots, FairQueue, SiteQueue
from cloud_worker.http_server import AnalyzeServer, StatusServer
from cloud_worker.judge import Judge
from cloud_worker.metrics import PoolAnnouncer, WorkerCounts, WorkerMetrics
from cloud_worker.stream_setup import Delivery, NoConsumer, pull_next
from cloud_worker.verdict_stream import PUBLISH_S_MAX

logger = logging.getLogger(__name__)

SETUP_S_MAX = 2.0  # to answer for a stream or consumer; a cluster that elects a leader does not, and is asked again
PULL_PAUSE_S = 1.0  # after a pull that the broker refused; the sweep comes as often
ARCHIVE_DRAIN_S = 10.0  # uploads may finish for so long after the last verdict; a pod's grace period holds it
DRAIN_LOOK_S = 0.5  # between two looks at how long the drain may still last
LEAVE_S = 5.0  # kept of the notice of a spot machine, to give back what is not finished and to end
REPORTED_MAX = 1000  # sentences logged once; a bound for what hostile messages make
NOTICE_ADDRESSES = {
    "aws": "http://169.254.169.254", "gcp": "http://metadata.google.internal", "azure": "http://169.254.169.254",
}  # fmt: skip
NOTICE_S_MAX = 2.0  # of a service on the machine itself
NOTICE_BYTES_MAX = 64 * 1024  # some hundred bytes are usual
_TOKEN_S = "300"  # life of a session token of AWS
_NONE = 404  # HTTP: no notice has been given
# Any of them is an answer that is none of such a service: no HTTP, no JSON, or JSON of another shape.
_ANSWER_ERRORS = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)


class Worker:
    """Owns the link, the slots for escalations, and the tasks that judge them.

    State: the consumers known to exist on this connection, and by task the deliveries that are being judged.
    Invariant: an escalation is pulled only when a slot is free; all others stay free for other workers. A slot is
    taken before the pull and released after the verdict; metrics call slots places. `unready()` and `status.port` are
    for probes.
    """

    def __init__(
        self, config: WorkerConfig, judge: Judge, link: NatsLink, clock: Clock, *, archive: ArchivePort | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:  # fmt: skip
        """Take `archive` (None: nothing is archived) and `metrics` (None: the worker makes its own)."""
        self._config = config.worker
        self._streams = config.streams
        self._judge = judge
        self._link = link
        self._clock = clock
        self._archive = archive or NullArchive()
        self.metrics = metrics or WorkerMetrics()
        self._handler = EscalationHandler(config.worker, judge, link, clock, self.metrics, self._archive)
        self._changed = asyncio.Event()
        self._slots = ConcurrencySlots(config.worker.concurrency, self._changed.set, clock)
        self._queue = FairQueue()
        self._backlog = BacklogMonitor(self._queue, judge.worker, self.metrics, clock, self._changed.set)
        self._announcer = PoolAnnouncer(
            config.pool, judge.worker, self._slots.total, self.metrics, clock,
            ready=lambda: not self.unready(), waiting=lambda: sum(self._backlog.stored.counts.values()),
        )  # fmt: skip
        self._consumers: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._judging: dict[asyncio.Task[None], Delivery] = {}
        self._stop = asyncio.Event()
        self._drain_by = float("inf")
        self._spot = SpotWatch(config.spot, clock, self.drain_within) if config.spot.kind != "none" else None
        self._ack_wait_s = config.worker.ack_wait_s
        self._ack_wait_fell = asyncio.Event()
        self._warm = False
        self._reported: set[str] = set()
        self._throttle = LogThrottle(logger, clock)
        self.status = StatusServer(config.status, self.metrics.text, self.unready)
        self.api = AnalyzeServer(
            config.api, lambda case: self._handler.breaker.call(lambda: judge.verdict(case)), self.unready,
            self._announcer.price, judge.decoder, clock,
        )  # fmt: skip
        _add_gauges(self.metrics, self._backlog, self._slots, self._archive, self.unready)

    @property
    def counts(self) -> WorkerCounts:
        return WorkerCounts.of(self.metrics)

    @property
    def judging(self) -> int:
        """Return the number of escalations that are being judged."""
        return len(self._judging)

    def unready(self) -> str:
        """Return why no escalations are taken now; '' if they are."""
        if self._stop.is_set():
            return "stopping"
        if not self._link.state.up:
            return self._link.state.error or "not connected"
        if not self._warm:
            return f"warming up{': ' + self._handler.breaker.why if self._handler.breaker.why else ''}"
        return f"the judge is away: {self._handler.breaker.why}" if self._handler.breaker.why else ""

    def stop(self) -> None:
        """Take no more escalations, finish those at hand, and let `run()` return."""
        self._stop.set()

    def drain_within(self, seconds: float) -> None:
        """Stop because this machine is taken back: be gone in so many seconds, whatever `drain_s` allows.

        A drain that is under way is shortened.
        """
        self._drain_by = min(self._drain_by, self._clock.monotonic() + seconds - LEAVE_S)
        logger.warning("this machine is taken back in %.0f s: %d escalations in hand", seconds, self.judging)
        self.stop()

    async def run(self) -> None:
        """Work until `stop()`. Raise MissingDependency when the port for /metrics is taken."""
        await self.status.start()
        await self.api.start()
        keepers = [
            asyncio.create_task(self._link.run(), name="link"),
            asyncio.create_task(self._report_progress(), name="beat"),
        ]
        if self._spot is not None:
            keepers.append(asyncio.create_task(self._spot.run(), name="notice of the spot market"))
        backoff = Backoff(0.5, 5.0)
        try:
            while not self._stop.is_set():
                try:
                    await until_set(self._stop, self.run_once(backoff.reset), *keepers)
                except UplinkError as error:
                    self._throttle.report(error)
                    await until_set(self._stop, asyncio.sleep(backoff.next_s()), *keepers)
            await self._drain()
        finally:
            self.status.close()
            self.api.close()
            await end_tasks(*keepers, *self._tasks)
            await asyncio.to_thread(self._archive.close, ARCHIVE_DRAIN_S if self._stop.is_set() else 0.0)
            logger.info("ended: %s", self.counts)

    async def run_once(self, serves: Callable[[], None] = lambda: None) -> None:
        """Serve one connection. Raise UplinkError when it is lost or the broker refuses.

        serves: called once the streams are there, so that the next loss begins with a short pause.
        """
        client = await self._link.client()
        setup, jetstream = client.jetstream(timeout=SETUP_S_MAX), client.jetstream(timeout=PUBLISH_S_MAX)
        for difference in await stream_setup.ensure_streams(setup, self._streams):
            self._report_once(difference)
        serves()
        self._consumers.clear()
        with broker_errors("the escalations cannot be listened to"):
            announcements = await client.subscribe(
                stream_setup.ESCALATION_SUBJECTS, cb=self._backlog.on_message, pending_bytes_limit=2**20
            )
        lost = self._link.while_up(asyncio.Event().wait())
        work = (lost, self._backlog.run(jetstream), self._dispatch(client, setup), self._announcer.run(client))
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(*tasks)
            with contextlib.suppress(*NATS_ERRORS):
                await announcements.unsubscribe()

    async def _wait_for_judge(self) -> None:
        """Try the judge until it answers. Until then escalations stay at the broker, for workers that are ready."""
        backoff = Backoff(1.0, 30.0)
        while True:
            try:
                description = await self._handler.breaker.call(self._judge.check)
            except EngineError as error:
                self._throttle.report(f"not ready: {error}")
                await asyncio.sleep(backoff.next_s())
                continue
            self._warm = True
            logger.info("ready: %s", description)
            return

    async def _dispatch(self, client: Client, jetstream: JetStreamContext) -> None:
        if not self._warm:
            await self._wait_for_judge()
        logger.info("waiting for questions, %d at a time", self._slots.total)
        while True:
            self._changed.clear()
            priorities, now = self._slots.open_priorities(), self._clock.monotonic()
            site_queue = self._queue.next(priorities, now)
            if site_queue is not None:
                self._slots.acquire(site_queue.priority)
                task = asyncio.create_task(self._pull_and_handle(client, jetstream, site_queue))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            due = self._queue.next_due(priorities)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if due is None else max(0.001, due - now))

    async def _pull_and_handle(self, client: Client, jetstream: JetStreamContext, site_queue: SiteQueue) -> None:
        """Pull one escalation of a site and handle it. The slot is released in any case."""
        task = asyncio.current_task()
        assert task is not None
        try:
            delivery = await self._pull(client, jetstream, site_queue)
            if delivery is None:
                return
            self._judging[task] = delivery
            if self._stop.is_set():
                await delivery.nak()
                return
            await self._handler.handle(delivery)
        finally:
            self._judging.pop(task, None)
            self._slots.release(site_queue.priority)

    async def _pull(self, client: Client, jetstream: JetStreamContext, site_queue: SiteQueue) -> Delivery | None:
        found, name = None, (site_queue.site, site_queue.priority)
        try:
            if name not in self._consumers:
                consumer = await stream_setup.ensure_consumer(jetstream, *name, self._config.ack_wait_s)
                for difference in consumer.differences:
                    self._report_once(difference)
                if 0 < consumer.ack_wait_s < self._ack_wait_s:
                    self._ack_wait_s = consumer.ack_wait_s
                    self._ack_wait_fell.set()
                self._consumers.add(name)
            found = await pull_next(client, self._link, *name)
        except NoConsumer:  # the next attempt, after the sweep, creates it again
            self._consumers.discard(name)
        except UplinkError as error:
            self._throttle.report(error)
            await until_set(self._stop, asyncio.sleep(PULL_PAUSE_S if self._link.state.up else 0.0))
        finally:
            now = self._clock.monotonic()
            if found is None:
                self._queue.empty(site_queue, now)
            else:
                self._queue.served(site_queue, now)
                self._changed.set()
        return found

    async def _report_progress(self) -> None:
        """Tell the broker of each escalation that is being judged that the work goes on, three times per ack_wait.

        Consumers may have been created by workers with another `ack_wait_s`; the shortest one counts.
        """
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ack_wait_fell.wait(), self._ack_wait_s / 3)
            self._ack_wait_fell.clear()
            for delivery in list(self._judging.values()):
                await delivery.in_progress()

    async def _drain(self) -> None:
        """Let the escalations that are being judged finish for up to `drain_s`, and give back the rest."""
        if self._link.client_now is not None:
            await self._announcer.announce(self._link.client_now)  # the sites know at once that it takes no more
        self._drain_by = min(self._drain_by, self._clock.monotonic() + self._config.drain_s)
        if self._tasks:
            logger.info("finishing %d escalations", len(self._judging))
        while self._tasks and (left_s := self._drain_by - self._clock.monotonic()) > 0:
            await asyncio.wait(list(self._tasks), timeout=min(left_s, DRAIN_LOOK_S))
        left = dict(self._judging)
        await end_tasks(*self._tasks)
        for delivery in left.values():
            await delivery.nak()
        client = self._link.client_now
        if client is not None:
            with contextlib.suppress(*NATS_ERRORS):
                await client.flush(2)

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add(sentence)
            logger.warning("%s", sentence)


def _add_gauges(
    metrics: WorkerMetrics,
    backlog: BacklogMonitor,
    slots: ConcurrencySlots,
    archive: ArchivePort,
    unready: Callable[[], str],
) -> None:
    """Add the numbers that are read when the metrics are read."""
    add = metrics.add_gauge
    add("ready", "1 while escalations are taken.", lambda: not unready())
    add("places", "Escalations that may be judged at a time.", lambda: slots.total)
    add("backlog_sites", "Sites with an escalation stored at the broker.", lambda: backlog.stored.sites)
    add("archive_waiting", "Verdicts that are not archived yet.", archive.waiting)
    metrics.add_gauges("judging", "Escalations in hand.", slots.in_use)
    metrics.add_gauges("backlog", "Escalations stored at the broker, those in hand included.", backlog.count)


class SpotWatch:
    """Watches for the cloud's notice that this machine's spot capacity is taken back: its work goes on elsewhere.

    | kind | what is asked | the notice |
    |---|---|---|
    | aws | `/latest/meta-data/spot/instance-action`, with a token (IMDSv2) | JSON with `time`; 404: none. Two minutes |
    | gcp | `/computeMetadata/v1/instance/preempted` | `TRUE`. Thirty seconds |
    | azure | `/metadata/scheduledevents` | an event `Preempt`. Thirty seconds at least |

    Only the machine itself can reach these addresses. Unmeasured: on a machine of these clouds; tests ask a stand-in.
    State: none but its log. Owner: the worker's loop, one task.
    """

    def __init__(self, settings: SpotConfig, clock: Clock, noticed: Callable[[float], None]) -> None:
        """noticed: called once, with the seconds that are left."""
        self._settings = settings
        self._clock = clock
        self._noticed = noticed
        self._url = settings.url or NOTICE_ADDRESSES[settings.kind]
        self._log = LogThrottle(logger, clock)

    async def run(self) -> None:
        """Ask every `every_s` until there is a notice; then wait for ever."""
        while True:
            try:
                left_s = await asyncio.to_thread(self._left_s)
            except _ANSWER_ERRORS as error:
                self._log.report(f"the notices of the spot market cannot be read: {error} (spot.kind, spot.url)")
            else:
                if left_s is not None:
                    self._noticed(left_s)
                    await asyncio.Event().wait()
            await asyncio.sleep(self._settings.every_s)

    def _left_s(self) -> float | None:
        """Return the seconds until the machine is taken back; None: there is no notice. Raise any of _ANSWER_ERRORS."""
        grace_s = self._settings.grace_s
        if self._settings.kind == "gcp":
            path, headers = "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
            return grace_s if self._read(path, headers) == b"TRUE" else None
        if self._settings.kind == "azure":
            body = self._read("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
            events = json.loads(body or b"{}").get("Events", [])
            return grace_s if any(each.get("EventType") == "Preempt" for each in events) else None
        token = self._read("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_S}, method="PUT")
        headers = {"X-aws-ec2-metadata-token": (token or b"").decode("ascii")}
        body = self._read("/latest/meta-data/spot/instance-action", headers)
        if body is None:
            return None
        at = datetime.fromisoformat(json.loads(body)["time"].replace("Z", "+00:00"))
        return max(0.0, at.timestamp() - self._clock.now())

    def _read(self, path: str, headers: Mapping[str, str], method: str = "GET") -> bytes | None:
        """Return the answer; None: there is no such thing (404)."""
        request = urllib.request.Request(self._url + path, headers=dict(headers), method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # one would answer for itself
        try:
            with direct.open(request, timeout=NOTICE_S_MAX) as answer:
                body: bytes = answer.read(NOTICE_BYTES_MAX)
                return body
        except urllib.error.HTTPError as error:
            if error.code == _NONE:
                return None
            raise
