"""Computes the recall under a budget: each strategy's order of sending, the cost of each incident, bootstrap intervals.

Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.scenario.metrics import LEVEL, RESAMPLES, Estimate, estimate_share

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledIncident:
    """A labelled incident. start, end: the window in which what is sent must lie; t: its true beginning (seconds)."""

    footage: int
    start: float
    end: float
    t: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One thing that a strategy could send.

    footage: index of the camera's footage; t: when it is decided; bytes: as the outbox counts them; moments: times that
    its images show; alert: the id of its alert, "" without one.
    """

    footage: int
    t: float
    value: float
    bytes: int
    moments: tuple[float, ...]
    alert: str = ""

    def finds(self, incident: LabelledIncident) -> bool:
        """Return whether one of its images shows the incident."""
        return self.footage == incident.footage and any(incident.start <= t <= incident.end for t in self.moments)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort by falling value; of equals the earlier one first, as an appliance would meet them, then by footage."""
    return sorted(candidates, key=lambda each: (-each.value, each.t, each.footage))


@dataclass(frozen=True, slots=True)
class Ranking:
    """One order of sending.

    prices, footage: (N,) of the things sent; first: (I,) the index at which each incident is found, N for never.
    """

    prices: Floats
    footage: Indices
    first: Indices

    def costs(self, whole: Floats, weights: Floats | None = None) -> Floats:
        """Return (I,), the budget from which on each incident is found, as a share of `whole`; inf: with none.

        whole: (F,) what 1 means, of each footage. weights: (F,) how often each footage counts, as when resampling.
        The first thing that does not fit a budget ends the sending; nothing cheaper is sent instead.
        """
        weights = np.ones(len(whole)) if weights is None else weights
        spent = np.cumsum(self.prices * weights[self.footage]) / float(whole @ weights)
        # Sums of the same bytes in another order must not differ in the last digit: 100 % is 100 %.
        return np.append(np.round(spent, 12), np.inf)[self.first]


def ranking(
    order: Sequence[Candidate], incidents: Sequence[LabelledIncident], prices: Sequence[float] | None = None
) -> Ranking:
    """Return `order` as arrays. prices: other than the bytes, one for each."""
    by_footage: dict[int, list[tuple[int, Candidate]]] = {}
    for place, each in enumerate(order):
        by_footage.setdefault(each.footage, []).append((place, each))
    first = [
        next((place for place, each in by_footage.get(incident.footage, ()) if each.finds(incident)), len(order))
        for incident in incidents
    ]
    paid = [each.bytes for each in order] if prices is None else prices
    return Ranking(np.array(paid, float), np.array([each.footage for each in order], np.intp), np.array(first, np.intp))


def all_or_nothing(each: Ranking) -> Ranking:
    """Return the same things as one: all of them are sent, or none."""
    last = len(each.prices) - 1
    return Ranking(each.prices, each.footage, np.where(each.first <= last, last, len(each.prices)))


def recall_at(costs: Floats, share: float) -> float:
    """Share of the incidents that are found within `share`. costs: (I,), or (K, I) for the mean of K orders."""
    return float(np.mean(costs <= share))


def smallest_share(costs: Floats, recall: float, weights: Floats | None = None) -> float:
    """Return the smallest budget with at least this recall; inf if none has.

    It is the mean of K orders where costs is (K, I).
    """
    rows = np.atleast_2d(costs)
    every = np.ones(rows.shape[1]) if weights is None else weights
    mass = np.broadcast_to(every, rows.shape).ravel()
    order = np.argsort(rows, axis=None, kind="stable")
    reached = np.cumsum(mass[order]) >= recall * mass.sum() - 1e-9
    return float(rows.ravel()[order][np.argmax(reached)])


def staircase(costs: Floats) -> list[tuple[float, float]]:
    """Return (share, recall) where the recall rises, shares rising; recall holds until the next."""
    shares = np.unique(costs[np.isfinite(costs)])
    return [(float(share), recall_at(costs, float(share))) for share in shares]


@dataclass(frozen=True, slots=True)
class Lead:
    """Budgets from `start` to below `end` (closed: to `end` itself) at which one is ahead, by up to `by`."""

    start: float
    end: float
    by: float
    closed: bool = False

    def holds(self, budget: float) -> bool:
        """Return whether the budget is one of them."""
        return self.start <= budget < self.end or (self.closed and budget == self.end)


def leads(costs: Floats, others: Floats, end: float) -> tuple[Lead, ...]:
    """Return the budgets up to `end` at which the first has strictly more recall than the other."""
    every = np.unique(np.concatenate([costs.ravel(), others.ravel()]))
    steps = [float(step) for step in every if step <= end]
    found: list[Lead] = []
    for place, step in enumerate(steps):
        last = place == len(steps) - 1
        after = end if last else steps[place + 1]
        by = recall_at(costs, step) - recall_at(others, step)
        if by <= 1e-12:
            continue
        if found and found[-1].end == step:
            found[-1] = Lead(found[-1].start, after, max(by, found[-1].by), closed=last)
        else:
            found.append(Lead(step, after, by, closed=last))
    return tuple(found)


_Draw = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class BootstrapSample:
    """The costs of one strategy and their bootstrap draws.

    costs: (K, I) as measured, of each order; drawn: (R, I) the incidents' costs in each draw; weights: (R, I) how often
    each incident counts in the draw.
    """

    costs: Floats
    drawn: Floats
    weights: Floats

    def recalls(self, shares: Sequence[float]) -> list[Estimate]:
        """Return the recall at each budget.

        Where all incidents agree the interval is the exact bound for so many, see `estimate_share`.
        """
        return [self._recall(share) for share in shares]

    def smallest(self, recall: float) -> Estimate:
        """Return the smallest budget with this recall; None: never."""
        drawn = [
            smallest_share(costs, recall, weights) for costs, weights in zip(self.drawn, self.weights, strict=True)
        ]
        ends = (smallest_share(self.costs, recall), *np.percentile(drawn, LEVEL, method="nearest"))
        value, low, high = (float(each) if np.isfinite(each) else None for each in ends)
        return Estimate(value, low, high, self.costs.shape[1])

    def _recall(self, budget: float) -> Estimate:
        count, value = self.costs.shape[1], recall_at(self.costs, budget)
        if value in (0.0, 1.0):
            return estimate_share([value == 1.0] * count)
        drawn = ((self.drawn <= budget) * self.weights).sum(axis=1) / self.weights.sum(axis=1)
        low, high = np.percentile(drawn, LEVEL)
        return Estimate(value, float(low), float(high), count)


class Bootstrap:
    """Draws of whole clips with replacement, and in each drawn clip of its incidents, the same for every strategy.

    Incidents of one clip share light, place and people, so they are not drawn independently. The escalations and their
    possible costs are drawn with the clip. Of several orders of sending (random) each draw takes one, so that the
    interval holds their difference as well.
    """

    def __init__(self, whole: Floats, incidents: Indices, resamples: int = RESAMPLES) -> None:
        """whole: (F,) what a budget is a share of; incidents: (I,) the footage of each."""
        self._whole = whole
        self._incidents = incidents
        self._draws = [draw for draw in self._drawn(resamples) if draw[1].sum() > 0]

    def sample(self, orders: Sequence[Ranking]) -> BootstrapSample:
        """Return the draws of one strategy."""
        drawn = [
            orders[number % len(orders)].costs(self._whole, clips) for number, (clips, _) in enumerate(self._draws)
        ]
        return BootstrapSample(
            np.array([each.costs(self._whole) for each in orders]),
            np.array(drawn).reshape(len(drawn), len(self._incidents)),
            np.array([weights for _, weights in self._draws]).reshape(len(drawn), len(self._incidents)),
        )

    def _drawn(self, resamples: int) -> Iterator[_Draw]:
        """Yield (F,) how often each clip counts, (I,) how often each incident."""
        chance = np.random.default_rng(0)
        clips = len(self._whole)
        within = [np.flatnonzero(self._incidents == clip) for clip in range(clips)]
        for _ in range(resamples):
            times = chance.multinomial(clips, np.full(clips, 1 / clips)).astype(float)
            weights = np.zeros(len(self._incidents))
            for clip, places in enumerate(within):
                if len(places) and times[clip]:
                    drawn = chance.multinomial(int(times[clip]) * len(places), np.full(len(places), 1 / len(places)))
                    weights[places] = drawn
            yield times, weights
