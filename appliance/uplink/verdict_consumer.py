"""Consumes the verdicts of this site from JetStream and has each applied once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import StoreUnavailable, UplinkError
from appliance.base.json_lines import WireError
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_connection import NATS_ERRORS, broker_errors, complaint
from appliance.broker.nats_link import NatsLink, check_site_consumer, make_site_consumer, site_consumer_name
from appliance.store.alerts import AlertStore
from appliance.store.escalations import VerdictEffect
from appliance.store.outbox import CommitBatcher
from appliance.wire import BY_APPLIANCE, STREAM_VERDICT, TRACEPARENT, Verdict

FETCH_BATCH = 64  # messages that one request may bring; below the broker's limit of every version
TRANSACTION_BATCH_MAX = 16  # verdicts applied in one transaction: one flush of the disk instead of as many
REQUEST_EXPIRES_S = 24.0  # for so long a request stands at the broker
REQUEST_LOST_S = 26.0  # a request that the broker has not ended by then did not get there
_REQUEST = json.dumps({"batch": FETCH_BATCH, "expires": int(REQUEST_EXPIRES_S * 1e9)}).encode()
_ENDED = frozenset({"404", "408"})  # nothing came, or not as many
_NOT_OUR_JETSTREAM = 10039  # nats-server: JetStream not enabled for account
_NO_CONSUMER = "no worker has made this site's verdict consumer yet (the first that sees a question of it does)"
ANSWER_S = (2.0, 10.0)  # to tell of the consumer: a cluster that elects a leader does not, a slow link is given more
_COUNTED_AS = {"settled": "applied", "more": "more", "known": "known", "reason": "reasons"}
ASK_EVERY_S = 1.0  # a broker that ends each request at once is not asked faster than this

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Verdicts since the start.

    The fields count applied ones, requests for more evidence, reasons of an earlier decision, repeated or unrequested
    ones, and malformed ones.
    """

    applied: int = 0
    more: int = 0
    known: int = 0
    refused: int = 0
    reasons: int = 0


class VerdictConsumer:
    """Owner of the site's durable consumer, one task.

    Invariant: a verdict is acknowledged after it was applied. After a crash in between it is delivered again, and
    applying it twice changes nothing. A verdict that cannot be written is retried, and later ones wait.
    """

    def __init__(
        self,
        link: NatsLink,
        site: str,
        alerts: AlertStore,
        commits: CommitBatcher,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        received: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the link and the store.

        changed: called when an alert has a verdict; received: called for every verdict, known ones too.
        """
        self._received = received
        self._link = link
        self._site = site
        self._alerts = alerts
        self._commits = commits
        self._clock = clock
        self._changed = changed
        self._reported = ""
        self._answer_s = Backoff(*ANSWER_S, jitter=0.0)
        self._may_create = True
        self._refusal_log = LogThrottle(logger, clock)
        self.counts = VerdictCounts()

    async def run(self) -> None:
        """Apply verdicts until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 5.0)  # the consumer may be made by the worker that answers the first question
        while True:
            try:
                await self.run_once(backoff.reset)
            except UplinkError as error:
                self._report(error)
                await asyncio.sleep(backoff.next_s())

    async def run_once(self, connected: Callable[[], None] = lambda: None) -> None:
        """Apply verdicts for as long as one connection lasts. Raises UplinkError when it ends."""
        client = await self._link.client()
        consumer = await self._link.while_up(self._consumer(client.jetstream(timeout=self._answer_s.next_s())))
        self._reported = ""
        self._answer_s.reset()
        connected()
        async with ConsumerStream(self._link, client, STREAM_VERDICT, consumer) as feed:
            while True:
                await self._take(await feed.next())

    def _report(self, error: Exception) -> None:
        if str(error) != self._reported:
            logger.warning("verdicts wait: %s", error)
            self._reported = str(error)

    async def _consumer(self, jetstream: JetStreamContext) -> str:
        """Find the site's consumer, or make it; it keeps the acknowledgements while the site is offline.

        A site with its own account (deploy/nats/hub.conf) may only read from it: the first worker that sees an
        escalation of the site makes it.
        """
        name = site_consumer_name(self._site)
        with broker_errors("the verdict consumer cannot be reached"):
            try:
                for _ in range(2):
                    try:
                        found = await jetstream.consumer_info(STREAM_VERDICT, name)
                    except nats.js.errors.NotFoundError:
                        if not self._may_create:
                            raise UplinkError(_NO_CONSUMER) from None
                        await self._make(jetstream)
                        continue
                    check_site_consumer(found.config, self._site)
                    return name
            except nats.js.errors.NotFoundError:
                raise UplinkError("no worker has made the streams yet") from None
            except nats.js.errors.APIError as error:
                if error.err_code == _NOT_OUR_JETSTREAM:
                    return name
                raise UplinkError(f"the broker refuses the verdict consumer: {complaint(error)}") from None
        raise UplinkError("the verdict consumer was deleted")

    async def _make(self, jetstream: JetStreamContext) -> None:
        try:
            await make_site_consumer(jetstream, self._site)
        except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError):
            self._may_create = False  # a broker does not answer what it does not allow
            raise UplinkError(_NO_CONSUMER) from None

    async def _take(self, messages: Sequence[Msg]) -> None:
        """Apply them in one transaction, and then acknowledge each. Raise UplinkError."""
        found = [(message, verdict) for message in messages if (verdict := await self._read(message)) is not None]
        if not found:
            return
        self._received()  # the cloud answers, whatever the disk does
        outcomes = await self._apply([verdict for _, verdict in found])
        self._reported = ""
        for (message, verdict), outcome in zip(found, outcomes, strict=True):
            self._count(_COUNTED_AS[outcome])
            if outcome != "known":
                outcome_text = verdict.decision if verdict.need is None else f"the {verdict.need} is asked for"
                trace = (message.headers or {}).get(TRACEPARENT, "no trace")
                logger.info("verdict on alert %s: %s, %s", verdict.alert, outcome_text, trace)
        if any(outcome != "known" for outcome in outcomes):
            self._changed()
        for message, _ in found:
            await self._acknowledge(message.ack())

    async def _apply(self, verdicts: Sequence[Verdict]) -> list[VerdictEffect]:
        """Apply the verdicts as soon as the disk accepts them, also if the link is lost meanwhile.

        If they were given back they would be late: after a change of leader the broker forgets the time of redelivery.
        """
        backoff = Backoff(0.25, 1.0)  # a try is one transaction
        while True:
            try:
                return await self._commits.commit(
                    lambda: [self._alerts.take_verdict(verdict, self._clock.now()) for verdict in verdicts]
                )
            except StoreUnavailable as error:
                self._report(error)
                await asyncio.sleep(backoff.next_s())

    async def _read(self, message: Msg) -> Verdict | None:
        """Return the verdict; None if the message is no verdict for this site, and was refused."""
        try:
            verdict: Verdict = Verdict.from_json(message.data)
            if verdict.site != self._site:
                raise WireError("site: it is for another site")
        except WireError as error:
            self._count("refused")
            self._refusal_log.report(f"refused a verdict: {error}")
            await self._acknowledge(message.term())
            return None
        foreign = verdict.answered_by == BY_APPLIANCE  # a verdict from elsewhere was paid for
        return verdict.model_copy(update={"answered_by": ""}) if foreign else verdict

    async def _acknowledge(self, acknowledgement: object) -> None:
        """Acknowledge a message. If that fails, the message is delivered again, which changes nothing."""
        with broker_errors("a verdict could not be acknowledged"):
            await acknowledgement  # type: ignore[misc]

    def _count(self, name: str) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + 1})


