"""Which escalation is pulled next: weighted by priority, round-robin over the sites of a priority."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from appliance.wire import PRIORITIES

WEIGHTS = {"high": 8, "normal": 3, "low": 1}  # turns of 12; chosen so that `low` still moves and `high` rarely waits
ANNOUNCED_S = 2.0  # an escalation is announced before a replicated stream has stored it: look for it this long
POLL_FIRST_S, POLL_LAST_S = 0.005, 0.25  # between two pulls of an announced escalation that is not stored yet
SITE_QUEUES_MAX = 30_000  # some 10 MB; sites beyond that are seen by a later sweep
OTHERS_SHARE = 1 - WEIGHTS["high"] / sum(WEIGHTS.values())
AHEAD_MAX = 4.0  # turns that count against those that are not urgent at most, however long they were alone
_ROUNDING = 1e-6  # of a sum of shares


class PriorityShares:
    """The choice of the next priority: the top one, except for the turns that are owed to the others.

    Smooth weighted round robin (nginx's) divides the owed turns among these others.

    State: it holds one credit for each of the others, and the number of turns they are owed together. While one of them
    waits they are owed their weights' share of each turn. Turns beyond that count against them, so that the top
    priority does not wait as long as it takes less than its own share.

    Invariant: over 12 picks with all waiting, 8 are high, 3 normal and 1 low.
    """

    def __init__(self) -> None:
        self._owed = 0.0
        self._credit = dict.fromkeys(PRIORITIES, 0)

    def pick(self, waiting: Collection[str]) -> str:
        """Pick one of `waiting`, which is not empty."""
        others = [priority for priority in PRIORITIES[1:] if priority in waiting]
        if not others:
            return PRIORITIES[0]
        self._owed += OTHERS_SHARE
        if PRIORITIES[0] in waiting and self._owed < 1 - _ROUNDING:
            return PRIORITIES[0]
        self._owed = max(-AHEAD_MAX, self._owed - 1)
        for priority in others:
            self._credit[priority] += WEIGHTS[priority]
        chosen = max(others, key=lambda p: self._credit[p])
        self._credit[chosen] -= sum(WEIGHTS[priority] for priority in others)
        return chosen


@dataclass(slots=True, eq=False)
class SiteQueue:
    """The escalations of one site and priority, as far as this worker knows: a consumer of its own at the broker.

    due: when it may be pulled from (monotonic seconds). until: how long an empty answer is doubted. poll_s: pause
    before the next pull while it is. pulling: a task is pulling from it.
    """

    site: str
    priority: str
    due: float
    until: float
    poll_s: float = POLL_FIRST_S
    pulling: bool = False


class FairQueue:
    """Owner of the sites' queues that are believed to hold something, those served longest ago first.

    Invariant: with escalations waiting at n sites in one priority, each site gets every n-th of its turns, however many
    the others have waiting. For one event loop.
    """

    def __init__(self) -> None:
        self._shares = PriorityShares()
        self._queues: dict[str, OrderedDict[str, SiteQueue]] = {priority: OrderedDict() for priority in PRIORITIES}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def announce(self, site: str, priority: str, now: float) -> None:
        """Take note that an escalation has been announced there."""
        queue = self._queue(site, priority, now)
        if queue is not None:
            queue.until, queue.poll_s = now + ANNOUNCED_S, POLL_FIRST_S
            queue.due = min(queue.due, now)

    def mark_stored(self, found: Iterable[tuple[str, str]], now: float) -> None:
        """Note that escalations are stored for these sites and priorities: waiting, or in a worker's hands."""
        for site, priority in found:
            self._queue(site, priority, now)

    def next(self, priorities: Collection[str], now: float) -> SiteQueue | None:
        """Return the site's queue to pull from, of these priorities; None when none is due.

        The queue is not handed out again before `served` or `empty` is called.
        """
        due = {p: queue for p in priorities if (queue := self._first_due(p, now)) is not None}
        if not due:
            return None
        queue = due[self._shares.pick(due)]
        queue.pulling = True
        return queue

    def next_due(self, priorities: Collection[str]) -> float | None:
        """Return when the next queue of these priorities is due (monotonic seconds); None when there is none."""
        times = [queue.due for p in priorities for queue in self._queues[p].values() if not queue.pulling]
        return min(times, default=None)

    def served(self, queue: SiteQueue, now: float) -> None:
        """Put a queue that held an escalation, and may hold more, behind the others."""
        queue.pulling, queue.due, queue.poll_s = False, now, POLL_FIRST_S
        queues = self._queues[queue.priority]
        if queues.get(queue.site) is queue:
            queues.move_to_end(queue.site)

    def empty(self, queue: SiteQueue, now: float) -> None:
        """Pull an empty queue again soon if an escalation was just announced there, else forget it."""
        queue.pulling = False
        if now < queue.until:
            queue.due = now + queue.poll_s
            queue.poll_s = min(queue.poll_s * 2, POLL_LAST_S)
            return
        queues = self._queues[queue.priority]
        if queues.get(queue.site) is queue:
            del queues[queue.site]

    def _queue(self, site: str, priority: str, now: float) -> SiteQueue | None:
        queues = self._queues[priority]
        queue = queues.get(site)
        if queue is None and len(self) < SITE_QUEUES_MAX:
            queue = queues[site] = SiteQueue(site, priority, due=now, until=now)
        return queue

    def _first_due(self, priority: str, now: float) -> SiteQueue | None:
        return next(
            (queue for queue in self._queues[priority].values() if not queue.pulling and queue.due <= now), None
        )
