"""Keeps one connection to a NATS server and reconnects, with backoff, to another region if need be.

It also makes the consumer of a site's verdicts.

nats-py's own reconnection is switched off: it hands over messages that were published during an outage although
`publish` has already failed, it gives up for ever when a server that restarts refuses the credentials once, and its
first connect behaves differently from the later ones. Here a lost connection is simply over, and the next one is new.

The servers of one region are a cluster: they share their streams, and whichever answers is right. A region is left when
it was away, or refused, for `failover_s`, and is returned to when it has answered without a gap for `failback_s`. When
it is left again within that time after a return, the next return takes twice as long, up to FAILBACK_S_MAX: a broker
that flaps must not make the site flap.

Regions hold no copies of each other's streams: sourced and mirrored streams stay behind, or lose messages, after a cut
(nats-server issues 7530, 6468, 3207). The outbox has everything, and sends it to whichever region it is at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
FAILBACK_S = 300.0  # how long a preferred region must answer before the link returns to it, if no `choice` says so
SERVER_PAUSE_S = 0.1  # before the next server of a cluster, which was not tried yet
FAILBACK_S_MAX = 6 * 3600.0  # doubled up to here: a region that flaps is tried four times a day
_SAMPLE_S = 1.0  # between two readings of the socket's counters
WAITING_BYTES_MAX = 64 * 1024  # of a subscription: messages that wait to be read
# After this time the broker delivers a verdict again that was not acknowledged, for example because the connection was
# lost. If a slow disk delays the acknowledgement for longer, the verdict also comes twice; the second has no effect.
ACK_WAIT_S = 10.0

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    Each is cancelled again until it has ended: before Python 3.12 `wait_for` swallows a cancellation that comes
    together with its result (python/cpython issue 86296), and a connection that is being made would live for ever.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised has been seen


async def until_set(stop: asyncio.Event, work: Coroutine[Any, Any, None], *keepers: asyncio.Task[None]) -> None:
    """Await `work`; cancel it when `stop` is set, or when one of the `keepers` ends, and raise that keeper's error.

    keepers: tasks without which the work would wait for ever.
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


class BrokerChoice:
    """State: the present region and server, since when it is away, and for how long a better one has answered.

    Owner: one event loop. Invariant: an address is one of `addresses`; what residency forbids is not among them.
    """

    def __init__(self, addresses: Sequence[BrokerAddress], failover_s: float, failback_s: float, clock: Clock) -> None:
        self._regions: dict[str, list[BrokerAddress]] = {}
        for each in addresses:
            self._regions.setdefault(each.region, []).append(each)
        self._order = list(self._regions)
        self._clock = clock
        self._failover_s = failover_s
        self._failback_s = self._failback_first_s = failback_s
        self._server = 0
        self._away_at: float | None = None
        self._up_at: float | None = None
        self._tried = 0
        self._begun_at = clock.monotonic()
        self._returned = False
        self._answers_since: dict[str, float] = {}
        self.region = self._order[0]
        self.failovers = 0

    @property
    def address(self) -> BrokerAddress:
        """The server to connect to now."""
        servers = self._regions[self.region]
        return servers[self._server % len(servers)]

    @property
    def has_other_region(self) -> bool:
        return len(self._order) > 1

    @property
    def probe_every_s(self) -> float:
        """The pause between two looks at a better region: it is seen some times before it is trusted."""
        return min(30.0, self._failback_first_s / 4)

    def pause_s(self, backoff: Backoff) -> float:
        """Return the pause before the next attempt; the backoff is between two attempts at one server.

        It keeps the link neither from the region's other servers, nor from another region for longer than failover_s.
        """
        if self._tried % len(self._regions[self.region]):
            return SERVER_PAUSE_S
        limit_s = max(SERVER_PAUSE_S, self._failover_s) if self.has_other_region else float("inf")
        return min(backoff.next_s(), limit_s)

    def connected(self) -> None:
        """Note that there is a connection. The region stays away if that does not last."""
        self._up_at = self._clock.monotonic()

    def failed(self, *, at_once: bool = False) -> bool:
        """Note that the present server does not serve any more; return True if another region is next.

        at_once: the region was of no use for long enough, although it answers.
        """
        now, up_at, self._up_at = self._clock.monotonic(), self._up_at, None
        if self._away_at is None or (up_at is not None and now - up_at >= self._failover_s):
            self._away_at, self._tried = now, 0
        self._tried += 1
        self._server += 1
        tried_all = self._tried >= len(self._regions[self.region]) and now - self._away_at >= self._failover_s
        if not self.has_other_region or not (at_once or tried_all):
            return False
        flaps = self._returned and now - self._begun_at < self._failback_s
        self._failback_s = min(2 * self._failback_s, FAILBACK_S_MAX) if flaps else self._failback_first_s
        self._returned = False
        self._move(self._order[(self._order.index(self.region) + 1) % len(self._order)])
        return True

    def better(self) -> list[BrokerAddress]:
        """Return the servers of the regions that come before the present one, in order."""
        before = self._order[: self._order.index(self.region)]
        return [each for region in before for each in self._regions[region]]

    def probed(self, answered: Sequence[str]) -> bool:
        """Note which better regions answer; return True if the first of them is to be returned to, and is next."""
        now = self._clock.monotonic()
        self._answers_since = {region: self._answers_since.get(region, now) for region in answered}
        for region in self._order[: self._order.index(self.region)]:
            if now - self._answers_since.get(region, now) >= self._failback_s:
                self._answers_since.clear()
                self._returned = True
                self._move(region)
                return True
        return False

    def _move(self, region: str) -> None:
        self.region, self._server, self._tried, self._away_at = region, 0, 0, None
        self._begun_at = self._clock.monotonic()
        self.failovers += 1


