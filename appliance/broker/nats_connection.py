"""One connection to a NATS server: opens it, counts its bytes, closes it, and explains in a sentence why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

from appliance.base.broker_config import IDENTITY_FILES, BrokerConfig
from appliance.base.errors import UplinkError, printable
from appliance.base.tcpinfo import (
    WireBytes,
    bytes_on_wire,
    dns_lookup_bytes,
    failed_connect_bytes,
    ip_version,
    segment_bytes_max,
    tcp_bytes,
)

_COMPLAINT_CHARS_MAX = 200  # one line of a log; the rest repeats it

logger = logging.getLogger(__name__)

# nats-py reads answers without checking them: a list where an object belongs, a number of 400 digits or a field that is
# missing shows as any of the later ones.
NATS_ERRORS = (
    nats.errors.Error,
    OSError,
    asyncio.TimeoutError,
    asyncio.InvalidStateError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
CONNECT_S_MAX = 5.0  # lost SYNs are repeated after 1 and 3 s
PING_INTERVAL_S = 20.0  # keeps a NAT's mapping alive, some 30 bytes a minute and direction
PONG_S_MAX = 60.0  # on a slow uplink as much as PENDING_BYTES_MAX may be before it
MESSAGE_LENGTH_MAX = 16 * 1024**2  # the list of 100,000 subjects is some 6 MB; messages of ours are below 0.6 MB
CONTROL_LINE_MAX = 64 * 1024  # an INFO that names every server of a large cluster
PENDING_BYTES_MAX = 512 * 1024  # four chunks: more than the uplink has in flight


@contextlib.contextmanager
def broker_errors(what: str) -> Iterator[None]:
    """Raise UplinkError, `what` and the kind of the error, for all that nats-py raises inside."""
    try:
        yield
    except NATS_ERRORS as error:
        logger.debug("%s", what, exc_info=True)
        raise UplinkError(f"{what}: {type(error).__name__}") from None


def complaint(error: nats.errors.Error) -> str:
    """Return the broker's complaint in a few words, whatever it is made of."""
    return printable(str(getattr(error, "description", "") or type(error).__name__)[:_COMPLAINT_CHARS_MAX])


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of the link, for the dashboard and the API.

    since: when `up` last changed, UTC seconds. error: why it is down, one sentence. connects: connections made.
    sent, received: bytes over all connections of this process, as the kernel counted them (TCP payload, TLS included)
    when `exact`, else as nats-py did. wire: what went out with all that is around it (acknowledgements, headers down to
    Ethernet, attempts that failed), never too little; resent: of wire, what TCP sent again.
    breaker: closed (the cloud answers), open (it does not, and escalations wait) or half_open (one of them is tried);
    breaker_why, trips: why it is open, and how often it opened.
    region: of the broker, "" where the file names none; failovers: how often the region changed.
    judged_here: the appliance's own judge answers meanwhile.
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
    breaker_why: str = ""
    trips: int = 0
    region: str = ""
    failovers: int = 0
    judged_here: bool = False

    @property
    def fault(self) -> str:
        """Return why the cloud answers nobody, and what happens meanwhile, for a person; "": it answers."""
        meanwhile = "this appliance judges meanwhile" if self.judged_here else "what was flagged waits, unverified"
        if not self.up:
            return f"the cloud link is down{f': {self.error}' if self.error else ''}; {meanwhile}"
        return "" if self.breaker == "closed" else f"the cloud does not answer: {self.breaker_why}; {meanwhile}"


