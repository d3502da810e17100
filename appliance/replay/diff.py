"""What differs between two replay logs: settings, the first moment, tracks, events, alerts, questions and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from appliance.replay import pairing
from appliance.replay.changes import setting_changes
from appliance.replay.difference import AlertChange, Difference, EventChange, Totals, TrackChange, VerdictChange
from appliance.replay.reader import RecordedLog
from appliance.replay.result import sent_bytes
from appliance.replay.tracks import match, tracks_of
from appliance.types import Alert, Event, FrameBoxes, Gap, HealthEvent, LogEnd, LogLine, LogVerdict, Route, StreamHeader

Kind = TypeVar("Kind", bound=LogLine)


def compare(before: RecordedLog, after: RecordedLog) -> Difference:
    """Pure; the logs are read already."""
    cameras = list(dict.fromkeys(each.camera for log in (before, after) for each in log.header.replayed))
    tracks: list[TrackChange] = []
    events: list[EventChange] = []
    alerts: list[AlertChange] = []
    verdicts: list[VerdictChange] = []
    judged = all(log.header.settings.verdicts is not None for log in (before, after))
    counts = [0, 0]
    for camera in cameras:
        one, other = before.of(camera), after.of(camera)
        both = tracks_of(one, camera), tracks_of(other, camera)
        counts = [count + len(found) for count, found in zip(counts, both, strict=True)]
        matched = match(*both)
        tracks += pairing.tracks(matched)
        events += pairing.events(_only(one, Event), _only(other, Event), matched)
        alerts += pairing.alerts(_only(one, Alert), _only(other, Alert))
        if judged:
            verdicts += pairing.verdicts(_only(one, Alert), _only(other, Alert))
    first = _first(before.lines, after.lines)
    routes = tuple(_routes(before, after))
    totals = _totals(before, counts[0]), _totals(after, counts[1])
    changed, shared = _looks(before, after)
    return Difference(
        before=before.name,
        after=after.name,
        same=first is None and not (tracks or events or alerts or verdicts),
        settings=setting_changes(before.header, after.header),
        notes=tuple(_notes(before, after)),
        first_t=None if first is None else _time(first),
        first_camera="" if first is None else first.camera,
        looks_changed=changed,
        looks_shared=shared,
        tracks=tuple(sorted(tracks, key=lambda each: each.t_start)),
        events=tuple(sorted(events, key=lambda each: each.t)),
        alerts=tuple(sorted(alerts, key=lambda each: each.t)),
        routes=routes,
        verdicts=tuple(sorted(verdicts, key=lambda each: each.t)),
        total_before=totals[0],
        total_after=totals[1],
    )


def _routes(before: RecordedLog, after: RecordedLog) -> Iterator[str]:
    """Why fewer or more questions are asked, counted by reason."""
    said = [[route.reason for route in _only(log.lines, Route)] for log in (before, after)]
    for reason in dict.fromkeys([*said[0], *said[1]]):
        one, other = (each.count(reason) for each in said)
        if one != other:
            yield f"{reason}: {one} → {other}"


def _first(before: Sequence[LogLine], after: Sequence[LogLine]) -> LogLine | None:
    """The earlier line of the first place at which the logs say different things, ids and track numbers aside."""
    for one, other in zip_longest(_telling(before), _telling(after)):
        if one is None or other is None:
            return one or other
        if _content(one) != _content(other):
            return min(one, other, key=_time)
    return None


def _telling(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    return (line for line in lines if not isinstance(line, LogEnd))


def _content(line: LogLine) -> object:
    """What a line says, without ids, which follow from the settings, and track numbers, which are only names."""
    match line:
        case FrameBoxes():
            return line.camera, line.t, line.looked, sorted((each.label, each.score, each.box) for each in line.objects)
        case Event():
            return line.camera, line.rule, line.kind, line.label, line.t, line.zone, line.line, line.severity
        case Alert():
            span = line.t_start, line.t_end, line.end_reason
            return line.camera, line.rules, line.severity, span, line.labels, line.verdict
        case Route():
            return line.camera, line.t, line.ask, line.priority, line.reason, line.question, line.bytes
        case LogVerdict():
            return line.camera, line.t, line.decision, line.reason, line.engine, line.model, line.step
        case Gap():
            return line.camera, line.t_start, line.t_end
        case HealthEvent():
            return line.camera, line.kind, line.t_start, line.t_end
        case _:
            return line.type, line.camera


def _time(line: LogLine) -> float:
    if isinstance(line, Alert | Gap):
        return line.t_start
    return 0.0 if isinstance(line, StreamHeader) else line.t


def _looks(before: RecordedLog, after: RecordedLog) -> tuple[int, int]:
    """How many looks at the same frame found something else, and how many there are in both."""
    looks = [
        {(line.camera, line.t): _content(line) for line in _only(log.lines, FrameBoxes)} for log in (before, after)
    ]
    both = looks[0].keys() & looks[1].keys()
    return sum(looks[0][each] != looks[1][each] for each in both), len(both)


def _notes(before: RecordedLog, after: RecordedLog) -> Iterator[str]:
    yield from _verdict_notes(before, after)
    for log in (before, after):
        if not log.complete:
            yield f"{log.name} breaks off: its replay was not finished (give the same command again with --resume)"
    if {each.camera for each in before.header.replayed} != {each.camera for each in after.header.replayed}:
        yield "the logs are of different cameras"
    bytes_ = [sum(end.footage_bytes for end in log.ends.values()) for log in (before, after)]
    if before.complete and after.complete and bytes_[0] != bytes_[1]:
        yield f"the footage is not the same: {bytes_[0]} and {bytes_[1]} bytes"


def _verdict_notes(before: RecordedLog, after: RecordedLog) -> Iterator[str]:
    """Who answered, where that is not the cloud itself, and which log nobody answered."""
    by = [log.header.settings.verdicts for log in (before, after)]
    if (by[0] is None) != (by[1] is None):
        yield f"only {(before if by[1] is None else after).name} has verdicts"
    for log, answered_by in zip((before, after), by, strict=True):
        if answered_by is not None and answered_by.source == "stand-in":
            yield f"the verdicts of {log.name} are by {answered_by}: they measure nothing"
    for log in (before, after):
        missing = sum(result.unanswered for result in log.results()) if log.complete else 0
        if missing:
            yield f"{missing} of the questions of {log.name} have no answer"


def _totals(log: RecordedLog, tracks: int) -> Totals:
    routes = _only(log.lines, Route)
    return Totals(
        looks=len(_only(log.lines, FrameBoxes)),
        tracks=tracks,
        events=len(_only(log.lines, Event)),
        alerts=len(_only(log.lines, Alert)),
        questions=sum(route.ask for route in routes),
        sent_bytes=sent_bytes(routes, _only(log.lines, LogVerdict)),
    )


def _only(lines: Sequence[LogLine], kind: type[Kind]) -> list[Kind]:
    return [line for line in lines if isinstance(line, kind)]
