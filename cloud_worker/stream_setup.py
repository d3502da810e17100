"""Creates the four JetStream streams and the worker's consumers, and compares existing ones with their settings.

VEDETTE_ESCALATION is a work queue: an escalation leaves it when it is answered, so that its size is the backlog, which
an autoscaler reads, and a full stream means escalations that no worker answered. VEDETTE_MEDIA and VEDETTE_VERDICT keep
by limits: evidence may be needed by a second delivery, a verdict must still be there for a site that was away.
Escalations and media refuse what is new when full, and the sites' outboxes wait; verdicts drop the oldest, as a worker
that cannot publish would judge the same escalation again and again. VEDETTE_DEAD holds what could not be judged.

Each site and priority has a consumer of its own, created by the first worker that sees an escalation there: a queue is
fair among its sites only if it can be asked for the next escalation of *one* site. A consumer that no worker has used
for CONSUMER_IDLE_S is removed by the server; what is stored for it stays, and it is created anew.

nats-server 2.9 silently ignores what it does not know (several filter subjects, for one): only one filter subject per
consumer is used, and what the server made is compared with what was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from dataclasses import dataclass
from datetime import datetime

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from appliance.base.errors import UplinkError
from appliance.broker.nats_connection import NATS_ERRORS, broker_errors, complaint
from appliance.broker.nats_link import NatsLink, make_site_consumer
from appliance.wire import (
    CHUNK_BYTES,
    MESSAGE_BYTES_MAX,
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    STREAM_VERDICT,
    escalation_subject,
)
from cloud_worker.config import StreamsConfig

STREAM_DEAD = "VEDETTE_DEAD"
HEADER_BYTES_MAX = 4096  # of a message beside its body: subject, ids and reason
CONSUMER_IDLE_S = 86400.0  # a site that escalates once a day keeps its consumers
ESCALATION_SUBJECTS = "vedette.*.escalation.*"
ACK_PENDING_MAX = 4096  # in hand at a time, over all workers: more than 16 workers of 256 slots
_GB = 1024**3  # bytes
_DAY_S = 86400.0  # seconds
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_STREAM_FIELDS = (
    "subjects",
    "retention",
    "discard",
    "storage",
    "max_age",
    "max_bytes",
    "max_msg_size",
    "duplicate_window",
    "num_replicas",
    "allow_direct",
)
_CONSUMER_FIELDS = ("filter_subject", "ack_policy", "deliver_policy", "ack_wait", "max_deliver", "max_ack_pending")
_OVERLAPS = frozenset({10099, 10100})  # nats-server: another consumer of a work queue has this filter
_STREAM_EXISTS = 10058  # nats-server, JSStreamNameExistErr
ACK_S_MAX = 5.0  # after that it is delivered again, and answered from memory
PULL_S_MAX = 2.0  # a server that has the consumer answers in a round trip

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamFill:
    """How full a stream is. bytes_max: -1 when it has no limit."""

    stream: str
    messages: int
    bytes: int
    bytes_max: int


async def ensure_streams(js: JetStreamContext, settings: StreamsConfig) -> list[str]:
    """Make what is absent and return what differs, one sentence each. Raise UplinkError."""
    differences: list[str] = []
    with broker_errors("the streams could not be made"):
        try:
            for wanted in stream_specs(settings):
                differences += await _ensure_stream(js, wanted)
        except nats.js.errors.ServiceUnavailableError:
            raise UplinkError(
                "JetStream is not enabled on this nats-server: add `jetstream {}` to its configuration"
            ) from None
        except nats.js.errors.APIError as error:
            raise UplinkError(f"the broker refused a stream or consumer: {complaint(error)}") from None
    return differences


@dataclass(frozen=True, slots=True)
class FoundConsumer:
    """The consumer as the broker has it.

    `differences` has one sentence for each difference. `ack_wait_s`: after so long without a sign of a worker the
    broker delivers what it has in hand again, whatever that worker's file says.
    """

    differences: list[str]
    ack_wait_s: float


async def ensure_consumer(js: JetStreamContext, site: str, priority: str, ack_wait_s: float) -> FoundConsumer:
    """Make the consumer of a site and priority if it is absent, and the site's own for its verdicts.

    Raise UplinkError.

    An older worker has one consumer for all sites, and a work queue has room for one reader of a subject only: the
    older one goes. What that worker has in hand is delivered again.
    """
    wanted = consumer_spec(site, priority, ack_wait_s)
    with broker_errors(f"the verdict consumer of {site} could not be made"):
        try:
            await make_site_consumer(js, site)  # a site that may not make one finds its verdicts through it
        except nats.js.errors.APIError as error:  # an older one with other settings does, too
            logger.debug("the verdict consumer of %s is left as it is: %s", site, complaint(error))
    with broker_errors(f"the consumer {wanted.durable_name} could not be made"):
        try:
            try:
                return await _ensure_consumer(js, wanted)
            except nats.js.errors.APIError as error:
                if error.err_code not in _OVERLAPS:
                    raise
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await js.delete_consumer(STREAM_ESCALATION, f"worker-{priority}")
                logger.warning("took over from workers of an older version, which read all sites in one queue")
            return await _ensure_consumer(js, wanted)
        except nats.js.errors.APIError as error:
            raise UplinkError(f"the broker refused the consumer {wanted.durable_name}: {complaint(error)}") from None
    raise AssertionError("unreachable")


async def stream_fill(js: JetStreamContext) -> list[StreamFill]:
    """Return how full the streams are. Raise UplinkError."""
    found = []
    with broker_errors("the streams could not be read"):
        for name in (STREAM_ESCALATION, STREAM_MEDIA, STREAM_VERDICT, STREAM_DEAD):
            info = await js.stream_info(name)
            found.append(StreamFill(name, info.state.messages, info.state.bytes, info.config.max_bytes or -1))
    return found


def stream_specs(settings: StreamsConfig) -> tuple[StreamConfig, ...]:
    """Return the streams as they should be."""
    window_s = settings.duplicate_minutes * 60

    def stream(
        name: str, subject: str, days: float, gb: float, discard: DiscardPolicy, retention: RetentionPolicy, size: int
    ) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=[subject],
            retention=retention,
            discard=discard,
            storage=StorageType.FILE,
            max_age=days * _DAY_S,
            max_bytes=int(gb * _GB),
            max_msg_size=size + HEADER_BYTES_MAX,
            duplicate_window=min(window_s, days * _DAY_S),
            num_replicas=settings.replicas,
            allow_direct=True,
        )

    work, limits = RetentionPolicy.WORK_QUEUE, RetentionPolicy.LIMITS
    new, old = DiscardPolicy.NEW, DiscardPolicy.OLD
    days, gb = settings.escalation_days, settings.escalation_gb
    dead_bytes_max = MESSAGE_BYTES_MAX + HEADER_BYTES_MAX  # an escalation, its headers included, and why it is there
    return (
        stream(STREAM_ESCALATION, "vedette.*.escalation.>", days, gb, new, work, MESSAGE_BYTES_MAX),
        stream(STREAM_MEDIA, "vedette.*.media.>", settings.media_days, settings.media_gb, new, limits, CHUNK_BYTES),
        stream(STREAM_VERDICT, "vedette.*.verdict", settings.verdict_days, settings.verdict_gb, old, limits, 64 * 1024),
        stream(STREAM_DEAD, "vedette.*.dead", settings.dead_days, settings.dead_gb, old, limits, dead_bytes_max),
    )


def consumer_spec(site: str, priority: str, ack_wait_s: float) -> ConsumerConfig:
    """Return the durable pull consumer of one site and priority, shared by all workers.

    `max_deliver` is unlimited on purpose: a message past the server's limit stays in a work queue for ever. The worker
    counts the deliveries itself and ends them with a verdict.
    """
    return ConsumerConfig(
        durable_name=consumer_name(site, priority),
        filter_subject=escalation_subject(site, priority),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ack_wait_s,
        max_deliver=-1,
        max_ack_pending=ACK_PENDING_MAX,
        inactive_threshold=CONSUMER_IDLE_S,
    )


def consumer_name(site: str, priority: str) -> str:
    return f"worker-{priority}-{site}"


def site_and_priority(subject: str) -> tuple[str, str] | None:
    """Return (site, priority) of an escalation's subject; None when no site asks there."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[3] not in PRIORITIES or not _NAME.match(parts[1]):
        return None
    return parts[1], parts[3]