class WireByteCounter:
    """State: what earlier connections carried; what the present one did is added at each reading of its socket.

    host: whose name is looked up for the next connection.
    """

    def __init__(self) -> None:
        self.host = ""
        self._totals = (0, 0)
        self._wire = WireBytes()

    def opened(self) -> None:
        """Note that a connection was made."""
        self._wire += dns_lookup_bytes(self.host)

    def connect_failed(self, seconds: float, cause: Exception | None, state: LinkState) -> LinkState:
        """Note an attempt that took so long and failed; return `state` with the bytes that it cost."""
        unanswered = isinstance(cause, (ConnectionRefusedError, socket.gaierror, asyncio.TimeoutError)) or (
            isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
        )
        self._wire += failed_connect_bytes(seconds, self.host, answered=not unanswered)
        return replace(state, wire=self._wire.bytes, resent=self._wire.resent)

    def read(self, client: Client, tcp: socket.socket | None, state: LinkState, *, ended: bool = False) -> LinkState:
        """`state` with what the present connection has carried by now. ended: it will carry no more."""
        counted = tcp_bytes(tcp) if tcp is not None else None
        if tcp is None or counted is None or counted.sent is None:
            sent, received = client.stats["out_bytes"], client.stats["in_bytes"]
            return self._counted(sent, received, self._wire + WireBytes(sent), state, exact=False)
        version, segment_max = ip_version(tcp), segment_bytes_max(tcp)
        wire = bytes_on_wire(counted, version=version, segment_max=segment_max, ended=ended) or WireBytes(counted.sent)
        return self._counted(counted.sent, counted.received, self._wire + wire, state, exact=True)

    def closed(self, state: LinkState) -> None:
        """Count the present connection among the earlier ones from here on. state: the state after the last reading."""
        self._totals = (state.sent, state.received)
        self._wire = WireBytes(state.wire, state.resent)

    def _counted(self, sent: int, received: int, wire: WireBytes, state: LinkState, *, exact: bool) -> LinkState:
        return replace(
            state,
            sent=self._totals[0] + sent,
            received=self._totals[1] + received,
            exact=exact,
            wire=max(state.wire, wire.bytes),
            resent=max(state.resent, wire.resent),
        )


class BoundedParser(Parser):
    """nats-py's parser gathers as many bytes as a broker announces: beyond a limit this one ends the connection."""

    async def parse(self, data: bytes = b"") -> None:
        """Parse the broker's bytes. Raise ProtocolError, which makes nats-py close the connection."""
        await super().parse(data)
        too_long = self.state == AWAITING_MSG_PAYLOAD and self.needed > MESSAGE_LENGTH_MAX
        if too_long or (self.state == AWAITING_CONTROL_LINE and len(self.buf) > CONTROL_LINE_MAX):
            self.reset()
            raise nats.errors.ProtocolError


