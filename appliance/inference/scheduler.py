"""Chooses which camera's frame is inferred next: earliest deadline first with priority and ageing, under a heartbeat
guaranteed to every camera. See docs/scheduling.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appliance.clock import Clock
from appliance.detect.detector import ObjectDetector
from appliance.inference.camera_queue import CameraQueue, PendingInference, QueuedFrame

USAGE_TIME_CONSTANT_S = 4.0


class UsageEwma:
    """State: detector-seconds, forgotten with a time constant of OVER_S. Owner: the detector's thread."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._at = float("-inf")

    def spend(self, seconds: float, now: float) -> None:
        self._spent_s = self._left(now) + seconds
        self._at = now

    def share(self, now: float) -> float:
        """Of the detector's time, about 0..1."""
        return self._left(now) / USAGE_TIME_CONSTANT_S

    def _left(self, now: float) -> float:
        return self._spent_s * math.exp((self._at - now) / USAGE_TIME_CONSTANT_S) if self._spent_s else 0.0


FIRST_COST_S = 0.02
COST_S_MIN = 1e-4
AREA_CLASSES = 8
_SMOOTHING = 0.1


class InferenceCosts:
    """State: the mean time of a call for each class of area (eighths of a whole picture). Owner: the detector's thread.

    A class that was never seen is reckoned from its nearest neighbour: at most as much as a larger one, in proportion
    to a smaller one.
    """

    def __init__(self, first_s: float = FIRST_COST_S) -> None:
        self._first_s = first_s
        self._means: dict[int, float] = {}

    def learn(self, area: float, seconds: float) -> None:
        """A look at so many whole pictures took so long."""
        size, seconds = _class(area), max(seconds, COST_S_MIN)
        mean = self._means.get(size)
        self._means[size] = seconds if mean is None else mean + (seconds - mean) * _SMOOTHING

    def of(self, area: float) -> float:
        """Seconds that such a look is likely to take."""
        size = _class(area)
        known = self._means.get(size)
        if known is not None:
            return known
        if not self._means:
            return self._first_s
        near = min(self._means, key=lambda other: (abs(other - size), other))
        return self._means[near] * max(1.0, size / near)


def _class(area: float) -> int:
    return max(1, round(area * AREA_CLASSES))


GAIN_MIN = 0.1  # of a frame's time that each doubling of the batch has to save
TRIES = 3  # calls of each size; the fastest counts
_GREY = 114  # what networks are trained to take for nothing
Size = tuple[int, int]


@runtime_checkable
class Batching(Protocol):
    """A detector that says how many frames of one size it takes in one call of its accelerator. It may gain from it,
    and it may not: that is measured."""

    batch_max: int


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
        """What a call takes, of frames that would take so long each by themselves."""
        return max(single_s) * self.ratios[len(single_s) - 1]


def measure_batching(detector: ObjectDetector, clock: Clock) -> BatchPlan:
    """As many frames a call as pay: each doubling up to `batch_max` has to save GAIN_MIN of a frame's time. Takes a few
    calls of a detector that says it may gain. Raises DetectorError."""
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
        if ratio / count > (1 - GAIN_MIN) * ratios[-1] / counts[-1]:
            break
        counts.append(count)
        ratios.append(ratio)
    return BatchPlan(tuple(float(np.interp(n, counts, ratios)) for n in range(1, counts[-1] + 1)))


def _call_s(detector: ObjectDetector, clock: Clock, image: NDArray[np.uint8], count: int) -> float:
    took = []
    for _ in range(TRIES):
        began = clock.monotonic()
        detector.detect([image] * count)
        took.append(clock.monotonic() - began)
    return min(took)


PRIORITY_S = 1.0
SHARE_FLOOR = 0.5
SHARE_CAP = 4.0
COST_SAFETY = 1.2
WINDOW_S_MAX = 0.05
BUSY_LOAD = 0.5

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Selection(Generic[Item]):
    """A look to be taken now. lane: whose, its number."""

    queue: int
    frame: QueuedFrame[Item]


@dataclass(frozen=True, slots=True)
class _Bid:
    """A claim, weighed. grade 0: has had little and is overdue, 1: as usual, 2: has had more than its part."""

    lane: int
    claim: PendingInference
    cost_s: float
    grade: int
    rank: tuple[int, float, int]


