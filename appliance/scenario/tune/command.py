"""`vedette tune`: sweep, choose, tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from appliance.clock import Clock, SystemClock
from appliance.errors import UsageError
from appliance.scenario import plan
from appliance.scenario.command import load_all, writable, write_report
from appliance.scenario.curve.command import aligned
from appliance.scenario.measures import EventFigures
from appliance.scenario.plan import Plan
from appliance.scenario.tune import words
from appliance.scenario.tune.choice import Choice, choose, read_aim
from appliance.scenario.tune.measure import Shelf, Told, measure
from appliance.scenario.tune.page import tune_page
from appliance.scenario.tune.point import Point
from appliance.scenario.tune.sweep import Sweep, grid, read

_figures: TypeAdapter[EventFigures] = TypeAdapter(EventFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """sweeps and aim as they were typed; where it is written beside the terminal."""

    sweeps: Sequence[str]
    aim: str = "recall>=0.95"
    model: str | None = None
    html: Path | None = None
    as_json: bool = False


def tune_command(
    paths: Sequence[Path], pattern: str, wishes: Wishes, shelf: Shelf | None = None, clock: Clock | None = None
) -> int:
    """Returns 0 when a point reaches the aim, else 1. Raises UsageError before anything is run; SourceError."""
    clock = clock or SystemClock()
    sweeps, aim = [read(text) for text in wishes.sweeps], read_aim(wishes.aim)
    settings = grid(sweeps)
    plans = load_all(plan.find(paths, pattern))
    writable(wishes.html)
    there = [each for each in plans if not each.absent]
    if not there:
        raise UsageError("the footage of none of these scenarios is there")
    with _progress(quiet=wishes.as_json) as told:
        points = measure(there, sweeps, settings, shelf or Shelf(), model=wishes.model, clock=clock, told=told)
    if not points[0].figures.recall.of:
        raise UsageError("nothing had to be reported in these scenarios, so there is no recall to tune for")
    choice = choose(points, aim)
    lead = _lead(there, points, len(plans) - len(there))
    if wishes.html:
        write_report(wishes.html, tune_page(points, choice, sweeps, lead, clock.now()).encode())
    if wishes.as_json:
        print(json.dumps(as_json(points, choice, sweeps), allow_nan=False))
    else:
        print("\n".join([*aligned(words.table(points, choice)), "", lead, *words.sentences(choice, points)]))
    return 0 if choice.reached else 1


def as_json(points: Sequence[Point], choice: Choice, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """The points with their figures, the chosen and the present one, and the sentences."""
    return {
        "aim": choice.aim.words,
        "reached": choice.reached,
        "swept": [sweep.key for sweep in sweeps],
        "chosen": _point(choice.point),
        "present": _point(choice.present),
        "gained": None
        if choice.gained is None
        else {"recall": choice.gained.value, "low": choice.gained.low, "high": choice.gained.high},
        "left_out": None if choice.left_out is None else json.loads(_figures.dump_json(choice.left_out)),
        "points": [_point(point) for point in points],
        "words": words.sentences(choice, points),
    }


def _point(point: Point) -> dict[str, Any]:
    figures = json.loads(_figures.dump_json(point.figures))
    return {
        "setting": dict(point.setting),
        **figures,
        "alerts_per_hour": point.figures.alerts_per_hour,
        "reported": point.reported,
        "false_alarms": point.wrong,
        "bytes": point.bytes,
    }


def _lead(plans: Sequence[Plan], points: Sequence[Point], absent: int) -> str:
    events, minutes = points[0].figures.recall.of, points[0].figures.footage_s / 60
    told = f"{_count(len(plans), 'scenario')}, {minutes:.1f} min of footage, {_count(events, 'event')} to be reported"
    return told + (f"; left out, as the footage is not there: {_count(absent, 'scenario')}" if absent else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Told]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    off = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=off) as bar:
        task = bar.add_task("reading", total=None)

        def told(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=escape(what))

        yield told
