"""The difference between two replay logs, in words that a site's owner understands."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.replay.difference import AlertChange, Difference, EventChange, TrackChange, VerdictChange
from appliance.replay.pairing import later
from appliance.replay.report import clock_time, size

LINES_MAX = 40


def words(found: Difference) -> Iterator[str]:
    """One line each, the sum first."""
    yield headline(found)
    yield from (f"note: {note}" for note in found.notes)
    for change in found.settings:
        yield f"settings: {change}"
    if found.same:
        return
    if found.first_t is not None:
        yield f"first difference at {clock_time(found.first_t)} on {found.first_camera}"
    if found.looks_changed:
        yield f"boxes: {found.looks_changed} of the {found.looks_shared} looks in both logs found something else"
    groups = (
        [(each.camera, alert_words(each)) for each in found.alerts],
        [(each.camera, verdict_words(each)) for each in found.verdicts],
        [(each.camera, event_words(each)) for each in found.events],
        [(each.camera, track_words(each)) for each in found.tracks],
    )
    several = len({camera for group in groups for camera, _ in group}) > 1
    for group in groups:
        yield from (f"{camera}: {line}" if several else line for camera, line in group[:LINES_MAX])
        if len(group) > LINES_MAX:
            yield f"… and {len(group) - LINES_MAX} more (all in --json)"
    yield from (f"router: {line}" for line in found.routes)


def headline(found: Difference) -> str:
    """`1 alert fewer, 2 events more, 30.1 kB less to send`."""
    if found.same:
        return "the same was decided" + (", with other settings" if found.settings else "")
    a, b = found.total_before, found.total_after
    names = ("alert", "event", "track", "question")
    counts = ((a.alerts, b.alerts), (a.events, b.events), (a.tracks, b.tracks), (a.questions, b.questions))
    parts = [_count(other - one, name) for name, (one, other) in zip(names, counts, strict=True) if one != other]
    sent = b.sent_bytes - a.sent_bytes
    if sent:
        more = "more" if sent > 0 else "less"
        parts.append(f"{size(abs(sent))} {more} to send ({size(a.sent_bytes)} → {size(b.sent_bytes)})")
    if found.verdicts:
        parts.append(f"{len(found.verdicts)} verdict{'s' if len(found.verdicts) > 1 else ''} changed")
    return ", ".join(parts) or "as many alerts, events and tracks, but not the same"


def alert_words(change: AlertChange) -> str:
    name = f"alert {', '.join(change.rules)} at {clock_time(change.t)}"
    if change.change == "changed":
        return f"{name}: {', '.join(change.what)}"
    return f"{name} is {change.change}"


def verdict_words(change: VerdictChange) -> str:
    name = f"alert {', '.join(change.rules)} at {clock_time(change.t)}"
    if change.before is None or change.after is None:
        there, which = (change.after, "second") if change.before is None else (change.before, "first")
        return f"{name} has a verdict in the {which} log only ({there})"
    return f"the verdict on {name} changed from {change.before} to {change.after}"


def event_words(change: EventChange) -> str:
    name = f"event {change.rule} ({change.label}) at {clock_time(change.t)}"
    return f"{name} comes {later(change.moved_s)}" if change.change == "changed" else f"{name} is {change.change}"


def track_words(change: TrackChange) -> str:
    name = f"track {change.track} ({change.label})"
    if change.change == "changed":
        return f"{name} {', '.join(_track_parts(change))}"
    x, y = change.near
    text = (
        f"{name} is {change.change}: {change.t_end - change.t_start:.1f} s from {clock_time(change.t_start)}, "
        f"near ({x:g}, {y:g})"
    )
    if change.goes_on is None:
        return text
    if change.change == "new":
        return f"{text}; track {change.goes_on} of the first log broke here"
    return f"{text}; it is part of track {change.goes_on} of the second log"


def _track_parts(change: TrackChange) -> Iterator[str]:
    if change.begin_s:
        yield f"found {later(change.begin_s)} (at {clock_time(change.t_start + change.begin_s)})"
    if change.end_s:
        yield f"lost {later(change.end_s)} (at {clock_time(change.t_end + change.end_s)})"
    if change.other_label != change.label:
        yield f"is taken for a {change.other_label}"


def _count(more: int, name: str) -> str:
    plural = name if abs(more) == 1 else f"{name}s"
    return f"{abs(more)} {plural} {'more' if more > 0 else 'fewer'}"
