"""`vedette scenario run`: finds, checks and runs scenarios, and reports the results on the terminal, as JSON, JUnit and
HTML.
"""

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
from appliance.lab.conditions.condition_spec import ConditionSet
from appliance.lab.replay.replay_report import format_time
from appliance.lab.scenario import html_report, scenario_loader
from appliance.lab.scenario import scenario_runner as scenario_run
from appliance.lab.scenario.diagnosis import format_estimate
from appliance.lab.scenario.event_metrics import EventFigures, event_figures
from appliance.lab.scenario.html_report import StillsByFrame, cut_stills
from appliance.lab.scenario.junit_report import junit_report
from appliance.lab.scenario.scenario_loader import ScenarioPlan, plans_by_conditions
from appliance.lab.scenario.scenario_result import ScenarioResult, fault_lines
from appliance.lab.scenario.scenario_runner import DetectorCache

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow", "known failing": "yellow"}
_verdict: TypeAdapter[ScenarioResult] = TypeAdapter(ScenarioResult)
_figures: TypeAdapter[EventFigures] = TypeAdapter(EventFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTargets:
    """Where the outcome is written beside the terminal."""

    junit: Path | None = None
    html: Path | None = None
    as_json: bool = False


def scenario_command(
    paths: Sequence[Path],
    pattern: str,
    models: DetectorCache,
    reports: ReportTargets,
    clock: Clock | None = None,
    condition_sets: Sequence[ConditionSet] = (),
) -> int:
    """Run every scenario at `paths`. Returns 0 when none failed, else 1. Raises UsageError before anything is run.

    weathers: run each in these, instead of those that it names itself.
    """
    clock = clock or SystemClock()
    plans = [
        each
        for one in load_scenarios(scenario_loader.find_scenarios(paths, pattern))
        for each in plans_by_conditions(one, condition_sets)
    ]
    for path in (reports.junit, reports.html):
        check_writable(path)
    # The pictures of each scenario are cut as soon as it is judged: its clip is still in the disk's cache.
    verdicts: list[ScenarioResult] = []
    pictures: list[StillsByFrame] = []
    for number, each in enumerate(plans, start=1):
        with progress_status(f"{number}/{len(plans)} {each.name}", quiet=reports.as_json):
            verdicts.append(scenario_run.run_scenario(each, models, clock=clock))
            pictures.append(cut_stills(verdicts[-1], pictures) if reports.html else {})
    _write(verdicts, pictures, reports, clock.now())
    if reports.as_json:
        print(json.dumps(as_json(verdicts)))
    else:
        print_text(verdicts, Console(highlight=False, soft_wrap=True))
    return 1 if any(verdict.status == "failed" for verdict in verdicts) else 0


def load_scenarios(files: Sequence[Path]) -> list[ScenarioPlan]:
    """All files are read first, so that a slip in the last one is not told after an hour."""
    plans, problems, sources = [], [], []
    for file in files:
        try:
            plans.append(scenario_loader.load_scenario(file))
        except ConfigError as error:
            sources.append(error.source)
            problems += [f"{error.source}: {problem}" for problem in error.problems]
    if len(sources) == 1:
        raise ConfigError(sources[0], [problem.removeprefix(f"{sources[0]}: ") for problem in problems])
    if problems:
        raise ConfigError(f"{len(sources)} scenarios", problems)
    return plans


def check_writable(path: Path | None) -> None:
    """Raises UsageError before anything is run, where it can be known."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


def progress_status(what: str, *, quiet: bool) -> Any:
    """A sign of life on a terminal, nothing elsewhere."""
    return nullcontext() if quiet or not sys.stderr.isatty() else Console(stderr=True).status(escape(what))


def _write(
    verdicts: Sequence[ScenarioResult], pictures: Sequence[StillsByFrame], reports: ReportTargets, now: float
) -> None:
    outputs: list[tuple[Path, bytes]] = []
    if reports.junit:
        outputs.append((reports.junit, junit_report(verdicts, now)))
    if reports.html:
        outputs.append(
            (reports.html, html_report.html_report(verdicts, pictures, total_figures(verdicts), now).encode())
        )
    for path, data in outputs:
        write_report(path, data)


def write_report(path: Path, data: bytes) -> None:
    """Raises UsageError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from None


def total_figures(verdicts: Sequence[ScenarioResult]) -> EventFigures:
    """All scenarios that ran, as if they were one."""
    ran = [verdict for verdict in verdicts if verdict.events is not None]
    return event_figures(
        [place for verdict in ran for place in verdict.judgement.required_outcomes],
        [answer for verdict in ran for answer in verdict.judgement.judged_outcomes],
        [hit.delay_s for verdict in ran for hit in verdict.judgement.hits if hit.delay_s is not None],
        alerts=sum(verdict.events.alerts for verdict in ran if verdict.events),
        footage_s=sum(verdict.events.footage_s for verdict in ran if verdict.events),
    )


def as_json(verdicts: Sequence[ScenarioResult]) -> dict[str, Any]:
    """Every field of each verdict under its own name, and the sums."""
    whole = total_figures(verdicts)
    return {
        "passed": not any(verdict.status == "failed" for verdict in verdicts),
        "total": {**json.loads(_figures.dump_json(whole)), "alerts_per_hour": whole.alerts_per_hour},
        # By way of dump_json: the end of a window that has none is null, not JavaScript's Infinity.
        "scenarios": [json.loads(_verdict.dump_json(verdict)) for verdict in verdicts],
    }


def print_text(verdicts: Sequence[ScenarioResult], console: Console) -> None:
    """The table, then everything that is wrong, then the sums, where the terminal stops scrolling."""
    console.print(_table(verdicts))
    for verdict in verdicts:
        if verdict.faults or verdict.reason:
            _print_faults(verdict, console)
    console.print()
    for line in summary_lines(verdicts):
        console.print(escape(line))


def _table(verdicts: Sequence[ScenarioResult]) -> Table:
    table = Table()
    for name in ("scenario", "", "came", "missed", "false", "alerts", "delay", "footage"):
        table.add_column(name, justify="left" if name in ("scenario", "") else "right")
    for verdict in verdicts:
        events, judged = verdict.events, verdict.judgement
        figures = ["-"] * 6
        if events is not None:
            figures = [
                f"{sum(judged.required_outcomes)} of {len(judged.required_outcomes)}",
                str(sum(miss.missing for miss in judged.misses)),
                str(len(judged.false_alarms)),
                str(events.alerts),
                "-" if events.delay_s.value is None else f"{events.delay_s.value:.1f} s",
                format_time(events.footage_s),
            ]
        table.add_row(escape(verdict.name), f"[{_COLOURS[verdict.status]}]{verdict.status}[/]", *figures)
    return table


def _print_faults(verdict: ScenarioResult, console: Console) -> None:
    console.print(f"\n[{_COLOURS[verdict.status]}]{escape(verdict.name)}[/] ({escape(str(verdict.file))})")
    if verdict.reason:
        console.print(f"  {escape(verdict.reason)}")
    for fault in verdict.faults:
        for line in fault_lines(fault):
            console.print(f"  {escape(line)}")


def summary_lines(verdicts: Sequence[ScenarioResult]) -> list[str]:
    """How many passed, the events' figures with their intervals, the alerts, and the model; plain text."""
    whole = total_figures(verdicts)
    counts = [(sum(verdict.status == status for verdict in verdicts), status) for status in _COLOURS]
    told = [", ".join(f"{count} {status}" for count, status in counts if count)]
    if whole.footage_s:
        unjudged = sum(len(verdict.judgement.unjudged) for verdict in verdicts)
        told.append(
            f"events: recall {format_estimate(whole.recall)} of {whole.recall.of}, "
            f"precision {format_estimate(whole.precision)} of "
            f"{whole.precision.of}, delay {format_estimate(whole.delay_s)} s (median, 95 % intervals)"
            + (f"; {unjudged} that no entry speaks of" if unjudged else "")
        )
        per_hour = whole.alerts_per_hour or 0.0
        told.append(f"{whole.alerts} alerts in {format_time(whole.footage_s)} of footage ({per_hour:.1f} an hour)")
    models = sorted({verdict.model for verdict in verdicts if verdict.model})
    judges = sorted({verdict.judged_by for verdict in verdicts if verdict.judged_by})
    return [*told, *([f"model {', '.join(models)}"] if models else []), *(f"verdicts by {judge}" for judge in judges)]
