"""Explains what happened to every track in a span, and why nobody was reported, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from appliance.alerts.pipeline import Pipeline
from appliance.config import CameraConfig
from appliance.explain.rule_outcomes import RuleExplainer, RuleOutcome
from appliance.types import Box, FrameBoxes, PipelineStep, StreamHeader

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
) -> SpanExplanation:
    """Explain stored boxes by the camera's rules. sessions: oldest first, with frames of before the span."""
    explainer = SpanExplainer(camera, pipeline, span)
    for header, frames in sessions:
        explainer.begin(header)
        for frame in frames:
            explainer.feed(frame)
    return explainer.explanation
