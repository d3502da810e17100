"""The state of one track that the rules keep, and one condition per kind of rule: enter, exit, dwell, line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from appliance.config import DwellRule, EnterRule, ExitRule, LineRule, Rule
from appliance.rules.certainty import Calibration, TrackCertainty, calibrated
from appliance.rules.line_polygon_geometry import is_cut_off
from appliance.rules.zones_and_lines import (
    TUNING,
    Direction,
    DwellTimer,
    LinePosition,
    Passage,
    StartPlace,
    ZoneMembership,
)
from appliance.types import Box, TrackedObject


@dataclass(slots=True)
class RuleTrackState:
    """One track. Owner: the RulesEngine.

    start: where it stood when the session began, until it has moved off, which `moves_off` says in that frame only.
    seen: time of its last detection. height: of its last box that was whole, in frame heights; None: the upper or
    lower border cut off all. known_since: it stood where it is first seen since then, as is known from before, so it
    did not enter there now. missing_since: time of the first frame since then that did not show it. lost: it has
    been missing for so long that its path and dwells are broken off. passages and crossings hold what changed in the
    present frame only. pending: what has happened for a rule, and until when it waits for the track to be certain.
    """

    last: TrackedObject
    seen: float
    known_since: float | None = None
    height: float | None = None
    start: StartPlace | None = None
    moves_off: bool = False
    missing_since: float | None = None
    lost: bool = False
    certainties: dict[str, TrackCertainty] = field(default_factory=dict)
    members: dict[str, ZoneMembership] = field(default_factory=dict)
    positions: dict[str, LinePosition] = field(default_factory=dict)
    dwells: dict[str, DwellTimer] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    passages: dict[str, Passage] = field(default_factory=dict)
    crossings: dict[str, Direction] = field(default_factory=dict)

    def update(self, found: TrackedObject, t: float, calibration: Calibration) -> None:
        """Note that the object is seen.

        Scores are kept by label: a car that is once detected as `person` is not a well-seen person.
        """
        self.last, self.seen, self.missing_since, self.lost = found, t, None, False
        if not is_cut_off(found.box):
            self.height = found.box[3] - found.box[1]
        certainty = self.certainties.get(found.label)
        if certainty is None:
            certainty = self.certainties[found.label] = TrackCertainty()
        certainty.add(calibrated(found.score, found.label, calibration), found.box)

    def leave_zones(self, now: float) -> bool:
        """Note that the object is out of view, so in no zone; return True if it was in one."""
        self.crossings.clear()
        self.moves_off = False
        self.passages = {name: "left" for name, member in self.members.items() if member.inside}
        for name in self.passages:
            self.members[name] = ZoneMembership(since=now)
        return bool(self.passages)

    def update_start(self, t: float, settle_s: float, others: Iterable[Box], aspect: float) -> None:
        """Note if the object has moved off from where it stood when the session began. others: boxes in this frame."""
        self.moves_off = self.start is not None and self.start.is_left(self.last.box, t, settle_s, others, aspect)
        if self.moves_off:
            self.start = None

    def certainty(self, label: str, score_min: float) -> float:
        """Return how sure it is that this track is a `label` (see TrackCertainty).

        score_min: the score that the rule wants.
        """
        certainty = self.certainties.get(label)
        return certainty.at_least(score_min) if certainty else 0.0

    def fits(self, rule: Rule) -> bool:
        """Return True if the object is as high as the rule wants.

        At the frame's border, the height counts that it had when it was whole.
        """
        if rule.height_min is None and rule.height_max is None:
            return True
        height = self.last.box[3] - self.last.box[1] if self.height is None else self.height
        return (rule.height_min or 0.0) <= height <= (1.0 if rule.height_max is None else rule.height_max)

    def break_off(self) -> None:
        """Break off, because the object was missing for too long: what it did meanwhile is unknown.

        Being inside a zone stands until it is seen again.
        """
        self.lost = True
        self.positions.clear()
        self.dwells.clear()
        self.break_debounces()

    def break_debounces(self) -> None:
        """Break the debounces: it was missed between two detections, so they are not in a row."""
        if self.start is not None:
            self.start.debounce.clear()
        for member in self.members.values():
            member.debounce.clear()
            member.outside.clear()
        for position in self.positions.values():
            position.debounce.clear()


class RuleCondition(Protocol):
    """The interface of a kind of rule to the engine."""

    def update(self, track: RuleTrackState, t: float, armed: bool) -> None:
        """Make or withdraw this rule's pending event of the track, after it was seen (or lost from view) at `t`."""
        ...


