"""Orders in which evidence may be sent to the cloud: the router's own, and baselines to compare it with.

Each strategy ranks candidates, which are moments of footage with their bytes (`curve_ranking.Candidate`).
`curve_report` then asks how many labelled incidents are found for how many bytes. From `AlertKeys` on: which alerts are
left to a person when the cloud has rejected some.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from appliance.lab.curve_footage import ReplayedFootage
from appliance.lab.curve_ranking import Candidate, LabelledIncident, Ranking, all_or_nothing, ranked, ranking
from appliance.types import Alert

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
    """Return all strategies, the router first. seeds: repetitions of random."""
    apart = [each.merge_s for each in footage]
    motion = [
        _frame(number, each.t, each.motion, each.frame_bytes)
        for number, camera in enumerate(footage) for each in camera.examined if each.motion > 0
    ]  # fmt: skip
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
            value=each.route.cost.value,
            bytes=each.bytes,
            moments=each.moments,
            alert=each.route.alert,
        )
        for number, camera in enumerate(footage)
        for each in camera.escalations
    ]


def confidence_candidates(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    """Return every track of a watched label by its best score, with the evidence that the router would send of it."""
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


def _all_examined(footage: Sequence[ReplayedFootage]) -> list[Candidate]:
    return [
        _frame(number, each.t, 0.0, each.frame_bytes)
        for number, camera in enumerate(footage)
        for each in camera.examined
    ]


def _random(footage: Sequence[ReplayedFootage], seed: int) -> list[Candidate]:
    """Draw moments anywhere in the footage; each has the size of the nearest examined frame."""
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
        """Return for each seed the alerts that are rejected."""
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
    """Return every alert in falling value, escalated or not; a person sees its beginning and its best view."""
    found = []
    for number, camera in enumerate(footage):
        values = {route.alert: route.cost.value for route in camera.routes}
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
