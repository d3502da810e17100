"""Computes the curves: every strategy on the same footage under one budget for all cameras.

Budgets are shares (1 = all the cameras' bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.lab.curve.cascade_curve import CascadeCurve, measure_cascade
from appliance.lab.curve.curve_footage import ReplayedFootage
from appliance.lab.curve.ranking import (
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
from appliance.lab.curve.strategies import (
    BASELINES,
    SimulatedVerdicts,
    Strategy,
    all_strategies,
    escalated_alerts,
    ranked_alerts,
    ranking_without,
    rejected_alerts,
    router_candidates,
)
from appliance.scenario.event_metrics import RESAMPLES, Estimate

# Shares of the cameras' bytes at which recall is tabled; the goal and the bar are those of docs/scenarios.md.
BUDGETS = (0.001, 0.003, 0.01, 0.02, 0.03, 0.10, 1.0)
GOAL = 0.95  # share of the incidents, the product's promise (README)
BAR = 0.03  # share of the cameras' bytes, the product's promise (README)
_BAND_POINTS = 120  # of a drawn band; more are not seen at 760 units of width
_BAND_BEYOND = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0)  # budgets beyond the last rise, as multiples of it


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCurve:
    """One strategy.

    points: (budget, recall) where recall rises, of random the mean
    band: (budget, low, high): of random over its seeds, else the bootstrap interval
    at: recall at the panel's budgets
    smallest: the least budget with recall GOAL, None without one
    spent, reached, things: what sending everything costs, its recall, and the number of things (of random the mean)
    whole: all or nothing: one point and no curve
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
    """The budgets at which the router or a baseline is ahead; at all others up to 100 % they are level."""

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
    """The counts of one camera. untimed: entries of `expect` without a moment, which are no labels here."""

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
    """All figures of a measurement.

    sent: recall over the share of the cameras' bytes; seen: over alerts to review per camera-hour
    verdicts: what the simulated verdicts are, as text; judged_by: what gave the verdicts that the scenarios name
    missed: incidents that the router finds at no budget, and whether an alert was raised at all
    cascade: cost against accuracy of the router's two thresholds; None: nothing raised an alert
    raised, raised_smallest: how many incidents raised an alert, and the least budget that finds the goal's share of
    those
    skipped: scenarios that were left out, with the reason
    """

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
    cascade: CascadeCurve | None = None
    skipped: tuple[str, ...] = ()
    goal = GOAL
    bar = BAR

    @property
    def bar_met(self) -> bool:
        """True if the router reaches the goal within the bar, and no baseline is ahead of it at any budget."""
        smallest = self.sent.curves[0].smallest.value
        return smallest is not None and smallest <= self.bar and not any(c.baseline_ahead for c in self.comparisons)

    @property
    def camera_bytes(self) -> int:
        return sum(camera.bytes for camera in self.films)

    @property
    def camera_seconds(self) -> float:
        return sum(camera.seconds for camera in self.films)


@dataclass(frozen=True, slots=True)
class _Budget:
    """The whole of which budgets are a share: bytes or hours. whole: (F,) of each footage."""

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
        """Return the cost of finding each incident in each order: (K, I)."""
        return np.array([each.costs(self.whole) for each in orders])


def _band(
    sample: BootstrapSample, rises: Sequence[float], budgets: Sequence[float]
) -> tuple[tuple[float, float, float], ...]:
    """Return the interval of the recall at the budgets, where it rises, and beyond the last rise.

    One order gives the bootstrap interval, many give the spread of their recalls. A draw may still rise beyond the last
    rise.
    """
    beyond = [rises[-1] * more for more in _BAND_BEYOND] if rises else []
    shares = sorted({*rises, *budgets, *beyond})
    if len(shares) > _BAND_POINTS:
        shares = [shares[round(place)] for place in np.linspace(0, len(shares) - 1, _BAND_POINTS)]
    if len(sample.costs) == 1:
        estimates = zip(shares, sample.recalls(shares), strict=True)
        return tuple((share, each.low or 0.0, each.high or 0.0) for share, each in estimates)
    ends = [np.percentile((sample.costs <= share).mean(axis=1), (2.5, 97.5)) for share in shares]
    return tuple((share, float(low), float(high)) for share, (low, high) in zip(shares, ends, strict=True))


