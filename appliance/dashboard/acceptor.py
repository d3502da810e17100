"""Takes connections on a port that speaks HTTPS: tells TLS from plain HTTP by the first byte, in bounded time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

TLS_HANDSHAKE = 0x16  # the first byte of each TLS connection (RFC 8446, 5.1); no HTTP method begins with it
ACCEPT_AT_ONCE = 64
_AGAIN_S = 1.0  # after the process ran out of files
_SHUTDOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may cost before it has shown a token.

    connections_max: beyond it a new connection is closed without an answer; per_address_max: the same for one address
    (not for a trusted proxy, which is everybody). request_s: for a whole request, from the first byte or the connection
    on, and before it for the TLS handshake. stall_s: for taking the answer; a browser that has buffered enough of a
    clip reads on, or asks again.
    """

    connections_max: int = 200
    per_address_max: int = 100
    request_s: float = 10.0
    stall_s: float = 120.0
    keep_alive_s: int = 20


class Admission:
    """Decides whether one more connection is taken."""

    def __init__(self, limits: ConnectionLimits, proxies: Sequence[str]) -> None:
        self.limits = limits
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]

    def refuses(self, here: str, connected: Collection[str]) -> bool:
        """here: the address of a new connection; connected: those of all, the new one among them."""
        if len(connected) > self.limits.connections_max:
            return True
        if any(is_inside(here, each) for each in self._proxies):
            return False
        return Counter(connected)[here] > self.limits.per_address_max


def is_inside(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Whether `host` is an address of `network`; False for what is no address."""
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False


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
        connected: Callable[[], Sequence[str]],
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """connected: the addresses of connections that a protocol has. Call in the loop's thread."""
        self._listening = listening
        self._context = context
        self._admission = admission
        self._connected = connected
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Task[None], str] = {}
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
                self._loop.call_later(_AGAIN_S, self._listen)
                return
            here = str(address[0])
            if self._admission.refuses(here, [*self._connected(), *self._waiting.values(), here]):
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._hand_on(connection))
            self._waiting[task] = here
            task.add_done_callback(self._waiting.pop)

    async def _hand_on(self, connection: socket.socket) -> None:
        """Give the connection to a protocol, over TLS if it begins with it; close it if it does not come to that."""
        end = self._loop.time() + self._admission.limits.request_s
        try:
            first = await asyncio.wait_for(self._first_byte(connection), self._admission.limits.request_s)
            if not first:
                connection.close()
                return
            named: dict[str, Any] = {}
            if first[0] == TLS_HANDSHAKE:
                named = {"ssl": self._context(), "ssl_handshake_timeout": max(0.05, end - self._loop.time())}
                if sys.version_info >= (3, 11):
                    named["ssl_shutdown_timeout"] = _SHUTDOWN_S
            await self._loop.connect_accepted_socket(self._protocol, connection, **named)
        except (OSError, asyncio.TimeoutError):  # ssl.SSLError is one; the peer hears of it, and nobody else need
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """b'': it was closed. The byte stays in the socket. Raises OSError."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)
