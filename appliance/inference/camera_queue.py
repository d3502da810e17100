"""The frames of one camera that wait for the detector, their priority and deadline, and why others were dropped."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from appliance.types import DropReason

ACTIVE_PRIORITY = 0.6
MOTION_PRIORITY = 0.4
LATE_PRIORITY = 0.8
COST_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class PendingInference:
    """One camera's turn, as it waits now. Times are monotonic seconds.

    since: when the camera began to wait for this turn (a newer picture keeps its predecessor's place). due: when it
    should begin. promise: when it has to begin, or the camera's heartbeat is broken. worth: 0..2, see `worth_of`.
    area: share of a whole picture. size: (width, height) in pixels as far as it can be told, (0, 0): it cannot.
    """

    since: float
    due: float
    deadline: float
    priority: float
    area: float = 1.0
    size: tuple[int, int] = (0, 0)


def priority_of(moved: float, *, active: bool, late: bool = False, area: float = 1.0) -> float:
    """Worth of a look: that somebody is followed, how much moved, or that a cue called for it; more when it is cheap.

    moved: share of the picture, 0..1. Its root counts: a person far away moves a hundredth of the picture, rain all of
    it. news: decoded after the fact, because a cue says that something began. area: what it costs, in whole pictures;
    a small one is worth up to twice as much.
    """
    worth = ACTIVE_PRIORITY * active + MOTION_PRIORITY * min(1.0, max(0.0, moved)) ** 0.5
    if late:
        worth = max(worth, LATE_PRIORITY)
    return float(worth / (COST_SHARE_MIN + (1 - COST_SHARE_MIN) * min(1.0, max(0.0, area))))


LATE_S_MAX = 3.0
ALIVE_HEARTBEATS = 2.0

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class QueuedFrame(Generic[Item]):
    """A look that was taken. at: when its picture was offered; area, size: as of `Claim`."""

    item: Item
    at: float
    area: float
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item]):
    turn: QueuedFrame[Item]
    since: float
    worth: float


class CameraQueue(Generic[Item]):
    """State: one slot for the newest picture, and before it at most `late_max` late ones in order of time.

    One thread offers and clears, one takes, any asks. Invariant: `offer` never waits; whatever is offered is waiting,
    taken, or counted in `shed` with its reason. A late look that has waited for LATE_S_MAX is shed: what is new matters
    more than what was missed.
    """

    def __init__(self, *, fps: float, heartbeat_s: float, late_max: int) -> None:
        self.heartbeat_s = heartbeat_s
        self.retries = 0
        self.drop_reason: DropReason = "newer"  # why a picture that is replaced now was not looked at
        self._every_s = 1 / fps
        self._late_max = late_max
        self._lock = threading.Lock()
        self._newest: _Waiting[Item] | None = None
        self._late: deque[_Waiting[Item]] = deque()
        self._shed: Counter[DropReason] = Counter()
        self._offered_at = float("-inf")
        self._pause_s = self._every_s  # the first picture of a camera is waited for
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
        """A picture that is due. at: monotonic seconds."""
        new = _Waiting(QueuedFrame(item, at, area, size), at, priority)
        with self._lock:
            if late:
                self._take_in_late(new)
                return
            if self._offered_at > float("-inf"):
                self._pause_s = min(at - self._offered_at, self.heartbeat_s)
            else:
                self._served_at = at
            self._offered_at = at
            if self._newest is not None:
                self._shed[self.drop_reason] += 1
                new = replace(new, since=self._newest.since)
            self._newest = new

    def pending(self, now: float) -> PendingInference | None:
        """What waits, as it is to be weighed at `now`; late looks that have waited too long are shed."""
        with self._lock:
            while self._late and now - self._late[0].since > LATE_S_MAX:
                self._late.popleft()
                self._shed["late"] += 1
            waiting = self._late[0] if self._late else self._newest
            if waiting is None:
                return None
            # A look may wait half as long as the pause before it: a camera that is looked at five times a second for
            # a tenth, one that shows its heartbeat every 4 s for two.
            pause_s = self._every_s if self._late else max(self._every_s, self._pause_s / 2)
            promise = max(self._served_at + self.heartbeat_s, waiting.since + self.heartbeat_s / 2)
            due = min(waiting.since + pause_s, promise)
            return PendingInference(waiting.since, due, promise, waiting.worth, waiting.turn.area, waiting.turn.size)

    def next_deadline(self, now: float) -> float | None:
        """By when the look has to begin that is not offered yet; None of a camera that has been silent for long."""
        with self._lock:
            if not self.is_alive(now):
                return None
            quiet = self._pause_s > self.heartbeat_s / 2
            return self._offered_at + 1.5 * self.heartbeat_s if quiet else self._served_at + self.heartbeat_s

    def is_alive(self, now: float) -> bool:
        """Something was offered of late."""
        return now - self._offered_at <= ALIVE_HEARTBEATS * self.heartbeat_s

    def take(self) -> QueuedFrame[Item] | None:
        """The look whose turn it is."""
        with self._lock:
            self.drop_reason = "newer"
            return self._late.popleft().turn if self._late else self._take_newest()

    def take_newer(self) -> QueuedFrame[Item] | None:
        """The newest picture, if it is also the next."""
        with self._lock:
            return None if self._late else self._take_newest()

    def served(self, at: float) -> None:
        """A picture that was offered at `at` had its turn, whatever came of it."""
        with self._lock:
            self._served_at = max(self._served_at, at)

    def count_dropped(self, reason: DropReason) -> None:
        """One that was taken came to nothing."""
        with self._lock:
            self._shed[reason] += 1

    def clear(self, reason: DropReason) -> None:
        """Throw away what waits, counted."""
        with self._lock:
            self._shed[reason] += len(self._late) + (self._newest is not None)
            self._newest = None
            self._late.clear()

    def dropped(self) -> Mapping[DropReason, int]:
        """Looks that were due and came to nothing, ever, by reason."""
        with self._lock:
            return {reason: count for reason, count in self._shed.items() if count}

    def __len__(self) -> int:
        with self._lock:
            return len(self._late) + (self._newest is not None)

    def _take_newest(self) -> QueuedFrame[Item] | None:
        waiting, self._newest = self._newest, None
        return waiting.turn if waiting is not None else None

    def _take_in_late(self, new: _Waiting[Item]) -> None:
        earlier, self._newest = self._newest, None  # the key frame before them: looks are taken in order of time
        for each in (earlier, new):
            if each is not None and len(self._late) < self._late_max:
                self._late.append(each)
            elif each is not None:
                self._shed["late"] += 1
