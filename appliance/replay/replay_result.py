"""The result of a replay: counts while it runs, the result, and the same read back from a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from appliance.base.errors import UsageError
from appliance.base.json_lines import WireError, decode_log, first_problem
from appliance.replay.replay_log_writer import LOG, VERSION, LogHeader, decode_header
from appliance.types import (
    Alert,
    Event,
    FrameBoxes,
    Gap,
    HealthEvent,
    LogEnd,
    LogLine,
    LogVerdict,
    PipelineStep,
    Route,
    StreamHeader,
)


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """The cost of a replay, which is never written to its log. Cameras replayed together have that of the whole."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    behind_s: float = 0.0  # how far a paced replay fell behind
    remembered: int = 0  # frames whose detections a killed replay left


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One replay of one camera's footage. Its JSON is that of `vedette replay --json` (see replay_report.as_json)."""

    clip: str
    model: str
    size: tuple[int, int]
    end: LogEnd
    boxes: int = 0  # objects in all examined frames
    tracks: int = 0  # different ones
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()
    routes: tuple[Route, ...] = ()
    gaps: tuple[Gap, ...] = ()
    answered_by: str = ""  # who gave the verdicts; "": escalations were not answered
    verdicts: tuple[LogVerdict, ...] = ()
    weather: str = ""  # the conditions applied to the footage
    health: tuple[HealthEvent, ...] = ()  # each as it was last reported
    cost: ReplayCost = ReplayCost()

    @property
    def sent_bytes(self) -> int:
        """The bytes that escalating would put on the uplink."""
        return sent_bytes(self.routes, self.verdicts)

    @property
    def unanswered(self) -> int:
        """The number of escalations without a verdict, where there is a source of verdicts."""
        asked = {route.alert for route in self.routes if route.ask}
        return len(asked - {verdict.alert for verdict in self.verdicts}) if self.answered_by else 0


def sent_bytes(routes: Iterable[Route], verdicts: Iterable[LogVerdict]) -> int:
    """Return the bytes on the uplink: the escalations, and what their judges needed to see beyond."""
    return sum(route.cost.bytes for route in routes) + sum(verdict.more_bytes for verdict in verdicts)


@dataclass(slots=True)
class ReplayStats:
    """Counts of one camera while it is replayed."""

    size: tuple[int, int] = (0, 0)
    examined: int = 0
    unlooked: int = 0
    boxes: int = 0
    tracks: set[tuple[int, int]] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    suppressed: list[str] = field(default_factory=list)  # ids
    alerts: list[Alert] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    verdicts: list[LogVerdict] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    health: dict[str, HealthEvent] = field(default_factory=dict)
    t: float = 0.0

    def add_boxes(self, session: int, boxes: FrameBoxes) -> None:
        self.examined += 1
        self.unlooked += not boxes.looked
        self.boxes += len(boxes.objects)
        self.tracks.update((session, found.track) for found in boxes.objects)

    def add_step(self, step: PipelineStep, routes: Sequence[Route]) -> None:
        self.events += step.events
        self.suppressed += [event.id for event in step.suppressed]
        self.alerts += [change.alert for change in step.changes if change.kind == "ended"]
        self.routes += routes


def result_of(
    clip: str, model: str, end: LogEnd, stats: ReplayStats, answered_by: object, weather: str
) -> ReplayResult:
    """Return the result of one camera, but for its cost. answered_by: who gave the verdicts; falsy: nobody did."""
    return ReplayResult(
        clip=clip,
        model=model,
        size=stats.size,
        end=end,
        boxes=stats.boxes,
        tracks=len(stats.tracks),
        events=tuple(stats.events),
        alerts=tuple(stats.alerts),
        routes=tuple(stats.routes),
        gaps=tuple(stats.gaps),
        answered_by=str(answered_by) if answered_by else "",
        verdicts=tuple(stats.verdicts),
        weather=weather,
        health=tuple(stats.health.values()),
    )


