"""Plays a cassette: answers the questions of a replay with the verdicts that were recorded."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Literal

from appliance.errors import UsageError
from appliance.replay.answers import Answer, AnsweredBy, Match, Place, Question
from appliance.replay.cassette import Asked, CassetteHeader, CassetteLine, asked_of, key_of, media_of
from appliance.replay.cassette_file import CassetteReader

NEAREST_S_MAX = 0.5

_Alike = tuple[str, str, str, str]


class CassettePlayer:
    """Answers by what was asked; with `match` nearest also by camera, rule, label and moment, if nothing is exact.

    State: where in the file each answer is, which of them were given by nearness. Owner: one run. Of two lines about
    the same question the later one counts: it was recorded again. By nearness a line answers one question only.
    """

    def __init__(self, path: Path, match: Literal["exact", "nearest"] = "exact") -> None:
        """Reads and checks all of it; holds some 300 bytes a line. Raises UsageError."""
        self._match = match
        self._path = path
        self._exact: dict[bytes, int] = {}
        self._alike: dict[_Alike, list[tuple[float, int]]] = defaultdict(list)
        self._given: set[int] = set()
        reader = CassetteReader(path)
        for placed in reader.lines():
            self._exact[bytes.fromhex(placed.line.key)] = placed.offset
            if match == "nearest":
                self._alike[_alike(placed.line.asked)].append((placed.line.asked.t, placed.offset))
        self._file = path.open("rb")
        self.header: CassetteHeader = reader.header
        self._digest = reader.digest

    def __len__(self) -> int:
        """How many different questions it answers."""
        return len(self._exact)

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(
            source="cassette", digest=self._digest, match=self._match, words="; ".join(map(str, self.header.judges))
        )

    def answer(self, question: Question, place: Place) -> Answer | None:
        asked = ask_at(question, place)
        offset = self._exact.get(bytes.fromhex(key_of(asked, media_of(question.body))))
        match: Match = "exact"
        if offset is None and self._match == "nearest":
            offset, match = self._nearest(asked), "nearest"
        if offset is None:
            return None
        line = self._line(offset)
        self._given.add(offset)
        return Answer(line.verdict, line.total_s, match)

    def close(self) -> None:
        self._file.close()

    def _nearest(self, asked: Asked) -> int | None:
        near = [
            (abs(t - asked.t), offset)
            for t, offset in self._alike.get(_alike(asked), ())
            if abs(t - asked.t) <= NEAREST_S_MAX and offset not in self._given
        ]
        return min(near)[1] if near else None

    def _line(self, offset: int) -> CassetteLine:
        self._file.seek(offset)
        try:
            return CassetteLine.model_validate_json(self._file.readline())
        except ValueError:
            raise UsageError(f"{self._path} was changed while it was played; play it again") from None


def ask_at(question: Question, place: Place) -> Asked:
    """What is asked, at a time that another replay of the same footage can compare: UTC where it is known."""
    utc = place.t_from is not None
    asked = asked_of(
        question.body,
        t=question.body.t + (place.t_from or 0.0),
        utc=utc,
        clip="" if utc else place.clip,
    )
    return asked.model_copy(update={"with_clip": True}) if question.clip else asked


def _alike(asked: Asked) -> _Alike:
    return (asked.camera, asked.rule, asked.label, "" if asked.utc else f"clip {asked.clip}")
