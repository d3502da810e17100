"""Presents the curves: tables and sentences for the terminal, and one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.lab.curve_footage import ReplayedFootage, has_truth, replay_footage
from appliance.lab.curve_measurement import (
    CurveReport,
    measure_curves,
)
from appliance.lab.curve_report import (
    bar_sentence,
    cascade_sentence,
    cascade_table,
    comparison_sentence,
    curve_page,
    footage_table,
    reading_notes,
    seen_table,
    sent_table,
)
from appliance.lab.scenario.plot_page import (
    aligned_lines,
)
from appliance.lab.scenario.scenario_command import check_writable, load_scenarios, progress_status, write_report
from appliance.scenario.scenario_loader import ScenarioPlan, find_scenarios, plans_by_conditions
from appliance.scenario.scenario_runner import DetectorCache

_report_adapter: TypeAdapter[CurveReport] = TypeAdapter(CurveReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveOptions:
    """How the curves are measured, and where they are written beside the terminal."""

    seeds: int = 200
    stand_in_error: float = 0.05
    html: Path | None = None
    as_json: bool = False


def run_command(paths: Sequence[Path], pattern: str, model: str | None, options: CurveOptions) -> int:
    """Run `vedette scenario curve`; see `curve_command`."""
    return curve_command(paths, pattern, DetectorCache(model), options)


def curve_command(paths: Sequence[Path], pattern: str, models: DetectorCache, options: CurveOptions) -> int:
    """Measure all scenarios at `paths` that hold a truth.

    Returns 0. Raises UsageError when nothing can be measured, SourceError when a clip cannot be read.
    """
    clock = SystemClock()
    plans = [each for one in load_scenarios(find_scenarios(paths, pattern)) for each in plans_by_conditions(one)]
    check_writable(options.html)
    footage: list[ReplayedFootage] = []
    skipped = []
    for number, each in enumerate(plans, start=1):
        reason = _reason_to_skip(each)
        if reason:
            skipped.append(f"left out: {each.name}, {reason}")
            continue
        with progress_status(f"{number}/{len(plans)} {each.name}", quiet=options.as_json):
            footage += replay_footage(each, models, clock)
    if not any(each.labels.alerts for each in footage):
        raise UsageError("; ".join(["no scenario here says when something truly happens", *skipped]))
    report = replace(
        measure_curves(footage, seeds=options.seeds, stand_in_error=options.stand_in_error), skipped=tuple(skipped)
    )
    if options.html:
        write_report(options.html, curve_page(report, clock.now()).encode())
    if options.as_json:
        print(json.dumps(as_json(report), allow_nan=False))
    else:
        print_text(report)
    return 0


def _reason_to_skip(each: ScenarioPlan) -> str:
    if each.absent:
        return f"the footage is not there: {', '.join(path.name for path in each.absent)}"
    return "" if has_truth(each) else "it does not say what truly happens in it"


def as_json(report: CurveReport) -> dict[str, Any]:
    """Return every field under its own name."""
    return {
        "bar_met": report.bar_met,
        "goal": report.goal,
        "bar": report.bar,
        **_report_adapter.dump_python(report, mode="json"),
    }


def print_text(report: CurveReport) -> None:
    """Print the tables, the notes, and the comparisons last."""
    for table in (footage_table(report), sent_table(report), seen_table(report)):
        print("\n".join(aligned_lines(table)), end="\n\n")
    lines = (f"verdicts: {report.verdicts}", *reading_notes(report), "")
    compared = (comparison_sentence(report, each) for each in report.comparisons)
    if report.cascade is not None:
        print("\n".join(aligned_lines(cascade_table(report.cascade))), end="\n\n")
    cascade = () if report.cascade is None else (cascade_sentence(report.cascade),)
    for line in (*lines, *compared, *cascade, bar_sentence(report)):
        print(line)
