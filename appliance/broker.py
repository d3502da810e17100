"""One connection to a NATS server, kept for as long as the process lives; shared by the uplink and the worker.

nats-py's own reconnection is switched off: it hands over messages that were published during an outage although
`publish` has already failed, it gives up for ever when a server that restarts refuses the credentials once, and its
first connect behaves differently from the later ones. Here a lost connection is simply over, and the next one is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import nats
import nats.errors
import nkeys
from nats.aio.client import Client

from appliance.address import Address
from appliance.backoff import Backoff
from appliance.clock import Clock
from appliance.errors import UplinkError
from appliance.tcpinfo import (
    Wire,
    failed_attempt,
    internet_version,
    looked_up,
    on_the_wire,
    segment_bytes_max,
    tcp_bytes,
)

CONNECT_S_MAX = 5.0
PING_INTERVAL_S = 20
PENDING_BYTES_MAX = 512 * 1024
CANCEL_AGAIN_S = 3.0  # longer than closing a connection takes
_HEALTHY_AFTER_S = 10.0
_SAMPLE_S = 1.0

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkState:
    """What the link is doing, for the dashboard and the API.

    since: when `up` last changed, UTC seconds. error: why it is down, one sentence. sent, received: bytes over all
    connections of this process, as the kernel counted them (TCP payload, TLS included) when `exact`, else as nats-py
    did. connects: connections made. wire: what went out with all that is around it (acknowledgements, headers down to
    Ethernet, attempts that failed), never too little; resent: of wire, what TCP sent again.
    breaker: closed (the cloud answers), open (it does not, and questions wait) or half_open (one of them is tried);
    breaker_since, breaker_why, trips: since when, why, and how often it opened.
    """

    up: bool
    since: float
    error: str = ""
    connects: int = 0
    sent: int = 0
    received: int = 0
    exact: bool = False
    wire: int = 0
    resent: int = 0
    breaker: Literal["closed", "open", "half_open"] = "closed"
    breaker_since: float = 0.0
    breaker_why: str = ""
    trips: int = 0


class Link:
    """Owner of one NATS connection and of the one task that `run()` is.

    Invariant: `client()` hands out a connection that was up a moment ago; whoever holds it when it dies gets
    UplinkError, or a nats error to translate, and asks again.
    """

    def __init__(self, address: Address, name: str, clock: Clock, *, inbox: str = "_INBOX") -> None:
        """`inbox`: where replies come in; one of its own lets the broker keep others from listening."""
        self._address = address
        self._inbox = inbox
        self._name = name
        self._clock = clock
        self._backoff = Backoff(0.25, 15.0)
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._last_error: Exception | None = None
        self._totals = (0, 0)
        self._wire = Wire()
        self._host = urlsplit(address.url).hostname or ""
        self._said = ""
        self.state = LinkState(up=False, since=clock.now(), error="not connected yet")

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            started = self._clock.monotonic()
            try:
                await self.run_once()
            except UplinkError as error:
                self._is_down(str(error))
            if self._clock.monotonic() - started > _HEALTHY_AFTER_S:
                self._backoff.forgive()
            await asyncio.sleep(self._backoff.next_s())

    async def run_once(self) -> None:
        """One connection, from its making to its loss. Raises UplinkError with the reason."""
        client, lost = await self._connect()
        tcp = _duplicate(client)
        try:
            self._is_up(client)
            while not lost.is_set():
                self._count(client, tcp)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(lost.wait(), _SAMPLE_S)
            raise UplinkError(self._why(self._last_error, "the connection was lost"))
        finally:
            self._up.clear()
            self._down.set()
            self._client = None
            try:
                await _close(client)
            finally:
                self._count(client, tcp, ended=True)
                self._totals = (self.state.sent, self.state.received)
                self._wire = Wire(self.state.wire, self.state.resent)
                if tcp is not None:
                    tcp.close()

    @property
    def connected(self) -> Client | None:
        """The connection, if there is one now."""
        return self._client if self._client is not None and self._client.is_connected else None

    async def client(self) -> Client:
        """The connection; waits for as long as there is none."""
        while True:
            await self._up.wait()
            client = self.connected
            if client is not None:
                return client
            self._up.clear()

    async def while_up(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, or UplinkError as soon as the connection is lost: nats-py would let it time out."""
        task, down = asyncio.create_task(work), asyncio.create_task(self._down.wait())
        try:
            await asyncio.wait({task, down}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UplinkError(f"the broker at {self._address}: the connection was lost")
            return task.result()
        finally:
            await end_tasks(task, down)

    async def _connect(self) -> tuple[Client, asyncio.Event]:
        client, lost = Client(), asyncio.Event()
        self._last_error = None
        tls = self._tls()
        began = self._clock.monotonic()

        async def closed() -> None:
            lost.set()

        async def failed(error: Exception) -> None:
            self._last_error = error

        try:
            await asyncio.wait_for(
                client.connect(
                    self._address.url,
                    name=self._name,
                    allow_reconnect=False,
                    # nats-py retries the first connect this often even so, and sleeps in between.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_S_MAX),
                    ping_interval=PING_INTERVAL_S,
                    pending_size=PENDING_BYTES_MAX,
                    inbox_prefix=self._inbox,
                    error_cb=failed,
                    closed_cb=closed,
                    disconnected_cb=closed,
                    token=self._address.token.get_secret_value() if self._address.token else None,
                    user_credentials=str(self._address.credentials) if self._address.credentials else None,
                    nkeys_seed=str(self._address.nkey) if self._address.nkey else None,
                    tls=tls,
                ),
                2 * CONNECT_S_MAX,
            )
        except (nats.errors.Error, OSError, asyncio.TimeoutError, ValueError, nkeys.NkeysError) as error:
            await _close(client)
            cause = self._last_error if isinstance(error, nats.errors.NoServersError) else error
            self._count_failure(self._clock.monotonic() - began, cause)
            raise UplinkError(self._why(cause, "no connection")) from None
        self._wire += looked_up(self._host)
        return client, lost

    def _tls(self) -> ssl.SSLContext | None:
        """A context when TLS is asked for; None lets the server decide. Raises UplinkError."""
        address = self._address
        plain = urlsplit(address.url).scheme not in {"tls", "wss"}
        if address.tls_ca is None and address.tls_cert is None and plain:
            return None
        try:
            context = ssl.create_default_context(cafile=str(address.tls_ca) if address.tls_ca else None)
        except OSError as error:
            raise UplinkError(f"{address.tls_ca}: cannot be read as a CA bundle ({error.strerror})") from None
        if address.tls_cert is not None:
            try:
                context.load_cert_chain(address.tls_cert, address.tls_key)
            except OSError as error:
                why = error.strerror or "they do not belong together, or are not PEM"
                raise UplinkError(f"{address.tls_cert}: cannot be used as certificate and key ({why})") from None
        return context

    def _is_up(self, client: Client) -> None:
        self._client = client
        self._down.clear()
        self._said = ""
        self.state = replace(self.state, up=True, since=self._clock.now(), error="", connects=self.state.connects + 1)
        self._up.set()
        version = client.connected_server_version
        logger.info(
            "connected to the broker at %s (nats-server %s.%s.%s)",
            self._address,
            version.major,
            version.minor,
            version.patch,
        )

    def _is_down(self, why: str) -> None:
        since = self._clock.now() if self.state.up else self.state.since
        self.state = replace(self.state, up=False, since=since, error=why)
        if why != self._said:
            logger.warning("%s; trying again until it works", why)
            self._said = why

    def _count(self, client: Client, tcp: socket.socket | None, *, ended: bool = False) -> None:
        counted = tcp_bytes(tcp) if tcp is not None else None
        if tcp is None or counted is None or counted.sent is None:
            self._count_by_client(client)
            return
        version, segment_max = internet_version(tcp), segment_bytes_max(tcp)
        wire = on_the_wire(counted, version=version, segment_max=segment_max, ended=ended) or Wire(counted.sent)
        self._counted(counted.sent, counted.received, self._wire + wire, exact=True)

    def _count_by_client(self, client: Client) -> None:
        sent, received = client.stats["out_bytes"], client.stats["in_bytes"]
        self._counted(sent, received, self._wire + Wire(sent), exact=False)

    def _counted(self, sent: int, received: int, wire: Wire, *, exact: bool) -> None:
        self.state = replace(
            self.state,
            sent=self._totals[0] + sent,
            received=self._totals[1] + received,
            exact=exact,
            wire=max(self.state.wire, wire.bytes),
            resent=max(self.state.resent, wire.resent),
        )

    def _count_failure(self, seconds: float, cause: Exception | None) -> None:
        nobody = isinstance(cause, (ConnectionRefusedError, socket.gaierror, asyncio.TimeoutError)) or (
            isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
        )
        self._wire += failed_attempt(seconds, self._host, answered=not nobody)
        self.state = replace(self.state, wire=self._wire.bytes, resent=self._wire.resent)

    def _why(self, error: Exception | None, otherwise: str) -> str:
        return f"the broker at {self._address}: {_explain(error, otherwise, self._address)}"


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    They are asked again: before Python 3.12 `wait_for` swallows a cancellation that comes together with its result
    (python/cpython issue 86296), and a connection that is just being made would then live for ever.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised has been seen


async def _close(client: Client) -> None:
    # An AssertionError is how nats-py says that nothing was opened yet: the credentials could not be read.
    with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError, AssertionError):
        await asyncio.wait_for(client.close(), 2.0)


