"""Keeps one connection to a NATS server and reconnects, with backoff; makes the consumer of a site's verdicts.

nats-py's own reconnection is switched off: it hands over messages that were published during an outage although
`publish` has already failed, it gives up for ever when a server that restarts refuses the credentials once, and its
first connect behaves differently from the later ones. Here a lost connection is simply over, and the next one is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from appliance.base.backoff import Backoff
from appliance.base.broker_config import BrokerAddress, BrokerConfig
from appliance.base.clock import Clock
from appliance.base.errors import UplinkError
from appliance.broker.broker_choice import BrokerChoice
from appliance.broker.nats_connection import (
    NATS_ERRORS,
    ConnectFailed,
    LinkState,
    NatsConnection,
    WireByteCounter,
    explain,
    server_version,
)
from appliance.wire import STREAM_VERDICT, verdict_subject

CANCEL_RETRY_S = 3.0  # longer than closing a connection takes
_HEALTHY_AFTER_S = 10.0  # a connection that lasted this long resets the backoff
FAILBACK_S = 300.0  # of a link that is not told
_SAMPLE_S = 1.0  # between two readings of the socket's counters
ACK_WAIT_S = 10.0  # what a lost connection carried comes again; a disk that takes longer gets it twice, which is once

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    They are asked again: before Python 3.12 `wait_for` swallows a cancellation that comes together with its result
    (python/cpython issue 86296), and a connection that is just being made would then live for ever.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised has been seen


async def until_set(stop: asyncio.Event, work: Coroutine[Any, Any, None], *keepers: asyncio.Task[None]) -> None:
    """Await `work`; cancel it when `stop` is set, or when one of the `keepers` ends.

    Without that keeper the work would wait for ever. Raise the keeper's error.
    """
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        for each in (*keepers, task):
            if each.done():
                each.result()
    finally:
        await end_tasks(task, stopping)


class NatsLink:
    """Owner of one NATS connection and of the one task that `run()` is.

    State: `state`, for any thread; of several brokers, which one it is at (`BrokerChoice`). Invariant: `client()` hands
    out a connection that was up a moment ago; a caller that holds it when it dies gets UplinkError, or a nats error to
    translate, and calls `client()` again.
    """

    def __init__(
        self,
        address: BrokerConfig,
        name: str,
        clock: Clock,
        *,
        inbox: str = "_INBOX",
        choice: BrokerChoice | None = None,
        serves: Callable[[Client], Awaitable[None]] | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """inbox: prefix of the subjects for replies; one of its own lets the broker keep others from listening.

        choice: which of several brokers; None: in order, without a pause. serves: raises UplinkError where a broker
        answers and is of no use; None: that it answers is enough. drain: returns when a region that serves may be left
        for a better one, which has to be soon.
        """
        self._brokers = address
        self._choice = choice or BrokerChoice(address.addresses, 0.0, FAILBACK_S, clock)
        self._serves = serves
        self._drain = drain
        self._address = self._chosen()
        self._inbox = inbox
        self._name = name
        self._clock = clock
        self._backoff = Backoff(0.25, 10.0)
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._loss: asyncio.Task[Literal[True]] | None = None
        self._connection: NatsConnection | None = None
        self._leaving: Literal["returns", "abandons"] | None = None
        self._byte_counter = WireByteCounter()
        self._reported = ""
        self.state = LinkState(up=False, since=clock.now(), error="not connected yet")

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            started = self._clock.monotonic()
            try:
                await self.run_once()
            except UplinkError as error:
                since = self._clock.now() if self.state.up else self.state.since
                self.state = replace(self.state, up=False, since=since, error=str(error))
                if str(error) != self._reported:
                    logger.warning("%s; trying again until it works", error)
                    self._reported = str(error)
                self._next_broker()
            if self._clock.monotonic() - started > _HEALTHY_AFTER_S:
                self._backoff.reset()
            await asyncio.sleep(self._choice.pause_s(self._backoff))

    async def run_once(self) -> None:
        """One connection, from opening it to its loss. Raises UplinkError with the reason."""
        connection = await self._connect()
        client, tcp = connection.client, connection.socket()
        watchdog = asyncio.create_task(connection.watch(), name="watchdog of the link")
        looking = asyncio.create_task(self._look_for_better(connection), name="probe of a better region")
        try:
            self._connection = connection
            self._report_up(client)
            while not connection.dead:
                self.state = self._byte_counter.read(client, tcp, self.state)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(connection.lost.wait(), _SAMPLE_S)
            raise UplinkError(self._why(connection.error, "the connection was lost"))
        finally:
            await end_tasks(watchdog, looking)
            self._connection = None
            self._up.clear()
            self._down.set()
            self._client = None
            try:
                await connection.close()
            finally:
                self.state = self._byte_counter.read(client, tcp, self.state, ended=True)
                self._byte_counter.closed(self.state)
                if tcp is not None:
                    tcp.close()

    async def _look_for_better(self, connection: NatsConnection) -> None:
        """Probe the regions that come first, while the link is in another one; return to one that has lasted."""
        while self._choice.better():
            await asyncio.sleep(self._choice.probe_every_s)
            answered: list[str] = []
            for each in self._choice.better():
                if each.region not in answered and await self._answers(each):
                    answered.append(each.region)
            if self._choice.probed(answered):
                self._leaving = "returns"  # also when the connection is lost meanwhile
                if self._drain is not None:
                    await self._drain()
                self._leave(connection, f"back to the region {self._choice.region}", "returns")
                return

    async def _answers(self, broker: BrokerAddress) -> bool:
        probe = NatsConnection()
        try:
            await probe.open(self._brokers.model_copy(update={"url": broker.url}), f"{self._name} probe", self._inbox)
            if self._serves is not None:
                await self._serves(probe.client)
            return True
        except (ConnectFailed, UplinkError):
            return False
        finally:
            await probe.close()

    def abandon(self, why: str) -> bool:
        """Leave a broker that answers and is of no use, for another region; False: there is no other."""
        if not self._choice.has_other_region or self._connection is None:
            return False
        self._leave(self._connection, why, "abandons")
        return True

    def _leave(self, connection: NatsConnection, why: str, how: Literal["returns", "abandons"]) -> None:
        self._leaving = how
        connection.error = UplinkError(why)
        connection.lost.set()

    def _next_broker(self) -> None:
        """After a connection or an attempt: the next server, or the next region, which is logged."""
        how, self._leaving = self._leaving, None
        before = self._choice.region
        if how != "returns" and self._choice.failed(at_once=how == "abandons"):
            logger.warning("the region %s is away: escalations go to the region %s", before, self._choice.region)
        if how is not None or before != self._choice.region:
            self._backoff.reset()
        self._address = self._chosen()

    def _chosen(self) -> BrokerConfig:
        return self._brokers.model_copy(update={"url": self._choice.address.url})

    @property
    def connected(self) -> Client | None:
        """The connection, if there is one now."""
        return self._client if self._client is not None and self._client.is_connected else None

    async def client(self) -> Client:
        """Return the connection; wait for as long as there is none."""
        while True:
            await self._up.wait()
            client = self.connected
            if client is not None:
                return client
            self._up.clear()

    async def while_up(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`, or UplinkError once the connection is lost: nats-py would let it time out."""
        task = asyncio.create_task(work)
        if self._loss is None or (self._loss.done() and not self._down.is_set()):  # one for all messages that wait
            self._loss = asyncio.create_task(self._down.wait(), name="loss of the link")
        try:
            await asyncio.wait({task, self._loss}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UplinkError(f"the broker at {self._address}: the connection was lost")
            return task.result()
        finally:
            if not task.done():
                await end_tasks(task)

    async def _connect(self) -> NatsConnection:
        connection, began = NatsConnection(), self._clock.monotonic()
        self._byte_counter.host = urlsplit(self._address.url).hostname or ""
        try:
            await connection.open(self._address, self._name, self._inbox)
        except ConnectFailed as error:
            self.state = self._byte_counter.connect_failed(self._clock.monotonic() - began, error.cause, self.state)
            raise UplinkError(self._why(error.cause, "no connection")) from None
        self._byte_counter.opened()
        return connection

    def _report_up(self, client: Client) -> None:
        self._client = client
        self._down.clear()
        self._reported = ""
        self._choice.connected()
        self.state = replace(
            self.state, up=True, since=self._clock.now(), error="", connects=self.state.connects + 1,
            region=self._choice.region, failovers=self._choice.failovers,
        )  # fmt: skip
        self._up.set()
        logger.info("connected to the broker at %s (nats-server %s)", self._address, server_version(client))

    def _why(self, error: Exception | None, otherwise: str) -> str:
        return f"the broker at {self._address}: {explain(error, otherwise, self._address)}"


async def stay_subscribed(
    link: NatsLink, subject: str, take: Callable[[Msg], Awaitable[None]], pending_bytes: int, *, retry_s: float
) -> None:
    """Have each message of a subject taken, over any number of connections, until cancelled.

    retry_s: before it is asked for again where the broker does not let us.
    """
    while True:
        client = await link.client()
        try:
            subscribed = await client.subscribe(subject, cb=take, pending_bytes_limit=pending_bytes)
            try:
                await link.while_up(asyncio.Event().wait())
            finally:
                with contextlib.suppress(*NATS_ERRORS):
                    await subscribed.unsubscribe()
        except UplinkError:
            continue  # the connection was lost: there is another one when `client` returns
        except NATS_ERRORS:
            await asyncio.sleep(retry_s)


def site_consumer_name(site: str) -> str:
    return f"site-{site}"


async def make_site_consumer(jetstream: JetStreamContext, site: str) -> None:
    """Make it, or leave the one that is the same. Raises nats errors.

    Its name and filter are part of the request's subject, so that rights can be given for exactly this consumer.
    """
    name = site_consumer_name(site)
    wanted = ConsumerConfig(
        name=name,
        durable_name=name,
        filter_subject=verdict_subject(site),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
    )
    await jetstream.add_consumer(STREAM_VERDICT, wanted)


def check_site_consumer(found: ConsumerConfig, site: str) -> None:
    """Raise UplinkError when the consumer of this name reads anything but this site's verdicts, or hands them on."""
    name = site_consumer_name(site)
    if found.filter_subject != verdict_subject(site) or found.deliver_subject:
        reads = found.filter_subject or "everything"
        to = f" and hands it to {found.deliver_subject}" if found.deliver_subject else ""
        raise UplinkError(
            f"the consumer {name} at the broker reads {reads}{to}: somebody else made it; delete it there"
        )
