"""Plain TCP connections to a server under test, and whether it has closed them."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from tests.support.waiting import ANSWER_S


def address_of(url: str) -> tuple[str, int]:
    """Host and port of `http://host:port` or `https://host:port`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@contextlib.contextmanager
def connections(url: str, count: int) -> Iterator[list[socket.socket]]:
    """So many open connections on which nothing was sent."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address_of(url), 20)) for _ in range(count)]


class Noise:
    """Strangers on this machine, at 127.0.0.2 and so on, who open connections and hold as many as they can."""

    def __init__(self, url: str, strangers: int, held: int, first: bytes = b"") -> None:
        """held: connections of each. first: what is sent on each connection, which is no whole request."""
        self._to, self._first = address_of(url), first
        self._held: list[deque[socket.socket]] = [deque(maxlen=held) for _ in range(strangers)]

    def open(self, each: int) -> None:
        """So many more of each stranger; the oldest are closed beyond what one holds."""
        for n, held in enumerate(self._held):
            for _ in range(each):
                with contextlib.suppress(OSError):
                    made = socket.create_connection(self._to, 5, (f"127.0.0.{n + 2}", 0))
                    made.setblocking(False)
                    if len(held) == held.maxlen:
                        held[0].close()
                    held.append(made)
                    made.send(self._first)

    def close(self) -> None:
        for held in self._held:
            while held:
                held.pop().close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it. Reads what it sent, and does not wait."""
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def is_served(url: str) -> bool:
    """Whether a request is answered; False also where this thread was held for longer than one may take."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", verify=False, timeout=ANSWER_S).status_code == 200
    return False
