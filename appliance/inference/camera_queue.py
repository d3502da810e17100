"""The frames of one camera that wait for the detector: their priority, deadline and age, and why some were dropped."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from appliance.types import AGE_EDGES_MS, DropReason

RECENT_S = 10.0  # of `FrameAges.recent`
RECENT_MAX = 2000  # 16 cameras at 5 frames a second for 25 s
HELD_BACK_MAX = 32  # packets; no decoder holds back more frames than that
SAME_S = 1e-3  # two times this near are one


@dataclass(frozen=True, slots=True)
class QueueTuning:
    """The priority of a frame, and how long it may wait. tests/unit/test_inference_scheduler.py has the simulations."""

    active_priority: float = 0.6
    """If a tracked object moves, or is new."""
    motion_priority: float = 0.4
    """If all of the frame moves; less for less."""
    late_priority: float = 0.8
    """If the frame was decoded late, after a cue: between motion alone, and motion with a track."""
    cost_share_min: float = 0.5
    """A tiny region is worth 1 / this as much as a whole frame: it costs nothing."""
    late_s_max: float = 3.0
    """A late frame that has waited for so long is dropped: what is new matters more than what was missed."""
    alive_heartbeats: float = 2.0
    """A camera that has offered nothing for so many heartbeats is not reckoned with."""


TUNING = QueueTuning()
Item = TypeVar("Item")


class PendingInference(NamedTuple):
    """A camera's next frame, as the scheduler weighs it. Times are monotonic seconds."""

    since: float  # when it began to wait; a newer frame keeps its predecessor's place
    due: float  # when it should begin
    deadline: float  # when it has to begin, or the camera's heartbeat is broken
    priority: float  # 0..2, see `priority_of`
    area: float = 1.0  # in whole frames
    size: tuple[int, int] = (0, 0)  # (width, height) of the detector's input; (0, 0): unknown


def priority_of(motion: float, *, active: bool, late: bool = False, area: float = 1.0) -> float:
    """0..2: for an object that moves and is tracked, for motion, for a cue; more when it is cheap.

    motion: share of the frame, 0..1. Its root counts: a person far away moves a hundredth of the frame, rain all of it.
    late: decoded after a cue. area: what it costs, in whole frames; a small one is worth up to twice as much.
    """
    priority = TUNING.active_priority * active + TUNING.motion_priority * min(1.0, max(0.0, motion)) ** 0.5
    if late:
        priority = max(priority, TUNING.late_priority)
    least = TUNING.cost_share_min
    return float(priority / (least + (1 - least) * min(1.0, max(0.0, area))))


@dataclass(frozen=True, slots=True)
class QueuedFrame(Generic[Item]):
    """A frame in the queue. at: when it was offered, monotonic; area, size: see `PendingInference`."""

    item: Item
    at: float
    area: float
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item]):
    frame: QueuedFrame[Item]
    since: float
    priority: float


