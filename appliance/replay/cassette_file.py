"""Verdict cassettes: files of recorded verdicts, so that a replay needs no cloud.

The format and its key, reading, writing, and playing one back by what was asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance import wire
from appliance.base.errors import UsageError
from appliance.base.json_lines import AppendOnlyFile, first_problem, whole_bytes
from appliance.base.local_files import check_output, is_special
from appliance.replay.verdict_source import AnsweredBy, FootageRef, ReplayEscalation, SourcedVerdict, VerdictMatch
from appliance.types import SCHEMA

CASSETTE: Literal["vedette.cassette"] = "vedette.cassette"
CASSETTE_VERSION = 1  # of the format; a reader that knows another refuses
JUDGES_MAX = 16  # judges recorded in one cassette; a comparison has a handful
_CASSETTE_START = re.compile(rb'\{"cassette"')
_YEAR_S = 366 * 86400.0  # seconds in a leap year: a verdict does not take longer

Seconds = Annotated[float, Field(ge=0, le=_YEAR_S)]


class _Part(BaseModel):
    """Readers ignore fields that they do not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class Judge(_Part):
    """The engine, model and prompt that gave a verdict."""

    engine: Annotated[str, Field(max_length=wire.TEXT_CHARS_MAX)]
    model: Annotated[str, Field(max_length=wire.TEXT_CHARS_MAX)]
    prompt_version: Annotated[str, Field(max_length=wire.TEXT_CHARS_MAX)] = ""

    def __str__(self) -> str:
        prompt = f", prompt {self.prompt_version}" if self.prompt_version else ""
        name = f"{self.engine} {self.model}{prompt}"
        return "".join(letter if letter.isprintable() else "?" for letter in name)


class CassetteHeader(_Part):
    """First line. recorded: when, for people. match: how it is played unless the command says otherwise."""

    cassette: Literal["vedette.cassette"] = CASSETTE
    version: Annotated[int, Field(ge=1)] = CASSETTE_VERSION
    schema_version: int = SCHEMA
    judges: Annotated[tuple[Judge, ...], Field(min_length=1, max_length=JUDGES_MAX)]
    recorded: Annotated[str, Field(max_length=40)] = ""
    match: Literal["exact", "nearest"] = "exact"
    vedette: Annotated[str, Field(max_length=40)] = ""


class CassetteQuery(_Part):
    """An escalation, as far as it identifies its verdict.

    t: of the event, in seconds of `clip`, or with `utc` UTC seconds (a recording, a live appliance).

    camera, t, utc and clip are there for `--match nearest`. step: how often more evidence had been asked for.
    with_clip: a clip went along. Its bytes are no part of the key: they are cut from packets that no replay has.
    """

    camera: Annotated[str, Field(max_length=64)]
    rule: Annotated[str, Field(max_length=64)]
    kind: Annotated[str, Field(max_length=64)]
    label: Annotated[str, Field(max_length=wire.TEXT_CHARS_MAX)]
    zone: Annotated[str, Field(max_length=wire.TEXT_CHARS_MAX)]
    question: Annotated[str, Field(max_length=2000)]
    score: float = 0.0
    t: float
    utc: bool = False
    clip: Annotated[str, Field(max_length=1000)] = ""
    step: Annotated[int, Field(ge=0, le=100)] = 0
    with_clip: bool = False


class CassetteLine(_Part):
    """One verdict.

    total_s: from the escalation's moment to the verdict; stages: its known parts, in seconds; bytes: on the uplink for
    sending the escalation.
    """

    key: wire.Sha256
    asked: CassetteQuery
    media: Annotated[tuple[wire.Sha256, ...], Field(max_length=wire.MEDIA_PER_ESCALATION_MAX)] = ()
    verdict: wire.Verdict
    total_s: Seconds
    stages: Annotated[dict[str, Seconds], Field(max_length=32)] = {}
    bytes: Annotated[int, Field(ge=0)] = 0

    @property
    def judge(self) -> Judge:
        return Judge(engine=self.verdict.engine, model=self.verdict.model, prompt_version=self.verdict.prompt_version)

    @property
    def fits_its_key(self) -> bool:
        """True if the key fits the line's other fields."""
        return self.key == key_of(self.asked, self.media)