class NatsLink:
    """Owner of one NATS connection at a time, and of the one task that `run()` is.

    A broker is a nats-server. The brokers of one region are a cluster and share their streams; regions share nothing.
    `BrokerChoice` says which broker is next, and knows in which order the regions are preferred.

    The link is up while it has a connection, and down otherwise; `state.up` says so to any thread:

        link   begins                                   client()              while_up(work)
        down   with the program; a connection is lost   waits until it is up  raises UplinkError, as `work` cannot end
        up     a connection is open                     returns it            returns the result of `work`

    A connection is lost when nats-py or the watchdog finds it broken, and also when the link leaves it: for a preferred
    region that answers again ("returns"), or because the broker answers and is of no use ("abandons"). Then `run()`
    opens the next one. A caller that still holds the lost connection gets UplinkError, or a nats error to translate,
    and calls `client()` again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        name: str,
        clock: Clock,
        *,
        inbox: str = "_INBOX",
        choice: BrokerChoice | None = None,
        serves: Callable[[Client], Awaitable[None]] | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """config: the brokers and how to sign in. name: of this client, as the broker lists it.

        inbox: prefix of the subjects for replies; with a prefix of its own for each site, the broker's permissions can
        keep other sites from reading the replies. choice: which broker is next; None: the next in order, at once.
        serves: called with a client on trial, and raises UplinkError if that broker answers but cannot do the work;
        None: a broker that answers is good enough. drain: awaited before the link leaves a region that works for a
        preferred one; it returns soon, once nothing is in flight.
        """
        self._config = config
        self._choice = choice or BrokerChoice(config.addresses, 0.0, FAILBACK_S, clock)
        self._serves = serves
        self._drain = drain
        self._broker = self._chosen_broker()
        self._inbox = inbox
        self._name = name
        self._clock = clock
        self._backoff = Backoff(0.25, 10.0)
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._wait_down: asyncio.Task[Literal[True]] | None = None
        self._connection: NatsConnection | None = None
        self._left: Literal["returns", "abandons"] | None = None
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
        probing = asyncio.create_task(self._probe_preferred(connection), name="probe of a better region")
        try:
            self._connection = connection
            self._report_up(client)
            while not connection.is_lost:
                self.state = self._byte_counter.read(client, tcp, self.state)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(connection.lost.wait(), _SAMPLE_S)
            raise UplinkError(self._why(connection.error, "the connection was lost"))
        finally:
            await end_tasks(watchdog, probing)
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

    async def _probe_preferred(self, connection: NatsConnection) -> None:
        """Probe the regions that are preferred to the present one; return to one that answered for long enough."""
        while self._choice.better():
            await asyncio.sleep(self._choice.probe_every_s)
            answered: list[str] = []
            for each in self._choice.better():
                if each.region not in answered and await self._answers(each):
                    answered.append(each.region)
            if self._choice.probed(answered):
                self._left = "returns"  # set before the drain: the choice has moved already
                if self._drain is not None:
                    await self._drain()
                self._leave(connection, f"back to the region {self._choice.region}", "returns")
                return

    async def _answers(self, broker: BrokerAddress) -> bool:
        """Return whether the broker lets a second connection in and, by `serves`, can do the work."""
        probe = NatsConnection()
        try:
            await probe.open(self._config.model_copy(update={"url": broker.url}), f"{self._name} probe", self._inbox)
            if self._serves is not None:
                await self._serves(probe.client)
            return True
        except (ConnectFailed, UplinkError):
            return False
        except Exception:  # it would end the probes, and the link would never return
            logger.exception("a fault while the region %s was probed", broker.region)
            return False
        finally:
            await probe.close()

    def abandon(self, why: str) -> bool:
        """Leave a broker that is of no use although it answers; False: there is no other, or the link is down."""
        if not self._choice.has_other_region or self._connection is None:
            return False
        self._leave(self._connection, why, "abandons")
        return True

    def _leave(self, connection: NatsConnection, why: str, how: Literal["returns", "abandons"]) -> None:
        """Treat the connection as lost; `run_once` raises `why` and `_next_broker` acts on `how`."""
        self._left = how
        connection.error = UplinkError(why)
        connection.lost.set()

    def _next_broker(self) -> None:
        """Choose the broker for the next attempt; log a change of region."""
        how, self._left = self._left, None
        before = self._choice.region
        # On "returns", `BrokerChoice.probed` has chosen the region already.
        if how != "returns" and self._choice.failed(at_once=how == "abandons"):
            logger.warning("the region %s is away: escalations go to the region %s", before, self._choice.region)
        if how is not None or before != self._choice.region:
            self._backoff.reset()
        self._broker = self._chosen_broker()

    def _chosen_broker(self) -> BrokerConfig:
        return self._config.model_copy(update={"url": self._choice.address.url})

    @property
    def client_now(self) -> Client | None:
        """The connection; None while the link is down."""
        return self._client if self._client is not None and self._client.is_connected else None

    async def client(self) -> Client:
        """Return the connection; wait while the link is down."""
        while True:
            await self._up.wait()
            client = self.client_now
            if client is not None:
                return client
            self._up.clear()  # nats-py knows of the loss, and run_once does not yet

    async def while_up(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`. Raise UplinkError once the link is down, where nats-py would let it time out."""
        task = asyncio.create_task(work)
        # One task for all callers. One that is done was of an earlier connection, unless the link is still down.
        if self._wait_down is None or (self._wait_down.done() and not self._down.is_set()):
            self._wait_down = asyncio.create_task(self._down.wait(), name="loss of the link")
        try:
            await asyncio.wait({task, self._wait_down}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UplinkError(f"the broker at {self._broker}: the connection was lost")
            return task.result()
        finally:
            if not task.done():
                await end_tasks(task)

    async def _connect(self) -> NatsConnection:
        connection, began = NatsConnection(), self._clock.monotonic()
        self._byte_counter.host = urlsplit(self._broker.url).hostname or ""
        try:
            await connection.open(self._broker, self._name, self._inbox)
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
        logger.info("connected to the broker at %s (nats-server %s)", self._broker, server_version(client))

    def _why(self, error: Exception | None, otherwise: str) -> str:
        return f"the broker at {self._broker}: {explain(error, otherwise, self._broker)}"


async def stay_subscribed(
    link: NatsLink, subject: str, take: Callable[[Msg], Awaitable[None]], *, retry_s: float
) -> None:
    """Call `take` with each message of a subject, over any number of connections, until cancelled.

    retry_s: the pause before the next attempt if the broker refuses the subscription.
    """
    while True:
        client = await link.client()
        try:
            subscribed = await client.subscribe(subject, cb=take, pending_bytes_limit=WAITING_BYTES_MAX)
            try:
                await link.while_up(asyncio.Event().wait())
            finally:
                with contextlib.suppress(*NATS_ERRORS):
                    await subscribed.unsubscribe()
        except UplinkError:
            continue  # the link is down; `client` waits until it is up
        except NATS_ERRORS:
            await asyncio.sleep(retry_s)


def site_consumer_name(site: str) -> str:
    return f"site-{site}"


async def make_site_consumer(jetstream: JetStreamContext, site: str) -> None:
    """Make the consumer of a site's verdicts; an equal one stays as it is. Raises nats errors.

    The request's subject contains the consumer's name and filter, so permissions can allow exactly this consumer.
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
    """Raise UplinkError if the consumer of this name reads anything but this site's verdicts, or pushes them on."""
    name = site_consumer_name(site)
    if found.filter_subject != verdict_subject(site) or found.deliver_subject:
        reads = found.filter_subject or "everything"
        to = f" and hands it to {found.deliver_subject}" if found.deliver_subject else ""
        raise UplinkError(
            f"the consumer {name} at the broker reads {reads}{to}: somebody else made it; delete it there"
        )
