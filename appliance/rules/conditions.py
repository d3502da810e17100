"""What the rules remember of one track, and one condition per kind of rule: enter, exit, dwell, line."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from appliance.config import DwellRule, EnterRule, ExitRule, LineRule, Rule
from appliance.rules.zones_and_lines import Direction, DwellTimer, LinePosition, Passage, ZoneMembership
from appliance.types import TrackedObject

SCORES_MAX = 9
SCORES_MIN = 2


class PeakMedianScore:
    """The highest median that the last nine scores of a track have ever had; 0 until there are two.

    A median, so that one strong false look cannot fire a rule and one weak look cannot hide a person; the lower of
    the two middle scores where their number is even, so that of two looks both must be good. The highest so far,
    because a person who was well seen does not become less of a person behind a bush. Looks in which the object was
    not found add nothing (adding zeros makes every occlusion a doubt).
    """

    __slots__ = ("_recent", "value")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SCORES_MAX)
        self.value = 0.0

    def add(self, score: float) -> None:
        self._recent.append(score)
        count = len(self._recent)
        if count >= SCORES_MIN and score > self.value:
            self.value = max(self.value, sorted(self._recent)[(count - 1) // 2])


@dataclass(slots=True)
class PendingEvent:
    """Something a rule waits for has happened. It is told as soon as the track is sure enough, until `t_max`."""

    t_max: float


@dataclass(slots=True)
class RuleTrackState:
    """One track. Owner: the RulesEngine.

    seen: time of the last sighting. known_since: it stood where it is first seen since then, as is known from before,
    so it did not enter there now. missing_since: time of the first look since it was seen that did not find it. lost:
    it has been missing for so long that its path and stays are broken off. passages and crossings hold what changed in
    the present look only.
    """

    last: TrackedObject
    seen: float
    known_since: float | None = None
    missing_since: float | None = None
    lost: bool = False
    scores: dict[str, PeakMedianScore] = field(default_factory=dict)
    members: dict[str, ZoneMembership] = field(default_factory=dict)
    walks: dict[str, LinePosition] = field(default_factory=dict)
    stays: dict[str, DwellTimer] = field(default_factory=dict)
    claims: dict[str, PendingEvent] = field(default_factory=dict)
    passages: dict[str, Passage] = field(default_factory=dict)
    crossings: dict[str, Direction] = field(default_factory=dict)

    def sight(self, found: TrackedObject, t: float) -> None:
        """The object is seen. Scores are kept by label: a car that reads `person` once is not a well-seen person."""
        self.last, self.seen, self.missing_since, self.lost = found, t, None, False
        confidence = self.scores.get(found.label)
        if confidence is None:
            confidence = self.scores[found.label] = PeakMedianScore()
        confidence.add(found.score)

    def sureness(self, label: str) -> float:
        """The score on which rules judge this track as a `label` (see Confidence)."""
        confidence = self.scores.get(label)
        return confidence.value if confidence else 0.0

    def break_off(self) -> None:
        """Missing for too long: what it did meanwhile is unknown. Being inside a zone stands until it is seen again."""
        self.lost = True
        self.walks.clear()
        self.stays.clear()
        self.break_streaks()

    def break_streaks(self) -> None:
        """Missed between two looks: they do not follow each other."""
        for member in self.members.values():
            member.streak.clear()
        for walk in self.walks.values():
            walk.streak.clear()


# A passage is over in a moment, the track may be sure enough only a few looks later.
PENDING_S = 3.0


class RuleCondition(Protocol):
    """What the engine asks of a kind of rule."""

    def look(self, record: RuleTrackState, t: float, armed: bool) -> None:
        """Make or withdraw the claim of this rule on the track, after it was seen (or lost from view) at `t`."""
        ...


class EnterCondition:
    """Claims when the track enters, as long as it stays. A rule that is armed later does not see it enter."""

    def __init__(self, rule: EnterRule) -> None:
        self._rule = rule

    def look(self, record: RuleTrackState, t: float, armed: bool) -> None:
        passage = record.passages.get(self._rule.zone)
        if passage == "entered" and armed:
            record.claims[self._rule.name] = PendingEvent(inf)
        elif passage == "left":
            record.claims.pop(self._rule.name, None)


class ExitCondition:
    """Claims when the track leaves, or is lost at the picture's edge (the engine decides that)."""

    def __init__(self, rule: ExitRule) -> None:
        self._rule = rule

    def look(self, record: RuleTrackState, t: float, armed: bool) -> None:
        passage = record.passages.get(self._rule.zone)
        if passage == "left" and armed:
            record.claims[self._rule.name] = PendingEvent(t + PENDING_S)
        elif passage == "entered":
            record.claims.pop(self._rule.name, None)


class LineCondition:
    """Claims when the track crosses in the asked direction; crossing back withdraws a claim not yet told."""

    def __init__(self, rule: LineRule) -> None:
        self._rule = rule

    def look(self, record: RuleTrackState, t: float, armed: bool) -> None:
        direction = record.crossings.get(self._rule.line)
        if direction is None:
            return
        if armed and self._rule.direction in ("both", direction):
            record.claims[self._rule.name] = PendingEvent(t + PENDING_S)
        else:
            record.claims.pop(self._rule.name, None)


class DwellCondition:
    """Claims once per stay, when it has lasted `seconds`. Time in which the rule is not armed does not count.

    A stay that is known from before and had lasted so long by then was claimed then.
    """

    def __init__(self, rule: DwellRule, gap_max_s: float) -> None:
        self._rule = rule
        self._gap_max_s = gap_max_s

    def look(self, record: RuleTrackState, t: float, armed: bool) -> None:
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
            stay = record.stays[self._rule.name] = DwellTimer(began, t, told)
        stay.look(t, self._gap_max_s)
        if stay.seconds >= self._rule.seconds and not stay.told:
            stay.told = True
            record.claims[self._rule.name] = PendingEvent(inf)


def condition_for(rule: Rule, gap_max_s: float) -> RuleCondition:
    """The watch of a rule. gap_max_s: longest unwatched time that still counts as presence."""
    if isinstance(rule, EnterRule):
        return EnterCondition(rule)
    if isinstance(rule, ExitRule):
        return ExitCondition(rule)
    if isinstance(rule, LineRule):
        return LineCondition(rule)
    return DwellCondition(rule, gap_max_s)