def key_of(asked: CassetteQuery, media: Iterable[str]) -> str:
    """Return 64 hex digits of the texts of an escalation and its images, in any order.

    Two escalations that ask the same have the same key. So the key leaves out what differs between a live appliance and
    a replay of it: site, camera, times, ids, score, and where in the frame the tracker put its box. An escalation
    without any image is identified by the facts that its judge is shown instead.
    """
    images = [*sorted(media), *(["clip"] if asked.with_clip else [])]
    content: list[object] = [asked.question, asked.rule, asked.kind, asked.label, asked.zone, images]
    if not images:
        content += [asked.camera, asked.score]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def query_of(body: wire.Escalation, *, t: float, utc: bool, clip: str = "") -> CassetteQuery:
    """Return the query of an escalation as it is sent."""
    return CassetteQuery(
        camera=body.camera,
        rule=body.rule,
        kind=body.kind,
        label=body.label,
        zone=body.zone,
        question=body.question,
        score=round(body.score, 3),
        t=round(t, 3),
        utc=utc,
        clip=clip,
        step=body.step,
        with_clip=any(ref.kind == "clip" for ref in body.media),
    )


def media_of(body: wire.Escalation) -> tuple[str, ...]:
    """Return the hashes of an escalation's images, sorted."""
    return tuple(sorted(ref.sha256 for ref in body.media if ref.kind != "clip"))


def stages_of(verdict: wire.Verdict) -> dict[str, float]:
    """Return the worker's stages in seconds, as far as they can be true."""
    return {name: seconds for name, seconds in [*verdict.timings.items()][:30] if 0 <= seconds <= _YEAR_S}


LINE_BYTES_MAX = 128 * 1024  # a verdict is 64 kB at most, a question 2000 characters
LINES_MAX = 200_000  # some 60 MB of index
FILE_BYTES_MAX = 1024**3  # a million verdicts; a larger file is another one by mistake

