"""Verdicts for a scenario's escalations, from a cassette or an oracle of its truth, and the alerts that remain."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from appliance import wire
from appliance.base.errors import UsageError
from appliance.replay.cassette_file import CassettePlayer
from appliance.replay.replay_result import ReplayResult
from appliance.replay.verdict_source import (
    OracleJudge,
    OracleOpinion,
    OracleOptions,
    OracleSettings,
    VerdictSource,
)
from appliance.scenario import expectations, scenario_loader
from appliance.scenario.expectations import EventPattern, Expectation, Prohibition
from appliance.scenario.scenario_loader import ScenarioPlan, verdict_source
from appliance.types import Alert, Event


class ScenarioTruth:
    """The verdict that a scenario's entries give: `expect` confirms an event, `never` and `others: never` reject it.

    An event that no entry matches is `unsure`: the scenario does not know.
    """

    def __init__(
        self, expectations: Sequence[Expectation], prohibitions: Sequence[Prohibition], *, others_forbidden: bool
    ) -> None:
        self._expectations = expectations
        self._prohibitions = prohibitions
        self._others_forbidden = others_forbidden

    def about(self, escalation: wire.Escalation) -> OracleOpinion:
        for expectation in self._expectations:
            if _matches(expectation.pattern, escalation):
                return OracleOpinion("confirmed", f"{expectation.source} wants it{_in_brackets(expectation.note)}")
        for prohibition in self._prohibitions:
            if _matches(prohibition.pattern, escalation):
                return OracleOpinion("rejected", f"{prohibition.source} forbids it{_in_brackets(prohibition.note)}")
        if self._others_forbidden:
            return OracleOpinion("rejected", "nothing of the kind is expected then (others: never)")
        return OracleOpinion("unsure", "no entry of the scenario speaks of it")


def scenario_truth(plan: ScenarioPlan) -> ScenarioTruth:
    """Return the truth of a loaded scenario."""
    return ScenarioTruth(
        expectations.expectations_of(plan),
        expectations.prohibitions_of(plan),
        others_forbidden=plan.scenario.others == "never",
    )


def scenario_oracle(plan: ScenarioPlan, settings: OracleSettings) -> OracleJudge:
    """Return the oracle of a loaded scenario."""
    return OracleJudge(scenario_truth(plan), settings)


def oracle_for_replay(options: OracleOptions, cameras: Collection[str]) -> OracleJudge:
    """Return the oracle that `vedette replay` uses. Raises ConfigError (the scenario), UsageError (another site)."""
    assert options.truth is not None, "the caller refuses an oracle without truth"
    plan = scenario_loader.load_scenario(options.truth)
    unknown = [part.camera for part in plan.parts if part.camera not in cameras]
    if unknown:
        raise UsageError(f"{options.truth} is about a camera {unknown[0]}, and the site file has {', '.join(cameras)}")
    return scenario_oracle(plan, options.settings)


def _matches(pattern: EventPattern, escalation: wire.Escalation) -> bool:
    """Return whether the pattern fits; an escalation has zone and line in one field, and its kind says which it is."""
    is_line = escalation.kind == "line"
    return pattern.matches(
        Event(
            camera=escalation.camera,
            rule=escalation.rule,
            kind="line" if is_line else "enter",
            track=0,
            label=escalation.label,
            t=escalation.t,
            zone="" if is_line else escalation.zone,
            line=escalation.zone if is_line else "",
        )
    )


def _in_brackets(note: str) -> str:
    return f" ({note})" if note else ""


@contextmanager
def scenario_answers(plan: ScenarioPlan) -> Iterator[VerdictSource | None]:
    """Yield the judge of the scenario's escalations, None where it names none.

    Raise UsageError when its cassette was damaged since it was checked.
    """
    options = verdict_source(plan.scenario.verdicts, plan.file.parent)
    if isinstance(options, OracleOptions):
        yield scenario_oracle(plan, options.settings)
    elif options is not None:
        with contextlib.closing(CassettePlayer(options, plan.scenario.verdicts_match)) as player:
            yield player
    else:
        yield None


def accepted_alerts(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    """Return the alerts that were not rejected: those with the verdict unsure, or with none, remain."""
    return tuple(alert for alert in alerts if alert.verdict != "rejected")


def rejected_events(result: ReplayResult) -> frozenset[str]:
    """Return the ids of the events whose alert was rejected."""
    rejected = [alert for alert in result.alerts if alert.verdict == "rejected"]
    escalated = {route.event for route in result.routes if route.alert in {alert.id for alert in rejected}}
    return frozenset(
        escalated | {event.id for event in result.events if any(_holds(alert, event) for alert in rejected)}
    )


def _holds(alert: Alert, event: Event) -> bool:
    """Return whether the event belongs to the alert.

    Alerts of a camera do not overlap, and hold every event of their time that no cooldown suppressed.
    """
    end = alert.t_start if alert.t_end is None else alert.t_end
    return (
        alert.camera == event.camera
        and event.rule in alert.rules
        and event.track in alert.tracks
        and alert.t_start <= event.t <= end
    )
