"""The worker: pulls questions, has them judged, publishes verdicts, and never leaves a question without an end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from appliance.backoff import Backoff
from appliance.broker import Link, end_tasks
from appliance.clock import Clock
from appliance.errors import EngineError, EngineUnavailable, UplinkError
from appliance.telemetry import Repeats
from appliance.wire import (
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_VERDICT,
    Escalation,
    Verdict,
    WireError,
    verdict_message_id,
    verdict_subject,
)
from cloud_worker import streams
from cloud_worker.config import WorkerConfig
from cloud_worker.judge import Case, Judge
from cloud_worker.pull import Delivery, Hand
from cloud_worker.question import read, salvage

ANSWERED_MAX = 4096
Key = tuple[str, str, int]
"""Site, escalation and step: what is judged once."""
RETRY_S_MAX = 600.0
FETCH_TRIES = 3
PUBLISH_S_MAX = 5.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What this worker did since it started. more: of those judged, how many asked for more evidence."""

    judged: int = 0
    more: int = 0
    repeated: int = 0
    refused: int = 0
    retried: int = 0
    given_up: int = 0


class Worker:
    """Owner of the link, of the questions it holds, and of the tasks that judge them.

    Invariant: a question is acknowledged only after the broker has stored its verdict. What is lost between the two
    is delivered again and answered from `_answered`, or judged again by another worker: the site applies one.
    """

    def __init__(self, config: WorkerConfig, judge: Judge, link: Link, clock: Clock) -> None:
        self._config = config.worker
        self._streams = config.streams
        self._judge = judge
        self._link = link
        self._clock = clock
        self._hand = Hand()
        self._places = asyncio.Semaphore(config.worker.concurrency)
        self._judging: dict[asyncio.Task[None], Delivery] = {}
        self._at_work: set[Key] = set()
        self._answered: OrderedDict[Key, Verdict] = OrderedDict()
        self._stop = asyncio.Event()
        self._said: set[str] = set()
        self._engine_repeats = Repeats(logger, clock)
        self._refusals = Repeats(logger, clock)
        self.counts = Counts()

    def stop(self) -> None:
        """Take no more questions, finish those at hand, and let `run()` return."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop()`."""
        keepers = [asyncio.create_task(self._link.run(), name="link"), asyncio.create_task(self._beat(), name="beat")]
        backoff = Backoff(0.5, 15.0)
        try:
            while not self._stop.is_set():
                try:
                    await self._until_stop(self.run_once())
                    backoff.forgive()
                except UplinkError as error:
                    self._say_once(str(error))
                    await self._until_stop(asyncio.sleep(backoff.next_s()))
            await self._drain()
        finally:
            await end_tasks(*keepers, *self._judging)
            logger.info("ended: %s", self.counts)

    async def run_once(self) -> None:
        """Serve one connection. Raises UplinkError when it is lost or the broker refuses."""
        client = await self._link.client()
        jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
        for difference in await streams.ensure(jetstream, self._streams, self._config.ack_wait_s):
            self._say_once(difference)
        pulls = []
        for priority in PRIORITIES:
            subscription = await jetstream.pull_subscribe_bind(f"worker-{priority}", stream=STREAM_ESCALATION)
            pulls.append(asyncio.create_task(self._hand.pull(subscription, priority, self._link)))
        logger.info("waiting for questions, %d at a time", self._config.concurrency)
        tasks = [*pulls, asyncio.create_task(self._dispatch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(*tasks)

    async def _dispatch(self) -> None:
        while True:
            await self._places.acquire()
            try:
                delivery = await self._hand.take()
            except BaseException:
                self._places.release()
                raise
            task = asyncio.create_task(self._handle(delivery))
            self._judging[task] = delivery
            task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._judging.pop(task, None)
        self._places.release()

    async def _handle(self, delivery: Delivery) -> None:
        """Bring one delivered question to an end, or have it delivered again."""
        try:
            escalation = read(delivery)
        except WireError as error:
            await self._refuse(delivery, error)
            return
        key = (escalation.site, escalation.id, escalation.step)
        if key in self._at_work:  # delivered twice: the first is still being judged here
            await delivery.again(self._config.ack_wait_s)
            return
        self._at_work.add(key)
        try:
            await self._answer(delivery, escalation)
        except EngineError as error:
            await self._retry(delivery, escalation, str(error))
        except UplinkError as error:
            self._say_once(str(error))
            await delivery.again(self._config.retry_s)
        except Exception:
            logger.exception("a fault in the worker while judging %s", escalation.id)
            await self._retry(delivery, escalation, "a fault in the worker")
        finally:
            self._at_work.discard(key)

    async def _answer(self, delivery: Delivery, escalation: Escalation) -> None:
        key = (escalation.site, escalation.id, escalation.step)
        verdict = self._answered.get(key)
        if verdict is not None:
            self.counts.repeated += 1
        elif delivery.count > self._config.deliveries_max:
            self.counts.given_up += 1
            reason = f"It could not be judged in {self._config.deliveries_max} attempts; workers may have died over it."
            verdict = self._judge.unsure(escalation, reason)
        else:
            verdict = await self._ask(delivery, escalation)
            self.counts.judged += 1
            self.counts.more += verdict.need is not None
        self._remember(key, verdict)
        await self._publish(verdict)
        await delivery.ack()

    async def _ask(self, delivery: Delivery, escalation: Escalation) -> Verdict:
        """Fetch and judge; hold the question while the engine is away. Raises EngineError, UplinkError."""
        queue_s = max(0.0, self._clock.now() - delivery.stored.timestamp())
        case, fetch_s = await self._fetch(escalation)
        backoff, since = Backoff(1.0, 60.0), self._clock.monotonic()
        while True:
            try:
                return await self._judge.verdict(case, fetch_s, queue_s)
            except EngineUnavailable as error:
                self._engine_repeats.report(f"questions wait: {error}")
                if self._clock.monotonic() - since >= self._config.engine_wait_max_s:
                    self.counts.given_up += 1
                    return self._judge.unsure(escalation, f"The judge could not be asked: {error}")
                await asyncio.sleep(max(backoff.next_s(), error.after_s or 0.0))

    async def _fetch(self, escalation: Escalation) -> tuple[Case, float]:
        backoff = Backoff(0.5, 5.0)
        for attempt in range(1, FETCH_TRIES + 1):
            client = await self._link.client()
            try:
                return await self._judge.case(client.jetstream(timeout=PUBLISH_S_MAX), escalation)
            except UplinkError:
                if attempt == FETCH_TRIES:
                    raise
                await asyncio.sleep(backoff.next_s())
        raise AssertionError("unreachable")

    async def _publish(self, verdict: Verdict) -> None:
        """Store the verdict with the broker, waiting for a connection if there is none. Raises UplinkError."""
        client: Client = await self._link.client()
        headers = {"Nats-Msg-Id": verdict_message_id(verdict)}
        try:
            await self._link.while_up(
                client.jetstream(timeout=PUBLISH_S_MAX).publish(
                    verdict_subject(verdict.site), verdict.to_json(), stream=STREAM_VERDICT, headers=headers
                )
            )
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            raise UplinkError(f"a verdict could not be stored: {type(error).__name__}; it is sent again") from None

    async def _retry(self, delivery: Delivery, escalation: Escalation, why: str) -> None:
        """Again later, or `unsure` after the last attempt."""
        self._engine_repeats.report(f"{escalation.id}: attempt {delivery.count} failed: {why}")
        if delivery.count < self._config.deliveries_max:
            self.counts.retried += 1
            await delivery.again(min(self._config.retry_s * 2 ** (delivery.count - 1), RETRY_S_MAX))
            return
        self.counts.given_up += 1
        await self._end_with(
            delivery, self._judge.unsure(escalation, f"Given up after {delivery.count} attempts: {why}")
        )

    async def _refuse(self, delivery: Delivery, error: WireError) -> None:
        """A question that cannot be understood: say so to the site if it can be told which one it was, and end it."""
        self.counts.refused += 1
        self._refusals.report(f"refused a message on {delivery.subject}: {error}")
        stub = salvage(delivery)
        if stub is None:
            await delivery.end()
            return
        await self._end_with(
            delivery, self._judge.unsure(stub, f"The worker does not understand the question: {error}")
        )

    async def _end_with(self, delivery: Delivery, verdict: Verdict) -> None:
        try:
            await self._publish(verdict)
            await delivery.ack()
        except UplinkError as error:
            self._say_once(str(error))
            await delivery.again(self._config.retry_s)

    def _remember(self, key: Key, verdict: Verdict) -> None:
        self._answered[key] = verdict
        while len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)

    async def _beat(self) -> None:
        """Tell the broker of every question held that it is being worked on, three times per ack_wait."""
        while True:
            await asyncio.sleep(self._config.ack_wait_s / 3)
            for delivery in [*self._judging.values(), *self._hand.deliveries()]:
                await delivery.in_progress()

    async def _drain(self) -> None:
        """Give back what nobody judges yet, and let the rest finish for a while."""
        for delivery in self._hand.empty():
            await delivery.again()
        if self._judging:
            logger.info("finishing %d questions", len(self._judging))
            await asyncio.wait(list(self._judging), timeout=self._config.drain_s)
        for task, delivery in list(self._judging.items()):
            task.cancel()
            await delivery.again()
        client = self._link.connected
        if client is not None:
            with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await client.flush(2)

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, or cancel it when `stop()` is called."""
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            await end_tasks(task, stopping)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < 1000:
            self._said.add(sentence)
            logger.warning("%s", sentence)