Part = TypeVar("Part", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line and where in the file it begins."""

    line: CassetteLine
    offset: int


class CassetteReader:
    """A cassette read once, in order: `header` first, then `lines()`; holds one line. Read it once.

    Raises UsageError: not there, not a cassette, newer, cut off, too large, damaged (with the line and what to do).
    `digest` is of all lines read so far, the header left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        try:
            if is_special(path):  # a pipe waits for whoever may write, and is read twice
                raise UsageError(f"{path} is a pipe or a device: a cassette is a file")
            self._file = path.open("rb")
            bytes_ = self._file.seek(0, 2)
            self._file.seek(0)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        if bytes_ > FILE_BYTES_MAX:
            self._file.close()
            raise UsageError(f"{path} has {bytes_} bytes; a cassette has at most {FILE_BYTES_MAX}: split it")
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    @property
    def digest(self) -> str:
        """16 hex digits."""
        return self._digest.hexdigest()[:16]

    def lines(self) -> Iterator[PlacedLine]:
        """Yield every line after the header."""
        number = 1
        with self._file:
            while True:
                offset = self._file.tell()
                number += 1
                data = self._file.readline(LINE_BYTES_MAX + 1)
                if not data:
                    return
                if number > LINES_MAX + 1:
                    raise UsageError(f"{self._path} has over {LINES_MAX} lines: split it")
                line = self._parsed(CassetteLine, number, data)
                if not line.fits_its_key:
                    raise self._wrong(number, "its key is not that of its question and pictures: it was edited")
                self._digest.update(data)
                yield PlacedLine(line, offset)

    def close(self) -> None:
        """Release the file, where `lines()` is not read to its end."""
        self._file.close()

    def _header(self) -> CassetteHeader:
        data = self._file.readline(LINE_BYTES_MAX + 1)
        if CASSETTE.encode() not in data:
            raise UsageError(
                f"{self._path} is not a verdict cassette: its first line is none of a cassette's; make one with "
                "vedette replay … --record-verdicts, or vedette cassette from-store"
            )
        version = self._parsed(_Versioned, 1, data).version
        if version > CASSETTE_VERSION:
            raise UsageError(f"{self._path} is a cassette of version {version}; this Vedette reads {CASSETTE_VERSION}")
        return self._parsed(CassetteHeader, 1, data)

    def _parsed(self, model: type[Part], number: int, data: bytes) -> Part:
        if len(data) > LINE_BYTES_MAX:
            raise self._wrong(number, f"it is over {LINE_BYTES_MAX} bytes")
        if not data.endswith(b"\n"):
            raise UsageError(
                f"{self._path}: line {number} is cut off: record again into the same file, which goes on after the "
                "last whole line, or remove that line"
            )
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            raise self._wrong(number, first_problem(error, "line")) from None

    def _wrong(self, number: int, what: str) -> UsageError:
        remedy = "record the cassette anew" if number == 1 else "remove that line, or record the cassette anew"
        return UsageError(f"{self._path}: line {number} cannot be used: {what}; {remedy}")


class _Versioned(BaseModel):
    version: int


class CassetteWriter:
    """Appends to a new cassette, or to one that is there, after its last whole line.

    State: the open file; `header` None until it is written. Raises OSError, and UsageError when what is there is no
    cassette.
    """

    def __init__(self, path: Path) -> None:
        check_output(path, "a verdict cassette", _CASSETTE_START)
        kept = whole_bytes(path)
        self.header: CassetteHeader | None = None
        if kept:
            with contextlib.closing(CassetteReader(path)) as reader:
                self.header = reader.header
        self._file = AppendOnlyFile(path, kept)

    def begin(self, header: CassetteHeader) -> None:
        """Write the first line."""
        self.header = header
        self.write(header)

    def write(self, part: CassetteHeader | CassetteLine) -> None:
        self._file.write(part.model_dump_json().encode() + b"\n")

    def close(self) -> None:
        self._file.close()


NEAREST_S_MAX = 0.5  # between an escalation and a verdict that `--match nearest` takes for it

_Alike = tuple[str, str, str, str]


class CassettePlayer:
    """Finds verdicts by what was asked; with `match` nearest also by camera, rule, label and moment, if none is exact.

    State: where in the file each verdict is, which of them were given as nearest. Owner: one replay. The later of two
    lines about the same escalation counts: it was recorded again. A nearest line answers one escalation only.
    """

    def __init__(self, path: Path, match: Literal["exact", "nearest"] | None = None) -> None:
        """Read and check the whole file; some 300 bytes a line stay in memory.

        match None: as it says itself. Raise UsageError.
        """
        self._path = path
        self._exact: dict[bytes, int] = {}
        self._alike: dict[_Alike, list[tuple[float, int]]] = defaultdict(list)
        self._given: set[int] = set()
        reader = CassetteReader(path)
        self._match = match or reader.header.match
        for placed in reader.lines():
            self._exact[bytes.fromhex(placed.line.key)] = placed.offset
            if self._match == "nearest":
                self._alike[_alike(placed.line.asked)].append((placed.line.asked.t, placed.offset))
        self._file = path.open("rb")
        self.header: CassetteHeader = reader.header
        self._digest = reader.digest

    def __len__(self) -> int:
        """Count the different escalations that it answers."""
        return len(self._exact)

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(
            source="cassette", digest=self._digest, match=self._match, words="; ".join(map(str, self.header.judges))
        )

    def answer(self, escalation: ReplayEscalation, footage: FootageRef) -> SourcedVerdict | None:
        query = query_at(escalation, footage)
        offset = self._exact.get(bytes.fromhex(key_of(query, media_of(escalation.body))))
        match: VerdictMatch = "exact"
        if offset is None and self._match == "nearest":
            offset, match = self._nearest(query), "nearest"
        if offset is None:
            return None
        line = self._line(offset)
        self._given.add(offset)
        return SourcedVerdict(line.verdict, line.total_s, match)

    def close(self) -> None:
        self._file.close()

    def _nearest(self, query: CassetteQuery) -> int | None:
        near = [
            (abs(t - query.t), offset)
            for t, offset in self._alike.get(_alike(query), ())
            if abs(t - query.t) <= NEAREST_S_MAX and offset not in self._given
        ]
        return min(near)[1] if near else None

    def _line(self, offset: int) -> CassetteLine:
        self._file.seek(offset)
        try:
            return CassetteLine.model_validate_json(self._file.readline())
        except ValueError:
            raise UsageError(f"{self._path} was changed while it was played; play it again") from None


def query_at(escalation: ReplayEscalation, footage: FootageRef) -> CassetteQuery:
    """Return the query of an escalation, at a time that another replay of the same footage can compare.

    That is UTC where it is known.
    """
    utc = footage.t_from is not None
    query = query_of(
        escalation.body,
        t=escalation.body.t + (footage.t_from or 0.0),
        utc=utc,
        clip="" if utc else footage.clip,
    )
    return query.model_copy(update={"with_clip": True}) if escalation.clip else query


def _alike(query: CassetteQuery) -> _Alike:
    return (query.camera, query.rule, query.label, "" if query.utc else f"clip {query.clip}")
