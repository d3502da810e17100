"""Handles one delivered escalation until it has a verdict, is retried, or becomes a dead letter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from pydantic import ValidationError

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, UplinkError, VedetteError
from appliance.base.json_lines import WireError
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_link import NatsLink
from appliance.wire import (
    PROVISIONAL_SCHEMA,
    STEPS_MAX,
    TEXT_CHARS_MAX,
    TRACEPARENT,
    ArchiveLink,
    Escalation,
    Verdict,
    traceparent_after,
    traceparent_of,
)
from cloud_worker import dead_letter_store
from cloud_worker.config import HandlingConfig
from cloud_worker.dead_letter_store import DeadLetter, Kind
from cloud_worker.evidence import FETCHES_MAX, fetch
from cloud_worker.judge import Judge, JudgeBreaker, JudgeCase, Timings
from cloud_worker.metrics import WorkerMetrics
from cloud_worker.stream_setup import Delivery
from cloud_worker.verdict_stream import PUBLISH_S_MAX, NotWanted, SiteElsewhere, VerdictRefused, VerdictStream

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
ANSWERED_MAX = 4096  # verdicts remembered against redelivery, 2 kB each; counts of failures, too
REPEATED_AFTER_S = 60.0  # a site repeats after minutes; asking costs two round trips to the broker
OVERTAKEN_S = 1.0  # evidence is here sooner as a rule, and asking the broker again costs two round trips
ELSEWHERE_RETRY_S = 5.0  # until a site that is not connected here is looked for again
RETRY_S_MAX = 600.0  # longest pause between two attempts at one escalation
FETCH_TRIES = 3  # a broker that changes its leader answers within seconds
EscalationKey = tuple[str, str, int]
"""Site, escalation and step: what is judged once."""
_Known = TypeVar("_Known")

logger = logging.getLogger(__name__)


class ArchivePort(Protocol):
    """An archive. Nothing here may wait: a verdict is never late because of it."""

    def links(self, case: JudgeCase, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        """Return where the evidence and the verdict will be found."""
        ...

    def put(self, case: JudgeCase, verdict: Verdict) -> None:
        """Keep them, soon. When too much is waiting they are left out, which is counted."""
        ...

    def waiting(self) -> int:
        """Return how many verdicts are not archived yet."""
        ...

    def close(self, seconds: float) -> None:
        """Finish for at most `seconds`; what is left then is left out, and counted. Blocks."""
        ...


class AnsweredMeanwhile(VedetteError):
    """Another worker has stored the answer since this one looked for it."""


class NullArchive:
    """Archives nothing."""

    def links(self, case: JudgeCase, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        return ()

    def put(self, case: JudgeCase, verdict: Verdict) -> None: ...

    def waiting(self) -> int:
        return 0

    def close(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """The answer to the site, and what goes with it.

    `dead` holds the kind and reason of the dead letter, if it becomes one. `case` is the one that was judged. `stored`:
    the broker has the verdict and the dead letter. `early`: its decision was stored before.
    """

    verdict: Verdict
    dead: tuple[Kind, str] | None = None
    case: JudgeCase | None = None
    stored: bool = False
    early: bool = False


class EscalationHandler:
    """State: what was answered lately, what is being judged here, and how often that failed. Owner: one event loop.

    Invariant: an escalation is acknowledged only after the broker has stored its verdict. What is lost between the two
    is delivered again and answered from `_answered`; another worker asks the broker first whether it holds the verdict,
    so that no model is paid for it twice. A verdict that is judged again all the same has the same message id: one is
    stored, and the site applies one.
    """

    def __init__(
        self,
        settings: HandlingConfig,
        judge: Judge,
        link: NatsLink,
        clock: Clock,
        metrics: WorkerMetrics,
        archive: ArchivePort,
    ) -> None:
        self._settings = settings
        self._judge = judge
        self._link = link
        self._verdicts = VerdictStream(link, clock)
        self._clock = clock
        self._metrics = metrics
        self._archive = archive
        self.breaker = JudgeBreaker(clock)
        self._in_hand: set[EscalationKey] = set()
        self._answered: OrderedDict[EscalationKey, HandlerOutcome] = OrderedDict()
        self._failed: OrderedDict[EscalationKey, int] = OrderedDict()
        self._engine_log = LogThrottle(logger, clock)
        self._refusal_log = LogThrottle(logger, clock)
        self._uplink_log = LogThrottle(logger, clock)

    async def handle(self, delivery: Delivery) -> None:
        """Bring it to an end, or have it delivered again. Raises nothing that a broker, site or judge may cause."""
        try:
            await self._handle(delivery)
        except UplinkError as error:
            self._uplink_log.report(error)
            await delivery.nak(self._settings.retry_s)

    async def _handle(self, delivery: Delivery) -> None:
        """Raise UplinkError."""
        try:
            escalation = parse_escalation(delivery)
        except WireError as error:
            await self._refuse(delivery, error)
            return
        key = (escalation.site, escalation.id, escalation.step)
        if key in self._in_hand:  # delivered twice: the first is still being judged here, and says so to the broker
            await delivery.in_progress()
            return
        self._in_hand.add(key)
        try:
            await self._answer(delivery, escalation, key)
        except NotWanted:
            self._metrics.withdrawn.inc()
            await delivery.ack()
        except AnsweredMeanwhile:
            self._metrics.repeated.inc()
            await delivery.ack()
        except SiteElsewhere:
            await delivery.nak(ELSEWHERE_RETRY_S)
        except EngineError as error:
            await self._retry(delivery, escalation, "engine", str(error))
        except UplinkError:
            raise
        except Exception:
            logger.exception("a fault in the worker while judging %s", escalation.id)
            await self._retry(delivery, escalation, "fault", "a fault in the worker")
        finally:
            self._in_hand.discard(key)

    async def _answer(self, delivery: Delivery, escalation: Escalation, key: EscalationKey) -> None:
        requeued = dead_letter_store.REQUEUED in delivery.headers
        known = None if requeued else self._answered.get(key)
        asks = known is None and not requeued and _may_be_known(delivery, escalation, self._clock.now())
        if asks and await self._verdicts.holds_answer(escalation):
            self._metrics.repeated.inc()
            await delivery.ack()
            return
        if known is not None:
            self._metrics.repeated.inc()
            if known.stored:
                with contextlib.suppress(VerdictRefused):  # it is among the dead letters
                    await self._verdicts.publish(known.verdict, _trace(delivery, escalation))
                await delivery.ack()
            else:
                await self._finish(delivery, escalation, known, key)
            return
        await self._check_wanted(delivery, escalation)
        if delivery.count > _deliveries_max(delivery, escalation, self._settings, self._clock.now()):
            self._metrics.given_up.inc()
            why = f"It could not be judged in {self._settings.deliveries_max} attempts; workers may have died over it."
            outcome = HandlerOutcome(self._judge.unsure(escalation, why), ("redelivered", why))
        elif (late := _too_late(delivery, self._settings, self._clock.now())) is not None:
            self._metrics.shed.labels(delivery.priority).inc()
            outcome = HandlerOutcome(self._judge.unsure(escalation, late))
        else:
            outcome = await self._fetch_and_judge(delivery, escalation)
            if outcome.dead is None:
                self._metrics.judged.inc()
        _remember(self._answered, key, replace(outcome, case=None))  # which may be megabytes
        await self._finish(delivery, escalation, outcome, key)

    async def _fetch_and_judge(self, delivery: Delivery, escalation: Escalation) -> HandlerOutcome:
        """Fetch and judge; hold the escalation while the engine is away. Raise EngineError, UplinkError."""
        looked = self._clock.monotonic()
        timings = Timings(
            link_s=max(0.0, delivery.stored.timestamp() - escalation.created_t),
            queue_s=max(0.0, _waited_s(delivery, self._clock.now())),
        )
        case, fetch_s = await self._fetch(escalation)
        case = replace(case, traceparent=_trace(delivery, escalation))
        timings, since = replace(timings, fetch_s=fetch_s), self._clock.monotonic()
        while True:
            try:
                if case.files:
                    verdict, rest = await self.breaker.call(lambda: self._begin(case, timings, delivery, looked))
                else:  # no engine is asked, so the answer says nothing of it
                    verdict, rest = await self._begin(case, timings, delivery, looked)
            except EngineUnavailable as error:
                self._engine_log.report(f"questions wait: {error}")
                if self._clock.monotonic() - since < self._settings.engine_wait_max_s:
                    continue
                self._metrics.given_up.inc()
                why = f"The judge could not be asked: {error}"
                return HandlerOutcome(self._judge.unsure(escalation, why), ("engine", why), case)
            early = rest is not None and await self._publish_early(verdict, rest, escalation, delivery)
            verdict = verdict if rest is None else await rest
            unseen = case.absent and not case.files and verdict.need is None
            dead: tuple[Kind, str] | None = ("media", "; ".join(case.lost)) if unseen else None
            if unseen:
                self._metrics.given_up.inc()
            return HandlerOutcome(verdict, dead, case, early=early)

    async def _begin(
        self, case: JudgeCase, timings: Timings, delivery: Delivery, looked: float
    ) -> tuple[Verdict, asyncio.Task[Verdict] | None]:
        """Ask the judge, unless the site stopped waiting or another worker answered meanwhile. Raise as its `begin`.

        looked: when nobody had answered yet, monotonic seconds. A worker that stood still is overtaken by another.
        """
        await self._check_wanted(delivery, case.escalation)
        may_be_overtaken = (
            dead_letter_store.REQUEUED not in delivery.headers and self._clock.monotonic() - looked > OVERTAKEN_S
        )
        if may_be_overtaken and await self._verdicts.holds_answer(case.escalation):
            raise AnsweredMeanwhile(f"{case.escalation.id} was answered by another worker")
        return await self._judge.begin(case, timings)

    async def _check_wanted(self, delivery: Delivery, escalation: Escalation) -> None:
        """Ask the site, where another region may have answered meanwhile. Raise NotWanted, SiteElsewhere, UplinkError.

        After `engine_wait_max_s` the escalation is judged in any case.
        """
        waited_s = _waited_s(delivery, self._clock.now())
        if escalation.elsewhere_s and escalation.elsewhere_s <= waited_s < self._settings.engine_wait_max_s:
            await self._verdicts.check_wanted(escalation)

    async def _publish_early(
        self, first: Verdict, rest: asyncio.Task[Verdict], escalation: Escalation, delivery: Delivery
    ) -> bool:
        """Store the decision while its reason is being written, for a site that knows of this; True when it is stored.

        A broker that does not take it changes nothing: the whole verdict is stored in any case.
        """
        if escalation.schema_version < PROVISIONAL_SCHEMA:
            return False
        try:
            await self._verdicts.publish(first, _trace(delivery, escalation), self._clock.monotonic())
            since_s = max(0.0, _waited_s(delivery, self._clock.now()))
            self._metrics.decision_seconds.labels(delivery.priority).observe(since_s)
            return True
        except (UplinkError, VerdictRefused) as error:
            self._uplink_log.report(error)
            return False
        except BaseException:
            rest.cancel()
            raise

    async def _fetch(self, escalation: Escalation) -> tuple[JudgeCase, float]:
        """Return the case and the seconds that it took.

        When none of the evidence is there, it may still be on its way.
        """
        backoff, started = Backoff(0.25, 2.0), self._clock.monotonic()
        while True:
            case = await _fetch_once(self._link, self._judge, escalation)
            took_s = self._clock.monotonic() - started
            if case.files or not case.absent or took_s >= self._settings.media_wait_s:
                return case, took_s
            await asyncio.sleep(min(backoff.next_s(), self._settings.media_wait_s - took_s))

    async def _finish(
        self, delivery: Delivery, escalation: Escalation, outcome: HandlerOutcome, key: EscalationKey | None = None
    ) -> None:
        """Store the verdict, then the dead letter, then the archive entry, and acknowledge last. Raise UplinkError.

        `key`: under which the handler remembers that all is stored.
        """
        judged_at, trace = self._clock.monotonic(), _trace(delivery, escalation)
        verdict = outcome.verdict
        if outcome.case is not None:
            links = self._archive.links(outcome.case, verdict)
            verdict = verdict.model_copy(update={"archive": links})
        dead = outcome.dead
        try:
            await self._verdicts.publish(verdict, trace, judged_at)
        except VerdictRefused as error:
            verdict, dead = (
                self._judge.unsure(escalation, "The answer was too long for the broker."),
                ("fault", str(error)),
            )
            with contextlib.suppress(VerdictRefused):  # then the site asks again, and is told by the dead letter
                await self._verdicts.publish(verdict, trace)
        if dead is not None:
            await self._dead_letter(delivery, *dead)
        took_s = self._clock.monotonic() - judged_at
        stored = verdict.model_copy(update={"timings": {**verdict.timings, "publish": took_s}})
        self._metrics.record_verdict(escalation, stored, delivery.priority)
        since_s = max(0.0, _waited_s(delivery, self._clock.now()))
        self._metrics.verdict_seconds.labels(delivery.priority).observe(since_s)
        if not outcome.early:
            self._metrics.decision_seconds.labels(delivery.priority).observe(since_s)
        if outcome.case is not None:
            self._archive.put(outcome.case, stored)
        if key is not None:
            _remember(self._answered, key, HandlerOutcome(outcome.verdict, stored=True))
        logger.info("escalation %s: %s, %s", escalation.id, verdict.decision, trace)
        await delivery.ack()

    async def _retry(self, delivery: Delivery, escalation: Escalation, kind: Kind, why: str) -> None:
        """Try again later, or answer `unsure` after the last attempt. Raise UplinkError.

        Of a site with other regions a delivery may be no attempt, and only those that failed here are known to be.
        """
        key = (escalation.site, escalation.id, escalation.step)
        attempts = self._failed.pop(key, 0) + 1 if escalation.elsewhere_s else delivery.count
        self._engine_log.report(f"{escalation.id}: attempt {attempts} failed: {why}")
        if attempts < self._settings.deliveries_max:
            if escalation.elsewhere_s:
                _remember(self._failed, key, attempts)
            self._metrics.retries.inc()
            await delivery.nak(min(self._settings.retry_s * 2 ** (attempts - 1), RETRY_S_MAX))
            return
        self._metrics.given_up.inc()
        reason = f"Given up after {attempts} attempts: {why}"
        await self._finish(delivery, escalation, HandlerOutcome(self._judge.unsure(escalation, reason), (kind, reason)))

    async def _refuse(self, delivery: Delivery, error: WireError) -> None:
        """End an escalation that cannot be understood; answer the site first if the message names the escalation.

        Raise UplinkError.
        """
        self._metrics.refused.inc()
        self._refusal_log.report(f"refused a message on {delivery.subject}: {error}")
        stub = parse_ids(delivery)
        if stub is None:
            await self._dead_letter(delivery, "unreadable", str(error))
            await delivery.ack()
            return
        reason = f"The worker does not understand the question: {error}"
        outcome = HandlerOutcome(self._judge.unsure(stub, reason), ("unreadable", str(error)))
        await self._finish(delivery, stub, outcome)

    async def _dead_letter(self, delivery: Delivery, kind: Kind, reason: str) -> None:
        """Keep the escalation among the dead letters. Raise UplinkError."""
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
        await self._link.while_up(dead_letter_store.put(client.jetstream(timeout=PUBLISH_S_MAX), letter))
        self._metrics.dead.labels(kind).inc()


def _remember(known: OrderedDict[EscalationKey, _Known], key: EscalationKey, value: _Known) -> None:
    known[key] = value
    while len(known) > ANSWERED_MAX:
        known.popitem(last=False)


def _waited_s(delivery: Delivery, now: float) -> float:
    """Return the seconds since the broker stored it."""
    return now - delivery.stored.timestamp()


def _too_late(delivery: Delivery, settings: HandlingConfig, now: float) -> str | None:
    """Return why an escalation that waited too long for its priority is not judged, so that others are in time."""
    limit_s, waited_s = settings.shed_s.after_s(delivery.priority), _waited_s(delivery, now)
    if limit_s is None or waited_s <= limit_s or dead_letter_store.REQUEUED in delivery.headers:
        return None
    return (
        "Not judged: more is asked than can be answered, and this one, of the priority "
        f"{delivery.priority}, waited for {waited_s:.0f} s."
    )


def _deliveries_max(delivery: Delivery, escalation: Escalation, settings: HandlingConfig, now: float) -> float:
    """Return after how many deliveries it is given up: those while its site was elsewhere do not count."""
    elsewhere = _waited_s(delivery, now) / ELSEWHERE_RETRY_S if escalation.elsewhere_s else 0.0
    return settings.deliveries_max + elsewhere


def _may_be_known(delivery: Delivery, escalation: Escalation, now: float) -> bool:
    """Return True if another delivery or message may have been answered: then the broker is asked.

    A work queue that is restarted forgets the ids of what was answered, so that a site's repetition looks new.
    """
    return delivery.count > 1 or escalation.elsewhere_s > 0 or now - escalation.created_t > REPEATED_AFTER_S


async def _fetch_once(link: NatsLink, judge: Judge, escalation: Escalation) -> JudgeCase:
    """Return the case with the evidence that the broker has now. Raise UplinkError after FETCH_TRIES tries."""
    backoff = Backoff(0.5, 5.0)
    for attempt in range(1, FETCH_TRIES + 1):
        client = await link.client()
        try:
            jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
            gate = asyncio.Semaphore(FETCHES_MAX)
            return await judge.fetch_case(partial(fetch, jetstream, escalation.site, gate=gate), escalation)
        except UplinkError:
            if attempt == FETCH_TRIES:
                raise
            await asyncio.sleep(backoff.next_s())
    raise AssertionError("unreachable")


def parse_escalation(delivery: Delivery) -> Escalation:
    """Parse, and check that the message stands where its site may write. Raise WireError."""
    escalation: Escalation = Escalation.from_json(delivery.data)
    if _site_of(delivery) != escalation.site:
        raise WireError(f"site: a message on {delivery.subject} says it is from another site")
    return escalation


def _trace(delivery: Delivery, escalation: Escalation) -> str:
    """Return the trace context of the work on a delivery; that of a message without one follows from its ids."""
    own = f"{escalation.id}/{escalation.step}/judge"
    return traceparent_after(delivery.headers.get(TRACEPARENT, ""), own) or traceparent_after(
        traceparent_of(escalation), own
    )


def _site_of(delivery: Delivery) -> str:
    """Return the second token of its subject; empty if it has none."""
    return delivery.subject.partition(".")[2].partition(".")[0]


def parse_ids(delivery: Delivery) -> Escalation | None:
    """Return the ids of an invalid escalation, as much as a verdict needs, if they can be believed.

    Only that site may publish on the subject (deploy/nats/hub.conf); it ignores the verdict if it sent no such
    escalation.
    """
    site = _site_of(delivery)
    try:
        found = json.loads(delivery.data)
        name, alert, step = found["id"], found.get("alert", ""), found.get("step", 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    believed = isinstance(name, str) and _NAME.match(name) and found.get("site") == site
    if not believed or step not in range(STEPS_MAX):
        return None
    try:
        return Escalation(
            id=name,
            site=site,
            camera="",
            alert=alert[:TEXT_CHARS_MAX] if isinstance(alert, str) else "",
            rule="",
            kind="",
            label="",
            severity="info",
            t=0.0,
            created_t=0.0,
            step=step,
        )
    except ValidationError:  # a text that is no Unicode: half a surrogate pair, say
        return None
