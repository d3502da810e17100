"""The ingest process's only output: JSON lines to the core, through a bounded queue and one writing thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from appliance.base.json_lines import encode_ingest
from appliance.types import CameraMeter, FrameBoxes, HealthEvent, IngestHealth, IngestMessage, SegmentRow

BOXES_MAX = 2000  # FrameBoxes that wait: 25 s of sixteen busy cameras
KEPT_MAX = 20_000  # other messages: hours without a reader
ALIVE_EVERY_S = 1.0  # the core gives a silent child up after several of them
LOAD_S_MAX = 3600.0  # a large network on a small board takes half of that to build
BATCH_MAX = 64  # messages a write, so that the reader wakes once for all of them


class ChannelClosed(Exception):
    """The reader is gone, or has not read for so long that the bound is reached; the process must end."""


@dataclass(slots=True, eq=False)
class _Entry:
    """One queued message; None once it was dropped (a hole) or sent."""

    message: IngestMessage | None


@contextlib.contextmanager
def signs_of_life(fd: int, on_closed: Callable[[], None], every_s: float = ALIVE_EVERY_S) -> Iterator[None]:
    """Write an empty line every second while a detector loads, so that the core does not take this process for hung.

    TensorRT builds an engine for minutes; a process that takes longer than LOAD_S_MAX is hung. on_closed: called in
    another thread when the reader is gone, because then nobody waits for the detector any more.
    """
    loaded = threading.Event()

    def tell() -> None:
        try:
            for _ in range(int(LOAD_S_MAX / every_s)):
                if loaded.wait(every_s):
                    return
                os.write(fd, b"\n")
        except OSError:
            on_closed()

    thread = threading.Thread(target=tell, name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loaded.set()
        thread.join()


class IngestChannel:
    """Messages to the core, in order.

    Bounds: at most `BOXES_MAX` FrameBoxes wait, the oldest are dropped and counted. A newer row of the same segment,
    a newer health message and a further meter of the same camera take the place of the one that waits (meters are
    added up), so these cannot pile up while the reader is slow. Headers, states, gaps and segments are never dropped;
    should `KEPT_MAX` of them wait, the reader has been gone for hours: `put` raises, and the process ends.
    Owner of the writing end: the thread that calls `run()`.
    """

    def __init__(self, fd: int, *, boxes_max: int = BOXES_MAX, kept_max: int = KEPT_MAX) -> None:
        self._fd = fd
        self._boxes_max = boxes_max
        self._kept_max = kept_max
        self._queue: deque[_Entry] = deque()
        self._boxes: deque[_Entry] = deque()
        self._latest: dict[tuple[str, str], _Entry] = {}
        self._kept = 0
        self._dropped = 0
        self._holes = 0
        self.writes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, message: IngestMessage) -> None:
        """Queue a message; never wait. Raise ChannelClosed."""
        with self._changed:
            if self._closed or self._kept >= self._kept_max:
                self._closed = True
                self._changed.notify_all()
                raise ChannelClosed
            if not self._merge(message):
                self._append(message)
            self._changed.notify_all()

    def dropped(self) -> int:
        """FrameBoxes that were never sent because the core did not read."""
        return self._dropped

    def run(self, on_closed: Callable[[], None]) -> None:
        """Write until `close()` or until the reader is gone; then `on_closed` is called."""
        try:
            while batch := self._next():
                _write(self._fd, b"".join(map(encode_ingest, batch)))
                self.writes += 1
        except OSError:
            pass
        finally:
            with self._changed:
                self._closed = True
            on_closed()

    def close(self) -> None:
        """Take no more messages; `run` returns when what waits is written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _append(self, message: IngestMessage) -> None:
        entry = _Entry(message)
        self._queue.append(entry)
        key = _key(message)
        if key is not None:
            self._latest[key] = entry
        if not isinstance(message, FrameBoxes):
            self._kept += 1
            return
        self._boxes.append(entry)
        if len(self._boxes) > self._boxes_max:
            self._boxes.popleft().message = None
            self._dropped += 1
            self._holes += 1
            if self._holes > self._boxes_max:
                self._queue = deque(entry for entry in self._queue if entry.message is not None)
                self._holes = 0

    def _merge(self, message: IngestMessage) -> bool:
        """Put `message` in the place of an unsent one that it supersedes."""
        key = _key(message)
        entry = self._latest.get(key) if key is not None else None
        if entry is None or entry.message is None:
            return False
        if isinstance(message, CameraMeter) and isinstance(entry.message, CameraMeter):
            message = _sum(entry.message, message)
        entry.message = message
        return True

    def _next(self) -> list[IngestMessage]:
        """Return the waiting messages, at least one and at most BATCH_MAX; none after `close`.

        The reader wakes once for all of them.
        """
        batch: list[IngestMessage] = []
        with self._changed:
            while not batch and not (self._closed and not self._queue):
                if not self._queue:
                    self._changed.wait()
                while self._queue and len(batch) < BATCH_MAX:
                    message = self._pop()
                    if message is not None:
                        batch.append(message)
        return batch

    def _pop(self) -> IngestMessage | None:
        entry = self._queue.popleft()
        message, entry.message = entry.message, None
        if message is None:
            self._holes -= 1
            return None
        if isinstance(message, FrameBoxes):
            self._boxes.popleft()
        else:
            self._kept -= 1
        key = _key(message)
        if key is not None and self._latest.get(key) is entry:
            del self._latest[key]
        return message


def _key(message: IngestMessage) -> tuple[str, str] | None:
    """Return the message's key: a newer message of the same key may take the older one's place."""
    if isinstance(message, SegmentRow):
        return "segment", message.path
    if isinstance(message, CameraMeter):
        return "meter", message.camera
    if isinstance(message, IngestHealth):
        return "health", ""
    if isinstance(message, HealthEvent):
        return "health_event", message.id
    return None


def _sum(a: CameraMeter, b: CameraMeter) -> CameraMeter:
    return replace(
        b,
        received=a.received + b.received,
        exact=a.exact and b.exact,
        packets=a.packets + b.packets,
        reconnects=a.reconnects + b.reconnects,
        detect_received=a.detect_received + b.detect_received,
        unrecorded=a.unrecorded + b.unrecorded,
        detect=a.detect + b.detect,
        decoding=replace(b.decoding, behind_s=max(a.decoding.behind_s, b.decoding.behind_s)),
    )


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
