"""The router and its baselines: the order in which each sends, and its recall under a budget, with intervals."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from appliance.lab.curve.curve_footage import ReplayedFootage
from appliance.scenario.event_metrics import LEVEL, RESAMPLES, Estimate, estimate_share
from appliance.types import Alert

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
    """In falling value; of equals the earlier one first, as an appliance would meet them, then by footage."""
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
        """(I,) the budget, as a share of `whole`, from which on each incident is found; inf: with none.

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
    """`order` as arrays. prices: other than the bytes, one for each."""
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


def recall_at(costs: Floats, share: float, weights: Floats | None = None) -> float:
    """Share of the incidents that are found within `share`. costs: (I,), or (K, I) for the mean of K orders."""
    found = np.atleast_2d(costs <= share).mean(axis=0)
    return float(np.average(found, weights=weights))


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
    """(share, recall) where the recall rises, shares rising; recall holds until the next."""
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

    Incidents of one clip share light, place and people, so they are not drawn independently. What is sent
    and what it may cost are drawn with the clip. Of several orders of sending (random) each draw takes one, so that
    the interval holds their difference as well.
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
        """(F,) how often each clip counts, (I,) how often each incident."""
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


StrategyName = Literal["router", "confidence-only", "motion-only", "random", "every examined frame", "everything"]
BASELINES: tuple[StrategyName, ...] = ("confidence-only", "motion-only", "random")
_DRAWN_PER_S = 2  # moments per second of footage that the strategy `random` chooses from


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way of choosing. orders: what it sends, first things first; several where chance decides.

    whole: it sends all or nothing, so it is one point and no curve.
    """

    name: StrategyName
    orders: tuple[tuple[Candidate, ...], ...]
    whole: bool = False

    def rankings(self, incidents: Sequence[LabelledIncident], *, counted: bool = False) -> tuple[Ranking, ...]:
        """Return the orders of sending.

        counted: each thing costs 1, as for a person who reviews it, instead of its bytes.
        """
        found = [ranking(order, incidents, [1.0] * len(order) if counted else None) for order in self.orders]
        return tuple(all_or_nothing(each) for each in found) if self.whole else tuple(found)


def all_strategies(footage: Sequence[ReplayedFootage], seeds: int) -> tuple[Strategy, ...]:
    """All strategies, the router first. seeds: repetitions of random."""
    apart = [each.merge_s for each in footage]
    motion = [each for number, camera in enumerate(footage) for each in _motion_frames(number, camera)]
    return (
        Strategy(name="router", orders=(tuple(ranked(router_candidates(footage))),)),
        Strategy(name="confidence-only", orders=(tuple(ranked(confidence_candidates(footage))),)),
        Strategy(name="motion-only", orders=(tuple(spread(motion, apart)),)),
        Strategy(name="random", orders=tuple(tuple(spread(_random(footage, seed), apart)) for seed in range(seeds))),
        Strategy(name="every examined frame", orders=(tuple(_all_examined(footage)),), whole=True),
    )


def router_candidates(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Return the escalations that the router would send, each with its own evidence."""
    return [
        Candidate(
            footage=number,
            t=each.route.t,
            value=each.route.value,
            bytes=each.bytes,
            moments=each.moments,
            alert=each.route.alert,
        )
        for number, camera in enumerate(footage)
        for each in camera.escalations
    ]


