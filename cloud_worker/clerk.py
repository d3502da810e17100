"""Brings one delivered question to its end: a verdict, another delivery, or the dead letters with the reason."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace

import nats.errors
from nats.aio.client import Client

from appliance.backoff import Backoff
from appliance.broker import Link
from appliance.clock import Clock
from appliance.errors import EngineError, EngineUnavailable, UplinkError
from appliance.telemetry import Repeats
from appliance.wire import STREAM_VERDICT, Escalation, Verdict, WireError, verdict_message_id, verdict_subject
from cloud_worker import deadletters
from cloud_worker.config import Worker as WorkerSettings
from cloud_worker.deadletters import DeadLetter, Kind
from cloud_worker.judge import Case, Judge, Way
from cloud_worker.numbers import Numbers
from cloud_worker.pull import Delivery
from cloud_worker.question import read, salvage
from cloud_worker.shelf import Shelf
from cloud_worker.turnstile import Turnstile

ANSWERED_MAX = 4096
RETRY_S_MAX = 600.0
FETCH_TRIES = 3
PUBLISH_S_MAX = 5.0

Key = tuple[str, str, int]
"""Site, escalation and step: what is judged once."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be said to the site, and what a person should know of it, if anything. case: what was judged."""

    verdict: Verdict
    dead: tuple[Kind, str] | None = None
    case: Case | None = None


