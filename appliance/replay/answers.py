"""Who answers the questions of a replay: the port, and what goes through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from appliance import wire
from appliance.yamlfile import Section

Match = Literal["exact", "nearest", "stand-in"]
Source = Literal["cassette", "cloud", "stand-in"]


class AnsweredBy(Section):
    """What a log's first line says about where its verdicts come from; part of its digest.

    digest: of a cassette's content. match: how its answers are found. words: who answered on it, or what a stand-in is
    made of.
    """

    source: Source
    digest: str = ""
    match: Literal["exact", "nearest"] = "exact"
    words: str = ""

    def __str__(self) -> str:
        """For people, wherever a figure hangs on it."""
        if self.source == "cassette":
            return f"a cassette of {self.words}"
        return self.words if self.source == "stand-in" else "the cloud, asked now"


class Piece(Protocol):
    """One picture of a question, encoded; see appliance.alerts.evidence_picture."""

    @property
    def ref(self) -> wire.MediaRef: ...

    @property
    def data(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Which footage a question is about. t_from: UTC seconds of its t = 0; None: nobody knows (a clip)."""

    clip: str
    t_from: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it would be sent, `body.t` in seconds of the footage.

    pieces: the pictures of this step. clip: a clip goes along, which a replay cannot cut; so it can be found on a
    cassette, but not be asked. bytes: what sending it puts on the uplink. more: the next step, when a judge asks for
    that; None: there is no more.
    """

    body: wire.Escalation
    priority: str
    pieces: tuple[Piece, ...] = ()
    clip: bool = False
    bytes: int = 0
    more: Callable[[wire.Need], Question | None] = lambda need: None


@dataclass(frozen=True, slots=True)
class Answer:
    """verdict: with the ids of whoever was asked first, which say nothing here. total_s: from the question's moment to
    the verdict."""

    verdict: wire.Verdict
    total_s: float
    match: Match


class Answers(Protocol):
    """Where a replay has its verdicts from. The same questions in the same order always get the same answers."""

    @property
    def answered_by(self) -> AnsweredBy:
        """For the log's first line."""
        ...

    def answer(self, question: Question, place: Place) -> Answer | None:
        """None: there is no answer, which is said and never taken for one."""
        ...