async def _ensure_stream(js: JetStreamContext, wanted: StreamConfig) -> list[str]:
    assert wanted.name is not None
    try:
        info = await js.stream_info(wanted.name)
    except nats.js.errors.NotFoundError:
        try:
            info = await js.add_stream(wanted)
            logger.info("made the stream %s", wanted.name)
        except nats.js.errors.BadRequestError as error:
            if error.err_code != _STREAM_EXISTS:  # another worker was faster, with other settings
                raise
            info = await js.stream_info(wanted.name)
    return _differences(wanted.name, wanted, info.config, _STREAM_FIELDS)


async def _ensure_consumer(js: JetStreamContext, wanted: ConsumerConfig) -> FoundConsumer:
    assert wanted.durable_name is not None
    try:
        info = await js.consumer_info(STREAM_ESCALATION, wanted.durable_name)
    except nats.js.errors.NotFoundError:
        info = await js.add_consumer(STREAM_ESCALATION, wanted)
    differences = _differences(f"{STREAM_ESCALATION}/{wanted.durable_name}", wanted, info.config, _CONSUMER_FIELDS)
    return FoundConsumer(differences, info.config.ack_wait or wanted.ack_wait or 0.0)


def _differences(name: str, wanted: object, found: object, fields: tuple[str, ...]) -> list[str]:
    """Return one sentence for each field in which the server has another value than this worker would."""
    sentences = []
    for field in fields:
        ours, theirs = _plain(getattr(wanted, field)), _plain(getattr(found, field))
        if ours != theirs:
            sentences.append(f"{name}: {field} is {theirs}, this worker would have {ours} (it is left as it is)")
    return sentences


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return getattr(value, "value", value)


