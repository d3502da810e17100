"""Decides which escalation is pulled next and how many at a time: by stored messages, priorities and sites."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_connection import broker_errors
from appliance.wire import PRIORITIES, STREAM_ESCALATION
from cloud_worker import dead_letter_store
from cloud_worker.metrics import WorkerMetrics
from cloud_worker.stream_setup import site_and_priority

WEIGHTS = {"high": 8, "normal": 3, "low": 1}  # turns of 12; chosen so that `low` still moves and `high` rarely waits
ANNOUNCED_S = 2.0  # an escalation is announced before a replicated stream has stored it: look for it this long
POLL_FIRST_S, POLL_LAST_S = 0.005, 0.25  # between two pulls of an announced escalation that is not stored yet
SITE_QUEUES_MAX = 30_000  # some 10 MB; sites beyond that are seen by a later sweep
OTHERS_SHARE = 1 - WEIGHTS["high"] / sum(WEIGHTS.values())
AHEAD_MAX = 4.0  # turns that count against those that are not urgent at most, however long they were alone
_ROUNDING = 1e-6  # of a sum of shares
RESERVE_SHARE = 8  # one slot of eight is reserved at least
RESERVE_SHARE_MAX = 2  # one of two at most
PEAK_S = 30.0  # alerts come in bursts of some seconds; the need of the last half minute is the best forecast
SWEEP_S = 1.0  # how late an escalation is noticed that nobody announced: given back, or of another server
STORED_MAX = 2**53  # a gauge is a float, and a broker may say any number
STRAYS_PER_SWEEP_MAX = 100  # each costs three requests to the broker


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


class ConcurrencySlots:
    """Owner of `total` slots; what is not of the top priority takes at most `total - reserve` of them.

    So an alert does not wait for a slow answer to something that is not urgent. The reserve is an eighth of the slots,
    or as many as the top priority needed lately at a time, up to half of them; with one slot nothing is reserved.
    State: how many slots each priority has, and the most that the top priority had in this PEAK_S and in the last.
    """

    def __init__(self, total: int, released: Callable[[], None], clock: Clock) -> None:
        """Take `released`, called after a slot was released."""
        self.total = total
        self._in_use: Counter[str] = Counter()
        self._released = released
        self._clock = clock
        self._since = clock.monotonic()
        self._peak = self._peak_before = 0

    @property
    def reserve(self) -> int:
        """The slots that are reserved for the top priority, those that it has included."""
        if self.total == 1:
            return 0
        self._roll()
        recent = max(self._peak, self._peak_before)
        return max(1, self.total // RESERVE_SHARE, min(recent, self.total // RESERVE_SHARE_MAX))

    def in_use(self, priority: str) -> int:
        return self._in_use[priority]

    def open_priorities(self) -> tuple[str, ...]:
        """Return the priorities that may take a slot now."""
        if self._in_use.total() >= self.total:
            return ()
        others = self._in_use.total() - self._in_use[PRIORITIES[0]]
        return PRIORITIES if others < self.total - self.reserve else PRIORITIES[:1]

    def acquire(self, priority: str) -> None:
        self._in_use[priority] += 1
        self._roll()
        self._peak = max(self._peak, self._in_use[PRIORITIES[0]])

    def release(self, priority: str) -> None:
        self._in_use[priority] -= 1
        self._released()

    def _roll(self) -> None:
        """Begin a new PEAK_S with the escalations in hand."""
        now = self._clock.monotonic()
        if now - self._since >= PEAK_S:
            self._peak_before = self._peak if now - self._since < 2 * PEAK_S else 0
            self._peak, self._since = self._in_use[PRIORITIES[0]], now


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredEscalations:
    """Escalations that the broker stores, in a worker's hands or not.

    counts: how many by site and priority. strays: subjects on which no site may publish, which no consumer reads.
    """

    counts: Mapping[tuple[str, str], int]
    strays: tuple[str, ...]

    @property
    def sites(self) -> int:
        """The number of sites that have any."""
        return len({site for site, _ in self.counts})


class BacklogMonitor:
    """Puts the sites with escalations into the queue. State: `stored`, what the last sweep found. Owner: one task."""

    def __init__(
        self, queue: FairQueue, worker: str, metrics: WorkerMetrics, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """Take `worker`, the name that stands in dead letters, and `changed`, called after the queue has changed."""
        self._queue = queue
        self._worker = worker
        self._metrics = metrics
        self._clock = clock
        self._changed = changed
        self._throttle = LogThrottle(logger, clock)
        self.stored = StoredEscalations({}, ())

    def count(self, priority: str) -> int:
        """Return the number of escalations of this priority that the broker stores."""
        return sum(count for (_, own), count in self.stored.counts.items() if own == priority)

    async def on_message(self, message: Msg) -> None:
        """Note that an escalation passed by: JetStream's subjects are ordinary ones, too. Its copy is dropped."""
        found = site_and_priority(message.subject)
        if found is not None:
            self._queue.announce(*found, self._clock.monotonic())
            self._changed()

    async def run(self, jetstream: JetStreamContext) -> None:
        """Sweep what is stored, for as long as one connection lasts. Raise UplinkError.

        A sweep finds what was there before, was given back, or came over a server that announces nothing.
        """
        while True:
            self.stored = await _stored_escalations(jetstream)
            if self.stored.counts:
                self._queue.mark_stored(self.stored.counts, self._clock.monotonic())
                self._changed()
            await self._move_strays(jetstream)
            await asyncio.sleep(SWEEP_S)

    async def _move_strays(self, jetstream: JetStreamContext) -> None:
        """Move all stored strays to the dead letters, STRAYS_PER_SWEEP_MAX at most, several of a subject too."""
        left = STRAYS_PER_SWEEP_MAX
        for subject in self.stored.strays:
            while left:
                letter = await dead_letter_store.move_stray(jetstream, subject, self._worker)
                if letter is None:
                    break
                left -= 1
                self._metrics.dead.labels(letter.kind).inc()
                self._throttle.report(f"moved an escalation on {subject} to the dead letters: {letter.reason}")


async def _stored_escalations(js: JetStreamContext) -> StoredEscalations:
    counts: dict[tuple[str, str], int] = {}
    strays: list[str] = []
    with broker_errors("the escalations could not be counted"):
        info = await js.stream_info(STREAM_ESCALATION, subjects_filter=">")
        for subject, count in (info.state.subjects or {}).items():
            found = site_and_priority(subject)
            if found is None:
                strays.append(subject)
            else:
                counts[found] = min(int(count), STORED_MAX)
    return StoredEscalations(counts, tuple(strays))
