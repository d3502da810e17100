"""Answers out of a scenario's truth, for a replay without any judge; whatever they come to measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from appliance import wire
from appliance.config import SiteConfig
from appliance.errors import UsageError
from appliance.replay.cassette_arguments import StandInSettings, StandInWish
from appliance.replay.cassette_stand_in import Opinion, StandIn
from appliance.scenario import entries, plan
from appliance.scenario.expect import Barred, Pattern, Wanted
from appliance.scenario.plan import Plan
from appliance.types import Event


class ScenarioTruth:
    """What the entries of a scenario say of an event: `expect` confirms it, `never` and `others: never` reject it.

    An event that no entry speaks of is `unsure`: the scenario does not know, and nobody guesses.
    """

    def __init__(self, wanted: Sequence[Wanted], barred: Sequence[Barred], *, closed: bool) -> None:
        self._wanted = wanted
        self._barred = barred
        self._closed = closed

    def about(self, question: wire.Escalation) -> Opinion:
        for wanted in self._wanted:
            if _fits(wanted.pattern, question):
                return Opinion("confirmed", f"{wanted.source} wants it{_noted(wanted.note)}")
        for barred in self._barred:
            if _fits(barred.pattern, question):
                return Opinion("rejected", f"{barred.source} forbids it{_noted(barred.note)}")
        if self._closed:
            return Opinion("rejected", "nothing of the kind is expected then (others: never)")
        return Opinion("unsure", "no entry of the scenario speaks of it")


def scenario_stand_in(of: Plan, settings: StandInSettings) -> StandIn:
    """The stand-in of a scenario that was read."""
    return StandIn(
        ScenarioTruth(entries.wanted(of), entries.barred(of), closed=of.scenario.others == "never"), settings
    )


def stand_in(wish: StandInWish, site: SiteConfig) -> StandIn:
    """The stand-in that `vedette replay` was told of. Raises ConfigError (the scenario), UsageError (another site)."""
    assert wish.truth is not None, "the caller refuses a stand-in without truth"
    read = plan.load(wish.truth)
    strangers = [part.camera for part in read.parts if part.camera not in site.cameras]
    if strangers:
        raise UsageError(
            f"{wish.truth} is about a camera {strangers[0]}, and the site file has {', '.join(site.cameras)}"
        )
    return scenario_stand_in(read, wish.settings)


def _fits(pattern: Pattern, question: wire.Escalation) -> bool:
    """A question names zone and line in one field, and its kind says which it is."""
    crossed = question.kind == "line"
    return pattern.fits(
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