class EnterCondition:
    """Pending when the track enters, as long as it stays. A rule that is armed later does not see it enter.

    An object that was in the zone when the session began enters when it moves off (`at_start: moving`), at once
    (`report`), or only when it comes back (`ignore`).
    """

    def __init__(self, rule: EnterRule) -> None:
        self._rule = rule

    def update(self, track: RuleTrackState, t: float, armed: bool) -> None:
        passage = track.passages.get(self._rule.zone)
        if passage == "left":
            track.pending.pop(self._rule.name, None)
        elif armed and self._enters(track, passage):
            track.pending[self._rule.name] = inf

    def _enters(self, track: RuleTrackState, passage: Passage | None) -> bool:
        member = track.members.get(self._rule.zone)
        if self._rule.at_start == "report" or member is None or not member.from_start:
            return passage == "entered"
        if self._rule.at_start == "ignore" or not member.inside:
            return False
        return track.moves_off or (passage == "entered" and track.start is None)


class ExitCondition:
    """Pending when the track leaves, or is lost at the frame's edge (the engine decides that)."""

    def __init__(self, rule: ExitRule) -> None:
        self._rule = rule

    def update(self, track: RuleTrackState, t: float, armed: bool) -> None:
        passage = track.passages.get(self._rule.zone)
        if passage == "left" and armed:
            track.pending[self._rule.name] = t + TUNING.pending_s
        elif passage == "entered":
            track.pending.pop(self._rule.name, None)


class LineCondition:
    """Pending when the track crosses in the rule's direction; crossing back withdraws what has not fired yet."""

    def __init__(self, rule: LineRule) -> None:
        self._rule = rule

    def update(self, track: RuleTrackState, t: float, armed: bool) -> None:
        direction = track.crossings.get(self._rule.line)
        if direction is None:
            return
        if armed and self._rule.direction in ("both", direction):
            track.pending[self._rule.name] = t + TUNING.pending_s
        else:
            track.pending.pop(self._rule.name, None)


class DwellCondition:
    """Pending once per stay, when it has lasted `seconds`. Time in which the rule is not armed does not count.

    A stay that is known from before and had lasted so long by then has fired then. One that began before the session
    counts from the session's first frame (`at_start: report`), from when the track moves off (`moving`), or not.
    """

    def __init__(self, rule: DwellRule, gap_max_s: float) -> None:
        self._rule = rule
        self._gap_max_s = gap_max_s

    def update(self, track: RuleTrackState, t: float, armed: bool) -> None:
        member = track.members.get(self._rule.zone)
        if member is None or not member.inside or not armed or self._is_still_there(track, member):
            track.dwells.pop(self._rule.name, None)
            track.pending.pop(self._rule.name, None)
            return
        dwell = track.dwells.get(self._rule.name)
        if dwell is None:
            entered = track.passages.get(self._rule.zone) or member.known
            began = member.since if entered else t
            fired = member.known and t - began >= self._rule.seconds
            dwell = track.dwells[self._rule.name] = DwellTimer(began, t, fired)
        dwell.update(t, self._gap_max_s)
        if dwell.seconds >= self._rule.seconds and not dwell.fired:
            dwell.fired = True
            track.pending[self._rule.name] = inf

    def _is_still_there(self, track: RuleTrackState, member: ZoneMembership) -> bool:
        """Return True if it was there when the session began, and the rule does not count that."""
        if self._rule.at_start == "report" or not member.from_start:
            return False
        return self._rule.at_start == "ignore" or track.start is not None


def condition_for(rule: Rule, gap_max_s: float) -> RuleCondition:
    """Return the condition of a rule.

    gap_max_s: longest time without examined frames that still counts as presence.
    """
    if isinstance(rule, EnterRule):
        return EnterCondition(rule)
    if isinstance(rule, ExitRule):
        return ExitCondition(rule)
    if isinstance(rule, LineRule):
        return LineCondition(rule)
    return DwellCondition(rule, gap_max_s)