class InferenceScheduler(Generic[Item]):
    """Chooses among the lanes. State: what each has had of the detector, what looks cost, how busy the detector is.

    Owner: the detector's thread. It reads no clock: `now` is monotonic seconds.
    """

    def __init__(self, lanes: Sequence[CameraQueue[Item]], batching: BatchPlan | None = None) -> None:
        self.batching = batching or BatchPlan()
        self.costs = InferenceCosts()
        self._lanes = tuple(lanes)
        self._accounts = [UsageEwma() for _ in self._lanes]
        self._load = UsageEwma()

    def load(self, now: float) -> float:
        """Share of the last seconds in which the detector was at work, 0..1."""
        return min(1.0, self._load.share(now))

    def wait_s(self, now: float) -> float:
        """How long it pays to wait for company before the next call: only if calls can be shared, the detector is busy
        (else waiting is only delay), and nobody's deadline suffers."""
        claims = self._claims(now)
        if (
            self.batching.size_max == 1
            or not claims
            or len(claims) >= self.batching.size_max
            or self.load(now) < BUSY_LOAD
        ):
            return 0.0
        call_s = self.batching.seconds([self.costs.of(claim.area) for _, claim in claims][: self.batching.size_max])
        window_s = min(claim.since for _, claim in claims) + min(WINDOW_S_MAX, call_s / 2) - now
        return max(0.0, min(window_s, min(claim.due for _, claim in claims) - call_s - now))

    def next(self, now: float, *, alone: bool = False) -> list[Selection[Item]]:
        """The looks of the next call; none if none wait. alone: at most one."""
        bids = self._bids(now)
        chosen = self._choose(bids, now, 1 if alone else self.batching.size_max)
        picked = set()
        picks = []
        for bid in chosen:
            turn = self._lanes[bid.lane].take()
            if turn is not None:  # else the camera threw it away meanwhile
                picks.append(Selection(bid.lane, turn))
                picked.add(bid.lane)
        for bid in bids:
            if bid.lane not in picked:
                self._lanes[bid.lane].drop_reason = "capped" if bid.grade == 2 else "newer"
        return picks

    def done(self, picks: Sequence[Selection[Item]], seconds: float, now: float) -> None:
        """The call took so long: learnt, and put to the accounts of those who were in it, by what each would cost."""
        weights = [self.costs.of(pick.frame.area) for pick in picks]
        whole = sum(weights)
        for pick, weight in zip(picks, weights, strict=True):
            self._accounts[pick.queue].spend(seconds * weight / whole, now)
            self._lanes[pick.queue].served(pick.frame.at)
        if len(picks) == 1:
            self.costs.learn(picks[0].frame.area, seconds)
        self._load.spend(seconds, now)

    def _claims(self, now: float) -> list[tuple[int, PendingInference]]:
        claims = ((number, lane.pending(now)) for number, lane in enumerate(self._lanes))
        return [(number, claim) for number, claim in claims if claim is not None]

    def _bids(self, now: float) -> list[_Bid]:
        """Best first."""
        claims = self._claims(now)
        waiting = {number for number, _ in claims}
        alive = sum(number in waiting or lane.is_alive(now) for number, lane in enumerate(self._lanes))
        bids = []
        for number, claim in claims:
            share = self._accounts[number].share(now)
            poor = share < SHARE_FLOOR / alive and now > claim.due
            grade = 0 if poor else 2 if share > SHARE_CAP / alive else 1
            rank = (grade, claim.due - PRIORITY_S * claim.priority, number)
            bids.append(_Bid(number, claim, COST_SAFETY * self.costs.of(claim.area), grade, rank))
        return sorted(bids, key=lambda bid: bid.rank)

    def _choose(self, bids: list[_Bid], now: float, most: int) -> list[_Bid]:
        if len(bids) <= 1:
            return bids
        promises = self._promises(bids, now)
        first = bids[0]
        if _slack_s(promises, {first.lane}, now) < first.cost_s:
            bids = sorted(bids, key=lambda bid: (bid.claim.deadline, bid.rank))
        chosen = bids[:1]
        for bid in bids[1:]:
            if len(chosen) >= most:
                break
            if self._may_join(chosen, bid, promises, now):
                chosen.append(bid)
        return chosen

    def _may_join(self, chosen: list[_Bid], bid: _Bid, promises: list[tuple[float, float, int]], now: float) -> bool:
        """There is room for it, and neither those in the call nor those who are left out get too late by it."""
        all_of_them = [*chosen, bid]
        if not self.batching.fits([each.claim.size for each in all_of_them]):
            return False
        call_s = self.batching.seconds([each.cost_s for each in all_of_them])
        if any(now <= each.claim.deadline < now + call_s for each in chosen):
            return False
        return _slack_s(promises, {each.lane for each in all_of_them}, now) >= call_s

    def _promises(self, bids: Sequence[_Bid], now: float) -> list[tuple[float, float, int]]:
        """(by when, seconds of work, lane) of what was promised: the present look of each camera, and the next one."""
        waiting = {bid.lane: bid for bid in bids}
        whole_s = COST_SAFETY * self.costs.of(1.0)
        found = []
        for number, lane in enumerate(self._lanes):
            bid = waiting.get(number)
            promise = bid.claim.deadline if bid is not None else lane.next_deadline(now)
            if promise is not None:
                found.append((promise, bid.cost_s if bid is not None else whole_s, number))
                found.append((promise + lane.heartbeat_s, whole_s, number))
        return sorted(found)


def _slack_s(promises: Sequence[tuple[float, float, int]], served: set[int], now: float) -> float:
    """How long the detector may do something else, and all promises can still be kept in order of their deadlines.
    served: lanes whose present look needs no more time."""
    slack_s, work_s = float("inf"), 0.0
    left = set(served)
    for by, cost_s, lane in promises:
        if lane in left:
            left.remove(lane)
            continue
        work_s += cost_s
        slack_s = min(slack_s, by - now - work_s)
    return slack_s
