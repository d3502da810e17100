"""The questions of one camera in a replay: each asked where it comes up, its verdict told when it would have come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from appliance import wire
from appliance.replay.answers import Answer, Answers, Place, Question
from appliance.types import AlertChange, Decision, LogVerdict, Step


class Docket:
    """Verdicts that are under way, and what was said of each alert that is not over.

    An answer is there at once, but its line waits until as much footage has gone by as the cloud took; the `alert` line
    has it in any case, for that is written once the incident is over. answers None: nobody answers.
    """

    def __init__(self, answers: Answers | None, place: Place) -> None:
        self._answers = answers
        self._place = place
        self._under_way: list[LogVerdict] = []
        self._said: dict[str, Decision] = {}

    @property
    def wanted(self) -> bool:
        """Whether questions need to be made at all."""
        return self._answers is not None

    def ask(self, questions: Iterable[Question]) -> None:
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

    def rest(self) -> tuple[LogVerdict, ...]:
        """Those that would come after the footage is over."""
        return self.due(float("inf"))

    def settle(self, step: Step) -> Step:
        """The alerts that ended with what the cloud said of them."""
        return replace(step, changes=tuple(map(self._settled, step.changes))) if self.wanted else step

    def _settled(self, change: AlertChange) -> AlertChange:
        if change.kind != "ended":
            return change
        return replace(change, alert=replace(change.alert, verdict=self._said.pop(change.alert.id, None)))

    def _answer(self, question: Question) -> LogVerdict | None:
        """A judge that asks for more gets it, as long as there is more; the last answer counts.

        Where that asked for what cannot be had, it stands as `unsure` and says so, as live. Any other step without an
        answer: the question has none.
        """
        assert self._answers is not None
        course = _Course()
        asked: Question | None = question
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
    last: Answer | None = None
    nearest: bool = False

    def heard(self, answer: Answer, asked: Question) -> _Course:
        return _Course(
            self.steps + 1,
            self.total_s + answer.total_s,
            self.more_bytes + (asked.bytes if self.steps else 0),
            answer,
            self.nearest or answer.match == "nearest",
        )

    def line(self, question: Question) -> LogVerdict:
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
