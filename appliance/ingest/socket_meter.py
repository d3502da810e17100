"""Measures what a camera sent, as the kernel counted it on the socket that FFmpeg opened, and how late it is read.

FFmpeg does not report its socket, so the process's sockets are compared before and after an open. A filter drops
packets to key frames when the reader lags.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import sys
import termios
import threading
from collections.abc import Iterator

from appliance.base.clock import Clock
from appliance.base.tcpinfo import tcp_bytes
from appliance.base.telemetry import LogThrottle
from appliance.ingest.reconnecting_reader import PacketSink
from appliance.media.source import StreamInfo, VideoPacket

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


KEEPING_UP_S = 0.3  # with so much unread, a reader keeps up
PAUSE_LAG_S = 0.5  # after a pause of the reader (READ_PAUSE_S_MAX) so much may wait, and a frame
KNOWN_S_MIN = 1.0  # of the stream, before its bytes a second are known
_FRAMES_UNREAD = 1.5  # libavformat gives a frame out when the next has begun: part of that is always unread
_MEMORY_S = 10.0  # over which bytes a second are averaged
_STEP_S_MAX = 2.0  # between two stamps; more is a jump
LAG_S_MAX = 2.0  # later than that, frames are dropped
CAUGHT_UP_S = 0.5  # less than this behind the camera is the jitter of a network
KEY_FRAME_EVERY_S = 2.0  # while lagging

logger = logging.getLogger(__name__)


class LagEstimator:
    """Estimates for how long what is read now has waited in the socket: a reader that cannot keep up must know.

    State: the stream's usual bytes a second and seconds a packet, and when it was last read to its end. Owner: the
    reading thread. Only differences of times matter.
    """

    def __init__(self, now: float) -> None:
        """Begin a connection; now: monotonic seconds."""
        self._bytes = self._seconds = self._packets = 0.0
        self._last_t: float | None = None
        self._up_to_date = now

    def lag_s(self, size: int, stream_t: float, unread: int | None, now: float) -> float:
        """Return the seconds by which a packet of `size` bytes is late; 0 if that is not known.

        stream_t: its stamp. unread: bytes left in the socket. It is never more than what has passed since nothing was
        waiting.
        """
        self._learn(size, stream_t)
        if unread is None or self._seconds < KNOWN_S_MIN:
            self._up_to_date = now
            return 0.0
        unread_s = unread * self._seconds / max(1.0, self._bytes)
        if unread_s <= max(KEEPING_UP_S, _FRAMES_UNREAD * self._seconds / self._packets):
            self._up_to_date = now
            return 0.0
        lag_s = min(unread_s, now - self._up_to_date)
        # After a pause some packets wait, and perhaps the first half of a key frame; that is no lag.
        return lag_s if lag_s > PAUSE_LAG_S else 0.0

    def _learn(self, size: int, stream_t: float) -> None:
        step_s = 0.0 if self._last_t is None else min(max(0.0, stream_t - self._last_t), _STEP_S_MAX)
        self._last_t = stream_t
        kept = 1 - step_s / _MEMORY_S if self._seconds > KNOWN_S_MIN else 1.0
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + step_s
        self._packets = self._packets * kept + 1


class LagFilter:
    """A filter that skips packets once they are more than LAG_S_MAX late.

    Then it hands on key frames alone, one each `key_frame_every_s`, up to one that is not late. It stands before the
    detect stream alone: the recorder beside it keeps everything. State: whether it lags, how many packets it skipped,
    the greatest lag since it was last asked. Owner: the camera's reading thread; other threads may read the numbers.
    """

    def __init__(
        self,
        camera: str,
        sink: PacketSink,
        clock: Clock,
        *,
        key_frame_every_s: float = KEY_FRAME_EVERY_S,
    ) -> None:
        self.skipped = 0
        self.skips = 0
        self.is_lagging = False
        self._lag_s = self._worst_s = 0.0
        self._camera = camera
        self._sink = sink
        self._key_frame_every_s = key_frame_every_s
        self._handed_on_t = float("-inf")
        self._repeats = LogThrottle(logger, clock)

    def begin(self, info: StreamInfo, session_id: str) -> None:
        self.is_lagging, self._lag_s = False, 0.0
        self._sink.begin(info, session_id)

    def take(self, packet: VideoPacket) -> None:
        self._lag_s = packet.lag_s
        self._worst_s = max(self._worst_s, packet.lag_s)
        if self.is_lagging:
            self.is_lagging = packet.lag_s > CAUGHT_UP_S or not packet.keyframe
        elif packet.lag_s > LAG_S_MAX:
            self.is_lagging = True
            self.skips += 1
            self._repeats.report(
                f"camera {self._camera}: pictures are {packet.lag_s:.0f} s late; what waits is only recorded"
            )
        if self.is_lagging and not self._is_due_key_frame(packet):
            self.skipped += 1
            return
        self._handed_on_t = packet.t
        self._sink.take(packet)

    def end(self) -> None:
        self.is_lagging, self._lag_s = False, 0.0
        self._sink.end()

    def take_worst_s(self) -> float:
        """Return the greatest lag since the last call, in seconds."""
        worst, self._worst_s = self._worst_s, self._lag_s
        return worst

    def _is_due_key_frame(self, packet: VideoPacket) -> bool:
        """Return True for a key frame that is due, although it is late.

        Late is better than never: an appliance that cannot keep up still examines every camera now and then.
        """
        return packet.keyframe and not 0 <= packet.t - self._handed_on_t < self._key_frame_every_s
