"""Explains what happened to every track in a span, and why nobody was reported, in words.

`RuleExplainer` says frame by frame why a rule did or did not report a track, from what the rules and the cooldowns
remember. `SpanExplainer` sums that up for a span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pydantic import TypeAdapter

from appliance.alerts.pipeline import Pipeline
from appliance.config import CameraConfig, DwellRule, EnterRule, ExitRule, LineRule, Rule
from appliance.rules.conditions import RuleTrackState
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.types import Box, Event, FrameBoxes, PipelineStep, StreamHeader, TrackedObject

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
TRACKS_MAX = 200  # of a span; more are counted
SPANS_MAX = 400  # of one track: stretches with the same outcome
SENTENCES: dict[str, str] = {
    "reported": "Reported: {what}.",
    "not_then": "By the rules as they are now, this would be reported: {what}. It was not at the time: the rule was "
    "switched off, its rules were others, or the recording shows more than was examined then.",
    "not_examined": "Nobody was reported because nothing was examined in this time.",
    "failed": "Nobody was reported because the detector gave no answer in this time.",
    "nobody": "Nobody was reported because nobody was followed: {frames} pictures were examined, and no object was "
    "seen in two of them.",
    "no_rules": "Nobody was reported because this camera has no rules.",
    "held": "Nobody was reported because of the {label} (track {track}) that came furthest with rule {rule}: {why}.",
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


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stretch in which a track was held back at the same stage by the rule it came furthest with."""

    t_start: float
    t_end: float
    stage: str


@dataclass(slots=True)
class TrackLife:
    """A track within the span. outcomes: by rule, the furthest that it came; spans: oldest first."""

    track: int
    label: str
    t_start: float
    t_end: float
    score: float
    box: Box
    outcomes: dict[str, RuleOutcome] = field(default_factory=dict)
    spans: list[StageSpan] = field(default_factory=list)

    @property
    def furthest(self) -> RuleOutcome | None:
        return max(self.outcomes.values(), key=lambda each: each.rank, default=None)


@dataclass(frozen=True, slots=True)
class ReportedEvent:
    """An event of the span. held_until: a cooldown held it back, until then; None: it was reported."""

    t: float
    rule: str
    track: int
    label: str
    score: float
    held_until: float | None


@dataclass(slots=True)
class SpanExplanation:
    """All of a span. examined: times of examined frames and whether the detector answered; tracks: by their beginning.

    tracks_left_out: beyond TRACKS_MAX.
    """

    examined: list[tuple[float, bool]] = field(default_factory=list)
    tracks: list[TrackLife] = field(default_factory=list)
    events: list[ReportedEvent] = field(default_factory=list)
    tracks_left_out: int = 0

    @classmethod
    def of(cls, values: object) -> SpanExplanation:
        """Build it from plain values, as a child process sends them. Raises pydantic's ValidationError."""
        return _explanation.validate_python(values)

    def sentence(self, camera: CameraConfig) -> tuple[str, Mapping[str, str], RuleOutcome | None]:
        """Return the key of SENTENCES, the values of its braces but for {why}, and the outcome for {why}."""
        reported = [each for each in self.events if each.held_until is None]
        if reported:
            what = dict.fromkeys(f"{each.label} ({each.rule})" for each in reported)
            return "reported", {"what": ", ".join(what)}, None
        if not self.examined:
            return "not_examined", {}, None
        if not any(answered for _, answered in self.examined):
            return "failed", {}, None
        if not camera.rules:
            return "no_rules", {}, None
        came = [(each.furthest, each) for each in self.tracks if each.furthest is not None]
        if not came:
            return "nobody", {"frames": str(len(self.examined))}, None
        outcome, best = max(came, key=lambda pair: (pair[0].rank, pair[1].score))
        return "held", {"label": best.label, "track": str(best.track), "rule": outcome.rule}, outcome


_explanation: TypeAdapter[SpanExplanation] = TypeAdapter(SpanExplanation)