def measure_curves(
    footage: Sequence[ReplayedFootage], *, seeds: int, stand_in_error: float, resamples: int = RESAMPLES
) -> CurveReport:
    """All curves. There must be at least one labelled incident. seeds: repetitions of random and simulated verdicts."""
    incidents = [each for number, camera in enumerate(footage) for each in camera.labels.incidents(number)]
    footage_of = np.array([each.footage for each in incidents], np.intp)
    camera_bytes = np.array([camera.bytes for camera in footage], float)
    hours = np.array([camera.seconds / 3600 for camera in footage], float)
    chosen = all_strategies(footage, seeds)
    sent = _Budget(camera_bytes, Bootstrap(camera_bytes, footage_of, resamples))
    seen = _Budget(hours, Bootstrap(hours, footage_of, resamples))
    found = {each.name: sent.costs(each.rankings(incidents)) for each in chosen}
    alerts = ranked_alerts(footage)
    raised = np.array([any(alert.finds(each) for alert in alerts) for each in incidents])
    return CurveReport(
        films=tuple(_footage_counts(camera) for camera in footage),
        models=tuple(sorted({camera.model for camera in footage})),
        incidents=len(incidents),
        sent=_sent_panel(sent, chosen, incidents),
        comparisons=tuple(_comparison(name, found["router"], found[name]) for name in BASELINES),
        seen=_review_panel(seen, footage, incidents, chosen, SimulatedVerdicts(stand_in_error, seeds)),
        verdicts=f"a stand-in that knows the truth and is wrong in {100 * stand_in_error:g} % of its answers",
        judged_by=tuple(sorted({camera.judged_by for camera in footage if camera.judged_by})),
        cascade=measure_cascade(footage, incidents, stand_in_error),
        missed=tuple(_missed_incidents(footage, incidents, found["router"][0], raised)),
        raised=int(raised.sum()),
        raised_smallest=_finite(smallest_share(found["router"][:, raised], GOAL)) if raised.any() else None,
        seeds=seeds,
        resamples=resamples,
    )


def _missed_incidents(
    footage: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident], costs: Floats, raised: NDArray[np.bool_]
) -> Iterator[str]:
    for each, cost, alerted in zip(incidents, costs, raised, strict=True):
        if np.isinf(cost):
            camera = footage[each.footage]
            why = "the alert was not asked about, or its pictures show another time" if alerted else "no alert"
            yield f"{camera.scenario}, {camera.camera}: {each.text} ({why})"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _sent_panel(budget: _Budget, chosen: Sequence[Strategy], incidents: Sequence[LabelledIncident]) -> CurvePanel:
    curves = [budget.curve(each.name, each.rankings(incidents), BUDGETS, whole=each.whole) for each in chosen]
    footage = len(budget.whole)
    # The whole stream is one thing: all of it, or nothing.
    stream = Ranking(budget.whole, np.arange(footage), np.full(len(incidents), footage - 1))
    return CurvePanel(budgets=BUDGETS, curves=(*curves, budget.curve("everything", [stream], BUDGETS, whole=True)))


def _review_panel(
    budget: _Budget,
    footage: Sequence[ReplayedFootage],
    incidents: Sequence[LabelledIncident],
    chosen: Sequence[Strategy],
    simulated_verdicts: SimulatedVerdicts,
) -> CurvePanel:
    order = ranked_alerts(footage)
    every = (len(order) / float(budget.whole.sum()),)
    simulated = simulated_verdicts.rejected(order, incidents, escalated_alerts(footage))
    rankings: dict[str, list[Ranking]] = {
        "router": [ranking_without(order, frozenset(), incidents)],
        "router, stand-in verdicts": [ranking_without(order, each, incidents) for each in simulated],
    }
    if any(camera.judged_by for camera in footage):
        rankings["router, the scenarios' verdicts"] = [ranking_without(order, rejected_alerts(footage), incidents)]
    others = [each for each in chosen if each.name != "router"]
    curves = [
        *(budget.curve(name, orders, every) for name, orders in rankings.items()),
        *(budget.curve(each.name, each.rankings(incidents, counted=True), every, whole=each.whole) for each in others),
    ]
    return CurvePanel(budgets=every, curves=tuple(curves))


def _comparison(name: str, router_costs: Floats, costs: Floats) -> BaselineComparison:
    return BaselineComparison(
        baseline=name,
        router_ahead=leads(router_costs, costs, 1.0),
        baseline_ahead=leads(costs, router_costs, 1.0),
    )


def _footage_counts(camera: ReplayedFootage) -> FootageCounts:
    incidents = camera.labels.incidents(0)
    alerts, escalations = ranked_alerts([camera]), router_candidates([camera])
    return FootageCounts(
        scenario=camera.scenario,
        camera=camera.camera,
        bytes=camera.bytes,
        seconds=camera.seconds,
        incidents=len(incidents),
        alerts=len(alerts),
        false_alerts=sum(not any(each.finds(incident) for incident in incidents) for each in alerts),
        asked=len(escalations),
        asked_bytes=sum(each.bytes for each in escalations),
        untimed=camera.labels.untimed,
    )
