"""Who answers the escalations of a replay: the VerdictSource port, the verdicts still under way, and the oracle judge
that answers from the truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from appliance import wire
from appliance.lab.lab_arguments import ORACLE_ENGINE, OracleSettings
from appliance.types import AlertChange, Decision, LogVerdict, PipelineStep
from appliance.yamlfile import ConfigModel

VerdictMatch = Literal["exact", "nearest", "stand-in"]
VerdictOrigin = Literal["cassette", "cloud", "stand-in"]


class AnsweredBy(ConfigModel):
    """What a log's first line says about where its verdicts come from; part of its digest.

    digest: of a cassette's content. match: how its answers are found. words: who answered on it, or what a stand-in is
    made of.
    """

    source: VerdictOrigin
    digest: str = ""
    match: Literal["exact", "nearest"] = "exact"
    words: str = ""

    def __str__(self) -> str:
        """For people, wherever a figure hangs on it."""
        if self.source == "cassette":
            return f"a cassette of {self.words}"
        return self.words if self.source == "stand-in" else "the cloud, asked now"


class EscalationImage(Protocol):
    """One picture of a question, encoded; see appliance.evidence.image_encoder."""

    @property
    def ref(self) -> wire.MediaRef: ...

    @property
    def data(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class FootageRef:
    """Which footage a question is about. t_from: UTC seconds of its t = 0; None: nobody knows (a clip)."""

    clip: str
    t_from: float | None = None


@dataclass(frozen=True, slots=True)
class ReplayEscalation:
    """A question as it would be sent, `body.t` in seconds of the footage.

    pieces: the pictures of this step. clip: a clip goes along, which a replay cannot cut; so it can be found on a
    cassette, but not be asked. bytes: what sending it puts on the uplink. more: the next step, when a judge asks for
    that; None: there is no more.
    """

    body: wire.Escalation
    priority: str
    images: tuple[EscalationImage, ...] = ()
    clip: bool = False
    bytes: int = 0
    more: Callable[[wire.Need], ReplayEscalation | None] = lambda need: None


@dataclass(frozen=True, slots=True)
class SourcedVerdict:
    """verdict: with the ids of whoever was asked first, which say nothing here. total_s: from the question's moment to
    the verdict."""

    verdict: wire.Verdict
    total_s: float
    match: VerdictMatch


class VerdictSource(Protocol):
    """Where a replay has its verdicts from. The same questions in the same order always get the same answers."""

    @property
    def answered_by(self) -> AnsweredBy:
        """For the log's first line."""
        ...

    def answer(self, question: ReplayEscalation, place: FootageRef) -> SourcedVerdict | None:
        """None: there is no answer, which is said and never taken for one."""
        ...


class PendingVerdicts:
    """Verdicts that are under way, and what was said of each alert that is not over.

    An answer is there at once, but its line waits until as much footage has gone by as the cloud took; the `alert` line
    has it in any case, for that is written once the incident is over. answers None: nobody answers.
    """

    def __init__(self, answers: VerdictSource | None, place: FootageRef) -> None:
        self._answers = answers
        self._place = place
        self._under_way: list[LogVerdict] = []
        self._said: dict[str, Decision] = {}

    @property
    def enabled(self) -> bool:
        """Whether questions need to be made at all."""
        return self._answers is not None

    def submit(self, questions: Iterable[ReplayEscalation]) -> None:
        """Have each answered, step by step. A question without an answer leaves no line. Raises what the answers do."""
        for question in questions if self._answers is not None else ():
            verdict = self._answer(question)
            if verdict is not None:
                self._under_way.append(verdict)
                self._said[verdict.alert] = verdict.decision

    def due(self, t: float) -> tuple[LogVerdict, ...]:
        """Those that have come by the footage's second `t`, in the order of coming."""
        come = sorted((each for each in self._under_way if each.t <= t), key=lambda each: (each.t, each.escalation))
        self._under_way = [each for each in self._under_way if each.t > t]
        return tuple(come)

    def remaining(self) -> tuple[LogVerdict, ...]:
        """Those that would come after the footage is over."""
        return self.due(float("inf"))

    def with_verdicts(self, step: PipelineStep) -> PipelineStep:
        """The alerts that ended with what the cloud said of them."""
        return replace(step, changes=tuple(map(self._settled, step.changes))) if self.enabled else step

    def _settled(self, change: AlertChange) -> AlertChange:
        if change.kind != "ended":
            return change
        return replace(change, alert=replace(change.alert, verdict=self._said.pop(change.alert.id, None)))

    def _answer(self, question: ReplayEscalation) -> LogVerdict | None:
        """A judge that asks for more gets it, as long as there is more; the last answer counts.

        Where that asked for what cannot be had, it stands as `unsure` and says so, as live. Any other step without an
        answer: the question has none.
        """
        assert self._answers is not None
        course = _Course()
        asked: ReplayEscalation | None = question
        while asked is not None and course.steps < wire.STEPS_MAX:
            answer = self._answers.answer(asked, self._place)
            if answer is None and asked.clip and course.last is not None:
                return course.line(question)
            if answer is None:
                return None
            course = course.heard(answer, asked)
            need = answer.verdict.need
            asked = asked.more(need) if need is not None else None
        return course.line(question)


