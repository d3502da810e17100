"""Why a rule did or did not report a track, frame by frame: read from what the rules and the cooldowns remember."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from appliance.alerts.pipeline import Pipeline
from appliance.config import CameraConfig, DwellRule, EnterRule, ExitRule, LineRule, Rule
from appliance.rules.conditions import RuleTrackState
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.types import Event, FrameBoxes, PipelineStep, TrackedObject

Stage = Literal[
    "label", "place", "settling", "way", "start", "stay", "hours", "disarmed", "ignored", "size", "score", "cooldown",
    "reported",
]  # fmt: skip
"""How far a track came with a rule: the stage at which it was held back; the last one: it was reported."""
STAGES: tuple[Stage, ...] = get_args(Stage)

TEXTS: dict[str, str] = {
    "label": "it was a {label}; the rule wants {wanted}",
    "place": "its feet were outside zone {zone}",
    "settling": "its feet were in zone {zone} in fewer than two examined frames in a row",
    "line": "it did not cross line {line}",
    "never_in": "it was never seen in zone {zone}",
    "stays_in": "it did not leave zone {zone}",
    "way": "it crossed line {line} the other way",
    "start": "it stood in zone {zone} when the session began, and has not moved off or come back since",
    "stay": "it stayed {seconds} of the {wanted} s that the rule wants in zone {zone}",
    "hours": "the rule was outside its schedule ({hours})",
    "disarmed": "it was switched off by the profile in force, or paused",
    "ignored": "its feet were in a zone that this camera ignores ({zones})",
    "small": "it was {height} of the picture high; the rule wants at least {wanted}",
    "large": "it was {height} of the picture high; the rule wants at most {wanted}",
    "score": "it was sure to {score}; the rule wants {wanted}",
    "cooldown": "held back: the rule had reported less than {seconds} s before",
    "reported": "reported",
}


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """The outcome of a rule for a track in one frame.

    text_key: of TEXTS; values: what stands in its braces. until: UTC seconds until which a cooldown holds it back.
    """

    rule: str
    stage: Stage
    text_key: str
    values: dict[str, str] = field(default_factory=dict)
    until: float | None = None

    @property
    def text(self) -> str:
        return TEXTS[self.text_key].format(**self.values)

    @property
    def rank(self) -> int:
        return STAGES.index(self.stage)


class RuleExplainer:
    """Says of each frame, after the pipeline had it, what every rule made of every track in it.

    State: what can be seen in one frame only, kept for as long as it explains the ones after it: an entry or a
    crossing while the rule was not armed, a report. Owner: whoever feeds the pipeline.
    """

    def __init__(self, camera: CameraConfig, pipeline: Pipeline) -> None:
        self._camera = camera
        self._pipeline = pipeline
        self._zones = {name: Polygon(points) for name, points in camera.zones.items()}
        self._noted: dict[tuple[int, str], RuleOutcome] = {}
        self._waiting: set[tuple[int, str]] = set()  # tracks of the last frame for which a rule waited to be certain

    def begin(self) -> None:
        """Begin a session: track numbers start anew."""
        self._noted.clear()
        self._waiting.clear()

    def judge(
        self, frame: FrameBoxes, step: PipelineStep, *, off: Set[str] = frozenset()
    ) -> list[tuple[TrackedObject, RuleOutcome]]:
        """Return one outcome for each rule and each track that the frame shows, and for what fired in it.

        step: what the pipeline made of the frame; off: names of rules that report nothing now.
        """
        held = {event.id for event in step.suppressed}
        fired = {(event.track, event.rule): event for event in step.events}
        by_hours = self._pipeline.rules.armed_rules(frame.t)
        found = []
        shown = {each.track: each for each in frame.objects}
        for gone in step.events:  # who walks out of the picture fires in a frame that does not show it
            if gone.track not in shown:
                last = TrackedObject(track=gone.track, label=gone.label, score=gone.score, box=gone.box)
                found.append((last, self._fired(gone, held)))
        for each in frame.objects:
            track = self._pipeline.rules.states.get(each.track)
            if track is None:
                continue
            for rule in self._camera.rules:
                event = fired.get((each.track, rule.name))
                found.append((each, self._fired(event, held) if event else self._held(rule, track, by_hours, off)))
        return found

    def _fired(self, event: Event, held: set[str]) -> RuleOutcome:
        rule = next(each for each in self._camera.rules if each.name == event.rule)
        if event.id in held:
            until = self._pipeline.policy.cooldowns.until(rule.name)
            outcome = replace(_outcome(rule, "cooldown", seconds=f"{rule.cooldown_s:g}"), until=until)
        else:
            outcome = _outcome(rule, "reported")
        self._noted[event.track, event.rule] = outcome
        return outcome

    def _held(self, rule: Rule, track: RuleTrackState, by_hours: dict[str, bool], off: Set[str]) -> RuleOutcome:
        if track.last.label not in rule.labels:
            return _outcome(rule, "label", label=track.last.label, wanted=", ".join(rule.labels))
        key = (track.last.track, rule.name)
        if rule.name in track.pending:
            self._waiting.add(key)
            return self._pending(rule, track)
        happened = self._what_happened(rule, track) or ("dropped" if key in self._waiting else "")
        self._waiting.discard(key)
        is_off = rule.name in off or not by_hours[rule.name]
        if happened == "stays" and is_off:  # it counts from when the rule is armed
            return self._unarmed(rule, off)
        if happened and is_off:
            self._noted[key] = self._unarmed(rule, off)
        elif happened == "other way":
            self._noted[key] = _outcome(rule, "way", line=rule.line if rule.kind == "line" else "")
        elif self._is_over(rule, track):
            self._noted.pop(key, None)
        return self._noted.get(key) or self._not_yet(rule, track)

    def _pending(self, rule: Rule, track: RuleTrackState) -> RuleOutcome:
        """Return why a rule whose event has happened does not report: something about the object holds it back."""
        here = foot(track.last.box)
        zones = [name for name in self._camera.ignore if self._zones[name].contains(here)]
        if zones:
            return _outcome(rule, "ignored", zones=", ".join(zones))
        if not track.fits(rule):
            high = track.last.box[3] - track.last.box[1] if track.height is None else track.height
            small = high < (rule.height_min or 0.0)
            limit = rule.height_min if small else rule.height_max
            return _outcome(rule, "size", "small" if small else "large", height=f"{high:.2f}", wanted=f"{limit:g}")
        certainty = track.certainty(track.last.label, rule.score_min)
        return _outcome(rule, "score", score=f"{certainty:.2f}", wanted=f"{rule.score_min:.2f}")

    @staticmethod
    def _what_happened(rule: Rule, track: RuleTrackState) -> str:
        """Return what the rule waits for, if this frame shows it; '': nothing."""
        if isinstance(rule, LineRule):
            direction = track.crossings.get(rule.line)
            if direction is None:
                return ""
            return "crossed" if rule.direction in ("both", direction) else "other way"
        if isinstance(rule, DwellRule):
            member = track.members.get(rule.zone)
            return "stays" if member is not None and member.inside and rule.name not in track.dwells else ""
        wanted = "left" if isinstance(rule, ExitRule) else "entered"
        return wanted if track.passages.get(rule.zone) == wanted else ""

    @staticmethod
    def _is_over(rule: Rule, track: RuleTrackState) -> bool:
        """Return True if what was noted explains nothing any more: it has left the zone (or come back into it)."""
        if isinstance(rule, LineRule):
            return rule.line in track.crossings
        member = track.members.get(rule.zone)
        inside = member is not None and member.inside
        return inside if isinstance(rule, ExitRule) else not inside

    def _unarmed(self, rule: Rule, off: Set[str]) -> RuleOutcome:
        if rule.name in off:
            return _outcome(rule, "disarmed")
        schedule = rule.schedule
        return _outcome(
            rule, "hours", hours=f"{', '.join(schedule.days)}: {', '.join(schedule.hours)}" if schedule else ""
        )

    def _not_yet(self, rule: Rule, track: RuleTrackState) -> RuleOutcome:
        """Return why nothing has happened yet for the rule."""
        if isinstance(rule, LineRule):
            return _outcome(rule, "place", "line", line=rule.line)
        member = track.members.get(rule.zone)
        if member is None or not member.inside:
            if isinstance(rule, ExitRule):
                return _outcome(rule, "place", "never_in", zone=rule.zone)
            if self._zones[rule.zone].contains(foot(track.last.box)):
                return _outcome(rule, "settling", zone=rule.zone)
            return _outcome(rule, "place", zone=rule.zone)
        if isinstance(rule, ExitRule):
            return _outcome(rule, "stay", "stays_in", zone=rule.zone)
        dwell = track.dwells.get(rule.name)
        if isinstance(rule, EnterRule) or dwell is None:
            return _outcome(rule, "start", zone=rule.zone)
        if dwell.fired:
            return _outcome(rule, "reported")
        return _outcome(rule, "stay", zone=rule.zone, seconds=f"{dwell.seconds:.1f}", wanted=f"{rule.seconds:g}")


def _outcome(rule: Rule, stage: Stage, text_key: str = "", **values: str) -> RuleOutcome:
    """Return the outcome of a rule; its text has the stage's name unless another is given."""
    return RuleOutcome(rule.name, stage, text_key or stage, values)
