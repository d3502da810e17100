"""Records a cassette: asks the cloud what is not on it yet, and writes down what comes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance import wire
from appliance.clock import Clock, iso_utc
from appliance.errors import UplinkError, UsageError
from appliance.escalate.interview import Heard
from appliance.replay.answers import Answer, AnsweredBy, Place, Question
from appliance.replay.cassette import CassetteHeader, CassetteLine, Judge, key_of, media_of, stages_of
from appliance.replay.cassette_file import CassetteReader, CassetteWriter
from appliance.replay.cassette_player import ask_at
from appliance.replay.header import vedette_version

logger = logging.getLogger(__name__)

SILENT_MAX = 3  # questions in a row without a verdict after which nobody seems to be there; at the beginning one

Told = Callable[[str], None]
"""Takes a sentence on what is being waited for; "" when it is over."""


class Cloud(Protocol):
    """Who is asked; see appliance.escalate.interview."""

    @property
    def site(self) -> str: ...

    def ask(
        self, question: wire.Escalation, priority: str, files: list[tuple[wire.MediaRef, bytes]]
    ) -> Heard | None: ...


@dataclass(slots=True)
class RecorderCounts:
    """asked: of the cloud; known: answered by what stood on the cassette; silent: no verdict came in time."""

    asked: int = 0
    known: int = 0
    silent: int = 0


class Recorder:
    """Asks one question at a time and waits for its verdict, so that the log of the recording is already that of its
    replay.

    State: what is on the cassette, the open file, the counts. Owner: one run. Invariant: an answer is on the cassette
    before the replay has it. A cassette that is there is gone on with: only what is not on it is asked.
    """

    def __init__(self, path: Path, cloud: Cloud, clock: Clock, told: Told = lambda sentence: None) -> None:
        """Raises UsageError when `path` is no cassette, OSError."""
        self._path = path
        self._cloud = cloud
        self._clock = clock
        self._told = told
        self._writer = CassetteWriter(path)
        self._known: dict[str, Answer] = {}
        if self._writer.header is not None:
            for placed in CassetteReader(path).lines():
                self._known[placed.line.key] = Answer(placed.line.verdict, placed.line.total_s, "exact")
        self._silent = 0
        self.counts = RecorderCounts()

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(source="cloud")

    def answer(self, question: Question, place: Place) -> Answer | None:
        """Raises UplinkError when the cloud cannot be asked, UsageError when another judge answers than before."""
        asked = ask_at(question, place)
        key = key_of(asked, media_of(question.body))
        known = self._known.get(key)
        if known is not None:
            self.counts.known += 1
            return known
        if question.clip:
            return None
        heard = self._ask(question)
        if heard is None:
            return None
        line = CassetteLine(
            key=key,
            asked=asked,
            media=media_of(question.body),
            verdict=heard.verdict,
            total_s=round(heard.total_s, 3),
            stages={"send": round(heard.send_s, 4), **stages_of(heard.verdict)},
            bytes=heard.bytes,
        )
        self._write(line)
        self._known[key] = Answer(line.verdict, line.total_s, "exact")
        return self._known[key]

    def close(self) -> None:
        self._writer.close()

    def _ask(self, question: Question) -> Heard | None:
        self.counts.asked += 1
        self._told(f"waiting for the verdict on question {self.counts.asked}")
        body = question.body.model_copy(update={"site": self._cloud.site})
        try:
            heard = self._cloud.ask(body, question.priority, [(each.ref, each.data) for each in question.pieces])
        finally:
            self._told("")
        if heard is not None:
            self._silent = 0
            verdict = heard.verdict
            said = f"asks for a {verdict.need}" if verdict.need else verdict.decision
            logger.info("question %d: %s after %.1f s", self.counts.asked, said, heard.total_s)
            return heard
        self.counts.silent += 1
        self._silent += 1
        if self._silent >= (SILENT_MAX if self._known else 1):
            raise UplinkError(
                f"no verdict came in time on {self._silent} question{'s' if self._silent > 1 else ''} in a row: is a "
                f"worker running, and does its engine answer? What came is in {self._path}; the same command goes on"
            )
        return None

    def _write(self, line: CassetteLine) -> None:
        try:
            self._append(line)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from None

    def _append(self, line: CassetteLine) -> None:
        header = self._writer.header
        if header is None:
            self._writer.begin(
                CassetteHeader(judges=(line.judge,), recorded=iso_utc(self._clock.now()), vedette=vedette_version())
            )
        elif line.judge not in header.judges:
            raise UsageError(
                f"{self._path} was recorded with {_listed(header.judges)}, and {line.judge} answers now: record to "
                "another file"
            )
        self._writer.write(line)


def recording_site() -> str:
    """A site name of its own: a live box of the same name would get the verdicts, and the worker or the broker would
    take a question asked before for a repetition."""
    return f"replay-{secrets.token_hex(6)}"


def _listed(judges: tuple[Judge, ...]) -> str:
    return " and ".join(map(str, judges))
