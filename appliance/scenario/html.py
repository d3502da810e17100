"""The report of scenarios as one file: no script, no request to anywhere, pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from appliance.clock import iso_utc
from appliance.replay.report import clock_time
from appliance.scenario.expect import Pattern
from appliance.scenario.faults import said
from appliance.scenario.measures import Estimate, EventFigures
from appliance.scenario.moments import Still, Stills
from appliance.scenario.verdict import Fault, Moment, Verdict, Watched
from appliance.types import Box, Event, Point

FOLDER = Path(__file__).parent / "templates"
# As the dashboard draws tracks (static/draw.js): colours that stand out on a picture, which is seldom white.
COLOURS = ("#3fd0b5", "#f0a259", "#8fa8ff", "#e58bcb", "#b9c95a", "#ff8f94")
_HITS_MAX = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """A box drawn into a picture, in the film's pixels."""

    x: float
    y: float
    width: float
    height: float
    tag: str
    colour: str
    meant: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """A still with what is drawn over it. places: (name, points as SVG wants them, whether it is meant)."""

    url: str
    size: tuple[int, int]
    caption: str
    frames: tuple[Frame, ...]
    zones: tuple[tuple[str, str, Point, bool], ...]
    lines: tuple[tuple[str, tuple[float, float, float, float], bool], ...]
    truth: Frame | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on a rule's row; left and width in per cent of the clip."""

    kind: str
    left: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """One rule of one camera over the length of the clip."""

    name: str
    marks: tuple[Mark, ...]


def page(verdicts: Sequence[Verdict], stills: Sequence[Stills], total: EventFigures, now: float) -> str:
    """The whole file. stills: of each verdict, in the same order; now: UTC seconds, for the line that says when."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clock=clock_time, said=said, percent=percent)
    shown = [
        (
            verdict,
            tuple((fault, _pictures(verdict, fault, found)) for fault in verdict.faults),
            tuple((part, _rows(verdict, part)) for part in verdict.watched),
        )
        for verdict, found in zip(verdicts, stills, strict=True)
    ]
    return environment.get_template("report.html").render(
        shown=shown,
        total=total,
        counts={
            status: sum(v.status == status for v in verdicts)
            for status in ("passed", "failed", "skipped", "known failing")
        },
        models=sorted({verdict.model for verdict in verdicts if verdict.model}),
        judges=sorted({verdict.judged_by for verdict in verdicts if verdict.judged_by}),
        unjudged=sum(len(verdict.judgement.unjudged) for verdict in verdicts),
        written=iso_utc(now)[:16].replace("T", " ") + " UTC",
        hits_max=_HITS_MAX,
    )


def percent(figure: Estimate) -> str:
    """`83 %`, or an en dash where nothing was observed."""
    return "–" if figure.value is None else f"{100 * figure.value:.0f} %"


def _pictures(verdict: Verdict, fault: Fault, stills: Stills) -> tuple[Picture, ...]:
    found = []
    for moment in fault.moments:
        still = stills.get((moment.camera, moment.frame))
        part = next((each for each in verdict.watched if each.camera == moment.camera), None)
        if still is not None and part is not None:
            found.append(_picture(part, fault, moment, still))
    return tuple(found)


def _picture(part: Watched, fault: Fault, moment: Moment, still: Still) -> Picture:
    width, height = still.size
    who = f"track {moment.focus}" if moment.focus is not None else "nothing of the kind was followed here"
    return Picture(
        url="data:image/jpeg;base64," + base64.b64encode(still.jpeg).decode(),
        size=still.size,
        caption=f"{clock_time(moment.t)}, frame {moment.frame}: {who}",
        frames=tuple(
            _frame(
                each.box,
                f"{each.label} {each.track}, {each.score:.2f}",
                COLOURS[each.track % len(COLOURS)],
                each.track == moment.focus,
                still,
            )
            for each in moment.objects
        ),
        zones=tuple(
            (name, _points(points, width, height), _corner(points, width, height), name == fault.zone)
            for name, points in part.zones
        ),
        lines=tuple(
            (name, (a[0] * width, a[1] * height, b[0] * width, b[1] * height), name == fault.line)
            for name, (a, b) in part.lines
        ),
        truth=_frame(moment.truth, "truth", "#fff", False, still) if moment.truth else None,
    )


def _frame(box: Box, tag: str, colour: str, meant: bool, still: Still) -> Frame:
    width, height = still.size
    return Frame(
        x=round(box[0] * width, 1),
        y=round(box[1] * height, 1),
        width=round((box[2] - box[0]) * width, 1),
        height=round((box[3] - box[1]) * height, 1),
        tag=tag,
        colour=colour,
        meant=meant,
    )


def _points(points: Sequence[Point], width: int, height: int) -> str:
    return " ".join(f"{x * width:.1f},{y * height:.1f}" for x, y in points)


def _corner(points: Sequence[Point], width: int, height: int) -> Point:
    """Where a zone's name stands: at its highest corner."""
    x, y = min(points, key=lambda point: (point[1], point[0]))
    return x * width, y * height


def _rows(verdict: Verdict, part: Watched) -> tuple[Row, ...]:
    """What was wanted and what came, rule by rule."""
    marks: dict[str, list[Mark]] = {}

    def add(rule: str, mark: Mark) -> None:
        marks.setdefault(rule or "any rule", []).append(mark)

    judged, length = verdict.judgement, max(part.footage_s, 0.1)
    for hit in judged.hits:
        if hit.event.camera == part.camera:
            add(hit.event.rule, _window("came", hit.wanted.pattern, length, "came as it should"))
            add(hit.event.rule, _tick("hit", hit.event, length))
    for miss in judged.misses:
        if miss.wanted.pattern.camera in ("", part.camera):
            add(miss.wanted.pattern.rule, _window("miss", miss.wanted.pattern, length, "missed"))
    for kind, events in (("false", [each.event for each in judged.false_alarms]), ("other", judged.unjudged)):
        for event in events:
            if event.camera == part.camera:
                add(event.rule, _tick(kind, event, length))
    return tuple(Row(name, tuple(sorted(found, key=lambda mark: mark.width == 0))) for name, found in marks.items())


def _window(kind: str, pattern: Pattern, length: float, word: str) -> Mark:
    end = length if pattern.end == inf else min(pattern.end, length)
    left = min(pattern.start, length)
    return Mark(kind, 100 * left / length, max(0.6, 100 * (end - left) / length), f"{word}: {pattern.words()}")


def _tick(kind: str, event: Event, length: float) -> Mark:
    words = {"hit": "came", "false": "false alarm", "other": "not spoken of"}[kind]
    return Mark(kind, 100 * min(event.t, length) / length, 0, f"{words} at {clock_time(event.t)}: {event.label}")
