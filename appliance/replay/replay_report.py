"""A replay's result as text for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.base.json_lines import flat
from appliance.replay.replay_result import ReplayResult
from appliance.replay.verdict_source import BY_NEARNESS
from appliance.types import BestView, Decision, Event, Gap, HealthEvent, LogVerdict


def verdict_texts(result: ReplayResult) -> Iterator[str]:
    """Return one sentence each; none without a source of verdicts."""
    asked = sum(route.ask for route in result.routes)
    if not result.answered_by or not asked:
        return
    yield f"verdicts by {result.answered_by}: {count_decisions(result.verdicts) or 'none'}"
    nearest = sum(verdict.match == "nearest" for verdict in result.verdicts)
    if nearest:
        yield f"{nearest} of them found by nearness (same camera, rule and label within 0.5 s), not by what was asked"


def missing_verdicts_text(result: ReplayResult) -> str:
    """Return advice on escalations without a verdict; "" when there are none."""
    if not result.unanswered:
        return ""
    asked = sum(route.ask for route in result.routes)
    has = "question has" if asked == 1 else "questions have"
    if not result.answered_by.startswith("a cassette"):
        return f"{result.unanswered} of {asked} {has} no answer: no verdict came in time; the same command asks again"
    if result.answered_by.endswith(BY_NEARNESS):
        return (
            f"{result.unanswered} of {asked} {has} no answer on this cassette: what is copied from a store answers the "
            "recording of the same minutes (--camera NAME --from TIME --to TIME); for a clip or another time, record "
            "with vedette replay … --record-verdicts CASSETTE --cloud nats://…"
        )
    return (
        f"{result.unanswered} of {asked} {has} no answer on this cassette: record again with vedette replay … "
        "--record-verdicts CASSETTE --cloud nats://… (what is on it is not asked again), or try --match nearest"
    )


def count_decisions(verdicts: tuple[LogVerdict, ...]) -> str:
    """Write `5 confirmed, 3 rejected`."""
    counts = Counter(verdict.decision for verdict in verdicts)
    return ", ".join(f"{counts[name]} {name}" for name in get_args(Decision) if counts[name])


_COLOURS = {"alert": "red", "warning": "yellow", "info": "cyan"}
_ROWS_MAX = 200  # of one camera on a terminal; the log has all
_json: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def as_json(result: ReplayResult) -> dict[str, Any]:
    """Return the result as one flat object for `json.dumps`, alerts and events as in the log. Its keys are public."""
    end, cost = result.end, result.cost
    reported = {
        "clip": result.clip, "camera": end.camera, "model": result.model, "run": end.run, "size": result.size,
        "frames": end.frames, "examined": end.examined, "unlooked": end.unlooked, "boxes": result.boxes,
        "tracks": result.tracks, "events": result.events,
        "suppressed": [each for each in result.events if each.id in end.suppressed], "alerts": result.alerts,
        "footage_s": end.t, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "decode_errors": end.decode_errors,
        "time_jumps": end.time_jumps, "error": end.error, "routes": list(map(flat, result.routes)),
        "gaps": result.gaps, "sent_bytes": result.sent_bytes, "footage_bytes": end.footage_bytes,
        "behind_s": cost.behind_s, "remembered": cost.remembered, "answered_by": result.answered_by,
        "verdicts": result.verdicts, "unanswered": result.unanswered, "weather": result.weather,
        "health": result.health, "skipped": end.skipped,
    }  # fmt: skip
    found: dict[str, Any] = _json.dump_python(reported, mode="json")
    return found


def print_text(result: ReplayResult, console: Console) -> None:
    """Print the result for a person: the footage first, the most important last, where the terminal stops scrolling."""
    console.print(_headline(result))
    if result.events:
        console.print(_events(result.events))
    if result.alerts:
        console.print(_alerts(result))
    for line in _summary(result):
        console.print(line)


def print_total(results: Sequence[ReplayResult], console: Console) -> None:
    """Print one row for each replay, where there are several."""
    if len(results) < 2:
        return
    table = Table(title=_title("Runs", len(results)), title_justify="left")
    for name in ("footage", "camera", "length", "tracks", "events", "alerts", "questions", "to send"):
        table.add_column(name, justify="left" if name in ("footage", "camera") else "right")
    for each in results[:_ROWS_MAX]:
        counts = (each.tracks, len(each.events), len(each.alerts), sum(route.ask for route in each.routes))
        table.add_row(
            escape(each.clip),
            each.end.camera,
            format_time(each.end.t),
            *map(str, counts),
            format_bytes(each.sent_bytes),
        )
    console.print(table)


def format_bytes(bytes_: float) -> str:
    """Write `123456` as `123.5 kB`."""
    if abs(bytes_) < 1000:
        return f"{bytes_:.0f} B"
    return f"{bytes_ / 1000:.1f} kB" if abs(bytes_) < 1e6 else f"{bytes_ / 1e6:.1f} MB"


def format_count(number: int, one: str, many: str = "") -> str:
    """Write `1 frame`, `2 frames`; many: the plural, if it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def format_time(seconds: float) -> str:
    """Write `75.3` as `1:15.3`: where to seek in a player."""
    tenths = round(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    tail = f"{rest // 10:02d}.{rest % 10}"
    return f"{hours}:{minutes:02d}:{tail}" if hours else f"{minutes}:{tail}"


def _events(events: tuple[Event, ...]) -> Table:
    table = Table(title=_title("Events", len(events)), title_justify="left")
    for name in ("time", "rule", "what", "where", "object", "score"):
        table.add_column(name, justify="right" if name in ("time", "score") else "left")
    for event in events[:_ROWS_MAX]:
        table.add_row(
            format_time(event.t),
            escape(event.rule),
            event.kind,
            escape(event.zone or event.line),
            escape(f"{event.label} {event.track}"),
            f"{event.score:.2f}",
        )
    return table


def _alerts(result: ReplayResult) -> Table:
    alerts, judged = result.alerts, bool(result.answered_by)
    by = escape(f", verdicts by {result.answered_by}") if judged else ""
    table = Table(title=_title("Alerts", len(alerts)) + by, title_justify="left")
    for name in ("from", "to", "severity", "rules", "objects", "best seen", "ended", *(["verdict"] if judged else [])):
        width = len("confirmed") if name == "verdict" else None
        table.add_column(name, justify="right" if name in ("from", "to") else "left", min_width=width)
    for alert in alerts[:_ROWS_MAX]:
        table.add_row(
            format_time(alert.t_start),
            format_time(alert.t_start if alert.t_end is None else alert.t_end),
            f"[{_COLOURS[alert.severity]}]{alert.severity}[/]",
            escape(", ".join(alert.rules)),
            escape(f"{', '.join(alert.labels)} ({len(alert.tracks)})"),
            _best(alert.best),
            escape(alert.end_reason),
            *([alert.verdict or "-"] if judged else []),
        )
    return table


def _best(best: BestView | None) -> str:
    return "" if best is None else escape(f"{format_time(best.t)}, {best.label} {best.track}, {best.score:.2f}")


def _title(what: str, count: int) -> str:
    return f"{what} ({count})" if count <= _ROWS_MAX else f"{what} (the first {_ROWS_MAX} of {count}; all in --json)"


def _headline(result: ReplayResult) -> str:
    made = f", under {result.weather}" if result.weather else ""
    size = f"{result.size[0]}x{result.size[1]}"
    return escape(f"{result.clip} as camera {result.end.camera}, {size}, model {result.model}{made}")


def _summary(result: ReplayResult) -> list[str]:
    end, cost = result.end, result.cost
    speed = f", {end.t / cost.wall_s:.1f} times real time" if cost.wall_s > 0 else ""
    passed = f" ({end.skipped} not decoded)" if end.skipped else ""
    held = f", {len(end.suppressed)} of the events held back by a cooldown" if end.suppressed else ""
    lines = [
        f"{format_count(end.frames, 'frame')}{passed}, {end.examined} examined, "
        f"{format_count(result.boxes, 'box', 'boxes')}, {format_count(result.tracks, 'track')}, "
        f"{format_count(len(result.events), 'event')}, {format_count(len(result.alerts), 'alert')}{held}",
        f"{format_time(end.t)} of footage in {cost.wall_s:.1f} s ({cost.cpu_s:.1f} CPU s{speed})",
    ]
    lines += _escalations(result)
    if cost.remembered:
        lines.append(f"{format_count(cost.remembered, 'look')} remembered from the replay that was killed")
    if cost.behind_s > 1:
        lines.append(f"[yellow]this machine could not keep up: {cost.behind_s:.1f} s behind at its worst[/]")
    lines += [_gap(gap) for gap in result.gaps[:_ROWS_MAX]]
    lines += [_fault(event) for event in result.health[:_ROWS_MAX]]
    if end.unlooked:
        lines.append(f"[yellow]the detector did not answer for {end.unlooked} of the examined frames[/]")
    if end.decode_errors:
        lines.append(f"[yellow]{format_count(end.decode_errors, 'damaged packet')} skipped[/]")
    if end.time_jumps:
        lines.append(f"[yellow]the clip's time stamps jumped in {format_count(end.time_jumps, 'place')}[/]")
    if end.error:
        lines.append(f"[red]{escape(end.error)}[/]")
    return lines


def _escalations(result: ReplayResult) -> list[str]:
    """Return the router's decisions as lines: escalations and their bytes, or why there were none."""
    asked = [route for route in result.routes if route.ask]
    reasons = list(dict.fromkeys(route.reason for route in result.routes if not route.ask))
    lines = []
    if asked:
        images = sum(route.cost.pictures for route in asked)
        guessed = sum(route.cost.pictures_guessed for route in asked)
        footage = result.end.footage_bytes
        share = f", {result.sent_bytes / footage:.2%} of the footage" if footage else ""
        sure = f" ({guessed} of the pictures guessed)" if guessed else ""
        lines.append(
            f"{format_count(len(asked), 'question')} to the cloud with {format_count(images, 'picture')}: "
            f"{format_bytes(result.sent_bytes)}{share}{sure}"
        )
    if reasons:
        lines.append(escape(f"not asked: {'; '.join(reasons)}"))
    lines += map(escape, verdict_texts(result))
    missing = missing_verdicts_text(result)
    return [*lines, *([f"[yellow]{escape(missing)}[/]"] if missing else [])]


def _fault(event: HealthEvent) -> str:
    end = "the end" if event.t_end is None else format_time(event.t_end)
    return f"[yellow]{event.kind} {format_time(event.t_start)} to {end}: {escape(event.reason)}[/]"


def _gap(gap: Gap) -> str:
    end = "…" if gap.t_end is None else format_time(gap.t_end)
    return f"[yellow]gap {format_time(gap.t_start)} to {end}: {escape(gap.reason)}[/]"
