"""One watch per kind of rule: it turns what a track did into a claim that the rule should fire."""

from __future__ import annotations

from math import inf
from typing import Protocol

from appliance.config import DwellRule, EnterRule, ExitRule, LineRule, Rule
from appliance.rules.dwell import Stay
from appliance.rules.record import Claim, Record

# A passage is over in a moment, the track may be sure enough only a few looks later.
CLAIM_S = 3.0


class Watch(Protocol):
    """What the engine asks of a kind of rule."""

    def look(self, record: Record, t: float, armed: bool) -> None:
        """Make or withdraw the claim of this rule on the track, after it was seen (or lost from view) at `t`."""
        ...


class EnterWatch:
    """Claims when the track enters, as long as it stays. A rule that is armed later does not see it enter."""

    def __init__(self, rule: EnterRule) -> None:
        self._rule = rule

    def look(self, record: Record, t: float, armed: bool) -> None:
        passage = record.passages.get(self._rule.zone)
        if passage == "entered" and armed:
            record.claims[self._rule.name] = Claim(inf)
        elif passage == "left":
            record.claims.pop(self._rule.name, None)


class ExitWatch:
    """Claims when the track leaves, or is lost at the picture's edge (the engine decides that)."""

    def __init__(self, rule: ExitRule) -> None:
        self._rule = rule

    def look(self, record: Record, t: float, armed: bool) -> None:
        passage = record.passages.get(self._rule.zone)
        if passage == "left" and armed:
            record.claims[self._rule.name] = Claim(t + CLAIM_S)
        elif passage == "entered":
            record.claims.pop(self._rule.name, None)


class LineWatch:
    """Claims when the track crosses in the asked direction; crossing back withdraws a claim not yet told."""

    def __init__(self, rule: LineRule) -> None:
        self._rule = rule

    def look(self, record: Record, t: float, armed: bool) -> None:
        direction = record.crossings.get(self._rule.line)
        if direction is None:
            return
        if armed and self._rule.direction in ("both", direction):
            record.claims[self._rule.name] = Claim(t + CLAIM_S)
        else:
            record.claims.pop(self._rule.name, None)


class DwellWatch:
    """Claims once per stay, when it has lasted `seconds`. Time in which the rule is not armed does not count.

    A stay that is known from before and had lasted so long by then was claimed then.
    """

    def __init__(self, rule: DwellRule, gap_max_s: float) -> None:
        self._rule = rule
        self._gap_max_s = gap_max_s

    def look(self, record: Record, t: float, armed: bool) -> None:
        member = record.members.get(self._rule.zone)
        if member is None or not member.inside or not armed:
            record.stays.pop(self._rule.name, None)
            record.claims.pop(self._rule.name, None)
            return
        stay = record.stays.get(self._rule.name)
        if stay is None:
            entered = record.passages.get(self._rule.zone) or member.known
            began = member.since if entered else t
            told = member.known and t - began >= self._rule.seconds
            stay = record.stays[self._rule.name] = Stay(began, t, told)
        stay.look(t, self._gap_max_s)
        if stay.seconds >= self._rule.seconds and not stay.told:
            stay.told = True
            record.claims[self._rule.name] = Claim(inf)


def watch_for(rule: Rule, gap_max_s: float) -> Watch:
    """The watch of a rule. gap_max_s: longest unwatched time that still counts as presence."""
    if isinstance(rule, EnterRule):
        return EnterWatch(rule)
    if isinstance(rule, ExitRule):
        return ExitWatch(rule)
    if isinstance(rule, LineRule):
        return LineWatch(rule)
    return DwellWatch(rule, gap_max_s)
