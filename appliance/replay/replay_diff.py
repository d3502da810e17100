"""Compares two replay logs: settings, first moment that differs, tracks, events, alerts, escalations and bytes.

`replay_diff_match` pairs the tracks, events, alerts and verdicts of one camera; this module compares the rest and puts
the result together. An examined frame is a `FrameBoxes` line; the stored results call it a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

from pydantic import BaseModel

from appliance.base.clock import iso_utc
from appliance.replay import replay_diff_match
from appliance.replay.replay_diff_match import (
    AlertDifference,
    EventDifference,
    LogDifference,
    LogTotals,
    TrackDifference,
    VerdictDifference,
    match_tracks,
    tracks_of,
)
from appliance.replay.replay_log_writer import CameraSettings, LogHeader, Replayed
from appliance.replay.replay_result import RecordedLog, sent_bytes
from appliance.replay.verdict_source import AnsweredBy
from appliance.types import Alert, Event, FrameBoxes, Gap, HealthEvent, LogEnd, LogLine, LogVerdict, Route, StreamHeader


def setting_changes(before: LogHeader, after: LogHeader) -> tuple[str, ...]:
    """Return the changes from version and footage to zones, rules and escalation settings, one text each."""
    found: list[str] = []
    if before.vedette != after.vedette:
        found.append(f"Vedette {before.vedette} → {after.vedette}")
    found += _footage(before.replayed, after.replayed)
    one, other = before.settings, after.settings
    if one.detector.name != other.detector.name:
        found.append(f"model {one.detector.name} → {other.detector.name}")
    found += [f"detector.{text}" for text in _fields(one.detector, other.detector, skip=frozenset({"name", "labels"}))]
    if one.detector.labels != other.detector.labels and one.detector.name == other.detector.name:
        found.append("the detector's class names")
    found += [f"alerts.{text}" for text in _fields(one.alerts, other.alerts)]
    found += [f"escalation.{text}" for text in _fields(one.escalation, other.escalation)]
    if one.uplink != other.uplink:
        found.append("uplink " + ("added" if other.uplink else "removed"))
    if one.site != other.site:
        found.append(f"site.name {one.site} → {other.site}")
    if one.scheduled != other.scheduled:
        found.append("schedules are " + ("kept" if other.scheduled else "ignored") + " in the second")
    if one.verdicts != other.verdicts:
        found.append(f"verdicts by {_verdicts_by(one.verdicts)} → {_verdicts_by(other.verdicts)}")
    if (one.weather, one.seed) != (other.weather, other.seed):
        found.append(f"weather {one.weather_words or 'clear'} → {other.weather_words or 'clear'}")
    if one.decoder != other.decoder:
        found.append(f"decoded by: {one.decoder or 'software'} → {other.decoder or 'software'}")
    if one.stood_before != other.stood_before:
        found.append(
            f"what stood there before: {one.stood_before or 'not known'} → {other.stood_before or 'not known'}"
        )
    for name in [*one.cameras, *(each for each in other.cameras if each not in one.cameras)]:
        found += _camera(name, one.cameras.get(name), other.cameras.get(name))
    return tuple(found)


def _verdicts_by(answered: AnsweredBy | None) -> str:
    if answered is None:
        return "nobody"
    digest = f" ({answered.digest}, {answered.match})" if answered.digest else ""
    return f"{answered}{digest}"


def _footage(before: tuple[Replayed, ...], after: tuple[Replayed, ...]) -> Iterator[str]:
    """Yield changes of the footage. Run ids differ with the model too, so only names and times tell them apart."""
    now = {each.camera: each for each in after}
    for one in before:
        other = now.get(one.camera)
        if other is not None and (changes := tuple(_footage_changes(one, other))):
            yield f"footage of {one.camera}: {', '.join(changes)}"


def _footage_changes(one: Replayed, other: Replayed) -> Iterator[str]:
    if one.clip != other.clip:
        yield f"{one.clip} → {other.clip}"
    if one.files != other.files:
        yield f"files {one.files} → {other.files}"
    for what, t, t_other in (("from", one.t_from, other.t_from), ("to", one.t_to, other.t_to)):
        if t != t_other:
            yield f"{what} {_utc_text(t)} → {_utc_text(t_other)}"


def _utc_text(t: float | None) -> str:
    return "no known time" if t is None else iso_utc(t)


def _camera(name: str, one: CameraSettings | None, other: CameraSettings | None) -> Iterator[str]:
    if one is None or other is None:
        yield f"camera {name} only in the {'second' if one is None else 'first'}"
        return
    for text in _fields(one.detect, other.detect):
        yield f"{name}: detect.{text}"
    yield from _named(name, "zone", one.zones, other.zones)
    if one.ignore != other.ignore:
        yield f"{name}: ignore {_value_text(one.ignore)} → {_value_text(other.ignore)}"
    yield from _named(name, "line", one.lines, other.lines)
    rules = [{rule.name: rule for rule in each.rules} for each in (one, other)]
    yield from _named(name, "rule", *rules)
    if list(rules[0]) != list(rules[1]) and set(rules[0]) == set(rules[1]):
        yield f"{name}: the order of the rules"


def _named(camera: str, what: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[str]:
    for name in [*one, *(each for each in other if each not in one)]:
        if name not in other:
            yield f"{camera}: {what} `{name}` removed"
        elif name not in one:
            yield f"{camera}: {what} `{name}` added"
        elif one[name] != other[name]:
            yield _changed(camera, f"{what} `{name}`", one[name], other[name])


def _changed(camera: str, what: str, one: object, other: object) -> str:
    if isinstance(one, BaseModel) and isinstance(other, BaseModel):
        return f"{camera}: {what}: " + ", ".join(_fields(one, other))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        moved = sum(a != b for a, b in zip(one, other, strict=True))
        return f"{camera}: {what}: {moved} of its {len(one)} points moved"
    return f"{camera}: {what} drawn anew"


def _fields(one: BaseModel, other: BaseModel, skip: frozenset[str] = frozenset()) -> list[str]:
    names = dict.fromkeys([*type(one).model_fields, *type(other).model_fields])
    pairs = [(name, getattr(one, name, None), getattr(other, name, None)) for name in names if name not in skip]
    return [f"{name} {_value_text(a)} → {_value_text(b)}" for name, a, b in pairs if a != b]


def _value_text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, BaseModel):
        return "set" if value.model_fields_set else "default"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


Kind = TypeVar("Kind", bound=LogLine)


def compare_logs(before: RecordedLog, after: RecordedLog) -> LogDifference:
    """Return all differences between two logs. Pure."""
    cameras = list(dict.fromkeys(each.camera for log in (before, after) for each in log.header.replayed))
    tracks: list[TrackDifference] = []
    events: list[EventDifference] = []
    alerts: list[AlertDifference] = []
    verdicts: list[VerdictDifference] = []
    judged = all(log.header.settings.verdicts is not None for log in (before, after))
    counts = [0, 0]
    for camera in cameras:
        one, other = before.of(camera), after.of(camera)
        both = tracks_of(one, camera), tracks_of(other, camera)
        counts = [count + len(found) for count, found in zip(counts, both, strict=True)]
        matched = match_tracks(*both)
        tracks += replay_diff_match.track_differences(matched)
        events += replay_diff_match.event_differences(_only(one, Event), _only(other, Event), matched)
        alerts += replay_diff_match.alert_differences(_only(one, Alert), _only(other, Alert))
        if judged:
            verdicts += replay_diff_match.verdict_differences(_only(one, Alert), _only(other, Alert))
    first = _first(before.lines, after.lines)
    routes = tuple(_routes(before, after))
    totals = _totals(before, counts[0]), _totals(after, counts[1])
    changed, shared = _changed_boxes(before, after)
    return LogDifference(
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
    """Say why fewer or more escalations are sent, counted by reason."""
    reasons = [[route.reason for route in _only(log.lines, Route)] for log in (before, after)]
    for reason in dict.fromkeys([*reasons[0], *reasons[1]]):
        one, other = (each.count(reason) for each in reasons)
        if one != other:
            yield f"{reason}: {one} → {other}"


def _first(before: Sequence[LogLine], after: Sequence[LogLine]) -> LogLine | None:
    """Return the earlier line of the first place at which the logs differ, ids and track numbers aside."""
    for one, other in zip_longest(_comparable(before), _comparable(after)):
        if one is None or other is None:
            return one or other
        if _content(one) != _content(other):
            return min(one, other, key=_time)
    return None


def _comparable(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    return (line for line in lines if not isinstance(line, LogEnd))


def _content(line: LogLine) -> object:
    """Return a line without ids, which follow from the settings, and track numbers, which are only names."""
    match line:
        case FrameBoxes():
            return line.camera, line.t, line.looked, sorted((each.label, each.score, each.box) for each in line.objects)
        case Event():
            return line.camera, line.rule, line.kind, line.label, line.t, line.zone, line.line, line.severity
        case Alert():
            span = line.t_start, line.t_end, line.end_reason
            return line.camera, line.rules, line.severity, span, line.labels, line.verdict
        case Route():
            return line.camera, line.t, line.ask, line.priority, line.reason, line.question, line.cost.bytes
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


def _changed_boxes(before: RecordedLog, after: RecordedLog) -> tuple[int, int]:
    """Count the frames examined in both logs that have other boxes, and all that are examined in both."""
    examined = [
        {(line.camera, line.t): _content(line) for line in _only(log.lines, FrameBoxes)} for log in (before, after)
    ]
    both = examined[0].keys() & examined[1].keys()
    return sum(examined[0][each] != examined[1][each] for each in both), len(both)


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
    """Yield notes on the judge, where that is not the cloud itself, and on a log without verdicts."""
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


def _totals(log: RecordedLog, tracks: int) -> LogTotals:
    routes = _only(log.lines, Route)
    return LogTotals(
        looks=len(_only(log.lines, FrameBoxes)),
        tracks=tracks,
        events=len(_only(log.lines, Event)),
        alerts=len(_only(log.lines, Alert)),
        questions=sum(route.ask for route in routes),
        sent_bytes=sent_bytes(routes, _only(log.lines, LogVerdict)),
    )


def _only(lines: Sequence[LogLine], kind: type[Kind]) -> list[Kind]:
    return [line for line in lines if isinstance(line, kind)]
