"""Cassettes on disk: read line by line and believed only when whole, written line by line as the answers come."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from appliance.errors import UsageError
from appliance.replay.cassette import CASSETTE, VERSION, CassetteHeader, CassetteLine
from appliance.replay.whole_lines import WholeLines, whole_bytes

LINE_BYTES_MAX = 128 * 1024  # a verdict is 64 kB at most, a question 2000 characters
LINES_MAX = 200_000  # some 60 MB of index
FILE_BYTES_MAX = 1024**3

Part = TypeVar("Part", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Placed:
    """A line and where in the file it begins."""

    line: CassetteLine
    offset: int


class CassetteReader:
    """A cassette read once, in order: `header` first, then `lines()`; holds one line. Use as an iterator of one run.

    Raises UsageError: not there, not a cassette, newer, cut off, too large, damaged (with the line and what to do).
    `digest` is of all lines read so far, the header left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        try:
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

    def lines(self) -> Iterator[Placed]:
        """Every line after the header."""
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
                yield Placed(line, offset)

    def _header(self) -> CassetteHeader:
        data = self._file.readline(LINE_BYTES_MAX + 1)
        if CASSETTE.encode() not in data:
            raise UsageError(
                f"{self._path} is not a verdict cassette: its first line is none of a cassette's; make one with "
                "vedette replay … --record-verdicts, or vedette cassette from-store"
            )
        version = self._parsed(_Versioned, 1, data).version
        if version > VERSION:
            raise UsageError(f"{self._path} is a cassette of version {version}; this Vedette reads {VERSION}")
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
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise self._wrong(number, f"{where}: {first['msg']}") from None

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
        kept = whole_bytes(path)
        self.header: CassetteHeader | None = None
        if kept:
            self.header = CassetteReader(path).header
        self._file = WholeLines(path, kept)

    def begin(self, header: CassetteHeader) -> None:
        """The first line."""
        self.header = header
        self._write(header)

    def write(self, line: CassetteLine) -> None:
        self._write(line)

    def close(self) -> None:
        self._file.close()

    def _write(self, part: BaseModel) -> None:
        self._file.write(part.model_dump_json().encode() + b"\n")
