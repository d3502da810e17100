"""Choice of the camera whose frame is inferred next.

The earliest deadline comes first, with priority and ageing, under a heartbeat guaranteed to every camera. See
docs/scheduling.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.base.clock import Clock
from appliance.detect.detector import Batching, ObjectDetector
from appliance.inference.camera_queue import CameraQueue, PendingInference, QueuedFrame

_GREY = 114  # what networks are trained to take for nothing
Item = TypeVar("Item")
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SchedulerTuning:
    """How cameras share the detector. tests/unit/test_inference_scheduler.py has the simulations."""

    priority_s: float = 1.0
    """A priority of 1 counts as much as waiting for so long."""
    share_floor: float = 0.5
    """A camera with less than so many equal shares of the detector, and a frame overdue, comes first."""
    share_cap: float = 4.0
    """One with more than so many comes last."""
    cost_safety: float = 1.2
    """Calls are reckoned to take so many times what they took: deadlines are kept on a busy machine."""
    batch_window_s: float = 0.05
    """A call waits at most so long for a fuller batch."""
    busy_load: float = 0.5
    """And only if the detector is at work for more of its time: else waiting is only delay."""
    usage_time_constant_s: float = 4.0
    """After so long 37 % of what a camera has used still count."""
    first_cost_s: float = 0.02
    """The cost of a whole frame, before any was measured."""
    cost_s_min: float = 1e-4
    area_classes: int = 8
    """Costs are learnt by eighths of a whole frame."""
    cost_smoothing: float = 0.1
    """The weight of a new call in the mean of its class."""
    batch_gain_min: float = 0.1
    """The share of a frame's time that each doubling of the batch has to save."""
    batch_tries: int = 3
    """Calls of each batch size; the fastest counts."""


TUNING = SchedulerTuning()


class UsageEwma:
    """How much of the detector's time a camera has had lately.

    State: detector-seconds, forgotten with `usage_time_constant_s`. Owner: the detector's thread.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._at = float("-inf")

    def spend(self, seconds: float, now: float) -> None:
        self._spent_s = self._left(now) + seconds
        self._at = now

    def share(self, now: float) -> float:
        """Return the share of the detector's time, about 0..1."""
        return self._left(now) / TUNING.usage_time_constant_s

    def _left(self, now: float) -> float:
        return self._spent_s * math.exp((self._at - now) / TUNING.usage_time_constant_s) if self._spent_s else 0.0


class InferenceCosts:
    """Estimates the seconds of an inference from earlier ones.

    State: the mean time of a call for each class of area. Owner: the detector's thread. A class that was never seen is
    reckoned from its nearest neighbour: at most as much as a larger one, in proportion to a smaller one.
    """

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def learn(self, area: float, seconds: float) -> None:
        """Learn that an inference on so many whole frames took so long."""
        size, seconds = _area_class(area), max(seconds, TUNING.cost_s_min)
        mean = self._means.get(size)
        self._means[size] = seconds if mean is None else mean + (seconds - mean) * TUNING.cost_smoothing

    def of(self, area: float) -> float:
        """Seconds that such an inference is likely to take."""
        size = _area_class(area)
        known = self._means.get(size)
        if known is not None:
            return known
        if not self._means:
            return TUNING.first_cost_s
        near = min(self._means, key=lambda other: (abs(other - size), other))
        return self._means[near] * max(1.0, size / near)


