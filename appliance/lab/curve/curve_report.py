"""Computes the curves: every strategy on the same footage under one budget for all cameras.

Budgets are shares (1 = all the cameras' bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.lab.curve import strategies
from appliance.lab.curve.curve_footage import ReplayedFootage
from appliance.lab.curve.ranking import (
    RESAMPLES,
    Bootstrap,
    BootstrapSample,
    Floats,
    LabelledIncident,
    Lead,
    Ranking,
    leads,
    smallest_share,
    staircase,
)
from appliance.lab.curve.strategies import BASELINES, SimulatedVerdicts, Strategy, all_strategies, router_candidates
from appliance.lab.scenario.event_metrics import Estimate

BUDGETS = (0.001, 0.003, 0.01, 0.02, 0.03, 0.10, 1.0)
GOAL = 0.95
BAR = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCurve:
    """One strategy. points: (budget, recall) where recall rises, of random the mean; band: (budget, low, high), of
    random over its seeds, else the bootstrap interval; at: recall at the panel's budgets; smallest: the least budget
    with recall GOAL, None where none has; spent, reached, things: what sending all it has costs, the recall of that,
    and how many that are (of random the mean). whole: it is all or nothing, one point and no curve.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...]
    at: tuple[Estimate, ...]
    smallest: Estimate
    spent: float
    reached: float
    things: float
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """Where the router and a baseline are ahead of each other; at all other budgets up to 100 % they are level."""

    baseline: str
    router_ahead: tuple[Lead, ...]
    baseline_ahead: tuple[Lead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePanel:
    """Strategies over the same budgets, the router first."""

    budgets: tuple[float, ...]
    curves: tuple[RecallCurve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FootageCounts:
    """One camera's part in it. untimed: entries of `expect` that say no moment, and so are not labels here."""

    scenario: str
    camera: str
    bytes: int
    seconds: float
    incidents: int
    alerts: int
    false_alerts: int
    asked: int
    asked_bytes: int
    untimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveReport:
    """sent: recall over the share of the cameras' bytes; seen: over things to look at per camera-hour. verdicts: what
    the stand-in is; judged_by: who gave the verdicts that the scenarios name; missed: incidents that the router finds
    at no budget, and whether an alert was raised at all; raised, raised_smallest: how many incidents raised one, and
    the least budget with which the router finds the goal's share of those; skipped: what was left out, and why."""

    films: tuple[FootageCounts, ...]
    models: tuple[str, ...]
    incidents: int
    sent: CurvePanel
    comparisons: tuple[BaselineComparison, ...]
    seen: CurvePanel
    verdicts: str
    missed: tuple[str, ...]
    raised: int
    raised_smallest: float | None
    seeds: int
    resamples: int
    judged_by: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    goal: float = GOAL
    bar: float = BAR

    @property
    def bar_met(self) -> bool:
        """Whether the router reaches the goal within the bar, and no baseline is ahead of it at any budget."""
        smallest = self.sent.curves[0].smallest.value
        return smallest is not None and smallest <= self.bar and not any(c.baseline_ahead for c in self.comparisons)

    @property
    def camera_bytes(self) -> int:
        return sum(film.bytes for film in self.films)

    @property
    def camera_seconds(self) -> float:
        return sum(film.seconds for film in self.films)


_BAND_POINTS = 120
_BEYOND = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class _Ruler:
    """What budgets are a share of. whole: (F,) of each footage."""

    whole: Floats
    resampled: Bootstrap

    def curve(
        self, name: str, orders: Sequence[Ranking], budgets: Sequence[float], *, whole: bool = False
    ) -> RecallCurve:
        sample = self.resampled.sample(orders)
        points = tuple(staircase(sample.costs))
        return RecallCurve(
            name=name,
            points=points,
            band=_band(sample, [share for share, _ in points], budgets),
            at=tuple(sample.recalls(budgets)),
            smallest=sample.smallest(GOAL),
            spent=float(np.mean([each.prices.sum() for each in orders]) / self.whole.sum()),
            reached=float(np.isfinite(sample.costs).mean()),
            things=float(np.mean([len(each.prices) for each in orders])),
            whole=whole,
        )

    def costs(self, orders: Sequence[Ranking]) -> Floats:
        """(K, I)"""
        return np.array([each.costs(self.whole) for each in orders])


def _band(
    sample: BootstrapSample, rises: Sequence[float], budgets: Sequence[float]
) -> tuple[tuple[float, float, float], ...]:
    """Of one order the bootstrap interval, of many how far they lie apart: where the recall rises, at the budgets, and
    beyond the last rise, where a draw may still rise."""
    beyond = [rises[-1] * more for more in _BEYOND] if rises else []
    shares = sorted({*rises, *budgets, *beyond})
    if len(shares) > _BAND_POINTS:
        shares = [shares[round(place)] for place in np.linspace(0, len(shares) - 1, _BAND_POINTS)]
    if len(sample.costs) == 1:
        estimates = zip(shares, sample.recalls(shares), strict=True)
        return tuple((share, each.low or 0.0, each.high or 0.0) for share, each in estimates)
    ends = [np.percentile((sample.costs <= share).mean(axis=1), (2.5, 97.5)) for share in shares]
    return tuple((share, float(low), float(high)) for share, (low, high) in zip(shares, ends, strict=True))


def measure_curves(
    films: Sequence[ReplayedFootage], *, seeds: int, stand_in_error: float, resamples: int = RESAMPLES
) -> CurveReport:
    """All curves. There must be at least one labelled incident. seeds: how often random and the stand-in are played."""
    incidents = [each for number, film in enumerate(films) for each in film.labels.incidents(number)]
    places = np.array([each.footage for each in incidents], np.intp)
    size = np.array([film.bytes for film in films], float)
    hours = np.array([film.seconds / 3600 for film in films], float)
    chosen = all_strategies(films, seeds)
    sent = _Ruler(size, Bootstrap(size, places, resamples))
    seen = _Ruler(hours, Bootstrap(hours, places, resamples))
    found = {each.name: sent.costs(each.rankings(incidents)) for each in chosen}
    alerts = strategies.ranked_alerts(films)
    raised = np.array([any(alert.finds(each) for alert in alerts) for each in incidents])
    return CurveReport(
        films=tuple(_counted(film) for film in films),
        models=tuple(sorted({film.model for film in films})),
        incidents=len(incidents),
        sent=_sent(sent, chosen, incidents),
        comparisons=tuple(_comparison(name, found["router"], found[name]) for name in BASELINES),
        seen=_seen(seen, films, incidents, chosen, SimulatedVerdicts(stand_in_error, seeds)),
        verdicts=f"a stand-in that knows the truth and is wrong in {100 * stand_in_error:g} % of its answers",
        judged_by=tuple(sorted({film.judged_by for film in films if film.judged_by})),
        missed=tuple(_missed(films, incidents, found["router"][0], raised)),
        raised=int(raised.sum()),
        raised_smallest=_finite(smallest_share(found["router"][:, raised], GOAL)) if raised.any() else None,
        seeds=seeds,
        resamples=resamples,
    )


def _missed(
    films: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident], costs: Floats, raised: NDArray[np.bool_]
) -> Iterator[str]:
    for each, cost, alerted in zip(incidents, costs, raised, strict=True):
        if np.isinf(cost):
            film = films[each.footage]
            why = "the alert was not asked about, or its pictures show another time" if alerted else "no alert"
            yield f"{film.scenario}, {film.camera}: {each.text} ({why})"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _sent(ruler: _Ruler, chosen: Sequence[Strategy], incidents: Sequence[LabelledIncident]) -> CurvePanel:
    curves = [ruler.curve(each.name, each.rankings(incidents), BUDGETS, whole=each.whole) for each in chosen]
    films = len(ruler.whole)
    # The whole stream is one thing: all of it, or nothing.
    stream = Ranking(ruler.whole, np.arange(films), np.full(len(incidents), films - 1))
    return CurvePanel(budgets=BUDGETS, curves=(*curves, ruler.curve("everything", [stream], BUDGETS, whole=True)))


def _seen(
    ruler: _Ruler,
    films: Sequence[ReplayedFootage],
    incidents: Sequence[LabelledIncident],
    chosen: Sequence[Strategy],
    stand_in: SimulatedVerdicts,
) -> CurvePanel:
    order = strategies.ranked_alerts(films)
    every = (len(order) / float(ruler.whole.sum()),)
    made_up = stand_in.rejected(order, incidents, strategies.escalated_alerts(films))
    judged: dict[str, list[Ranking]] = {
        "router": [strategies.ranking_without(order, frozenset(), incidents)],
        "router, stand-in verdicts": [strategies.ranking_without(order, each, incidents) for each in made_up],
    }
    if any(film.judged_by for film in films):
        judged["router, the scenarios' verdicts"] = [
            strategies.ranking_without(order, strategies.rejected_alerts(films), incidents)
        ]
    others = [each for each in chosen if each.name != "router"]
    curves = [
        *(ruler.curve(name, orders, every) for name, orders in judged.items()),
        *(ruler.curve(each.name, each.rankings(incidents, counted=True), every, whole=each.whole) for each in others),
    ]
    return CurvePanel(budgets=every, curves=tuple(curves))


def _comparison(name: str, router_costs: Floats, costs: Floats) -> BaselineComparison:
    return BaselineComparison(
        baseline=name,
        router_ahead=leads(router_costs, costs, 1.0),
        baseline_ahead=leads(costs, router_costs, 1.0),
    )


def _counted(film: ReplayedFootage) -> FootageCounts:
    incidents = film.labels.incidents(0)
    alerts, questions = strategies.ranked_alerts([film]), router_candidates([film])
    return FootageCounts(
        scenario=film.scenario,
        camera=film.camera,
        bytes=film.bytes,
        seconds=film.seconds,
        incidents=len(incidents),
        alerts=len(alerts),
        false_alerts=sum(not any(each.finds(incident) for incident in incidents) for each in alerts),
        asked=len(questions),
        asked_bytes=sum(each.bytes for each in questions),
        untimed=film.labels.untimed,
    )
