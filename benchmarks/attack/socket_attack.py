"""Connections that ask nothing, ask slowly, or ask for too much.

They come without credentials, from four addresses. Each request of the owner must be answered meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import time

from benchmarks.attack.target import Tally, Target

ATTACKERS = tuple(f"127.0.0.{n}" for n in range(9, 13))
OWNER_REQUESTS = 70  # beside each kind of connection: 210 in all
OWNER_S_MAX = 15.0  # for an answer
CLOSED_S_MAX = 40.0  # a connection that asked nothing is closed by then
MEMORY_MB_MAX = 120.0  # by which the core may grow
_POST = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
STARTS = {
    "silent": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "half a body": _POST + b"Content-Length: 900\r\n\r\n{",
}
STREAM_CHUNKS = 8000  # 250 MB


def run(target: Target, idle: int, slow: int) -> Tally:
    """idle: connections that say nothing; slow: that begin a request and do not end it."""
    tally = Tally("sockets")
    before = target.memory_mb("core")
    _hold(target, tally, {"silent": idle, "half a request": slow, "half a body": slow})
    _stream_body(target, tally, b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n")
    _stream_body(target, tally, b"Transfer-Encoding: chunked\r\n")
    _stream_body(target, tally, b"Content-Length: 999999999\r\n")
    grown = target.memory_mb("core") - before
    if grown > MEMORY_MB_MAX:
        tally.door(f"the core has grown by {grown:.0f} MB")
    return tally


def _hold(target: Target, tally: Tally, counts: dict[str, int]) -> None:
    """Open connections, and see that the owner is answered beside them and that all are closed in the end."""
    held = []
    for name, count in counts.items():
        for n in range(count):
            if n * OWNER_REQUESTS // count != (n - 1) * OWNER_REQUESTS // count:
                _owner_is_answered(target, tally, f"beside {n} connections, {name}")
            try:
                source = (ATTACKERS[n % len(ATTACKERS)], 0)
                sock = socket.create_connection(("127.0.0.1", target.port), 5, source)
                sock.sendall(STARTS[name])
                held.append(sock)
                tally.count(name)
            except OSError:
                tally.count(f"{name}, refused")
    deadline = time.monotonic() + CLOSED_S_MAX
    left = 0
    for sock in held:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        except TimeoutError:
            left += 1
        sock.close()
    if left:
        tally.door(f"{left} of {len(held)} connections are still held after {CLOSED_S_MAX:.0f} s")
    _owner_is_answered(target, tally, "after them")


def _owner_is_answered(target: Target, tally: Tally, when: str) -> None:
    try:
        status, _ = target.get("/api/v1/cameras", OWNER_S_MAX)
        tally.count(f"owner: {status}", when)
    except OSError as error:
        status = 0
        tally.count("owner: none", f"{when}: {error}")
    if status != 200:
        tally.door(f"the owner is shut out {when}")


def _stream_body(target: Target, tally: Tally, headers: bytes) -> None:
    """Send a long body to the open path. The server may not keep what it reads of it: `run` looks at the memory."""
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    sent = 0
    source = (ATTACKERS[0], 0)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 5, source) as sock:
        sock.sendall(
            b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + headers + b"\r\n"
        )
        for _ in range(STREAM_CHUNKS):
            sock.sendall(chunk)
            sent += len(chunk)
    tally.count(f"{sent // 2**20} MB taken")