class Clerk:
    """Owner of what was answered lately, and of what is being judged here.

    Invariant: a question is acknowledged only after the broker has stored its verdict. What is lost between the two
    is delivered again and answered from `_answered`, or judged again by another worker: under the same message id, so
    that one verdict is stored, and the site applies one.
    """

    def __init__(
        self, settings: WorkerSettings, judge: Judge, link: Link, clock: Clock, numbers: Numbers, shelf: Shelf
    ) -> None:
        self._settings = settings
        self._judge = judge
        self._link = link
        self._clock = clock
        self._numbers = numbers
        self._shelf = shelf
        self.turnstile = Turnstile(clock)
        self._at_work: set[Key] = set()
        self._answered: OrderedDict[Key, Verdict] = OrderedDict()
        self._engine_repeats = Repeats(logger, clock)
        self._refusals = Repeats(logger, clock)
        self._uplink_repeats = Repeats(logger, clock)

    async def handle(self, delivery: Delivery) -> None:
        """Bring it to an end, or have it delivered again."""
        try:
            escalation = read(delivery)
        except WireError as error:
            await self._refuse(delivery, error)
            return
        key = (escalation.site, escalation.id, escalation.step)
        if key in self._at_work:  # delivered twice: the first is still being judged here
            await delivery.again(self._settings.ack_wait_s)
            return
        self._at_work.add(key)
        try:
            await self._answer(delivery, escalation, key)
        except EngineError as error:
            await self._retry(delivery, escalation, "engine", str(error))
        except UplinkError as error:
            await self._later(delivery, error)
        except Exception:
            logger.exception("a fault in the worker while judging %s", escalation.id)
            await self._retry(delivery, escalation, "fault", "a fault in the worker")
        finally:
            self._at_work.discard(key)

    async def _answer(self, delivery: Delivery, escalation: Escalation, key: Key) -> None:
        known = self._answered.get(key) if deadletters.REQUEUED not in delivery.headers else None
        if known is not None:
            self._numbers.repeated.add()
            await self._say(known)
            await delivery.ack()
            return
        if delivery.count > self._settings.deliveries_max:
            self._numbers.given_up.add()
            why = f"It could not be judged in {self._settings.deliveries_max} attempts; workers may have died over it."
            outcome = Outcome(self._judge.unsure(escalation, why), ("redelivered", why))
        else:
            outcome = await self._ask(delivery, escalation)
            self._numbers.judged.add()
        self._remember(key, outcome.verdict)
        await self._end(delivery, escalation, outcome)

    async def _ask(self, delivery: Delivery, escalation: Escalation) -> Outcome:
        """Fetch and judge; hold the question while the engine is away. Raises EngineError, UplinkError."""
        stored_t = delivery.stored.timestamp()
        way = Way(link_s=max(0.0, stored_t - escalation.created_t), queue_s=max(0.0, self._clock.now() - stored_t))
        case, fetch_s = await self._fetch(escalation)
        way, since = replace(way, fetch_s=fetch_s), self._clock.monotonic()
        while True:
            try:
                verdict = await self.turnstile.through(lambda: self._judge.verdict(case, way))
            except EngineUnavailable as error:
                self._engine_repeats.report(f"questions wait: {error}")
                if self._clock.monotonic() - since < self._settings.engine_wait_max_s:
                    continue
                self._numbers.given_up.add()
                why = f"The judge could not be asked: {error}"
                return Outcome(self._judge.unsure(escalation, why), ("engine", why), case)
            never = case.absent and not case.pictures and verdict.need is None
            return Outcome(verdict, ("media", "; ".join(case.lost)) if never else None, case)

    async def _fetch(self, escalation: Escalation) -> tuple[Case, float]:
        """The case and the seconds that took. When none of the evidence is there, it may still be on its way."""
        backoff, started = Backoff(0.25, 2.0), self._clock.monotonic()
        while True:
            case, _ = await self._fetch_once(escalation)
            took_s = self._clock.monotonic() - started
            if case.pictures or not case.absent or took_s >= self._settings.media_wait_s:
                return case, took_s
            await asyncio.sleep(min(backoff.next_s(), self._settings.media_wait_s - took_s))

    async def _fetch_once(self, escalation: Escalation) -> tuple[Case, float]:
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

    async def _end(self, delivery: Delivery, escalation: Escalation, outcome: Outcome) -> None:
        """Verdict, dead letter, archive, acknowledgement: in this order. Raises UplinkError."""
        judged_at = self._clock.monotonic()
        verdict = outcome.verdict
        if outcome.case is not None:
            links = self._shelf.links(outcome.case, verdict)
            verdict = verdict.model_copy(update={"archive": links})
        await self._say(verdict, judged_at)
        if outcome.dead is not None:
            await self._bury(delivery, *outcome.dead)
        took_s = self._clock.monotonic() - judged_at
        told = verdict.model_copy(update={"timings": {**verdict.timings, "publish": took_s}})
        self._numbers.said(escalation, told, delivery.priority)
        since_s = max(0.0, self._clock.now() - delivery.stored.timestamp())
        self._numbers.verdict_seconds.observe(since_s, delivery.priority)
        if outcome.case is not None:
            self._shelf.put(outcome.case, told)
        await delivery.ack()

    async def _say(self, verdict: Verdict, judged_at: float | None = None) -> None:
        """Store the verdict with the broker, waiting for a connection if there is none. Raises UplinkError."""
        client: Client = await self._link.client()
        if judged_at is not None:
            timings = {**verdict.timings, "publish": round(self._clock.monotonic() - judged_at, 4)}
            verdict = verdict.model_copy(update={"timings": timings})
        headers = {"Nats-Msg-Id": verdict_message_id(verdict)}
        try:
            await self._link.while_up(
                client.jetstream(timeout=PUBLISH_S_MAX).publish(
                    verdict_subject(verdict.site), verdict.to_json(), stream=STREAM_VERDICT, headers=headers
                )
            )
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            raise UplinkError(f"a verdict could not be stored: {type(error).__name__}; it is sent again") from None

    async def _retry(self, delivery: Delivery, escalation: Escalation, kind: Kind, why: str) -> None:
        """Again later, or `unsure` after the last attempt."""
        self._engine_repeats.report(f"{escalation.id}: attempt {delivery.count} failed: {why}")
        if delivery.count < self._settings.deliveries_max:
            self._numbers.retries.add()
            await delivery.again(min(self._settings.retry_s * 2 ** (delivery.count - 1), RETRY_S_MAX))
            return
        self._numbers.given_up.add()
        reason = f"Given up after {delivery.count} attempts: {why}"
        await self._end_with(delivery, escalation, Outcome(self._judge.unsure(escalation, reason), (kind, reason)))

    async def _refuse(self, delivery: Delivery, error: WireError) -> None:
        """A question that cannot be understood: say so to the site if it can be told which one it was, and end it."""
        self._numbers.refused.add()
        self._refusals.report(f"refused a message on {delivery.subject}: {error}")
        stub = salvage(delivery)
        if stub is None:
            try:
                await self._bury(delivery, "unreadable", str(error))
                await delivery.ack()
            except UplinkError as trouble:
                await self._later(delivery, trouble)
            return
        reason = f"The worker does not understand the question: {error}"
        await self._end_with(delivery, stub, Outcome(self._judge.unsure(stub, reason), ("unreadable", str(error))))

    async def _end_with(self, delivery: Delivery, escalation: Escalation, outcome: Outcome) -> None:
        try:
            await self._end(delivery, escalation, outcome)
        except UplinkError as error:
            await self._later(delivery, error)

    async def _later(self, delivery: Delivery, error: UplinkError) -> None:
        self._uplink_repeats.report(error)
        await delivery.again(self._settings.retry_s)

    async def _bury(self, delivery: Delivery, kind: Kind, reason: str) -> None:
        """Keep the question among the dead letters. Raises UplinkError."""
        client = await self._link.client()
        letter = DeadLetter(
            kind=kind,
            reason=reason,
            subject=delivery.subject,
            message_id=delivery.headers.get("Nats-Msg-Id", str(delivery.seq)),
            deliveries=delivery.count,
            stored=delivery.stored.isoformat(timespec="milliseconds"),
            worker=self._judge.worker,
            data=delivery.data,
        )
        await self._link.while_up(deadletters.put(client.jetstream(timeout=PUBLISH_S_MAX), letter))
        self._numbers.dead.add(kind)

    def _remember(self, key: Key, verdict: Verdict) -> None:
        self._answered[key] = verdict
        while len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)