class CameraQueue(Generic[Item]):
    """One slot for the newest frame, and before it at most `late_max` late ones in order of time.

    State: those, what was dropped and why, when the camera last offered and was last served. One thread offers and
    clears, one takes, any asks. Invariant: `offer` never waits; whatever is offered is waiting, taken, or counted in
    `dropped` with its reason.
    """

    def __init__(self, *, fps: float, heartbeat_s: float, late_max: int) -> None:
        self.heartbeat_s = heartbeat_s
        self.retries = 0  # inferences of this camera that were repeated; counted by the detector's thread
        self.drop_reason: DropReason = "newer"  # of a frame that is replaced now
        self._every_s = 1 / fps
        self._late_max = late_max
        self._lock = threading.Lock()
        self._newest: _Waiting[Item] | None = None
        self._late: deque[_Waiting[Item]] = deque()
        self._dropped: Counter[DropReason] = Counter()
        self._offered_at = float("-inf")
        self._pause_s = self._every_s  # between the last two offers; the first frame of a camera is waited for
        self._served_at = float("-inf")

    def offer(
        self,
        item: Item,
        at: float,
        *,
        priority: float = 0.0,
        area: float = 1.0,
        size: tuple[int, int] = (0, 0),
        late: bool = False,
    ) -> None:
        """Offer a frame that is due; at: monotonic seconds."""
        new = _Waiting(QueuedFrame(item, at, area, size), at, priority)
        with self._lock:
            if late:
                self._add_late(new)
                return
            if self._offered_at > float("-inf"):
                self._pause_s = min(at - self._offered_at, self.heartbeat_s)
            else:
                self._served_at = at
            self._offered_at = at
            if self._newest is not None:
                self._dropped[self.drop_reason] += 1
                new = replace(new, since=self._newest.since)
            self._newest = new

    def pending(self, now: float) -> PendingInference | None:
        """Return the next frame, as it is to be weighed at `now`; drop late frames that have waited too long."""
        with self._lock:
            while self._late and now - self._late[0].since > TUNING.late_s_max:
                self._late.popleft()
                self._dropped["late"] += 1
            waiting = self._late[0] if self._late else self._newest
            if waiting is None:
                return None
            # A frame may wait half as long as the pause before it: a fifth of a second where five a second are
            # examined, two where the heartbeat comes every 4 s.
            pause_s = self._every_s if self._late else max(self._every_s, self._pause_s / 2)
            since, frame = waiting.since, waiting.frame
            # A frame that is due as a heartbeat may wait a little; one that took its place has come too late for that.
            grace_s = self.heartbeat_s / 2 if frame.at == since else 0.0
            deadline = max(self._served_at + self.heartbeat_s, since + grace_s)
            due = min(since + pause_s, deadline)
            return PendingInference(since, due, deadline, waiting.priority, frame.area, frame.size)

    def next_deadline(self, now: float) -> float | None:
        """Return the deadline of the frame that is not offered yet; None if the camera has been silent for long."""
        with self._lock:
            if not self.is_alive(now):
                return None
            quiet = self._pause_s > self.heartbeat_s / 2
            return self._offered_at + 1.5 * self.heartbeat_s if quiet else self._served_at + self.heartbeat_s

    def is_alive(self, now: float) -> bool:
        """Something was offered within the last heartbeats."""
        return now - self._offered_at <= TUNING.alive_heartbeats * self.heartbeat_s

    def take(self) -> QueuedFrame[Item] | None:
        """Take the next frame, which waits no longer."""
        with self._lock:
            self.drop_reason = "newer"
            return self._late.popleft().frame if self._late else self._take_newest()

    def take_newer(self) -> QueuedFrame[Item] | None:
        """Take the newest frame, if it is also the next."""
        with self._lock:
            return None if self._late else self._take_newest()

    def served(self, at: float) -> None:
        """Note that a frame that was offered at `at` had its turn, whatever came of it."""
        with self._lock:
            self._served_at = max(self._served_at, at)

    def count_dropped(self, reason: DropReason) -> None:
        """Count a frame that was taken and came to nothing."""
        with self._lock:
            self._dropped[reason] += 1

    def clear(self, reason: DropReason) -> None:
        """Drop what waits."""
        with self._lock:
            self._dropped[reason] += len(self._late) + (self._newest is not None)
            self._newest = None
            self._late.clear()

    def dropped(self) -> Mapping[DropReason, int]:
        """Frames that were due and came to nothing, since the start, by reason."""
        with self._lock:
            return {reason: count for reason, count in self._dropped.items() if count}

    def __len__(self) -> int:
        with self._lock:
            return len(self._late) + (self._newest is not None)

    def _take_newest(self) -> QueuedFrame[Item] | None:
        waiting, self._newest = self._newest, None
        return waiting.frame if waiting is not None else None

    def _add_late(self, new: _Waiting[Item]) -> None:
        earlier, self._newest = self._newest, None  # the key frame before them: frames are taken in order of time
        for each in (earlier, new):
            if each is not None and len(self._late) < self._late_max:
                self._late.append(each)
            elif each is not None:
                self._dropped["late"] += 1


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