class ConsumerStream:
    """A pull request for up to FETCH_BATCH messages, which is renewed when it is used up.

    nats-py's own `fetch` returns a batch when it is full or its time is over, so the first message would wait for
    others. State: how many messages the request may still bring. Owner: one task, for one connection.
    """

    def __init__(self, link: NatsLink, client: Client, stream: str, consumer: str) -> None:
        self._link = link
        self._client = client
        self._consumer = consumer
        self._request_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._left = 0
        self._asked_at = self._pause_s = 0.0

    async def __aenter__(self) -> ConsumerStream:
        with broker_errors(f"{self._consumer} cannot be read"):
            self._subscription = await self._client.subscribe(self._inbox)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            with contextlib.suppress(*NATS_ERRORS):
                await self._subscription.unsubscribe()

    async def next(self) -> list[Msg]:
        """Wait for the next message and return it with those that arrived with it, at most TRANSACTION_BATCH_MAX.

        Raise UplinkError when the connection or the consumer is gone.
        """
        assert self._subscription is not None
        with broker_errors(f"{self._consumer} cannot be read"):
            while True:
                message = await self._link.while_up(self._next())
                if message is None:
                    continue
                found = [message]
                while len(found) < TRANSACTION_BATCH_MAX and self._left > 0 and self._subscription.pending_msgs:
                    message = await self._next()
                    if message is None:
                        break
                    found.append(message)
                return found

    async def _next(self) -> Msg | None:
        """Return a message, or None when the request has ended."""
        assert self._subscription is not None
        if self._left <= 0:
            await asyncio.sleep(self._pause_s)
            self._pause_s = 0.0
            await self._client.publish(self._request_subject, _REQUEST, self._inbox)
            self._left, self._asked_at = FETCH_BATCH, asyncio.get_running_loop().time()
        try:
            message = await self._subscription.next_msg(REQUEST_LOST_S)
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            self._left = 0
            return None
        status = (message.headers or {}).get("Status")
        if status is None or message.reply:
            self._left -= 1
            return message
        self._left = 0
        if status == "503":
            raise UplinkError(_NO_CONSUMER)
        if status not in _ENDED:
            description = (message.headers or {}).get("Description", "")
            raise UplinkError(f"{self._consumer} cannot be read: {status} {description}"[:200].rstrip())
        self._pause_s = max(0.0, self._asked_at + ASK_EVERY_S - asyncio.get_running_loop().time())
        return None