LINE_BYTES_MAX = 4 * 1024 * 1024  # a line with 300 objects has 60 kB


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """A log in memory: some 200 bytes a box. lines: all after the first, in order, but one that was torn."""

    name: str
    header: LogHeader
    lines: tuple[LogLine, ...]

    @property
    def ends(self) -> dict[str, LogEnd]:
        """The end line of each camera that has one."""
        return {line.camera: line for line in self.lines if isinstance(line, LogEnd)}

    @property
    def complete(self) -> bool:
        """True if every camera came to its end."""
        return set(self.ends) == {each.camera for each in self.header.replayed}

    def of(self, camera: str) -> tuple[LogLine, ...]:
        """Return the lines of one camera, the first header included if it is this camera's."""
        first = (self.header,) if self.header.camera == camera else ()
        return (*first, *(line for line in self.lines if line.camera == camera))

    def results(self) -> tuple[ReplayResult, ...]:
        """Return the results of the replay that wrote this complete log, but for its cost."""
        return tuple(self._result(each.camera) for each in self.header.replayed)

    def _result(self, camera: str) -> ReplayResult:
        lines, end, stats, sessions = self.of(camera), self.ends[camera], ReplayStats(), 0
        first = next(line for line in lines if isinstance(line, StreamHeader))
        kept: dict[type, list[Any]] = {
            Event: stats.events, Alert: stats.alerts, Route: stats.routes, LogVerdict: stats.verdicts, Gap: stats.gaps,
        }  # fmt: skip
        for line in lines:
            if isinstance(line, StreamHeader):
                sessions, stats.size = sessions + 1, line.size
            elif isinstance(line, FrameBoxes):
                stats.add_boxes(sessions, line)
            elif isinstance(line, HealthEvent):
                stats.health[line.id] = line
            elif type(line) in kept:
                kept[type(line)].append(line)
        settings = self.header.settings
        return result_of(first.clip, first.model, end, stats, settings.verdicts, settings.weather_words)


def read_log(path: Path) -> RecordedLog:
    """Read a replay log.

    Raise UsageError: not there, not a replay log, of an older or newer version, or damaged (with the line).
    """
    return parse_log(path, _numbered(path))


def parse_log(path: Path, numbered: Iterable[tuple[int, bytes]]) -> RecordedLog:
    """Parse the log of these lines, numbered from 1. path: its name in messages. Raise UsageError."""
    lines = list(numbered)
    cut_off = bool(lines) and not lines[-1][1].endswith(b"\n")
    whole = lines[:-1] if cut_off else lines
    if not whole:
        raise UsageError(f"{path} is empty: it is not a replay log")
    header = _header(path, whole[0][1])
    found = tuple(_line(path, number, line) for number, line in whole[1:])
    known = {header.camera, *(each.camera for each in found if isinstance(each, StreamHeader))}
    if odd := next((each.camera for each in found if each.camera not in known), None):
        raise UsageError(f"{path}: the camera {odd} has lines and no header: it was edited; make the log anew")
    return RecordedLog(path.name, header, found)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                    raise UsageError(f"{path} is not a replay log: line {number} is over {LINE_BYTES_MAX} bytes")
                yield number, line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _header(path: Path, line: bytes) -> LogHeader:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("type") != "header":
        raise UsageError(f"{path} is not a replay log: its first line is no header")
    if data.get("log") != LOG:
        raise UsageError(
            f"{path} was written by an older Vedette, which noted neither format nor settings: make it anew with "
            "vedette replay CLIP --config site.yaml --log OUT.jsonl"
        )
    if isinstance(data.get("version"), int) and data["version"] > VERSION:
        raise UsageError(
            f"{path} is of version {data['version']} (Vedette {data.get('vedette')}), this Vedette reads {VERSION}"
        )
    try:
        return decode_header(data)
    except ValidationError as error:
        raise UsageError(f"{path}: the first line cannot be understood: {first_problem(error)}") from None


def _line(path: Path, number: int, line: bytes) -> LogLine:
    try:
        return decode_log(line)
    except WireError as error:
        raise UsageError(f"{path}: line {number} cannot be understood: {error}") from None
