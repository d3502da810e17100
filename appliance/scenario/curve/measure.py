"""From replayed footage to the report: every strategy on the same footage, under one budget for all cameras."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.scenario.curve import load
from appliance.scenario.curve.footage import Footage
from appliance.scenario.curve.interval import RESAMPLES, Bootstrap, Sample
from appliance.scenario.curve.load import StandIn
from appliance.scenario.curve.ranking import Floats, Incident, Ranking, leads, smallest_share, staircase
from appliance.scenario.curve.report import BUDGETS, GOAL, Comparison, Counted, Curve, Panel, Report
from appliance.scenario.curve.strategies import BASELINES, Strategy, router, strategies

_BAND_POINTS = 120
_BEYOND = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class _Ruler:
    """What budgets are a share of. whole: (F,) of each footage."""

    whole: Floats
    resampled: Bootstrap

    def curve(self, name: str, orders: Sequence[Ranking], budgets: Sequence[float], *, whole: bool = False) -> Curve:
        sample = self.resampled.sample(orders)
        points = tuple(staircase(sample.costs))
        return Curve(
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


def _band(sample: Sample, rises: Sequence[float], budgets: Sequence[float]) -> tuple[tuple[float, float, float], ...]:
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


def report(films: Sequence[Footage], *, seeds: int, stand_in_error: float, resamples: int = RESAMPLES) -> Report:
    """All curves. There must be at least one labelled incident. seeds: how often random and the stand-in are played."""
    incidents = [each for number, film in enumerate(films) for each in film.labels.incidents(number)]
    places = np.array([each.footage for each in incidents], np.intp)
    size = np.array([film.bytes for film in films], float)
    hours = np.array([film.seconds / 3600 for film in films], float)
    chosen = strategies(films, seeds)
    sent = _Ruler(size, Bootstrap(size, places, resamples))
    seen = _Ruler(hours, Bootstrap(hours, places, resamples))
    found = {each.name: sent.costs(each.rankings(incidents)) for each in chosen}
    alerts = load.alerts(films)
    raised = np.array([any(alert.finds(each) for alert in alerts) for each in incidents])
    return Report(
        films=tuple(_counted(film) for film in films),
        models=tuple(sorted({film.model for film in films})),
        incidents=len(incidents),
        sent=_sent(sent, chosen, incidents),
        comparisons=tuple(_comparison(name, found["router"], found[name]) for name in BASELINES),
        seen=_seen(seen, films, incidents, chosen, StandIn(stand_in_error, seeds)),
        verdicts=f"a stand-in that knows the truth and is wrong in {100 * stand_in_error:g} % of its answers",
        judged_by=tuple(sorted({film.judged_by for film in films if film.judged_by})),
        missed=tuple(_missed(films, incidents, found["router"][0], raised)),
        raised=int(raised.sum()),
        raised_smallest=_finite(smallest_share(found["router"][:, raised], GOAL)) if raised.any() else None,
        seeds=seeds,
        resamples=resamples,
    )


def _missed(
    films: Sequence[Footage], incidents: Sequence[Incident], costs: Floats, raised: NDArray[np.bool_]
) -> Iterator[str]:
    for each, cost, alerted in zip(incidents, costs, raised, strict=True):
        if np.isinf(cost):
            film = films[each.footage]
            why = "the alert was not asked about, or its pictures show another time" if alerted else "no alert"
            yield f"{film.scenario}, {film.camera}: {each.words} ({why})"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _sent(ruler: _Ruler, chosen: Sequence[Strategy], incidents: Sequence[Incident]) -> Panel:
    curves = [ruler.curve(each.name, each.rankings(incidents), BUDGETS, whole=each.whole) for each in chosen]
    films = len(ruler.whole)
    # The whole stream is one thing: all of it, or nothing.
    stream = Ranking(ruler.whole, np.arange(films), np.full(len(incidents), films - 1))
    return Panel(budgets=BUDGETS, curves=(*curves, ruler.curve("everything", [stream], BUDGETS, whole=True)))


def _seen(
    ruler: _Ruler,
    films: Sequence[Footage],
    incidents: Sequence[Incident],
    chosen: Sequence[Strategy],
    stand_in: StandIn,
) -> Panel:
    order = load.alerts(films)
    every = (len(order) / float(ruler.whole.sum()),)
    made_up = stand_in.rejected(order, incidents, load.asked(films))
    judged: dict[str, list[Ranking]] = {
        "router": [load.without(order, frozenset(), incidents)],
        "router, stand-in verdicts": [load.without(order, each, incidents) for each in made_up],
    }
    if any(film.judged_by for film in films):
        judged["router, the scenarios' verdicts"] = [load.without(order, load.rejected(films), incidents)]
    others = [each for each in chosen if each.name != "router"]
    curves = [
        *(ruler.curve(name, orders, every) for name, orders in judged.items()),
        *(ruler.curve(each.name, each.rankings(incidents, counted=True), every, whole=each.whole) for each in others),
    ]
    return Panel(budgets=every, curves=tuple(curves))


def _comparison(name: str, router_costs: Floats, costs: Floats) -> Comparison:
    return Comparison(
        baseline=name,
        router_ahead=leads(router_costs, costs, 1.0),
        baseline_ahead=leads(costs, router_costs, 1.0),
    )


def _counted(film: Footage) -> Counted:
    incidents = film.labels.incidents(0)
    alerts, questions = load.alerts([film]), router([film])
    return Counted(
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