@dataclass(frozen=True, slots=True)
class _Course:
    """How a question went so far. more_bytes: of the steps after the first."""

    steps: int = 0
    total_s: float = 0.0
    more_bytes: int = 0
    last: SourcedVerdict | None = None
    nearest: bool = False

    def heard(self, answer: SourcedVerdict, asked: ReplayEscalation) -> _Course:
        return _Course(
            self.steps + 1,
            self.total_s + answer.total_s,
            self.more_bytes + (asked.bytes if self.steps else 0),
            answer,
            self.nearest or answer.match == "nearest",
        )

    def line(self, question: ReplayEscalation) -> LogVerdict:
        assert self.last is not None
        body, verdict = question.body, self.last.verdict
        lacking = f" It asked for a {verdict.need}, which could not be had." if verdict.need else ""
        return LogVerdict(
            camera=body.camera,
            alert=body.alert,
            escalation=body.id,
            t=round(body.t + self.total_s, 3),
            decision="unsure" if verdict.need else verdict.decision,
            reason=verdict.reason + lacking,
            confidence=verdict.confidence,
            engine=verdict.engine,
            model=verdict.model,
            prompt_version=verdict.prompt_version,
            step=self.steps - 1,
            match="nearest" if self.nearest else self.last.match,
            more_bytes=self.more_bytes,
        )


ORACLE_MODEL = "truth"
_FLIPPED: dict[Decision, Decision] = {"confirmed": "rejected", "rejected": "confirmed", "unsure": "unsure"}


@dataclass(frozen=True, slots=True)
class OracleOpinion:
    """decision: `unsure` where the truth says nothing. reason: which part of the truth, in words."""

    decision: Decision
    reason: str


class OracleTruth(Protocol):
    """What truly happened, as far as somebody wrote it down."""

    def about(self, question: wire.Escalation) -> OracleOpinion: ...


class OracleJudge:
    """Answers without any judge. Which answers are turned round hangs on seed and question alone, so one question more
    changes no other answer."""

    def __init__(self, truth: OracleTruth, settings: OracleSettings) -> None:
        self._truth = truth
        self._settings = settings

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(source="stand-in", words=self._settings.text)

    def answer(self, question: ReplayEscalation, place: FootageRef) -> SourcedVerdict:
        body = question.body
        opinion = self._truth.about(body)
        wrong = self._turned_round(body)
        verdict = wire.Verdict(
            escalation=body.id,
            site=body.site,
            alert=body.alert,
            decision=_FLIPPED[opinion.decision] if wrong else opinion.decision,
            reason=f"{ORACLE_ENGINE}: {opinion.reason}{'; turned round on purpose' if wrong else ''}"[:400],
            engine=ORACLE_ENGINE,
            model=ORACLE_MODEL,
            seconds=0.0,
            judged_t=0.0,
        )
        return SourcedVerdict(verdict, self._settings.latency_s, "stand-in")

    def _turned_round(self, body: wire.Escalation) -> bool:
        said = f"{self._settings.seed}|{body.camera}|{body.rule}|{body.label}|{body.t:.3f}"
        drawn = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "big") / 2**64
        return drawn < self._settings.error