_PULL = json.dumps({"batch": 1, "no_wait": True}).encode()


class NoConsumer(Exception):
    """The broker has no consumer of this name any more: it must be created again."""


class Delivery:
    """One delivered escalation. Its acknowledgements go over whichever connection is up then, as JetStream allows."""

    def __init__(self, message: Msg, link: NatsLink, priority: str) -> None:
        self._link = link
        self._reply = message.reply
        self.priority = priority
        self.subject = message.subject
        self.data = message.data
        self.headers = dict(message.headers or {})
        self.count: int = message.metadata.num_delivered or 1
        self.seq: int = message.metadata.sequence.stream
        self.stored: datetime = message.metadata.timestamp

    async def ack(self) -> None:
        """Return when the broker knows (double ack). Raise UplinkError."""
        client = await self._link.client()
        with broker_errors("an acknowledgement was not answered"):
            await client.request(self._reply, b"+ACK", timeout=ACK_S_MAX)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Ask the broker to deliver it once more, after `delay_s`."""
        await self._publish(b'-NAK {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    async def in_progress(self) -> None:
        await self._publish(b"+WPI")

    async def _publish(self, what: bytes) -> None:
        """Send the answer; without a connection nothing is sent.

        The broker then delivers again after ack_wait, which is right.
        """
        client = self._link.client_now
        if client is not None:
            with contextlib.suppress(*NATS_ERRORS):
                await client.publish(self._reply, what)


async def pull_next(client: Client, link: NatsLink, site: str, priority: str) -> Delivery | None:
    """Return an escalation of this site and priority that no worker has in hand, or None.

    Raise NoConsumer, UplinkError. A plain request takes the place of nats-py's subscription: no request is left waiting
    at the broker. With `old_style` the answer keeps the escalation's own subject; the newer style would not know it.
    """
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM_ESCALATION}.{consumer_name(site, priority)}"
    with broker_errors(f"the escalations of {site} cannot be pulled"):
        try:
            message = await link.while_up(client.request(subject, _PULL, timeout=PULL_S_MAX, old_style=True))
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError, asyncio.TimeoutError):
            raise NoConsumer from None  # nats-server 2.9 does not answer for a consumer that is not there
        status = (message.headers or {}).get("Status")
        if status is None:
            return Delivery(message, link, priority)
    if status == "409":  # deleted meanwhile, or a limit of the server
        raise NoConsumer
    return None
