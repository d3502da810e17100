"""Who answers the questions of a scenario, and what is left of its report once they have spoken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appliance.replay.answers import Answers
from appliance.replay.cassette_arguments import StandInWish
from appliance.replay.cassette_player import CassettePlayer
from appliance.replay.result import ReplayResult
from appliance.scenario.plan import Plan
from appliance.scenario.source import wish_of
from appliance.scenario.stand_in import scenario_stand_in
from appliance.types import Alert, Event


@contextmanager
def answering(plan: Plan) -> Iterator[Answers | None]:
    """None where the scenario names nobody. Raises UsageError when its cassette was damaged since it was checked."""
    wish = wish_of(plan.scenario.verdicts, plan.file.parent)
    if isinstance(wish, StandInWish):
        yield scenario_stand_in(plan, wish.settings)
    elif wish is not None:
        with contextlib.closing(CassettePlayer(wish, plan.scenario.verdicts_match)) as player:
            yield player
    else:
        yield None


def standing(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    """Those that the cloud did not reject: what it is unsure of, and what has no answer, stands."""
    return tuple(alert for alert in alerts if alert.verdict != "rejected")


def struck(result: ReplayResult) -> frozenset[str]:
    """The ids of the events whose alert was rejected."""
    rejected = [alert for alert in result.alerts if alert.verdict == "rejected"]
    asked = {route.event for route in result.routes if route.alert in {alert.id for alert in rejected}}
    return frozenset(asked | {event.id for event in result.events if any(_holds(alert, event) for alert in rejected)})


def _holds(alert: Alert, event: Event) -> bool:
    """Alerts of a camera do not overlap, and hold every event of their time that no cooldown held back."""
    end = alert.t_start if alert.t_end is None else alert.t_end
    return (
        alert.camera == event.camera
        and event.rule in alert.rules
        and event.track in alert.tracks
        and alert.t_start <= event.t <= end
    )
