"""Takes connections at the address where a web program is served: TLS or plain HTTP by the first byte, in bounded time.

The settings of that address, and the facts of its certificate, are defined here as well.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TLS_HANDSHAKE = 0x16  # the first byte of each TLS connection (RFC 8446, 5.1); no HTTP method begins with it
ACCEPT_AT_ONCE = 64  # as server.BACKLOG: all that wait
_RETRY_S = 1.0  # after the process ran out of files
_SHUTDOWN_S = 5.0  # for TLS's goodbye, which browsers seldom answer


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on what a client may cost before it has shown a token.

    connections_max: beyond it one connection is closed for each new one, see `Admission`. per_address_max: the same for
    one address; a trusted proxy is exempt, since all its visitors share its address. request_s: for a whole request,
    from the first byte or from the connection on, and before it for the TLS handshake. stall_s: for taking the
    response; a browser that has buffered enough of a clip reads on later, or requests the rest.
    """

    connections_max: int = 200
    per_address_max: int = 100
    request_s: float = 10.0
    stall_s: float = 120.0
    keep_alive_s: int = 20


@dataclass(slots=True, eq=False)
class Connection:
    """One that counts. address: see `counted_address`. end: closes it. signed_in: somebody is, by its last request."""

    address: str
    end: Callable[[], object]
    signed_in: bool = False


class Admission:
    """Count connections, and end one for each that is too many.

    The one that ends belongs to the address that holds most: it is the oldest on which nobody is signed in. A client
    that opens many therefore ends its own, and one visitor more is served at once. State: the connections, oldest
    first. Owner: the event loop.
    """

    def __init__(self, limits: ConnectionLimits, proxies: Sequence[str]) -> None:
        self.limits = limits
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]
        self._connections: dict[Connection, None] = {}

    def admit(self, host: str, end: Callable[[], object]) -> Connection:
        """Count a connection; `leave` when it is closed. One is ended, perhaps itself, where that makes too many."""
        host = plain_address(host)
        is_proxy = any(is_inside(host, each) for each in self._proxies)
        new = Connection(host if is_proxy else counted_address(host), end)
        self._connections[new] = None
        if len(self._connections) > self.limits.connections_max:
            self._end_one_of(self._largest())
        elif not is_proxy and self._weights(lambda each: 1)[new.address] > self.limits.per_address_max:
            self._end_one_of(new.address)
        return new

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection. May be called twice."""
        self._connections.pop(connection, None)

    def _weights(self, weight: Callable[[Connection], int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for each in self._connections:
            found[each.address] += weight(each)
        return found

    def _largest(self) -> str:
        """Return the address that holds most connections; those on which nobody is signed in count twice.

        A trusted proxy is not charged for as many connections as one address may have.
        """
        found = self._weights(lambda each: 1 if each.signed_in else 2)
        for address in found:
            if any(is_inside(address, each) for each in self._proxies):
                found[address] -= 2 * self.limits.per_address_max
        return max(found, key=lambda address: found[address])

    def _end_one_of(self, address: str) -> None:
        theirs = (each for each in self._connections if each.address == address)
        ended = min(theirs, key=lambda each: each.signed_in)
        self.leave(ended)
        ended.end()


def address_in(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is; None: it is none, such as a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def plain_address(host: str) -> str:
    """Return an IPv4 address that came over an IPv6 socket (`::ffff:192.0.2.1`) as itself, others unchanged."""
    return str(getattr(address_in(host.partition("%")[0]), "ipv4_mapped", None) or host)


def counted_address(host: str) -> str:
    """Return an address as limits count it: an IPv6 one is cut to its /64, which one visitor usually has whole."""
    plain = plain_address(host)
    address = address_in(plain.partition("%")[0])
    return str(ipaddress.ip_network((address, 64), strict=False)) if address and address.version == 6 else plain


def is_inside(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Return whether `host` is an address of `network`; False if it is no address."""
    return (address := address_in(host)) is not None and address in network


class TlsAcceptor:
    """Owner of the listening socket while the loop runs, and of connections until their protocol takes them.

    A connection counts from the moment it is accepted: first byte and handshake together have `request_s`. Plain HTTP
    is handed on as it is; the guard answers that this port speaks HTTPS.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: Callable[[], ssl.SSLContext],
        admission: Admission,
        protocol: Callable[[Connection], asyncio.Protocol],
    ) -> None:
        """protocol: makes one that takes over a connection that is counted. Call in the loop's thread."""
        self._listening = listening
        self._context = context
        self._admission = admission
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Task[None]] = set()
        self._listen()

    def close(self) -> None:
        """Take no more connections, and end those that no protocol has yet."""
        self._loop.remove_reader(self._listening)
        for task in self._waiting:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._waiting:
            await asyncio.wait(self._waiting)

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files: not again at once
                self._loop.call_exception_handler({"message": "a connection was not accepted", "exception": error})
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_RETRY_S, self._listen)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._hand_on(connection, str(address[0])))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _hand_on(self, connection: socket.socket, host: str) -> None:
        """Give the connection to a protocol, over TLS if it begins with it; close it if it does not come to that."""
        this = asyncio.current_task()
        assert this is not None
        counted = self._admission.admit(host, this.cancel)
        end = self._loop.time() + self._admission.limits.request_s
        is_handed_on = False
        try:
            first = await asyncio.wait_for(self._first_byte(connection), self._admission.limits.request_s)
            if first:
                named: dict[str, Any] = {}
                if first[0] == TLS_HANDSHAKE:
                    named = {"ssl": self._context(), "ssl_handshake_timeout": max(0.05, end - self._loop.time())}
                    if sys.version_info >= (3, 11):
                        named["ssl_shutdown_timeout"] = _SHUTDOWN_S
                await self._loop.connect_accepted_socket(lambda: self._protocol(counted), connection, **named)
                is_handed_on = True
        except (OSError, asyncio.TimeoutError):  # ssl.SSLError is one; the peer hears of it, and nobody else need
            pass
        finally:
            if not is_handed_on:
                self._admission.leave(counted)
                connection.close()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """b'': it was closed. The byte stays in the socket. Raises OSError."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)


class ServedAddress(Protocol):
    """The settings of host and certificate. The dashboard's section of the site file is one."""

    @property
    def host(self) -> str:
        """Name or address to listen on; `0.0.0.0` and `::` are every interface."""

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Names of this machine that browsers may use."""

    @property
    def speaks_https(self) -> bool: ...

    @property
    def certificate(self) -> Path | None: ...

    @property
    def certificate_key(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The facts of a certificate that a person compares or must know.

    fingerprint: SHA-256 as browsers show it. own: made by this appliance.
    """

    fingerprint: str
    names: tuple[str, ...]
    expires_t: float
    self_signed: bool
    own: bool
