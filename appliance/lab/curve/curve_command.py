"""`vedette scenario curve`: replays scenarios once, compares the router with the baselines and reports it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.clock import Clock, SystemClock
from appliance.errors import UsageError
from appliance.lab.curve import curve_output
from appliance.lab.curve.curve_footage import ReplayedFootage, has_truth, replay_footage
from appliance.lab.curve.curve_output import curve_page
from appliance.lab.curve.curve_report import CurveReport, measure_curves
from appliance.lab.scenario import plot_page, scenario_loader
from appliance.lab.scenario.scenario_command import check_writable, load_scenarios, progress_status, write_report
from appliance.lab.scenario.scenario_loader import ScenarioPlan, plans_by_conditions
from appliance.lab.scenario.scenario_runner import DetectorCache

_report: TypeAdapter[CurveReport] = TypeAdapter(CurveReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveOptions:
    """How it is measured, and where it is written beside the terminal."""

    seeds: int = 200
    stand_in_error: float = 0.05
    html: Path | None = None
    as_json: bool = False


def curve_command(
    paths: Sequence[Path], pattern: str, models: DetectorCache, options: CurveOptions, clock: Clock | None = None
) -> int:
    """Measure all scenarios at `paths` that hold a truth. Returns 0. Raises UsageError when nothing can be measured,
    SourceError when a clip cannot be read."""
    clock = clock or SystemClock()
    plans = [
        each
        for one in load_scenarios(scenario_loader.find_scenarios(paths, pattern))
        for each in plans_by_conditions(one)
    ]
    check_writable(options.html)
    films: list[ReplayedFootage] = []
    skipped = []
    for number, each in enumerate(plans, start=1):
        reason = _useless(each)
        if reason:
            skipped.append(f"left out: {each.name}, {reason}")
            continue
        with progress_status(f"{number}/{len(plans)} {each.name}", quiet=options.as_json):
            films += replay_footage(each, models, clock)
    if not any(film.labels.alerts for film in films):
        raise UsageError("; ".join(["no scenario here says when something truly happens", *skipped]))
    measured = replace(
        measure_curves(films, seeds=options.seeds, stand_in_error=options.stand_in_error), skipped=tuple(skipped)
    )
    if options.html:
        write_report(options.html, curve_page(measured, clock.now()).encode())
    if options.as_json:
        print(json.dumps(as_json(measured), allow_nan=False))
    else:
        print_text(measured)
    return 0


def _useless(each: ScenarioPlan) -> str:
    if each.absent:
        return f"the footage is not there: {', '.join(path.name for path in each.absent)}"
    return "" if has_truth(each) else "it does not say what truly happens in it"


def as_json(measured: CurveReport) -> dict[str, Any]:
    """Every field under its own name."""
    return {"bar_met": measured.bar_met, **_report.dump_python(measured, mode="json")}


def print_text(measured: CurveReport) -> None:
    """What was measured, the tables, and who is ahead where, at the end where the terminal stops scrolling."""
    for table in (
        curve_output.footage_table(measured),
        curve_output.sent_table(measured),
        curve_output.seen_table(measured),
    ):
        print("\n".join(aligned_lines(table)), end="\n\n")
    lines = (f"verdicts: {measured.verdicts}", *curve_output.reading_notes(measured), "")
    compared = (curve_output.comparison_sentence(measured, each) for each in measured.comparisons)
    for line in (*lines, *compared, curve_output.bar_sentence(measured)):
        print(line)


def aligned_lines(table: plot_page.ReportTable) -> list[str]:
    """A table as lines that can be read in a file as well: no box, no wrapping."""
    cells = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.head))]
    lines = []
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
