"""What a person has to look at: the router's alerts, all of them or without those that the cloud rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.scenario.curve.footage import Footage
from appliance.scenario.curve.ranking import Candidate, Incident, Ranking, ranked, ranking
from appliance.types import Alert

Alerts = frozenset[tuple[int, str]]
"""By footage and id: scenarios of the same clip may share ids."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """Verdicts that nobody gave: the ground truth, wrong in a share `error` of the answers, drawn anew with each seed.

    It confirms an alert that shows a labelled incident and rejects any other; what was not asked it says nothing of.
    (`scenario.stand_in` answers within a replay, once; this one answers many times after it.)
    """

    error: float
    seeds: int

    def rejected(self, order: Sequence[Candidate], incidents: Sequence[Incident], asked: Alerts) -> list[Alerts]:
        """For each seed the alerts that it rejects."""
        right = [any(each.finds(incident) for incident in incidents) for each in order]
        found = []
        for seed in range(self.seeds):
            wrong = np.random.default_rng(seed).random(len(order)) < self.error
            answers = [(key(each), real == bool(slip)) for each, real, slip in zip(order, right, wrong, strict=True)]
            found.append(frozenset(alert for alert, against in answers if against and alert in asked))
        return found


def key(alert: Candidate) -> tuple[int, str]:
    return alert.footage, alert.alert


def alerts(films: Sequence[Footage]) -> list[Candidate]:
    """Every alert in falling value, asked about or not; a person sees it from its beginning and at its best."""
    found = []
    for number, film in enumerate(films):
        values = {route.alert: route.value for route in film.routes}
        found += [_alert(number, alert, values.get(alert.id, 0.0)) for alert in film.alerts]
    return ranked(found)


def _alert(number: int, alert: Alert, value: float) -> Candidate:
    moments = (alert.t_start,) if alert.best is None else (alert.t_start, alert.best.t)
    return Candidate(footage=number, t=alert.t_start, value=value, bytes=0, moments=moments, alert=alert.id)


def asked(films: Sequence[Footage]) -> Alerts:
    """The alerts that the router would ask the cloud about."""
    return frozenset((number, each.route.alert) for number, film in enumerate(films) for each in film.questions)


def rejected(films: Sequence[Footage]) -> Alerts:
    """The alerts that were rejected by the verdicts which the scenarios name."""
    return frozenset(
        (number, alert.id) for number, film in enumerate(films) for alert in film.alerts if alert.verdict == "rejected"
    )


def without(order: Sequence[Candidate], taken: Alerts, incidents: Sequence[Incident]) -> Ranking:
    """The alerts that are left for a person, one each."""
    left = [each for each in order if key(each) not in taken]
    return ranking(left, incidents, [1.0] * len(left))
