"""The four JetStream streams and the worker's consumers: made when absent, compared when there.

nats-server 2.9 silently ignores what it does not know (several filter subjects, for one): only one filter subject per
consumer is used, and what the server made is compared with what was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamConfig

from appliance.errors import UplinkError
from appliance.wire import STREAM_ESCALATION, STREAM_MEDIA, STREAM_VERDICT
from cloud_worker.config import Streams
from cloud_worker.layout import STREAM_DEAD, lane_of, lane_plan, plan

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
_OVERLAPS = frozenset({10099, 10100})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backlog:
    """One stream's fill: messages and bytes, and the bytes it may hold."""

    stream: str
    messages: int
    bytes: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Questions that are stored, in nobody's hands or in somebody's. lanes: how many by site and priority. strays:
    subjects on which no site asks, as nobody would ever read them."""

    lanes: Mapping[tuple[str, str], int]
    strays: tuple[str, ...]

    def of(self, priority: str) -> int:
        return sum(count for (_, p), count in self.lanes.items() if p == priority)


async def ensure(js: JetStreamContext, settings: Streams) -> list[str]:
    """Make what is absent and return what differs, one sentence each. Raises UplinkError."""
    differences: list[str] = []
    try:
        for wanted in plan(settings):
            differences += await _ensure_stream(js, wanted)
    except nats.js.errors.ServiceUnavailableError:
        raise UplinkError(
            "JetStream is not enabled on this nats-server: add `jetstream {}` to its configuration"
        ) from None
    except nats.js.errors.APIError as error:
        raise UplinkError(f"the broker refused a stream or consumer: {error.description}") from None
    except (nats.errors.Error, TimeoutError) as error:
        raise UplinkError(f"the streams could not be made: {type(error).__name__}") from None
    return differences


async def ensure_lane(js: JetStreamContext, site: str, priority: str, ack_wait_s: float) -> list[str]:
    """Make the consumer of a site and priority if it is absent, and return what differs. Raises UplinkError.

    A worker of before lanes has one consumer for all sites, and a work queue has room for one reader of a subject
    only: the older one goes. What that worker has in hand is delivered again.
    """
    wanted = lane_plan(site, priority, ack_wait_s)
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
        raise UplinkError(f"the broker refused the consumer {wanted.durable_name}: {error.description}") from None
    except (nats.errors.Error, TimeoutError, asyncio.TimeoutError) as error:
        raise UplinkError(f"the consumer {wanted.durable_name} could not be made: {type(error).__name__}") from None


async def waiting(js: JetStreamContext) -> Waiting:
    """What is stored of questions, by site and priority. Raises UplinkError."""
    try:
        info = await js.stream_info(STREAM_ESCALATION, subjects_filter=">")
    except (nats.errors.Error, TimeoutError, asyncio.TimeoutError) as error:
        raise UplinkError(f"the questions could not be counted: {type(error).__name__}") from None
    found = info.state.subjects or {}
    lanes = {lane: count for subject, count in found.items() if (lane := lane_of(subject)) is not None}
    return Waiting(lanes, tuple(subject for subject in found if lane_of(subject) is None))


async def backlog(js: JetStreamContext) -> list[Backlog]:
    """How full the streams are. Raises UplinkError."""
    found = []
    try:
        for name in (STREAM_ESCALATION, STREAM_MEDIA, STREAM_VERDICT, STREAM_DEAD):
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
