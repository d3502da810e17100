"""`vedette replay diff`: the difference between two logs, or two folders of logs, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.base.errors import UsageError
from appliance.replay.replay_diff import compare_logs
from appliance.replay.replay_diff_match import (
    AlertDifference,
    EventDifference,
    LogDifference,
    TrackDifference,
    VerdictDifference,
    format_shift,
)
from appliance.replay.replay_report import format_bytes, format_time
from appliance.replay.replay_result import read_log

LINES_MAX = 40  # differences on a terminal; --json has all


def diff_texts(found: LogDifference) -> Iterator[str]:
    """Yield one line each, the sum first."""
    yield headline(found)
    yield from (f"note: {note}" for note in found.notes)
    for change in found.settings:
        yield f"settings: {change}"
    if found.same:
        return
    if found.first_t is not None:
        yield f"first difference at {format_time(found.first_t)} on {found.first_camera}"
    if found.looks_changed:
        yield f"boxes: {found.looks_changed} of the {found.looks_shared} looks in both logs found something else"
    groups = (
        [(each.camera, alert_text(each)) for each in found.alerts],
        [(each.camera, verdict_text(each)) for each in found.verdicts],
        [(each.camera, event_text(each)) for each in found.events],
        [(each.camera, track_text(each)) for each in found.tracks],
    )
    several = len({camera for group in groups for camera, _ in group}) > 1
    for group in groups:
        yield from (f"{camera}: {line}" if several else line for camera, line in group[:LINES_MAX])
        if len(group) > LINES_MAX:
            yield f"… and {len(group) - LINES_MAX} more (all in --json)"
    yield from (f"router: {line}" for line in found.routes)


def headline(found: LogDifference) -> str:
    """Write `1 alert fewer, 2 events more, 30.1 kB less to send`."""
    if found.same:
        return "the same was decided" + (", with other settings" if found.settings else "")
    a, b = found.total_before, found.total_after
    names = ("alert", "event", "track", "question")
    counts = ((a.alerts, b.alerts), (a.events, b.events), (a.tracks, b.tracks), (a.questions, b.questions))
    parts = [_count(other - one, name) for name, (one, other) in zip(names, counts, strict=True) if one != other]
    sent = b.sent_bytes - a.sent_bytes
    if sent:
        more = "more" if sent > 0 else "less"
        parts.append(
            f"{format_bytes(abs(sent))} {more} to send ({format_bytes(a.sent_bytes)} → {format_bytes(b.sent_bytes)})"
        )
    if found.verdicts:
        parts.append(f"{len(found.verdicts)} verdict{'s' if len(found.verdicts) > 1 else ''} changed")
    return ", ".join(parts) or "as many alerts, events and tracks, but not the same"


def alert_text(change: AlertDifference) -> str:
    name = f"alert {', '.join(change.rules)} at {format_time(change.t)}"
    if change.change == "changed":
        return f"{name}: {', '.join(change.what)}"
    return f"{name} is {change.change}"


def verdict_text(change: VerdictDifference) -> str:
    name = f"alert {', '.join(change.rules)} at {format_time(change.t)}"
    if change.before is None or change.after is None:
        there, which = (change.after, "second") if change.before is None else (change.before, "first")
        return f"{name} has a verdict in the {which} log only ({there})"
    return f"the verdict on {name} changed from {change.before} to {change.after}"


def event_text(change: EventDifference) -> str:
    name = f"event {change.rule} ({change.label}) at {format_time(change.t)}"
    return (
        f"{name} comes {format_shift(change.moved_s)}" if change.change == "changed" else f"{name} is {change.change}"
    )


def track_text(change: TrackDifference) -> str:
    name = f"track {change.track} ({change.label})"
    if change.change == "changed":
        return f"{name} {', '.join(_track_parts(change))}"
    x, y = change.near
    text = (
        f"{name} is {change.change}: {change.t_end - change.t_start:.1f} s from {format_time(change.t_start)}, "
        f"near ({x:g}, {y:g})"
    )
    if change.goes_on is None:
        return text
    if change.change == "new":
        return f"{text}; track {change.goes_on} of the first log broke here"
    return f"{text}; it is part of track {change.goes_on} of the second log"


def _track_parts(change: TrackDifference) -> Iterator[str]:
    if change.begin_s:
        yield f"found {format_shift(change.begin_s)} (at {format_time(change.t_start + change.begin_s)})"
    if change.end_s:
        yield f"lost {format_shift(change.end_s)} (at {format_time(change.t_end + change.end_s)})"
    if change.other_label != change.label:
        yield f"is taken for a {change.other_label}"


def _count(more: int, name: str) -> str:
    plural = name if abs(more) == 1 else f"{name}s"
    return f"{abs(more)} {plural} {'more' if more > 0 else 'fewer'}"


_difference: TypeAdapter[LogDifference] = TypeAdapter(LogDifference)


def diff_command(before: Path, after: Path, *, as_json: bool) -> int:
    """Explain what differs. Returns 0: the same was decided, 1: not. Raises UsageError when one is no replay log."""
    if before.is_dir() != after.is_dir():
        raise UsageError("compare two logs, or two folders of logs")
    pairs, lonely = _pairs(before, after) if before.is_dir() else ([(before, after)], [])
    found = [compare_logs(read_log(one), read_log(other)) for one, other in pairs]
    same = all(each.same for each in found) and not lonely
    if as_json:
        print(json.dumps(_json(found, lonely, same, folders=before.is_dir())))
        return 0 if same else 1
    for each in found:
        if before.is_dir():
            print(f"{each.before}:")
        for line in diff_texts(each):
            print(f"  {line}" if before.is_dir() else line)
    for name in lonely:
        print(f"{name}: only in one of the folders")
    return 0 if same else 1


def _pairs(before: Path, after: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Return the logs that both folders have, by name, and the names of those that only one has."""
    names = [{path.name for path in folder.glob("*.jsonl")} for folder in (before, after)]
    if not names[0] | names[1]:
        raise UsageError(f"there is no .jsonl in {before} or {after}")
    both = sorted(names[0] & names[1])
    return [(before / name, after / name) for name in both], sorted(names[0] ^ names[1])


def _json(found: list[LogDifference], lonely: list[str], same: bool, *, folders: bool) -> dict[str, Any]:
    dumped = [_difference.dump_python(each, mode="json") for each in found]
    if not folders:
        one: dict[str, Any] = dumped[0]
        return one
    return {"same": same, "logs": dumped, "only_in_one": lonely}
