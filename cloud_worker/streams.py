"""The three JetStream streams and the worker's consumers: made when absent, compared when there.

VEDETTE_ESCALATION is a work queue: a question leaves it when it is answered, so that its size is the backlog (what an
autoscaler wants to read) and a full stream means questions nobody answered. VEDETTE_MEDIA and VEDETTE_VERDICT keep by
limits: pictures may be needed by a second delivery, a verdict must still be there for a site that was away. Questions
and media refuse what is new when full, and the sites' outboxes wait; verdicts drop the oldest, as a worker that cannot
publish would judge the same question again and again.

nats-server 2.9 silently ignores what it does not know (several filter subjects, for one): only one filter subject per
consumer is used, and what the server made is compared with what was asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import nats.errors
import nats.js.errors
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

from appliance.errors import UplinkError
from appliance.wire import (
    CHUNK_BYTES,
    MESSAGE_BYTES_MAX,
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    STREAM_VERDICT,
)
from cloud_worker.config import Streams

HEADER_BYTES_MAX = 4096
ACK_PENDING_MAX = 4096
_GB = 1024**3
_DAY_S = 86400.0
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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backlog:
    """One stream's fill: messages and bytes, and the bytes it may hold."""

    stream: str
    messages: int
    bytes: int
    bytes_max: int


def plan(settings: Streams) -> tuple[StreamConfig, ...]:
    """The streams as they should be."""
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
    return (
        stream(STREAM_ESCALATION, "vedette.*.escalation.>", days, gb, new, work, MESSAGE_BYTES_MAX),
        stream(STREAM_MEDIA, "vedette.*.media.>", settings.media_days, settings.media_gb, new, limits, CHUNK_BYTES),
        stream(STREAM_VERDICT, "vedette.*.verdict", settings.verdict_days, settings.verdict_gb, old, limits, 64 * 1024),
    )


def consumer_plan(priority: str, ack_wait_s: float) -> ConsumerConfig:
    """The durable pull consumer of one priority, shared by all workers.

    max_deliver is unlimited on purpose: a message past the server's limit stays in a work queue, delivered to nobody.
    The worker counts the deliveries itself and ends them with a verdict.
    """
    return ConsumerConfig(
        durable_name=f"worker-{priority}",
        filter_subject=f"vedette.*.escalation.{priority}",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ack_wait_s,
        max_deliver=-1,
        max_ack_pending=ACK_PENDING_MAX,
    )


async def ensure(js: JetStreamContext, settings: Streams, ack_wait_s: float) -> list[str]:
    """Make what is absent and return what differs, one sentence each. Raises UplinkError."""
    differences: list[str] = []
    try:
        for wanted in plan(settings):
            differences += await _ensure_stream(js, wanted)
        for priority in PRIORITIES:
            differences += await _ensure_consumer(js, consumer_plan(priority, ack_wait_s))
    except nats.js.errors.ServiceUnavailableError:
        raise UplinkError(
            "JetStream is not enabled on this nats-server: add `jetstream {}` to its configuration"
        ) from None
    except nats.js.errors.APIError as error:
        raise UplinkError(f"the broker refused a stream or consumer: {error.description}") from None
    except (nats.errors.Error, TimeoutError) as error:
        raise UplinkError(f"the streams could not be made: {type(error).__name__}") from None
    return differences


async def backlog(js: JetStreamContext) -> list[Backlog]:
    """How full the streams are. Raises UplinkError."""
    found = []
    try:
        for name in (STREAM_ESCALATION, STREAM_MEDIA, STREAM_VERDICT):
            info = await js.stream_info(name)
            found.append(Backlog(name, info.state.messages, info.state.bytes, info.config.max_bytes or -1))
    except (nats.errors.Error, TimeoutError) as error:
        raise UplinkError(f"the streams could not be read: {type(error).__name__}") from None
    return found


async def _ensure_stream(js: JetStreamContext, wanted: StreamConfig) -> list[str]:
    assert wanted.name is not None
    try:
        info = await js.stream_info(wanted.name)
    except nats.js.errors.NotFoundError:
        try:
            info = await js.add_stream(wanted)
            logger.info("made the stream %s", wanted.name)
        except nats.js.errors.BadRequestError as error:
            if error.err_code != 10058:  # another worker was faster, with other settings
                raise
            info = await js.stream_info(wanted.name)
    return _differences(wanted.name, wanted, info.config, _STREAM_FIELDS)


async def _ensure_consumer(js: JetStreamContext, wanted: ConsumerConfig) -> list[str]:
    assert wanted.durable_name is not None
    try:
        info = await js.consumer_info(STREAM_ESCALATION, wanted.durable_name)
    except nats.js.errors.NotFoundError:
        info = await js.add_consumer(STREAM_ESCALATION, wanted)
    return _differences(f"{STREAM_ESCALATION}/{wanted.durable_name}", wanted, info.config, _CONSUMER_FIELDS)


def _differences(name: str, wanted: object, found: object, fields: tuple[str, ...]) -> list[str]:
    """What the server has that was not asked for, field by field."""
    said = []
    for field in fields:
        asked, got = _plain(getattr(wanted, field)), _plain(getattr(found, field))
        if asked != got:
            said.append(f"{name}: {field} is {got}, this worker would have {asked} (it is left as it is)")
    return said


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return getattr(value, "value", value)