def _explain(error: Exception | None, otherwise: str, address: Address) -> str:
    text = str(error).lower()
    if isinstance(error, nats.errors.AuthorizationError) or "authorization" in text or "authentication" in text:
        return "it refused us (wrong token, credentials or password)"
    if isinstance(error, ssl.SSLError):
        return f"its TLS certificate or handshake failed ({error.reason or 'TLS error'}); is tls_ca right?"
    if isinstance(error, nkeys.NkeysError):
        return "the file of credentials or nkey holds no usable seed"
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename} (credentials, nkey)"
    if isinstance(error, ConnectionRefusedError):
        return "nothing answers there (connection refused)"
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    if isinstance(error, (asyncio.TimeoutError, nats.errors.TimeoutError)):
        return "it does not answer"
    if isinstance(error, (nats.errors.StaleConnectionError, nats.errors.UnexpectedEOF, ConnectionResetError)):
        return "the connection was lost"
    if error is None or not str(error):
        return otherwise
    return _without(str(error), address)


def _without(text: str, address: Address) -> str:
    """`text` without the token, should a library ever quote it."""
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return text


def _duplicate(client: Client) -> socket.socket | None:
    """The connection's socket, to be read even when the connection was lost; nats-py has no public way to it."""
    writer = getattr(getattr(client, "_transport", None), "_bare_io_writer", None)
    held = writer.get_extra_info("socket") if writer is not None else None
    try:
        return socket.socket(fileno=os.dup(held.fileno())) if held is not None else None
    except OSError:
        return None
