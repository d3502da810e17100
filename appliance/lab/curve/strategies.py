"""The router and the baselines it is compared with: for each, the order in which it sends what it has, and what is left
for a person to examine.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from appliance.lab.curve.curve_footage import ReplayedFootage
from appliance.lab.curve.ranking import Candidate, LabelledIncident, Ranking, all_or_nothing, ranked, ranking
from appliance.types import Alert

StrategyName = Literal["router", "confidence-only", "motion-only", "random", "every examined frame", "everything"]
BASELINES: tuple[StrategyName, ...] = ("confidence-only", "motion-only", "random")
_DRAWN_A_SECOND = 2  # moments that random may choose from


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way of choosing. orders: what it would send, first things first; several where chance decides.

    whole: it sends all or nothing, so it is one point and no curve.
    """

    name: StrategyName
    orders: tuple[tuple[Candidate, ...], ...]
    whole: bool = False

    def rankings(self, incidents: Sequence[LabelledIncident], *, counted: bool = False) -> tuple[Ranking, ...]:
        """counted: the price of a thing is one, as for whoever has to look at it, instead of its bytes."""
        found = [ranking(order, incidents, [1.0] * len(order) if counted else None) for order in self.orders]
        return tuple(all_or_nothing(each) for each in found) if self.whole else tuple(found)


def all_strategies(films: Sequence[ReplayedFootage], seeds: int) -> tuple[Strategy, ...]:
    """All that choose, the router first. seeds: how often random is played."""
    apart = [each.merge_s for each in films]
    motion = [each for number, film in enumerate(films) for each in _moved(number, film)]
    return (
        Strategy(name="router", orders=(tuple(ranked(router_candidates(films))),)),
        Strategy(name="confidence-only", orders=(tuple(ranked(confidence_candidates(films))),)),
        Strategy(name="motion-only", orders=(tuple(spread(motion, apart)),)),
        Strategy(name="random", orders=tuple(tuple(spread(_random(films, seed), apart)) for seed in range(seeds))),
        Strategy(name="every examined frame", orders=(tuple(_examined(films)),), whole=True),
    )


def router_candidates(films: Sequence[ReplayedFootage]) -> list[Candidate]:
    """The questions that the router would ask, each with its own evidence."""
    return [
        Candidate(
            footage=number,
            t=each.route.t,
            value=each.route.value,
            bytes=each.bytes,
            moments=each.moments,
            alert=each.route.alert,
        )
        for number, film in enumerate(films)
        for each in film.escalations
    ]


def confidence_candidates(films: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Every track of a kind that is watched, by its best score, with the evidence that the router would send of it."""
    return [
        Candidate(footage=number, t=each.t, value=each.score, bytes=each.bytes, moments=each.moments)
        for number, film in enumerate(films)
        for each in film.best_sightings
    ]


def spread(candidates: Sequence[Candidate], apart: Sequence[float]) -> list[Candidate]:
    """In falling value, but none within `apart` seconds (of each footage) of one that is sent already; once nothing is
    left that far apart, at half the distance, and so on: never worse than sending neighbours one after the other."""
    left, order, share = ranked(candidates), list[Candidate](), 1.0
    sent: dict[int, list[float]] = {}
    while left:
        close = []
        for each in left:
            times = sent.setdefault(each.footage, [])
            place = bisect(times, each.t)
            if all(abs(each.t - t) >= share * apart[each.footage] for t in times[max(0, place - 1) : place + 1]):
                times.insert(place, each.t)
                order.append(each)
            else:
                close.append(each)
        left, share = close, share / 2 if share > 0.01 else 0.0
    return order


def _moved(number: int, film: ReplayedFootage) -> list[Candidate]:
    return [_frame(number, each.t, each.motion, each.frame_bytes) for each in film.examined if each.motion > 0]


def _examined(films: Sequence[ReplayedFootage]) -> list[Candidate]:
    return [
        _frame(number, each.t, 0.0, each.frame_bytes) for number, film in enumerate(films) for each in film.examined
    ]


def _random(films: Sequence[ReplayedFootage], seed: int) -> list[Candidate]:
    """Moments anywhere in the footage; each weighs what the frame that was examined nearest to it weighs."""
    chance = np.random.default_rng(seed)
    found = []
    for number, film in enumerate(films):
        if not film.examined:
            continue
        looked = np.array([each.t for each in film.examined])
        for t in chance.uniform(0, film.seconds, int(np.ceil(film.seconds * _DRAWN_A_SECOND))):
            nearest = film.examined[int(np.abs(looked - t).argmin())]
            found.append(_frame(number, float(t), float(chance.random()), nearest.frame_bytes))
    return found


def _frame(number: int, t: float, value: float, size: int) -> Candidate:
    return Candidate(footage=number, t=t, value=value, bytes=size, moments=(t,))


AlertKeys = frozenset[tuple[int, str]]
"""By footage and id: scenarios of the same clip may share ids."""


@dataclass(frozen=True, slots=True)
class SimulatedVerdicts:
    """Verdicts that nobody gave: the ground truth, wrong in a share `error` of the answers, drawn anew with each seed.

    It confirms an alert that shows a labelled incident and rejects any other; what was not asked it says nothing of.
    (`scenario.stand_in` answers within a replay, once; this one answers many times after it.)
    """

    error: float
    seeds: int

    def rejected(
        self, order: Sequence[Candidate], incidents: Sequence[LabelledIncident], asked: AlertKeys
    ) -> list[AlertKeys]:
        """For each seed the alerts that it rejects."""
        right = [any(each.finds(incident) for incident in incidents) for each in order]
        found = []
        for seed in range(self.seeds):
            wrong = np.random.default_rng(seed).random(len(order)) < self.error
            answers = [
                (alert_key(each), real == bool(slip)) for each, real, slip in zip(order, right, wrong, strict=True)
            ]
            found.append(frozenset(alert for alert, against in answers if against and alert in asked))
        return found


def alert_key(alert: Candidate) -> tuple[int, str]:
    return alert.footage, alert.alert


def ranked_alerts(films: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Every alert in falling value, asked about or not; a person sees it from its beginning and at its best."""
    found = []
    for number, film in enumerate(films):
        values = {route.alert: route.value for route in film.routes}
        found += [_alert(number, alert, values.get(alert.id, 0.0)) for alert in film.alerts]
    return ranked(found)


def _alert(number: int, alert: Alert, value: float) -> Candidate:
    moments = (alert.t_start,) if alert.best is None else (alert.t_start, alert.best.t)
    return Candidate(footage=number, t=alert.t_start, value=value, bytes=0, moments=moments, alert=alert.id)


def escalated_alerts(films: Sequence[ReplayedFootage]) -> AlertKeys:
    """The alerts that the router would ask the cloud about."""
    return frozenset((number, each.route.alert) for number, film in enumerate(films) for each in film.escalations)


def rejected_alerts(films: Sequence[ReplayedFootage]) -> AlertKeys:
    """The alerts that were rejected by the verdicts which the scenarios name."""
    return frozenset(
        (number, alert.id) for number, film in enumerate(films) for alert in film.alerts if alert.verdict == "rejected"
    )


def ranking_without(order: Sequence[Candidate], taken: AlertKeys, incidents: Sequence[LabelledIncident]) -> Ranking:
    """The alerts that are left for a person, one each."""
    left = [each for each in order if alert_key(each) not in taken]
    return ranking(left, incidents, [1.0] * len(left))
