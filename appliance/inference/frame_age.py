"""Ages of frames when their inference result reaches the tracker: a histogram since the start, and the latest ones."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from appliance.types import AGE_EDGES_MS

RECENT_S = 10.0  # of `FrameAges.recent`
RECENT_MAX = 2000  # 16 cameras at 5 frames a second for 25 s
HELD_BACK_MAX = 32  # packets; no decoder holds back more frames than that
SAME_S = 1e-3  # two times this near are one


class FrameAges:
    """A histogram. State: a count for each of AGE_EDGES_MS and one above them, the sum, the ages of the last RECENT_S.

    Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(AGE_EDGES_MS) + 1)
        self._sum_ms = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_MAX)

    def add(self, age_s: float, now: float) -> None:
        """now: monotonic seconds."""
        ms = 1000 * max(0.0, age_s)
        with self._lock:
            self._counts[bisect_left(AGE_EDGES_MS, ms)] += 1
            self._sum_ms += round(ms)
            self._recent.append((now, ms))

    def counts(self) -> tuple[int, ...]:
        """How many lie in each bucket (upper edges inclusive), the last one without an edge; then the sum in ms."""
        with self._lock:
            return (*self._counts, self._sum_ms)

    def recent(self, now: float) -> list[float]:
        """Milliseconds, of those that were added within the last RECENT_S."""
        with self._lock:
            while self._recent and now - self._recent[0][0] > RECENT_S:
                self._recent.popleft()
            return [ms for _, ms in self._recent]


class PacketArrivals:
    """When the packets of the frames to come have arrived: decoders hold some back. Owner: the camera's thread."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=HELD_BACK_MAX)

    def note(self, t: float, at: float) -> None:
        """Note that the packet of camera time `t` came at `at`, monotonic seconds."""
        self._latest.append((t, at))

    def of(self, t: float, otherwise: float) -> float:
        """When the packet of camera time `t` came; `otherwise` if that is not known any more."""
        return next((at for of, at in reversed(self._latest) if abs(of - t) < SAME_S), otherwise)


def p95(values: Iterable[float]) -> float:
    """Return the 95th percentile; 0 if there are no values."""
    found = sorted(values)
    return found[min(len(found) - 1, int(0.95 * len(found)))] if found else 0.0
