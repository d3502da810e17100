"""Whose look is next: earliest deadline with priority and ageing, under a promise to every camera. See
docs/scheduling.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from appliance.ingest.schedule.account import Account
from appliance.ingest.schedule.claim import Claim
from appliance.ingest.schedule.company import Alone, Company
from appliance.ingest.schedule.costs import Costs
from appliance.ingest.schedule.lane import Lane, Turn

WORTH_S = 1.0
FLOOR = 0.5
CAP = 4.0
CAUTION = 1.2
WINDOW_S_MAX = 0.05
BUSY = 0.5

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Pick(Generic[Item]):
    """A look to be taken now. lane: whose, its number."""

    lane: int
    turn: Turn[Item]


@dataclass(frozen=True, slots=True)
class _Bid:
    """A claim, weighed. grade 0: has had little and is overdue, 1: as usual, 2: has had more than its part."""

    lane: int
    claim: Claim
    cost_s: float
    grade: int
    rank: tuple[int, float, int]


class Scheduler(Generic[Item]):
    """Chooses among the lanes. State: what each has had of the detector, what looks cost, how busy the detector is.

    Owner: the detector's thread. It reads no clock: `now` is monotonic seconds.
    """

    def __init__(self, lanes: Sequence[Lane[Item]], company: Company | None = None) -> None:
        self.company: Company = company or Alone()
        self.costs = Costs()
        self._lanes = tuple(lanes)
        self._accounts = [Account() for _ in self._lanes]
        self._load = Account()

    def load(self, now: float) -> float:
        """Share of the last seconds in which the detector was at work, 0..1."""
        return min(1.0, self._load.share(now))

    def wait_s(self, now: float) -> float:
        """How long it pays to wait for company before the next call: only if calls can be shared, the detector is busy
        (else waiting is only delay), and nobody's deadline suffers."""
        claims = self._claims(now)
        if self.company.most == 1 or not claims or len(claims) >= self.company.most or self.load(now) < BUSY:
            return 0.0
        call_s = self.company.seconds([self.costs.of(claim.area) for _, claim in claims][: self.company.most])
        window_s = min(claim.since for _, claim in claims) + min(WINDOW_S_MAX, call_s / 2) - now
        return max(0.0, min(window_s, min(claim.due for _, claim in claims) - call_s - now))

    def next(self, now: float, *, alone: bool = False) -> list[Pick[Item]]:
        """The looks of the next call; none if none wait. alone: at most one."""
        bids = self._bids(now)
        chosen = self._choose(bids, now, 1 if alone else self.company.most)
        picked = set()
        picks = []
        for bid in chosen:
            turn = self._lanes[bid.lane].take()
            if turn is not None:  # else the camera threw it away meanwhile
                picks.append(Pick(bid.lane, turn))
                picked.add(bid.lane)
        for bid in bids:
            if bid.lane not in picked:
                self._lanes[bid.lane].hindrance = "capped" if bid.grade == 2 else "newer"
        return picks

    def done(self, picks: Sequence[Pick[Item]], seconds: float, now: float) -> None:
        """The call took so long: learnt, and put to the accounts of those who were in it, by what each would cost."""
        weights = [self.costs.of(pick.turn.area) for pick in picks]
        whole = sum(weights)
        for pick, weight in zip(picks, weights, strict=True):
            self._accounts[pick.lane].spend(seconds * weight / whole, now)
            self._lanes[pick.lane].served(pick.turn.at)
        if len(picks) == 1:
            self.costs.learn(picks[0].turn.area, seconds)
        self._load.spend(seconds, now)

    def _claims(self, now: float) -> list[tuple[int, Claim]]:
        claims = ((number, lane.claim(now)) for number, lane in enumerate(self._lanes))
        return [(number, claim) for number, claim in claims if claim is not None]

    def _bids(self, now: float) -> list[_Bid]:
        """Best first."""
        claims = self._claims(now)
        waiting = {number for number, _ in claims}
        alive = sum(number in waiting or lane.is_alive(now) for number, lane in enumerate(self._lanes))
        bids = []
        for number, claim in claims:
            share = self._accounts[number].share(now)
            poor = share < FLOOR / alive and now > claim.due
            grade = 0 if poor else 2 if share > CAP / alive else 1
            rank = (grade, claim.due - WORTH_S * claim.worth, number)
            bids.append(_Bid(number, claim, CAUTION * self.costs.of(claim.area), grade, rank))
        return sorted(bids, key=lambda bid: bid.rank)

    def _choose(self, bids: list[_Bid], now: float, most: int) -> list[_Bid]:
        if len(bids) <= 1:
            return bids
        promises = self._promises(bids, now)
        first = bids[0]
        if _slack_s(promises, {first.lane}, now) < first.cost_s:
            bids = sorted(bids, key=lambda bid: (bid.claim.promise, bid.rank))
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
        if not self.company.fits([each.claim.size for each in all_of_them]):
            return False
        call_s = self.company.seconds([each.cost_s for each in all_of_them])
        if any(now <= each.claim.promise < now + call_s for each in chosen):
            return False
        return _slack_s(promises, {each.lane for each in all_of_them}, now) >= call_s

    def _promises(self, bids: Sequence[_Bid], now: float) -> list[tuple[float, float, int]]:
        """(by when, seconds of work, lane) of what was promised: the present look of each camera, and the next one."""
        waiting = {bid.lane: bid for bid in bids}
        whole_s = CAUTION * self.costs.of(1.0)
        found = []
        for number, lane in enumerate(self._lanes):
            bid = waiting.get(number)
            promise = bid.claim.promise if bid is not None else lane.next_promise(now)
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
