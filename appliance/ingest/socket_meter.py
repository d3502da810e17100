"""The bytes that a camera really sent, as the kernel counted them on the socket that FFmpeg opened.

FFmpeg does not report its socket, so the process's sockets are compared before and after an open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import termios
import threading
from collections.abc import Iterator

from appliance.base.tcpinfo import tcp_bytes

TURN_S_MAX = 2.0  # opens of the same address wait for each other
_NO_BYTES = bytes(4)


class SocketMeter:
    """Counts one connection. State: a duplicate of its socket, kept so that the number can be read at any time."""

    def __init__(self, fd: int) -> None:
        """Duplicate `fd`; the caller keeps its own."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = socket.socket(fileno=os.dup(fd))
        self._last = 0
        self.inode = os.fstat(self._socket.fileno()).st_ino
        """The kernel's number of the socket, the same for each of its descriptors."""

    def received(self) -> int:
        """Return the bytes so far; the count stays at its last value after `close`."""
        with self._lock:
            if self._socket is not None:
                counted = tcp_bytes(self._socket)
                self._last = max(self._last, counted.received if counted else 0)
            return self._last

    def unread_bytes(self) -> int | None:
        """Return the bytes that came and were not read yet; None if the system does not say."""
        with self._lock:
            if self._socket is None:
                return None
            try:
                return int.from_bytes(fcntl.ioctl(self._socket, termios.FIONREAD, _NO_BYTES), sys.byteorder)
            except OSError:
                return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.received()
        with self._lock:
            held, self._socket = self._socket, None
        if held is not None:
            held.close()


class SocketFinder:
    """Finds the socket that a piece of code opens to an address. Shared by all cameras of a process.

    State: one lock per address, and the local ends that were found (so that none is given to two).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, int], threading.Lock] = {}

    @contextlib.contextmanager
    def watching(self, address: tuple[str, int]) -> Iterator[NewSocket]:
        """Watch sockets to `address` (host, port) while the block runs; afterwards ask the result for the meter.

        It waits its turn at most `TURN_S_MAX`; without a turn nothing is found, and bytes are counted otherwise.
        """
        with self._lock:
            turn = self._turns.setdefault(address, threading.Lock())
        mine = turn.acquire(timeout=TURN_S_MAX)
        try:
            before = {inode for inode, fd in _sockets() if _peer_port(fd) == address[1]} if mine else None
            yield NewSocket(before, address[1])
        finally:
            if mine:
                turn.release()


class NewSocket:
    """The socket that was opened since. `before` None: it was not our turn."""

    def __init__(self, before: set[int] | None, port: int) -> None:
        self._before = before
        self._port = port

    def meter(self) -> SocketMeter | None:
        """Return a meter of the one new socket on which something came; None if there is none, or more than one.

        Call it within the block. A socket on which nothing came belongs to another camera that checks if the host
        answers.
        """
        if self._before is None:
            return None
        heard: list[SocketMeter] = []
        for inode, fd in dict(_sockets()).items():  # as it is now: each meter holds a descriptor more
            if inode not in self._before and _peer_port(fd) == self._port:
                with contextlib.suppress(OSError):
                    heard.append(SocketMeter(fd))
                    # Another thread may have closed the listed socket, and a meter may have got its number.
                    if heard[-1].inode != inode or not heard[-1].received():
                        heard.pop().close()
        if len(heard) == 1:
            return heard[0]
        for meter in heard:
            meter.close()
        return None


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield (inode, fd) of each open socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                yield int(target[8:-1]), int(name)


def _peer_port(fd: int) -> int | None:
    try:
        # By a duplicate: the descriptor may be closed by its owner at any moment.
        with socket.socket(fileno=os.dup(fd)) as copy:
            peer = copy.getpeername()
    except OSError:
        return None
    return peer[1] if isinstance(peer, tuple) and len(peer) >= 2 else None
