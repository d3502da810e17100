"""The verdicts of a scenario's escalations: from a cassette or from an oracle made of its own truth, and which alerts
remain after them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appliance import wire
from appliance.config import SiteConfig
from appliance.errors import UsageError
from appliance.lab.cassette.cassette_file import CassettePlayer
from appliance.lab.cassette.verdict_source import OracleJudge, OracleOpinion, VerdictSource
from appliance.lab.lab_arguments import OracleOptions, OracleSettings
from appliance.lab.replay.replay_result import ReplayResult
from appliance.lab.scenario import expectations, scenario_loader
from appliance.lab.scenario.expectations import EventPattern, Expectation, Prohibition
from appliance.lab.scenario.scenario_loader import ScenarioPlan, verdict_source
from appliance.types import Alert, Event


class ScenarioTruth:
    """What the entries of a scenario say of an event: `expect` confirms it, `never` and `others: never` reject it.

    An event that no entry speaks of is `unsure`: the scenario does not know, and nobody guesses.
    """

    def __init__(self, wanted: Sequence[Expectation], barred: Sequence[Prohibition], *, closed: bool) -> None:
        self._wanted = wanted
        self._barred = barred
        self._closed = closed

    def about(self, question: wire.Escalation) -> OracleOpinion:
        for wanted in self._wanted:
            if _fits(wanted.pattern, question):
                return OracleOpinion("confirmed", f"{wanted.source} wants it{_noted(wanted.note)}")
        for barred in self._barred:
            if _fits(barred.pattern, question):
                return OracleOpinion("rejected", f"{barred.source} forbids it{_noted(barred.note)}")
        if self._closed:
            return OracleOpinion("rejected", "nothing of the kind is expected then (others: never)")
        return OracleOpinion("unsure", "no entry of the scenario speaks of it")


def scenario_oracle(of: ScenarioPlan, settings: OracleSettings) -> OracleJudge:
    """The stand-in of a scenario that was read."""
    return OracleJudge(
        ScenarioTruth(
            expectations.expectations_of(of), expectations.prohibitions_of(of), closed=of.scenario.others == "never"
        ),
        settings,
    )


def oracle_for_replay(wish: OracleOptions, site: SiteConfig) -> OracleJudge:
    """The stand-in that `vedette replay` was told of. Raises ConfigError (the scenario), UsageError (another site)."""
    assert wish.truth is not None, "the caller refuses a stand-in without truth"
    read = scenario_loader.load_scenario(wish.truth)
    strangers = [part.camera for part in read.parts if part.camera not in site.cameras]
    if strangers:
        raise UsageError(
            f"{wish.truth} is about a camera {strangers[0]}, and the site file has {', '.join(site.cameras)}"
        )
    return scenario_oracle(read, wish.settings)


def _fits(pattern: EventPattern, question: wire.Escalation) -> bool:
    """A question names zone and line in one field, and its kind says which it is."""
    crossed = question.kind == "line"
    return pattern.matches(
        Event(
            camera=question.camera,
            rule=question.rule,
            kind="line" if crossed else "enter",
            track=0,
            label=question.label,
            t=question.t,
            zone="" if crossed else question.zone,
            line=question.zone if crossed else "",
        )
    )


def _noted(note: str) -> str:
    return f" ({note})" if note else ""


@contextmanager
def scenario_answers(plan: ScenarioPlan) -> Iterator[VerdictSource | None]:
    """None where the scenario names nobody. Raises UsageError when its cassette was damaged since it was checked."""
    wish = verdict_source(plan.scenario.verdicts, plan.file.parent)
    if isinstance(wish, OracleOptions):
        yield scenario_oracle(plan, wish.settings)
    elif wish is not None:
        with contextlib.closing(CassettePlayer(wish, plan.scenario.verdicts_match)) as player:
            yield player
    else:
        yield None


def accepted_alerts(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    """Those that the cloud did not reject: what it is unsure of, and what has no answer, stands."""
    return tuple(alert for alert in alerts if alert.verdict != "rejected")


def rejected_events(result: ReplayResult) -> frozenset[str]:
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