class SpanExplainer:
    """Feeds boxes to a pipeline of its own and keeps what explains a span of them.

    State: the pipeline, the explanation so far. Frames of before the span are fed as well, so that tracks are what they
    were, and are not kept. Owner: one thread. Times are UTC seconds.
    """

    def __init__(self, camera: CameraConfig, pipeline: Pipeline, span: tuple[float, float]) -> None:
        self.explanation = SpanExplanation()
        self._pipeline = pipeline
        self._explainer = RuleExplainer(camera, pipeline)
        self._span = span
        self._session = 0
        self._lives: dict[tuple[int, int], TrackLife] = {}
        self._left_out: set[tuple[int, int]] = set()

    def begin(self, header: StreamHeader) -> PipelineStep:
        """Begin a session: track numbers start anew."""
        self._session += 1
        self._explainer.begin()
        return self._pipeline.feed(header)

    def feed(self, frame: FrameBoxes, *, off: Set[str] = frozenset()) -> PipelineStep:
        """Take an examined frame, or one on which the detector failed."""
        step = self._pipeline.feed(frame, off=off)
        outcomes = self._explainer.judge(frame, step, off=off) if frame.looked else []
        if not self._span[0] <= frame.t <= self._span[1]:
            return step
        self.explanation.examined.append((frame.t, frame.looked))
        for each in frame.objects if frame.looked else ():
            self._live(frame.t, each.track, each.label, each.score, each.box)
        furthest: dict[int, RuleOutcome] = {}
        for found, outcome in outcomes:
            life = self._live(frame.t, found.track, found.label, found.score, found.box)
            if life is None:
                continue
            before = life.outcomes.get(outcome.rule)
            if before is None or outcome.rank >= before.rank:
                life.outcomes[outcome.rule] = outcome
            if found.track not in furthest or outcome.rank > furthest[found.track].rank:
                furthest[found.track] = outcome
        for track, outcome in furthest.items():
            self._extend(self._lives[self._session, track], frame.t, outcome.stage)
        held = {each.id for each in step.suppressed}
        for event in step.events:
            until = self._pipeline.policy.cooldowns.until(event.rule) if event.id in held else None
            self.explanation.events.append(
                ReportedEvent(event.t, event.rule, event.track, event.label, event.score, until)
            )
        return step

    def _live(self, t: float, track: int, label: str, score: float, box: Box) -> TrackLife | None:
        life = self._lives.get((self._session, track))
        if life is None:
            if len(self._lives) >= TRACKS_MAX:
                self._left_out.add((self._session, track))
                self.explanation.tracks_left_out = len(self._left_out)
                return None
            life = self._lives[self._session, track] = TrackLife(track, label, t, t, score, box)
            self.explanation.tracks.append(life)
        if score >= life.score:
            life.score, life.label, life.box = score, label, box
        life.t_end = max(life.t_end, t)
        return life

    @staticmethod
    def _extend(life: TrackLife, t: float, stage: str) -> None:
        if life.spans:
            life.spans[-1] = replace(life.spans[-1], t_end=t)
        if not life.spans or (life.spans[-1].stage != stage and len(life.spans) < SPANS_MAX):
            life.spans.append(StageSpan(t, t, stage))


def explain_stored(
    camera: CameraConfig,
    pipeline: Pipeline,
    sessions: Sequence[tuple[StreamHeader, Sequence[FrameBoxes]]],
    span: tuple[float, float],
    off: Callable[[float], Set[str]],
) -> SpanExplanation:
    """Explain stored boxes by the camera's rules. sessions: oldest first, with frames of before the span.

    off: returns the names of the rules that were switched off at a time.
    """
    explainer = SpanExplainer(camera, pipeline, span)
    for header, frames in sessions:
        explainer.begin(header)
        for frame in frames:
            explainer.feed(frame, off=off(frame.t))
    return explainer.explanation
