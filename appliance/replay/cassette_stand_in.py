"""Answers made from the truth, a wished share of them wrong. They measure nothing, and say so wherever they appear."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from appliance import wire
from appliance.replay.answers import Answer, AnsweredBy, Place, Question
from appliance.replay.cassette_arguments import ENGINE, StandInSettings
from appliance.types import Decision

MODEL = "truth"
_FLIPPED: dict[Decision, Decision] = {"confirmed": "rejected", "rejected": "confirmed", "unsure": "unsure"}


@dataclass(frozen=True, slots=True)
class Opinion:
    """decision: `unsure` where the truth says nothing. reason: which part of the truth, in words."""

    decision: Decision
    reason: str


class Truth(Protocol):
    """What truly happened, as far as somebody wrote it down."""

    def about(self, question: wire.Escalation) -> Opinion: ...


class StandIn:
    """Answers without any judge. Which answers are turned round hangs on seed and question alone, so one question more
    changes no other answer."""

    def __init__(self, truth: Truth, settings: StandInSettings) -> None:
        self._truth = truth
        self._settings = settings

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(source="stand-in", words=self._settings.words)

    def answer(self, question: Question, place: Place) -> Answer:
        body = question.body
        opinion = self._truth.about(body)
        wrong = self._turned_round(body)
        verdict = wire.Verdict(
            escalation=body.id,
            site=body.site,
            alert=body.alert,
            decision=_FLIPPED[opinion.decision] if wrong else opinion.decision,
            reason=f"{ENGINE}: {opinion.reason}{'; turned round on purpose' if wrong else ''}"[:400],
            engine=ENGINE,
            model=MODEL,
            seconds=0.0,
            judged_t=0.0,
        )
        return Answer(verdict, self._settings.latency_s, "stand-in")

    def _turned_round(self, body: wire.Escalation) -> bool:
        said = f"{self._settings.seed}|{body.camera}|{body.rule}|{body.label}|{body.t:.3f}"
        drawn = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "big") / 2**64
        return drawn < self._settings.error