def _area_class(area: float) -> int:
    return max(1, round(area * TUNING.area_classes))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How many frames of the same size go into one call of the detector.

    ratios[n - 1]: what a call with n frames takes, in calls with one. The default is one frame a call.
    """

    ratios: tuple[float, ...] = (1.0,)

    @property
    def size_max(self) -> int:
        """Frames a call, at most."""
        return len(self.ratios)

    def fits(self, sizes: Sequence[Size]) -> bool:
        """Frames of these (width, height) go into one call; (0, 0) is an unknown size."""
        return len(sizes) <= 1 or (len(sizes) <= self.size_max and len(set(sizes)) == 1 and sizes[0] != (0, 0))

    def seconds(self, single_s: Sequence[float]) -> float:
        """Return the seconds of a call, for frames that would take `single_s` each by themselves."""
        return max(single_s) * self.ratios[len(single_s) - 1]


def measure_batching(detector: ObjectDetector, clock: Clock) -> BatchPlan:
    """Measure how many frames a call pay.

    Each doubling up to `batch_max` has to save `batch_gain_min` of a frame's time. It takes a few calls of a detector
    that says it may gain. Raise DetectorError.
    """
    batch_max = detector.batch_max if isinstance(detector, Batching) else 1
    if batch_max <= 1:
        return BatchPlan()
    width, height = detector.preferred_size(640, 360)
    image = np.full((height, width, 3), _GREY, np.uint8)
    single_s = _call_s(detector, clock, image, 1)
    counts, ratios = [1], [1.0]
    while single_s > 0 and counts[-1] < batch_max:
        count = min(2 * counts[-1], batch_max)
        ratio = _call_s(detector, clock, image, count) / single_s
        if ratio / count > (1 - TUNING.batch_gain_min) * ratios[-1] / counts[-1]:
            break
        counts.append(count)
        ratios.append(ratio)
    return BatchPlan(tuple(float(np.interp(n, counts, ratios)) for n in range(1, counts[-1] + 1)))


def _call_s(detector: ObjectDetector, clock: Clock, image: NDArray[np.uint8], count: int) -> float:
    took = []
    for _ in range(TUNING.batch_tries):
        began = clock.monotonic()
        detector.detect([image] * count)
        took.append(clock.monotonic() - began)
    return min(took)


@dataclass(frozen=True, slots=True)
class Selection(Generic[Item]):
    """A frame to be inferred now. queue: the number of its camera's queue."""

    queue: int
    frame: QueuedFrame[Item]


class _Bid(NamedTuple):
    """A camera's frame, weighed; the best is the least.

    grade 0: the camera has had little and is overdue, 1: as usual, 2: it has had too much.
    """

    rank: tuple[int, float, int]  # ends with the queue's number, so two are never alike
    queue: int
    pending: PendingInference
    cost_s: float
    grade: int


class _Deadline(NamedTuple):
    """Work that has to begin by then: the present frame of each camera, and the next one."""

    by: float
    cost_s: float
    queue: int