def confidence_candidates(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Every track of a watched label by its best score, with the evidence that the router would send of it."""
    return [
        Candidate(footage=number, t=each.t, value=each.score, bytes=each.bytes, moments=each.moments)
        for number, camera in enumerate(footage)
        for each in camera.best_sightings
    ]


def spread(candidates: Sequence[Candidate], apart: Sequence[float]) -> list[Candidate]:
    """Sort by falling value, but none within `apart` seconds (of each footage) of one that is sent already.

    Once nothing is left that far apart, half the distance counts, and so on. It is never worse than sending neighbours
    one after the other.
    """
    left, order, share = ranked(candidates), list[Candidate](), 1.0
    sent: dict[int, list[float]] = {}
    while left:
        too_close = []
        for each in left:
            times = sent.setdefault(each.footage, [])
            place = bisect(times, each.t)
            if all(abs(each.t - t) >= share * apart[each.footage] for t in times[max(0, place - 1) : place + 1]):
                times.insert(place, each.t)
                order.append(each)
            else:
                too_close.append(each)
        left, share = too_close, share / 2 if share > 0.01 else 0.0
    return order


def _motion_frames(number: int, camera: ReplayedFootage) -> list[Candidate]:
    return [_frame(number, each.t, each.motion, each.frame_bytes) for each in camera.examined if each.motion > 0]


def _all_examined(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    return [
        _frame(number, each.t, 0.0, each.frame_bytes)
        for number, camera in enumerate(footage)
        for each in camera.examined
    ]


def _random(footage: Sequence[ReplayedFootage], seed: int) -> list[Candidate]:
    """Moments anywhere in the footage; each has the size of the nearest examined frame."""
    rng = np.random.default_rng(seed)
    found = []
    for number, camera in enumerate(footage):
        if not camera.examined:
            continue
        times = np.array([each.t for each in camera.examined])
        for t in rng.uniform(0, camera.seconds, int(np.ceil(camera.seconds * _DRAWN_PER_S))):
            nearest = camera.examined[int(np.abs(times - t).argmin())]
            found.append(_frame(number, float(t), float(rng.random()), nearest.frame_bytes))
    return found


def _frame(number: int, t: float, value: float, size: int) -> Candidate:
    return Candidate(footage=number, t=t, value=value, bytes=size, moments=(t,))


AlertKeys = frozenset[tuple[int, str]]
"""By footage and id: scenarios of the same clip may share ids."""


@dataclass(frozen=True, slots=True)
class SimulatedVerdicts:
    """Verdicts made of the ground truth, wrong in a share `error` of the answers, drawn anew with each seed.

    Confirms an alert that shows a labelled incident and rejects any other; alerts that were not escalated get none.
    (`scenario_verdicts.scenario_oracle` answers within a replay, once; this one many times after it.)
    """

    error: float
    seeds: int

    def rejected(
        self, order: Sequence[Candidate], incidents: Sequence[LabelledIncident], escalated: AlertKeys
    ) -> list[AlertKeys]:
        """For each seed the alerts that are rejected."""
        is_true = [any(each.finds(incident) for incident in incidents) for each in order]
        found = []
        for seed in range(self.seeds):
            errors = np.random.default_rng(seed).random(len(order)) < self.error
            answers = [
                (alert_key(each), true == bool(wrong)) for each, true, wrong in zip(order, is_true, errors, strict=True)
            ]
            found.append(frozenset(alert for alert, rejects in answers if rejects and alert in escalated))
        return found


def alert_key(alert: Candidate) -> tuple[int, str]:
    return alert.footage, alert.alert


def ranked_alerts(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Every alert in falling value, escalated or not; a person sees its beginning and its best view."""
    found = []
    for number, camera in enumerate(footage):
        values = {route.alert: route.value for route in camera.routes}
        found += [_alert(number, alert, values.get(alert.id, 0.0)) for alert in camera.alerts]
    return ranked(found)


def _alert(number: int, alert: Alert, value: float) -> Candidate:
    moments = (alert.t_start,) if alert.best is None else (alert.t_start, alert.best.t)
    return Candidate(footage=number, t=alert.t_start, value=value, bytes=0, moments=moments, alert=alert.id)


def escalated_alerts(footage: Sequence[ReplayedFootage]) -> AlertKeys:
    """Return the alerts that the router would escalate."""
    return frozenset((number, each.route.alert) for number, camera in enumerate(footage) for each in camera.escalations)


def rejected_alerts(footage: Sequence[ReplayedFootage]) -> AlertKeys:
    """Return the alerts that were rejected by the verdicts which the scenarios name."""
    return frozenset(
        (number, alert.id)
        for number, camera in enumerate(footage)
        for alert in camera.alerts
        if alert.verdict == "rejected"
    )


def ranking_without(order: Sequence[Candidate], removed: AlertKeys, incidents: Sequence[LabelledIncident]) -> Ranking:
    """Return the alerts that remain for a person, each at a cost of 1."""
    left = [each for each in order if alert_key(each) not in removed]
    return ranking(left, incidents, [1.0] * len(left))
