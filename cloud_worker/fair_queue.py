"""Which escalation is pulled next: weighted by priority, round-robin over the sites of a priority."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from appliance.wire import PRIORITIES

WEIGHTS = {"high": 8, "normal": 3, "low": 1}
ANNOUNCED_S = 2.0  # a question is announced before a replicated stream has stored it: look for it this long
POLL_FIRST_S, POLL_LAST_S = 0.005, 0.25
SITE_QUEUES_MAX = 30_000
OTHERS_SHARE = 1 - WEIGHTS["high"] / sum(WEIGHTS.values())
AHEAD_MAX = 4.0  # turns that count against those that are not urgent at most, however long they were alone
_ROUNDING = 1e-6


class PriorityShares:
    """Which priority goes next: the top one, but for the turns that are owed to the others; among these smooth weighted
    round robin (nginx's).

    State: one credit for each of the others, and how many turns they are owed together: while one of them waits they
    are owed their weights' share of each turn, and what they got beyond that counts against them, so that the top
    priority does not wait as long as it takes less than its own share.
    Invariant: over 12 picks with all waiting, 8 are high, 3 normal and 1 low.
    """

    def __init__(self) -> None:
        self._owed = 0.0
        self._credit = dict.fromkeys(PRIORITIES, 0)

    def pick(self, waiting: Collection[str]) -> str:
        """One of `waiting`, which is not empty."""
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
    """The questions of one site and priority, as far as this worker knows: a consumer of its own at the broker.

    due: when it may be asked for a question (monotonic seconds). until: how long an empty answer is doubted.
    asked: a question is just being fetched from it.
    """

    site: str
    priority: str
    due: float
    until: float
    look_s: float = POLL_FIRST_S
    asked: bool = False


class FairQueue:
    """Owner of the lanes that are believed to hold something, those served longest ago first.

    Invariant: with questions waiting at n sites in one priority, each site gets every n-th of its turns, however many
    the others have waiting. Not for more than one task at a time.
    """

    def __init__(self) -> None:
        self._shares = PriorityShares()
        self._lanes: dict[str, OrderedDict[str, SiteQueue]] = {priority: OrderedDict() for priority in PRIORITIES}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def announce(self, site: str, priority: str, now: float) -> None:
        """A question has been announced there."""
        lane = self._lane(site, priority, now)
        if lane is not None:
            lane.until, lane.look_s = now + ANNOUNCED_S, POLL_FIRST_S
            lane.due = min(lane.due, now)

    def mark_stored(self, found: Iterable[tuple[str, str]], now: float) -> None:
        """Questions are stored for these sites and priorities: waiting, or in somebody's hands."""
        for site, priority in found:
            self._lane(site, priority, now)

    def next(self, priorities: Collection[str], now: float) -> SiteQueue | None:
        """The lane to fetch from, of these priorities; None when none is due. It is not handed out again before
        `served` or `empty`."""
        due = {p: lane for p in priorities if (lane := self._first_due(p, now)) is not None}
        if not due:
            return None
        lane = due[self._shares.pick(due)]
        lane.asked = True
        return lane

    def next_due(self, priorities: Collection[str]) -> float | None:
        """When the next lane of these priorities is due (monotonic seconds); None when none is awake."""
        times = [lane.due for p in priorities for lane in self._lanes[p].values() if not lane.asked]
        return min(times, default=None)

    def served(self, lane: SiteQueue, now: float) -> None:
        """It held a question, and may hold more: after the others' turn."""
        lane.asked, lane.due, lane.look_s = False, now, POLL_FIRST_S
        lanes = self._lanes[lane.priority]
        if lanes.get(lane.site) is lane:
            lanes.move_to_end(lane.site)

    def empty(self, lane: SiteQueue, now: float) -> None:
        """It held nothing: look again soon if a question was just announced there, else forget it."""
        lane.asked = False
        if now < lane.until:
            lane.due = now + lane.look_s
            lane.look_s = min(lane.look_s * 2, POLL_LAST_S)
            return
        lanes = self._lanes[lane.priority]
        if lanes.get(lane.site) is lane:
            del lanes[lane.site]

    def _lane(self, site: str, priority: str, now: float) -> SiteQueue | None:
        lanes = self._lanes[priority]
        lane = lanes.get(site)
        if lane is None and len(self) < SITE_QUEUES_MAX:
            lane = lanes[site] = SiteQueue(site, priority, due=now, until=now)
        return lane

    def _first_due(self, priority: str, now: float) -> SiteQueue | None:
        return next((lane for lane in self._lanes[priority].values() if not lane.asked and lane.due <= now), None)
