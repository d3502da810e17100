"""Sends one escalation to the cloud and waits for its verdict, without an outbox.

The lab uses it to record cassettes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import Clock
from appliance.base.errors import UplinkError
from appliance.base.json_lines import WireError
from appliance.broker.nats_connection import broker_errors, complaint
from appliance.broker.nats_link import NatsLink, end_tasks
from appliance.uplink.jetstream_publisher import NatsMessage, chunk_message, escalation_message
from appliance.wire import (
    CHUNK_BYTES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    Escalation,
    MediaRef,
    Verdict,
    verdict_subject,
)

CONNECT_S_MAX = 15.0  # TLS over a satellite link
PUBLISH_S_MAX = 30.0  # a chunk of 128 kB at 64 kbit/s takes half of it


@dataclass(frozen=True, slots=True)
class TimedVerdict:
    """A verdict. send_s: time until the broker stored the escalation; total_s: until the verdict. bytes: those sent."""

    verdict: Verdict
    send_s: float
    total_s: float
    bytes: int


class VerdictClient:
    """One link to a broker under a site name of its own. Use as a context manager.

    Owner of a thread with an event loop; `ask` may be called from one thread. Media that were sent are not sent again
    with a later step. Unlike the uplink it does not retry: a lost connection raises an error.
    """

    def __init__(self, address: BrokerConfig, site: str, clock: Clock, wait_s_max: float) -> None:
        self.site = site
        self._clock = clock
        self._wait_s_max = wait_s_max
        self._link = NatsLink(address, f"vedette replay {site}", clock)
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verdict client", daemon=True)
        self._link_task: Future[None] | None = None
        self._stored_media: set[str] = set()

    def __enter__(self) -> VerdictClient:
        self._thread.start()
        self._link_task = asyncio.run_coroutine_threadsafe(self._link.run(), self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(
        self, escalation: Escalation, priority: str, files: Sequence[tuple[MediaRef, bytes]]
    ) -> TimedVerdict | None:
        """Send `escalation` and wait; None: no verdict came within `wait_s_max`. Raises UplinkError."""
        doing = asyncio.run_coroutine_threadsafe(self._ask(escalation, priority, files), self._loop)
        try:
            return doing.result()
        except BaseException:  # Ctrl-C ends the waiting, too
            doing.cancel()
            raise

    async def _ask(
        self, escalation: Escalation, priority: str, files: Sequence[tuple[MediaRef, bytes]]
    ) -> TimedVerdict | None:
        client = await self._client()
        return await self._link.while_up(self._talk(client, escalation, priority, files))

    async def _talk(
        self, client: Client, escalation: Escalation, priority: str, files: Sequence[tuple[MediaRef, bytes]]
    ) -> TimedVerdict | None:
        begin = self._clock.monotonic()
        with broker_errors(f"the broker at {self._address}"):
            verdicts = await client.subscribe(verdict_subject(self.site), pending_msgs_limit=64)
            try:
                size = 0
                for ref, data in files:
                    size += await self._send_file(client, ref, data)
                size += await self._send(client, escalation_message(escalation, priority), STREAM_ESCALATION)
                sent = self._clock.monotonic()
                verdict = await asyncio.wait_for(_verdict(verdicts, escalation), self._wait_s_max)
                return TimedVerdict(verdict, sent - begin, self._clock.monotonic() - begin, size)
            except asyncio.TimeoutError:
                return None
            finally:
                await verdicts.unsubscribe()

    async def _client(self) -> Client:
        try:
            return await asyncio.wait_for(self._link.client(), CONNECT_S_MAX)
        except asyncio.TimeoutError:
            raise UplinkError(self._link.state.error or f"the broker at {self._address} does not answer") from None

    async def _send_file(self, client: Client, ref: MediaRef, data: bytes) -> int:
        if ref.id in self._stored_media:
            return 0
        size = 0
        for n in range(ref.chunks):
            chunk = chunk_message(self.site, ref, n, data[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES])
            size += await self._send(client, chunk, STREAM_MEDIA)
        self._stored_media.add(ref.id)
        return size

    async def _send(self, client: Client, message: NatsMessage, stream: str) -> int:
        jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
        try:
            await jetstream.publish(message.subject, message.payload, stream=stream, headers=dict(message.headers))
        except (nats.js.errors.NoStreamResponseError, nats.js.errors.NotFoundError):
            raise UplinkError(
                f"the broker at {self._address}: no worker has made the streams yet (start vedette-worker run), or "
                f"this account may not publish on {message.subject}"
            ) from None
        except nats.js.errors.APIError as error:
            raise UplinkError(f"the broker at {self._address} refuses: {complaint(error)}") from None
        except asyncio.TimeoutError:
            raise UplinkError(f"the broker at {self._address} does not acknowledge {message.subject}") from None
        return message.size

    async def _end(self) -> None:
        if self._link_task is not None:
            self._link_task.cancel()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await end_tasks(*tasks)


async def _verdict(verdicts: Subscription, escalation: Escalation) -> Verdict:
    """Return the verdict on this step of this escalation; skip other messages and malformed ones."""
    while True:
        message: Msg = await verdicts.next_msg(timeout=None)
        try:
            verdict: Verdict = Verdict.from_json(message.data)
        except WireError:
            continue
        if verdict.provisional:  # the whole one follows
            continue
        if verdict.escalation == escalation.id and verdict.step in (None, escalation.step):
            return verdict
