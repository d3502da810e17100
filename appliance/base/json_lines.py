"""The JSON lines of Vedette and their files: the ingest channel, the commands to ingest, and the replay log.

From `flat` on: flat records of grouped values. A log line or a database row has the fields of all groups side by side.
A dataclass with KEYS, the keys of its record in their order, has a flat record. A dataclass in it that has no KEYS of
its own is a group: its fields stand beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from appliance.base.errors import VedetteError, printable
from appliance.types import Alert, Command, FrameBoxes, IngestMessage, LogLine, Route, StreamHeader

Value = TypeVar("Value")

ERROR_CHARS_MAX = 200  # of a message that quotes what another side sent


class WireError(VedetteError):
    """A message that cannot be understood; the text names the field and the reason."""


def encode_ingest(message: IngestMessage) -> bytes:
    """Return one JSON line, newline included."""
    return _ingest().dump_json(message, exclude=_omitted_fields(message)) + b"\n"


def decode_ingest(line: bytes) -> IngestMessage:
    """Read one line of the ingest channel. Raises WireError."""
    message: IngestMessage = _decode(_ingest(), line)
    return message


def encode_command(command: Command) -> bytes:
    """Return one JSON line to the ingest process, newline included."""
    return _command().dump_json(command) + b"\n"


def decode_command(line: bytes) -> Command:
    """Read one line to the ingest process. Raises WireError."""
    command: Command = _decode(_command(), line)
    return command


def encode_log(line: LogLine) -> bytes:
    """Return one line of a replay log, newline included; equal values give equal bytes.

    Left out: the verdict of an alert that has none, and what was known before where nothing was.
    """
    record = flat(line) if isinstance(line, Route) else line
    return _log().dump_json(record, exclude=_omitted_fields(line)) + b"\n"


def decode_log(line: bytes) -> LogLine:
    """Read one line of a replay log. Raises WireError."""
    found = _decode(_log(), line)
    return cast("LogLine", grouped(Route, asdict(found)) if isinstance(found, record_class(Route)) else found)


def unused_header_fields(header: StreamHeader) -> set[str]:
    """Return the fields of a header that are left out because they say nothing."""
    return {name for name in ("known_before", "calibration") if not getattr(header, name)}


def first_problem(error: ValidationError, whole: str = "message") -> str:
    """Return the first field that is wrong, and why, in one short printable line. whole: named where all of it is.

    It is made printable because a key of the message may be part of it.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:ERROR_CHARS_MAX] for part in first["loc"][:8]) or whole
    return printable(f"{where[: ERROR_CHARS_MAX // 2]}: {first['msg'][: 2 * ERROR_CHARS_MAX]}")[:ERROR_CHARS_MAX]


_NO_TABLE = ConfigDict(cache_strings="none")  # of texts that came: see ConfigModel


# Made when first asked for: a process pays for those that it speaks.
@cache
def _ingest() -> TypeAdapter[IngestMessage]:
    return TypeAdapter(Annotated[IngestMessage, Field(discriminator="type")], config=_NO_TABLE)


@cache
def _command() -> TypeAdapter[Command]:
    return TypeAdapter(Annotated[Command, Field(discriminator="type")], config=_NO_TABLE)


@cache
def _log() -> TypeAdapter[Any]:
    lines: Any = Union[tuple(record_class(Route) if each is Route else each for each in get_args(LogLine))]  # noqa: UP007
    return TypeAdapter(Annotated[lines, Field(discriminator="type")], config=_NO_TABLE)


def _omitted_fields(line: object) -> Any:
    """Return the fields that are left out because they hold nothing."""
    if isinstance(line, Alert) and line.verdict is None:
        return {"verdict"}
    if isinstance(line, FrameBoxes) and all(found.stood_s is None for found in line.objects):
        return {"objects": {"__all__": {"stood_s"}}}
    if isinstance(line, Route) and not line.inputs.system_load.offload:
        return {"inputs": {"offload"}}
    if isinstance(line, StreamHeader):
        return unused_header_fields(line)
    return None


def _decode(adapter: TypeAdapter[Any], data: bytes) -> Any:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise WireError(first_problem(error)) from None


_BLOCK_BYTES = 64 * 1024  # one read of the end of a file


class AppendOnlyFile:
    """Appends to a file past its first `kept` bytes, without a buffer of its own: what was written survives a kill.

    A full disk raises OSError and may leave a part of a line, which the next reader drops.
    """

    def __init__(self, path: Path, kept: int = 0) -> None:
        self._file = path.open("r+b" if kept else "wb", buffering=0)
        if kept:  # a pipe or a device can be neither cut nor wound
            self._file.truncate(kept)
            self._file.seek(kept)

    def write(self, line: bytes) -> int:
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]
        return len(line)

    def close(self) -> None:
        self._file.close()


def whole_bytes(path: Path) -> int:
    """Return how many bytes of the file are whole lines; 0 when it is not there. Raises OSError."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            while end > 0:
                start = max(0, end - _BLOCK_BYTES)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
    except FileNotFoundError:
        pass
    return 0


def flat(value: Any) -> Any:
    """Return the flat record of a value."""
    found = dict(_items(value))
    return record_class(value.__class__)(**{key: found[key] for key in value.KEYS})


def grouped(cls: type[Value], record: Mapping[str, Any]) -> Value:
    """Return the value of a flat record. A field that the record lacks keeps its default; others are ignored."""
    known: Any = cls
    found = {each.name: record[each.name] for each in fields(known) if each.name in record}
    for each in fields(known):
        if is_dataclass(group := type(each.default)):
            found[each.name] = grouped(group, record.get(each.name, {}) if hasattr(group, "KEYS") else record)
    return cls(**found)


@cache
def record_class(cls: Any) -> Any:
    """Return the dataclass of the flat records of `cls`."""
    columns = {column[0]: column for column in _columns(cls)}
    made = make_dataclass(cls.__name__, [columns[key] for key in cls.KEYS], frozen=True, slots=True, kw_only=True)
    made.__doc__ = cls.__doc__
    return made


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        held = getattr(value, each.name)
        if is_dataclass(held) and not hasattr(held, "KEYS"):
            yield from _items(held)
        else:
            yield each.name, flat(held) if is_dataclass(held) else held


def _columns(cls: Any) -> Iterator[tuple[str, Any, Any]]:
    kinds = get_type_hints(cls)
    for each in fields(cls):
        kind = kinds[each.name]
        if hasattr(kind, "KEYS"):
            yield each.name, record_class(kind), field(default=flat(each.default))
        elif is_dataclass(kind):
            yield from _columns(kind)
        else:
            yield each.name, kind, field(default=each.default)
