"""The state of one track that the rules keep, how sure they are of it, and one condition per kind of rule.

The kinds are enter, exit, dwell and line. Certainty: median score, and sum of the log-odds of independent detections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, hypot, inf, log
from typing import Protocol

from appliance.config import DwellRule, EnterRule, ExitRule, LineRule, Rule
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
from appliance.types import Box, TrackedObject, iou

Calibration = Mapping[str, tuple[float, float]]
"""Label to (slope, offset): from a score's log-odds to those on the common scale; other labels keep their own."""


@dataclass(frozen=True, slots=True)
class CertaintyTuning:
    """Chosen on rendered clips in synthetic weather with the default network; docs/rules.md has the figures.

    scores_min, scores_max: of so many scores the median is taken. alike_max: of reports in a row with the same score
    and box so many count, less than half of `scores_max`. The tracker repeats the last detection of an object at rest
    where nothing was examined, for as long as something moves elsewhere: else one strong false detection would be the
    median by itself.
    step_min: a look is independent of the last such look when the object has moved by so much of its size. Clutter that
    a network half believes in gets the same wrong score in each look at it; what walks is seen anew at every step.
    prior: log-odds of a track that nothing is known of; doubtful boxes are on nothing in five of eight cases.
    look_offset: added to the log-odds of an independent look's score: of boxes that move with a track those of 0.27 are
    right as often as not. look_max: what one look may add at most, so that no strong one decides. detections_min: from
    so many on they count. sum_min: however long a track was doubtful, some good looks convince. sum_max: looks at one
    object are never wholly independent; beyond that (0.88) only the median leads.
    """

    scores_min: int = 2
    scores_max: int = 9
    alike_max: int = 4
    step_min: float = 0.25
    prior: float = -0.5
    look_offset: float = 1.0
    look_max: float = 0.7
    detections_min: int = 3
    sum_min: float = -2.0
    sum_max: float = 2.0
    odds_clip: float = 0.01


CERTAINTY = CertaintyTuning()


class TrackCertainty:
    """The certainty, 0..1, that a track is what its label says, in two ways, each the highest that it has ever been.

    median: of the last nine scores, from two on. added_up: from the sum of the log-odds of its independent detections.
    A median is used so that one strong false detection cannot fire a rule and one weak one cannot hide a person. The
    lower of the two middle scores counts where their number is even, so that of two detections both must be good. A sum
    is used because a person who was seen a dozen times, at a score of 0.35 and each time a step further on, is there.

    A rule is satisfied by either (`at_least`). It gets the median where that is enough: how good the detections were.

    The highest so far counts, because a person who was well seen does not become less of a person behind a bush. Frames
    in which the object was not detected add nothing (adding zeros would make every occlusion a doubt).
    """

    __slots__ = ("_alike", "_detections", "_last", "_recent", "_reported", "_sum", "added_up", "median")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=CERTAINTY.scores_max)
        self._last: Box | None = None
        self._reported: tuple[float, Box] | None = None
        self._alike = 0
        self._detections = 0
        self._sum = CERTAINTY.prior
        self.median = self.added_up = 0.0

    def at_least(self, score_min: float) -> float:
        """Return the median, or `added_up` if only that reaches `score_min`."""
        return self.added_up if self.median < score_min <= self.added_up else self.median

    def add(self, score: float, box: Box) -> None:
        """Note that it was detected once more, or that the tracker repeats its last detection (`CERTAINTY.alike_max`).

        score: on the common scale.
        """
        self._alike = self._alike + 1 if (score, box) == self._reported else 1
        self._reported = score, box
        if self._alike > CERTAINTY.alike_max:
            return
        self._recent.append(score)
        count = len(self._recent)
        if count >= CERTAINTY.scores_min and score > self.median:
            self.median = max(self.median, sorted(self._recent)[(count - 1) // 2])
        if self._last is None or _steps(self._last, box) >= CERTAINTY.step_min:
            self._last = box
            self._look(score)

    def _look(self, score: float) -> None:
        self._detections += 1
        added = min(CERTAINTY.look_max, log_odds(score) + CERTAINTY.look_offset)
        self._sum = min(CERTAINTY.sum_max, max(CERTAINTY.sum_min, self._sum + added))
        if self._detections >= CERTAINTY.detections_min:
            self.added_up = max(self.added_up, probability(self._sum))


def calibrated(score: float, label: str, calibration: Calibration) -> float:
    """Convert a network's own score to the common scale."""
    line = calibration.get(label)
    if line is None:
        return score
    return probability(line[0] * log_odds(score) + line[1])


def log_odds(score: float) -> float:
    """Return the log-odds of a probability, kept away from 0 and 1."""
    score = min(1 - CERTAINTY.odds_clip, max(CERTAINTY.odds_clip, score))
    return log(score / (1 - score))


def probability(odds: float) -> float:
    """Return the probability for log-odds: the inverse of `log_odds`."""
    return 1 / (1 + exp(-odds))


def _steps(a: Box, b: Box) -> float:
    """Return the way from one box to another: sideways in widths, up and down in halves of the height."""
    width = (a[2] - a[0] + b[2] - b[0]) / 2
    height = (a[3] - a[1] + b[3] - b[1]) / 2
    if width <= 0 or height <= 0:
        return inf
    return hypot((b[0] + b[2] - a[0] - a[2]) / 2 / width, 2 * (b[3] - a[3]) / height)


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

        Scores are kept by label: a car that is once detected as `person` is not a well-seen person. What was lost and
        stands where it stood never left, so its stay goes on; elsewhere a new one begins.
        """
        if self.lost and iou(self.last.box, found.box) <= TUNING.start_overlap_max:
            self.dwells.clear()
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

        Being inside a zone stands until it is seen again, and so does a stay that was reported (see `update`).
        """
        self.lost = True
        self.positions.clear()
        self.dwells = {rule: dwell for rule, dwell in self.dwells.items() if dwell.fired}
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
