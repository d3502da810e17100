"""Takes the verdicts of this site from the broker and has each applied once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from appliance.backoff import Backoff
from appliance.broker import Link
from appliance.clock import Clock
from appliance.errors import StoreUnavailable, UplinkError
from appliance.escalate.feed import Feed
from appliance.escalate.notary import Notary
from appliance.store.steps import Answered
from appliance.telemetry import Repeats
from appliance.wire import STREAM_VERDICT, Verdict, WireError, verdict_subject

ACK_WAIT_S = 30.0
AGAIN_S = 5.0

logger = logging.getLogger(__name__)


class Settles(Protocol):
    """Who applies verdicts; see appliance.store.alerts."""

    def answer(self, verdict: Verdict, t: float) -> Answered:
        """Apply once; `known` when it was applied before or was never asked for. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Verdicts since the start: applied, requests for more evidence, seen before (or never asked for), and refused as
    not understood."""

    applied: int = 0
    more: int = 0
    known: int = 0
    refused: int = 0


class Verdicts:
    """Owner of the site's durable consumer, one task.

    Invariant: a verdict is acknowledged after it was applied, so that a crash in between means it comes again, and
    settling it twice changes nothing. One that cannot be written is given back and comes again.
    """

    def __init__(
        self,
        link: Link,
        site: str,
        alerts: Settles,
        notary: Notary,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """changed: told when an alert has a verdict; heard: told of every verdict, known ones too."""
        self._heard = heard
        self._link = link
        self._site = site
        self._alerts = alerts
        self._notary = notary
        self._clock = clock
        self._changed = changed
        self._said = ""
        self._refusals = Repeats(logger, clock)
        self.counts = VerdictCounts()

    async def run(self) -> None:
        """Apply verdicts until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 30.0)
        while True:
            try:
                await self.run_once(backoff.forgive)
            except (UplinkError, StoreUnavailable) as error:
                if str(error) != self._said:
                    logger.warning("verdicts wait: %s", error)
                    self._said = str(error)
                await asyncio.sleep(backoff.next_s())

    async def run_once(self, went_well: Callable[[], None] = lambda: None) -> None:
        """Apply verdicts for as long as one connection lasts. Raises UplinkError when it ends."""
        client = await self._link.client()
        consumer = await self._link.while_up(self._consumer(client.jetstream(timeout=10)))
        self._said = ""
        went_well()
        async with Feed(self._link, client, STREAM_VERDICT, consumer) as feed:
            while True:
                await self._take(await feed.next())

    async def _consumer(self, jetstream: JetStreamContext) -> str:
        """Make the site's consumer, or find it: it remembers what was acknowledged while we were away."""
        name = f"site-{self._site}"
        wanted = ConsumerConfig(
            durable_name=name,
            filter_subject=verdict_subject(self._site),
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,
        )
        try:
            try:
                await jetstream.consumer_info(STREAM_VERDICT, name)
            except nats.js.errors.NotFoundError:
                await jetstream.add_consumer(STREAM_VERDICT, wanted)
            return name
        except nats.js.errors.NotFoundError:
            raise UplinkError("no worker has made the streams yet") from None
        except nats.js.errors.APIError as error:
            raise UplinkError(f"the broker refuses the verdict consumer: {error.description}") from None
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            raise UplinkError(f"the verdict consumer cannot be reached: {type(error).__name__}") from None

    async def _take(self, messages: Sequence[Msg]) -> None:
        """Apply them in one transaction, and then acknowledge each."""
        found = [(message, verdict) for message in messages if (verdict := await self._read(message)) is not None]
        if not found:
            return
        try:
            outcomes = await self._notary.note(lambda: self._answer([verdict for _, verdict in found]))
        except StoreUnavailable:
            for message, _ in found:
                await self._say(message.nak(delay=AGAIN_S))
            raise
        self._heard()
        for (message, verdict), outcome in zip(found, outcomes, strict=True):
            self._count(applied=int(outcome == "settled"), more=int(outcome == "more"), known=int(outcome == "known"))
            await self._say(message.ack())
            if outcome != "known":
                said = verdict.decision if verdict.need is None else f"the {verdict.need} is asked for"
                logger.info("verdict on alert %s: %s", verdict.alert, said)
        if any(outcome != "known" for outcome in outcomes):
            self._changed()

    async def _read(self, message: Msg) -> Verdict | None:
        """The verdict; None: it is none of ours, and was refused."""
        try:
            verdict: Verdict = Verdict.from_json(message.data)
            if verdict.site != self._site:
                raise WireError("site: it is for another site")
        except WireError as error:
            self._count(refused=1)
            self._refusals.report(f"refused a verdict: {error}")
            await self._say(message.term())
            return None
        return verdict

    def _answer(self, verdicts: Sequence[Verdict]) -> list[Answered]:
        return [self._alerts.answer(verdict, self._clock.now()) for verdict in verdicts]

    async def _say(self, acknowledgement: object) -> None:
        """An acknowledgement that does not get through means one more delivery, which changes nothing."""
        try:
            await acknowledgement  # type: ignore[misc]
        except (nats.errors.Error, OSError) as error:
            raise UplinkError(f"a verdict could not be acknowledged: {type(error).__name__}") from None

    def _count(self, applied: int = 0, more: int = 0, known: int = 0, refused: int = 0) -> None:
        now = self.counts
        self.counts = VerdictCounts(now.applied + applied, now.more + more, now.known + known, now.refused + refused)