class InferenceScheduler(Generic[Item]):
    """Selects frames from the cameras' queues.

    State: what each camera has had of the detector, what inferences cost, how busy the detector is. Owner: the
    detector's thread. It reads no clock: `now` is monotonic seconds.
    """

    def __init__(self, queues: Sequence[CameraQueue[Item]], batching: BatchPlan | None = None) -> None:
        self.batching = batching or BatchPlan()
        self.costs = InferenceCosts()
        self._queues = tuple(queues)
        self._usage = [UsageEwma() for _ in self._queues]
        self._load = UsageEwma()

    def replace_queues(self, queues: Sequence[CameraQueue[Item]]) -> None:
        """Serve these from now on; what a queue that stays has had of the detector still counts."""
        usage = {id(queue): spent for queue, spent in zip(self._queues, self._usage, strict=True)}
        self._queues = tuple(queues)
        self._usage = [usage.get(id(queue)) or UsageEwma() for queue in self._queues]

    def load(self, now: float) -> float:
        """Share of the last seconds in which the detector was at work, 0..1."""
        return min(1.0, self._load.share(now))

    def wait_s(self, now: float) -> float:
        """Return for how long it pays to wait for a fuller batch before the next call.

        It pays only if batches pay, the detector is busy (else waiting is only delay), and no deadline suffers.
        """
        pending, size_max = [each for _, each in self._pending(now)], self.batching.size_max
        if size_max == 1 or not pending or len(pending) >= size_max or self.load(now) < TUNING.busy_load:
            return 0.0
        call_s = self.batching.seconds([self.costs.of(each.area) for each in pending][:size_max])
        window_s = min(each.since for each in pending) + min(TUNING.batch_window_s, call_s / 2) - now
        return max(0.0, min(window_s, min(each.due for each in pending) - call_s - now))

    def next(self, now: float, *, alone: bool = False) -> list[Selection[Item]]:
        """Return the frames of the next call; none if none wait. alone: at most one."""
        bids = self._bids(now)
        selected = []
        for bid in self._choose(bids, now, 1 if alone else self.batching.size_max):
            frame = self._queues[bid.queue].take()
            if frame is not None:  # else its camera dropped it meanwhile
                selected.append(Selection(bid.queue, frame))
        taken = {each.queue for each in selected}
        for bid in bids:
            if bid.queue not in taken:
                self._queues[bid.queue].drop_reason = "capped" if bid.grade == 2 else "newer"
        return selected

    def done(self, selected: Sequence[Selection[Item]], seconds: float, now: float) -> None:
        """Learn how long the call took, and charge it to the cameras in it, by what each would cost."""
        costs = [self.costs.of(each.frame.area) for each in selected]
        whole = sum(costs)
        for each, cost in zip(selected, costs, strict=True):
            self._usage[each.queue].spend(seconds * cost / whole, now)
            self._queues[each.queue].served(each.frame.at)
        if len(selected) == 1:
            self.costs.learn(selected[0].frame.area, seconds)
        self._load.spend(seconds, now)

    def _pending(self, now: float) -> list[tuple[int, PendingInference]]:
        found = []
        for number, queue in enumerate(self._queues):
            each = queue.pending(now)
            if each is not None:
                found.append((number, each))
        return found

    def _silent(self, waiting: set[int]) -> list[CameraQueue[Item]]:
        """Return the queues in which no frame waits; waiting: the numbers of the others."""
        if len(waiting) == len(self._queues):
            return []
        return [queue for number, queue in enumerate(self._queues) if number not in waiting]

    def _bids(self, now: float) -> list[_Bid]:
        """Best first."""
        pending = self._pending(now)
        if not pending:
            return []
        alive = len(pending) + sum(queue.is_alive(now) for queue in self._silent({number for number, _ in pending}))
        share_min, share_max = TUNING.share_floor / alive, TUNING.share_cap / alive
        costs = {area: TUNING.cost_safety * self.costs.of(area) for area in {each.area for _, each in pending}}
        bids = []
        for number, each in pending:
            share = self._usage[number].share(now)
            grade = 0 if share < share_min and now > each.due else 2 if share > share_max else 1
            rank = (grade, each.due - TUNING.priority_s * each.priority, number)
            bids.append(_Bid(rank, number, each, costs[each.area], grade))
        bids.sort()
        return bids

    def _choose(self, bids: list[_Bid], now: float, size_max: int) -> list[_Bid]:
        if len(bids) <= 1:
            return bids
        first = bids[0]
        if size_max == 1 and self._has_time(bids, first.cost_s, now):
            return [first]
        deadlines = self._deadlines(bids, now)
        if _slack_s(deadlines, {first.queue}, now) < first.cost_s:
            bids = sorted(bids, key=lambda bid: (bid.pending.deadline, bid.rank))
        chosen = bids[:1]
        for bid in bids[1:]:
            if len(chosen) >= size_max:
                break
            if self._may_join([*chosen, bid], deadlines, now):
                chosen.append(bid)
        return chosen

    def _has_time(self, bids: Sequence[_Bid], more_s: float, now: float) -> bool:
        """Return True if `more_s` and then all work that `_deadlines` knows of are done before the earliest deadline.

        Then the order of the deadlines need not be computed. With many cameras that is most of the cost of choosing.
        """
        others = [queue.next_deadline(now) for queue in self._silent({bid.queue for bid in bids})]
        by = [bid.pending.deadline for bid in bids] + [each for each in others if each is not None]
        whole_s = TUNING.cost_safety * self.costs.of(1.0)
        work_s = sum(bid.cost_s for bid in bids) + whole_s * (2 * len(by) - len(bids))
        return min(by) - now - work_s >= more_s

    def _may_join(self, batch: list[_Bid], deadlines: Sequence[_Deadline], now: float) -> bool:
        """There is room for the last one, and no deadline is missed by it, in the call or after it."""
        if not self.batching.fits([each.pending.size for each in batch]):
            return False
        call_s = self.batching.seconds([each.cost_s for each in batch])
        if any(now <= each.pending.deadline < now + call_s for each in batch[:-1]):
            return False
        return _slack_s(deadlines, {each.queue for each in batch}, now) >= call_s

    def _deadlines(self, bids: Sequence[_Bid], now: float) -> list[_Deadline]:
        """Return the deadlines of all cameras, the earliest first."""
        waiting = {bid.queue: bid for bid in bids}
        whole_s = TUNING.cost_safety * self.costs.of(1.0)
        found = []
        for number, queue in enumerate(self._queues):
            bid = waiting.get(number)
            by = bid.pending.deadline if bid is not None else queue.next_deadline(now)
            if by is not None:
                found.append(_Deadline(by, bid.cost_s if bid is not None else whole_s, number))
                found.append(_Deadline(by + queue.heartbeat_s, whole_s, number))
        return sorted(found)


def _slack_s(deadlines: Sequence[_Deadline], served: set[int], now: float) -> float:
    """Return for how long the detector may do something else while all deadlines can still be kept, in their order.

    served: queues whose present frame needs no more time.
    """
    slack_s, work_s = float("inf"), 0.0
    left = set(served)
    for each in deadlines:
        if each.queue in left:
            left.remove(each.queue)
            continue
        work_s += each.cost_s
        slack_s = min(slack_s, each.by - now - work_s)
    return slack_s
