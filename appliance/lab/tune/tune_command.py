"""`vedette tune`: sweeps settings over scenarios, chooses the best operating point and reports it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from appliance.base.clock import Clock, SystemClock
from appliance.base.console import CommandProgress
from appliance.base.errors import UsageError
from appliance.lab.scenario.plot_page import aligned_lines
from appliance.lab.scenario.scenario_command import check_writable, load_scenarios, write_report
from appliance.lab.tune.operating_points import OperatingPoint, TuningChoice, choose_point, read_aim
from appliance.lab.tune.sweep_runner import MemoizedDetectors, SweepProgress, run_sweep
from appliance.lab.tune.sweep_settings import Sweep, read_sweep, sweep_grid
from appliance.lab.tune.trade_off_report import choice_sentences, points_table, tune_page
from appliance.scenario.event_metrics import EventFigures
from appliance.scenario.scenario_loader import ScenarioPlan, find_scenarios

_figures: TypeAdapter[EventFigures] = TypeAdapter(EventFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """sweeps and aim as typed on the command line; where the result is written beside the terminal."""

    sweeps: Sequence[str]
    aim: str = "recall>=0.95"
    model: str | None = None
    html: Path | None = None
    as_json: bool = False


def tune_command(
    paths: Sequence[Path],
    pattern: str,
    options: TuneOptions,
    detectors: MemoizedDetectors | None = None,
    clock: Clock | None = None,
) -> int:
    """Return 0 when a point reaches the aim, else 1. Raises UsageError before anything is run; SourceError."""
    clock = clock or SystemClock()
    sweeps, aim = [read_sweep(text) for text in options.sweeps], read_aim(options.aim)
    settings = sweep_grid(sweeps)
    plans = load_scenarios(find_scenarios(paths, pattern))
    check_writable(options.html)
    usable = [each for each in plans if not each.absent]
    if not usable:
        raise UsageError("the footage of none of these scenarios is there")
    with _progress(quiet=options.as_json) as progress:
        points = run_sweep(
            usable,
            sweeps,
            settings,
            detectors or MemoizedDetectors(),
            model=options.model,
            clock=clock,
            progress=progress,
        )
    if not points[0].figures.recall.of:
        raise UsageError("nothing had to be reported in these scenarios, so there is no recall to tune for")
    choice = choose_point(points, aim)
    summary = _summary(usable, points, len(plans) - len(usable))
    if options.html:
        write_report(options.html, tune_page(points, choice, sweeps, summary, clock.now()).encode())
    if options.as_json:
        print(json.dumps(as_json(points, choice, sweeps), allow_nan=False))
    else:
        print("\n".join([*aligned_lines(points_table(points, choice)), "", summary, *choice_sentences(choice, points)]))
    return 0 if choice.reached else 1


def as_json(points: Sequence[OperatingPoint], choice: TuningChoice, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Return the points with their figures, the chosen and the present one, and the sentences."""
    return {
        "aim": choice.aim.text,
        "reached": choice.reached,
        "swept": [sweep.key for sweep in sweeps],
        "chosen": _point(choice.point),
        "present": _point(choice.present),
        "gained": None
        if choice.gained is None
        else {"recall": choice.gained.value, "low": choice.gained.low, "high": choice.gained.high},
        "left_out": None if choice.left_out is None else json.loads(_figures.dump_json(choice.left_out)),
        "points": [_point(point) for point in points],
        "words": choice_sentences(choice, points),
    }


def _point(point: OperatingPoint) -> dict[str, Any]:
    figures = json.loads(_figures.dump_json(point.figures))
    return {
        "setting": dict(point.setting),
        **figures,
        "alerts_per_hour": point.figures.alerts_per_hour,
        "reported": point.reported,
        "false_alarms": point.wrong,
        "bytes": point.bytes,
    }


def _summary(plans: Sequence[ScenarioPlan], points: Sequence[OperatingPoint], absent: int) -> str:
    events, minutes = points[0].figures.recall.of, points[0].figures.footage_s / 60
    text = f"{_count(len(plans), 'scenario')}, {minutes:.1f} min of footage, {_count(events, 'event')} to be reported"
    return text + (f"; left out, as the footage is not there: {_count(absent, 'scenario')}" if absent else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def _progress(*, quiet: bool) -> Iterator[SweepProgress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with CommandProgress(*columns, quiet=quiet) as bar:
        task = bar.add_task("reading", total=None)

        def report_progress(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=escape(what))

        yield report_progress
