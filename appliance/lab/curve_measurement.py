"""Computes the curves: every strategy on the same footage under one budget for all cameras, and the router's cascade.

Budgets are shares (1 = all the cameras' bytes). The cascade runs from escalating every alert to escalating none; the
labels tell which alerts are right. Each alert's chance is learnt from the alerts of all other clips. The alerts with
the most certain answer stay at the edge first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.lab.curve_footage import ReplayedFootage
from appliance.lab.curve_ranking import (
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
from appliance.lab.curve_strategies import (
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
from appliance.router.calibration_fit import AlertOutcome, fit
from appliance.scenario.metrics import RESAMPLES, Estimate
from appliance.types import Route

SHARE_GOAL = 0.85  # of the alerts, kept at the edge without an incident lost


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAlert:
    """One alert with its label and its chance of being right.

    chance: by a calibration that was learnt without its clip; chance_min, chance_max: the bounds it claims. incidents:
    numbers of the labelled incidents that it shows; with none it is false. bytes, gpu_s, money: cost of escalating it.
    """

    chance: float
    chance_min: float
    chance_max: float
    incidents: frozenset[int]
    bytes: int
    gpu_s: float
    money: float

    @property
    def certainty(self) -> float:
        return max(self.chance, 1 - self.chance)

    @property
    def stays(self) -> bool:
        """By what is claimed."""
        return self.chance >= self.chance_max or self.chance < self.chance_min

    @property
    def edge_is_right(self) -> bool:
        return (self.chance >= 0.5) == bool(self.incidents)


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadePoint:
    """One way of dividing the alerts between edge and cloud.

    kept: the share that stays at the edge; sure, doubtful: how many there, on which side; asked: how many are
    escalated. bytes, gpu_s, money: of these. accuracy: the share that is answered right, by a judge as good as assumed.
    lost: incidents that raised an alert and of which all alerts are held for false at the edge.
    """

    kept: float
    sure: int
    doubtful: int
    asked: int
    bytes: int
    gpu_s: float
    money: float
    accuracy: float
    lost: int
    certainty_min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeCurve:
    """All points of the cascade, from escalating all alerts to escalating none.

    alerts: how many; right: how many of them are right. most: the most that can be kept without an incident lost.
    as_right: the same with no more wrong answers than the judge would give about all. claimed: the share that the
    router's claims allow with no more labels than these (see docs/router.md). judge_error: assumed.
    """

    alerts: int
    right: int
    points: tuple[CascadePoint, ...]
    most: CascadePoint
    as_right: CascadePoint
    claimed: CascadePoint
    goal: float = SHARE_GOAL
    judge_error: float = 0.0

    def at(self, kept: float) -> CascadePoint:
        """Return the point with the fewest alerts at the edge that has at least this share there."""
        return next((each for each in self.points if each.kept >= kept - 1e-9), self.points[-1])


def measure_cascade(
    footage: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident], judge_error: float
) -> CascadeCurve | None:
    """Measure the cascade; None: nothing raised an alert that could be escalated."""
    alerts = judged_alerts(footage, incidents)
    return cascade_of(alerts, judge_error) if alerts else None


def cascade_of(alerts: Sequence[JudgedAlert], judge_error: float) -> CascadeCurve:
    """Return the curve of these alerts, of which there must be one or more."""
    order = sorted(alerts, key=lambda each: -each.certainty)
    points = tuple(_point(order[:count], order[count:], judge_error) for count in range(len(order) + 1))
    lossless = [each for each in points if each.lost == 0]
    as_right = [each for each in lossless if each.accuracy >= points[0].accuracy - 1e-9]
    kept = [each for each in alerts if each.stays]
    return CascadeCurve(
        alerts=len(alerts),
        right=sum(bool(each.incidents) for each in alerts),
        points=points,
        most=lossless[-1],
        as_right=as_right[-1],
        claimed=_point(kept, [each for each in alerts if not each.stays], judge_error),
        judge_error=judge_error,
    )


def judged_alerts(footage: Sequence[ReplayedFootage], incidents: Sequence[LabelledIncident]) -> list[JudgedAlert]:
    """Return every alert of which the router saw a track, as it saw it last."""
    routes = [{route.alert: route for route in camera.routes} for camera in footage]
    shown = {
        (each.footage, each.alert): frozenset(n for n, one in enumerate(incidents) if each.finds(one))
        for each in ranked_alerts(footage)
        if each.alert in routes[each.footage]
    }
    asked = [{each.route.alert: each for each in camera.escalations} for camera in footage]
    outcomes = [
        _outcome(key, footage[key[0]].camera, routes[key[0]][key[1]], bool(found)) for key, found in shown.items()
    ]
    clips = [footage[number].clip for number, _ in shown]
    learnt = {
        clip: fit([each for each, own in zip(outcomes, clips, strict=True) if own != clip]) for clip in set(clips)
    }
    found = []
    for (number, alert), outcome, clip in zip(shown, outcomes, clips, strict=True):
        chance = learnt[clip].chance(outcome.camera, outcome.label, outcome.stability)
        route, sent = routes[number][alert], asked[number].get(alert)
        found.append(
            JudgedAlert(
                chance=chance.chance,
                chance_min=chance.chance_min,
                chance_max=chance.chance_max,
                incidents=shown[number, alert],
                bytes=sent.bytes if sent else route.cost.bytes,
                gpu_s=route.cost.gpu_s,
                money=route.cost.money,
            )
        )
    return found


def _outcome(key: tuple[int, str], camera: str, route: Route, real: bool) -> AlertOutcome:
    id_, inputs = f"{key[0]}/{key[1]}", route.inputs
    return AlertOutcome(id=id_, camera=camera, label=inputs.label, stability=inputs.stability, real=real)


def _point(kept: Sequence[JudgedAlert], asked: Sequence[JudgedAlert], judge_error: float) -> CascadePoint:
    saved = {n for each in (*asked, *(one for one in kept if one.chance >= 0.5)) for n in each.incidents}
    raised = {n for each in (*asked, *kept) for n in each.incidents}
    right = sum(each.edge_is_right for each in kept) + (1 - judge_error) * len(asked)
    sure = sum(each.chance >= 0.5 for each in kept)
    return CascadePoint(
        kept=len(kept) / (len(kept) + len(asked)),
        sure=sure,
        doubtful=len(kept) - sure,
        asked=len(asked),
        bytes=sum(each.bytes for each in asked),
        gpu_s=round(sum(each.gpu_s for each in asked), 3),
        money=round(sum(each.money for each in asked), 6),
        accuracy=right / (len(kept) + len(asked)),
        lost=len(raised - saved),
        certainty_min=min((each.certainty for each in kept), default=1.0),
    )


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
    """Compute all curves of at least one labelled incident. seeds: repetitions of random and simulated verdicts."""
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