class NatsConnection:
    """State: `lost`, which is set when a loss is reported, and the last `error` of nats-py. `client` is nats-py's.

    nats-py does not always report a loss: if a network error interrupts its closing (a freeze of the process, an `-ERR
    'Stale Connection'` with a reset behind it), no callback comes. `is_lost` looks at nats-py, `ping` asks the broker.
    """

    def __init__(self) -> None:
        self.client = Client()
        self.client._ps = BoundedParser(self.client)
        self.lost = asyncio.Event()
        self.error: Exception | None = None

    async def open(self, address: BrokerConfig, name: str, inbox: str) -> None:
        """Connect, once. Raises ConnectFailed, or UplinkError for files that cannot be used."""
        tls = _tls(address)
        try:
            await asyncio.wait_for(
                self.client.connect(
                    address.url,
                    name=name,
                    allow_reconnect=False,
                    # nats-py retries the first connect this often even so, and sleeps in between.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_S_MAX),
                    ping_interval=3600,  # `ping` does it, and looks whether it is answered
                    pending_size=PENDING_BYTES_MAX,
                    inbox_prefix=inbox,
                    error_cb=self._failed,
                    closed_cb=self._closed,
                    disconnected_cb=self._closed,
                    token=address.token.get_secret_value() if address.token else None,
                    user_credentials=str(address.credentials) if address.credentials else None,
                    nkeys_seed=str(address.nkey) if address.nkey else None,
                    tls=tls,
                ),
                2 * CONNECT_S_MAX,
            )
            if not self.client.is_connected:  # nats-py takes any line for the PONG that ends the handshake
                raise nats.errors.ProtocolError
        except Exception as error:  # noqa: BLE001 - whatever answers there may break nats-py's reader in any way
            await self.close()
            if not isinstance(error, (nats.errors.Error, OSError, asyncio.TimeoutError, ValueError, *_seed_errors())):
                error = StrangeGreeting(f"what it greets with is not NATS ({type(error).__name__})")
            raise ConnectFailed(self.error if isinstance(error, nats.errors.NoServersError) else error) from None

    @property
    def is_lost(self) -> bool:
        """Return whether nothing comes over it any more, reported or not."""
        reading = getattr(self.client, "_reading_task", None)  # it ends with any error, and may not say so
        return bool(self.lost.is_set() or not self.client.is_connected or (reading is not None and reading.done()))

    async def ping(self) -> None:
        """Set `lost` unless the broker answers a PING within PONG_S_MAX."""
        try:
            await asyncio.wait_for(self.client.flush(int(PONG_S_MAX)), PONG_S_MAX)
        except NATS_ERRORS as error:
            self.error = self.error or error
            self.lost.set()

    async def watch(self) -> None:
        """Ping until it is lost: a broker that does not answer is lost, whatever nats-py believes."""
        while not self.is_lost:
            await asyncio.sleep(PING_INTERVAL_S)
            await self.ping()

    async def close(self) -> None:
        """At the latest after 2 s."""
        with contextlib.suppress(*NATS_ERRORS):
            await asyncio.wait_for(self.client.close(), 2.0)

    def socket(self) -> socket.socket | None:
        """Return the connection's socket, also after the connection was lost; nats-py has no public way to it."""
        writer = getattr(getattr(self.client, "_transport", None), "_bare_io_writer", None)
        held = writer.get_extra_info("socket") if writer is not None else None
        try:
            return socket.socket(fileno=os.dup(held.fileno())) if held is not None else None
        except OSError:
            return None

    async def _closed(self) -> None:
        self.lost.set()

    async def _failed(self, error: Exception) -> None:
        self.error = error


class StrangeGreeting(Exception):
    """A listener at the broker's address that does not speak NATS, or not as nats-server does."""


class ConnectFailed(Exception):
    """There is no connection, because of `cause`."""

    def __init__(self, cause: Exception | None) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _seed_errors() -> tuple[type[Exception], ...]:
    """Return the errors that an unusable seed raises.

    nats-py loads nkeys, and libsodium, only where a file of credentials is named.
    """
    nkeys = sys.modules.get("nkeys")
    return () if nkeys is None else (nkeys.NkeysError,)


def server_version(client: Client) -> str:
    """Return the version that the connected server states; one that is no version does not end the connection."""
    try:
        version = client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"
    except (ValueError, TypeError):
        return "of an unknown version"


def explain(error: Exception | None, otherwise: str, address: BrokerConfig) -> str:
    """Why there is no connection (any more), so that a person can act; without secrets."""
    text = str(error).lower()
    if isinstance(error, nats.errors.AuthorizationError) or "authorization" in text or "authentication" in text:
        return _unreadable_identity(address) or "it refused us (wrong token, credentials or password)"
    if isinstance(error, ssl.SSLError):
        return f"its TLS certificate or handshake failed ({error.reason or 'TLS error'}); is tls_ca right?"
    if isinstance(error, _seed_errors()):
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


def _unreadable_identity(address: BrokerConfig) -> str:
    """Say which file of our identity cannot be read; '': all can, or none is named.

    nats-py reads them only for a server that asks for a signature. Any other refuses us without them.
    """
    for _, path in address.unreadable_files(IDENTITY_FILES):
        return f"it refused us, and {path} is no file that this user can read (credentials, nkey)"
    return ""


def _without(text: str, address: BrokerConfig) -> str:
    """`text` without the token, should a library ever quote it."""
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return text


def _tls(address: BrokerConfig) -> ssl.SSLContext | None:
    """Return a context when TLS is configured; None lets the server decide. Raise UplinkError."""
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
