"""`vedette scenario run`: find, check, run, and tell the outcome on the terminal, as JSON, JUnit and HTML."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.clock import Clock, SystemClock
from appliance.errors import ConfigError, UsageError
from appliance.replay.report import clock_time
from appliance.scenario import html, plan
from appliance.scenario import run as scenario_run
from appliance.scenario.faults import said
from appliance.scenario.junit import junit
from appliance.scenario.matrix import in_each_weather
from appliance.scenario.measures import EventFigures, event_figures
from appliance.scenario.moments import Stills, stills
from appliance.scenario.plan import Plan
from appliance.scenario.run import Models
from appliance.scenario.verdict import Verdict, lines
from appliance.weather.weather import Weather

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow", "known failing": "yellow"}
_verdict: TypeAdapter[Verdict] = TypeAdapter(Verdict)
_figures: TypeAdapter[EventFigures] = TypeAdapter(EventFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Where the outcome is written beside the terminal."""

    junit: Path | None = None
    html: Path | None = None
    as_json: bool = False


def scenario_command(
    paths: Sequence[Path],
    pattern: str,
    models: Models,
    reports: Reports,
    clock: Clock | None = None,
    weathers: Sequence[Weather] = (),
) -> int:
    """Run every scenario at `paths`. Returns 0 when none failed, else 1. Raises UsageError before anything is run.

    weathers: run each in these, instead of those that it names itself.
    """
    clock = clock or SystemClock()
    plans = [each for one in load_all(plan.find(paths, pattern)) for each in in_each_weather(one, weathers)]
    for path in (reports.junit, reports.html):
        writable(path)
    # The pictures of each scenario are cut as soon as it is judged: its clip is still in the disk's cache.
    verdicts: list[Verdict] = []
    pictures: list[Stills] = []
    for number, each in enumerate(plans, start=1):
        with waiting(f"{number}/{len(plans)} {each.name}", quiet=reports.as_json):
            verdicts.append(scenario_run.run(each, models, clock=clock))
            pictures.append(stills(verdicts[-1], pictures) if reports.html else {})
    _write(verdicts, pictures, reports, clock.now())
    if reports.as_json:
        print(json.dumps(as_json(verdicts)))
    else:
        print_text(verdicts, Console(highlight=False, soft_wrap=True))
    return 1 if any(verdict.status == "failed" for verdict in verdicts) else 0


def load_all(files: Sequence[Path]) -> list[Plan]:
    """All files are read first, so that a slip in the last one is not told after an hour."""
    plans, problems, sources = [], [], []
    for file in files:
        try:
            plans.append(plan.load(file))
        except ConfigError as error:
            sources.append(error.source)
            problems += [f"{error.source}: {problem}" for problem in error.problems]
    if len(sources) == 1:
        raise ConfigError(sources[0], [problem.removeprefix(f"{sources[0]}: ") for problem in problems])
    if problems:
        raise ConfigError(f"{len(sources)} scenarios", problems)
    return plans


def writable(path: Path | None) -> None:
    """Raises UsageError before anything is run, where it can be known."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


def waiting(what: str, *, quiet: bool) -> Any:
    """A sign of life on a terminal, nothing elsewhere."""
    return nullcontext() if quiet or not sys.stderr.isatty() else Console(stderr=True).status(escape(what))


def _write(verdicts: Sequence[Verdict], pictures: Sequence[Stills], reports: Reports, now: float) -> None:
    outputs: list[tuple[Path, bytes]] = []
    if reports.junit:
        outputs.append((reports.junit, junit(verdicts, now)))
    if reports.html:
        outputs.append((reports.html, html.page(verdicts, pictures, total(verdicts), now).encode()))
    for path, data in outputs:
        write_report(path, data)


def write_report(path: Path, data: bytes) -> None:
    """Raises UsageError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from None


def total(verdicts: Sequence[Verdict]) -> EventFigures:
    """All scenarios that ran, as if they were one."""
    ran = [verdict for verdict in verdicts if verdict.events is not None]
    return event_figures(
        [place for verdict in ran for place in verdict.judgement.places],
        [answer for verdict in ran for answer in verdict.judgement.answers],
        [hit.delay_s for verdict in ran for hit in verdict.judgement.hits if hit.delay_s is not None],
        alerts=sum(verdict.events.alerts for verdict in ran if verdict.events),
        footage_s=sum(verdict.events.footage_s for verdict in ran if verdict.events),
    )


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Every field of each verdict under its own name, and the sums."""
    whole = total(verdicts)
    return {
        "passed": not any(verdict.status == "failed" for verdict in verdicts),
        "total": {**json.loads(_figures.dump_json(whole)), "alerts_per_hour": whole.alerts_per_hour},
        # By way of dump_json: the end of a window that has none is null, not JavaScript's Infinity.
        "scenarios": [json.loads(_verdict.dump_json(verdict)) for verdict in verdicts],
    }


def print_text(verdicts: Sequence[Verdict], console: Console) -> None:
    """The table, then everything that is wrong, then the sums, where the terminal stops scrolling."""
    console.print(_table(verdicts))
    for verdict in verdicts:
        if verdict.faults or verdict.reason:
            _print_faults(verdict, console)
    console.print()
    for line in sums(verdicts):
        console.print(escape(line))


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table()
    for name in ("scenario", "", "came", "missed", "false", "alerts", "delay", "footage"):
        table.add_column(name, justify="left" if name in ("scenario", "") else "right")
    for verdict in verdicts:
        events, judged = verdict.events, verdict.judgement
        figures = ["-"] * 6
        if events is not None:
            figures = [
                f"{sum(judged.places)} of {len(judged.places)}",
                str(sum(miss.missing for miss in judged.misses)),
                str(len(judged.false_alarms)),
                str(events.alerts),
                "-" if events.delay_s.value is None else f"{events.delay_s.value:.1f} s",
                clock_time(events.footage_s),
            ]
        table.add_row(escape(verdict.name), f"[{_COLOURS[verdict.status]}]{verdict.status}[/]", *figures)
    return table


def _print_faults(verdict: Verdict, console: Console) -> None:
    console.print(f"\n[{_COLOURS[verdict.status]}]{escape(verdict.name)}[/] ({escape(str(verdict.file))})")
    if verdict.reason:
        console.print(f"  {escape(verdict.reason)}")
    for fault in verdict.faults:
        for line in lines(fault):
            console.print(f"  {escape(line)}")


def sums(verdicts: Sequence[Verdict]) -> list[str]:
    """How many passed, the events' figures with their intervals, the alerts, and the model; plain text."""
    whole = total(verdicts)
    counts = [(sum(verdict.status == status for verdict in verdicts), status) for status in _COLOURS]
    told = [", ".join(f"{count} {status}" for count, status in counts if count)]
    if whole.footage_s:
        unjudged = sum(len(verdict.judgement.unjudged) for verdict in verdicts)
        told.append(
            f"events: recall {said(whole.recall)} of {whole.recall.of}, precision {said(whole.precision)} of "
            f"{whole.precision.of}, delay {said(whole.delay_s)} s (median, 95 % intervals)"
            + (f"; {unjudged} that no entry speaks of" if unjudged else "")
        )
        per_hour = whole.alerts_per_hour or 0.0
        told.append(f"{whole.alerts} alerts in {clock_time(whole.footage_s)} of footage ({per_hour:.1f} an hour)")
    models = sorted({verdict.model for verdict in verdicts if verdict.model})
    judges = sorted({verdict.judged_by for verdict in verdicts if verdict.judged_by})
    return [*told, *([f"model {', '.join(models)}"] if models else []), *(f"verdicts by {judge}" for judge in judges)]
