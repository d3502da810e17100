"""What the rules remember of one track."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.rules.dwell import Stay
from appliance.rules.line import Direction, Walk
from appliance.rules.score import Confidence
from appliance.rules.zone import Membership, Passage
from appliance.types import TrackedObject


@dataclass(slots=True)
class Claim:
    """Something a rule waits for has happened. It is told as soon as the track is sure enough, until `t_max`."""

    t_max: float


@dataclass(slots=True)
class Record:
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
    scores: dict[str, Confidence] = field(default_factory=dict)
    members: dict[str, Membership] = field(default_factory=dict)
    walks: dict[str, Walk] = field(default_factory=dict)
    stays: dict[str, Stay] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    passages: dict[str, Passage] = field(default_factory=dict)
    crossings: dict[str, Direction] = field(default_factory=dict)

    def sight(self, found: TrackedObject, t: float) -> None:
        """The object is seen. Scores are kept by label: a car that reads `person` once is not a well-seen person."""
        self.last, self.seen, self.missing_since, self.lost = found, t, None, False
        confidence = self.scores.get(found.label)
        if confidence is None:
            confidence = self.scores[found.label] = Confidence()
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
