"""`vedette scenario curve`: replay scenarios once, hold the router against the baselines, tell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.clock import Clock, SystemClock
from appliance.errors import UsageError
from appliance.scenario import plan, plot_page
from appliance.scenario.command import load_all, waiting, writable, write_report
from appliance.scenario.curve import words
from appliance.scenario.curve.footage import Footage, footage_of, has_truth
from appliance.scenario.curve.measure import report
from appliance.scenario.curve.page import curve_page
from appliance.scenario.curve.report import Report
from appliance.scenario.matrix import in_each_weather
from appliance.scenario.plan import Plan
from appliance.scenario.run import Models

_report: TypeAdapter[Report] = TypeAdapter(Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How it is measured, and where it is written beside the terminal."""

    seeds: int = 200
    stand_in_error: float = 0.05
    html: Path | None = None
    as_json: bool = False


def curve_command(
    paths: Sequence[Path], pattern: str, models: Models, wishes: Wishes, clock: Clock | None = None
) -> int:
    """Measure all scenarios at `paths` that hold a truth. Returns 0. Raises UsageError when nothing can be measured,
    SourceError when a clip cannot be read."""
    clock = clock or SystemClock()
    plans = [each for one in load_all(plan.find(paths, pattern)) for each in in_each_weather(one)]
    writable(wishes.html)
    films: list[Footage] = []
    skipped = []
    for number, each in enumerate(plans, start=1):
        reason = _useless(each)
        if reason:
            skipped.append(f"left out: {each.name}, {reason}")
            continue
        with waiting(f"{number}/{len(plans)} {each.name}", quiet=wishes.as_json):
            films += footage_of(each, models, clock)
    if not any(film.labels.alerts for film in films):
        raise UsageError("; ".join(["no scenario here says when something truly happens", *skipped]))
    measured = replace(report(films, seeds=wishes.seeds, stand_in_error=wishes.stand_in_error), skipped=tuple(skipped))
    if wishes.html:
        write_report(wishes.html, curve_page(measured, clock.now()).encode())
    if wishes.as_json:
        print(json.dumps(as_json(measured), allow_nan=False))
    else:
        print_text(measured)
    return 0


def _useless(each: Plan) -> str:
    if each.absent:
        return f"the footage is not there: {', '.join(path.name for path in each.absent)}"
    return "" if has_truth(each) else "it does not say what truly happens in it"


def as_json(measured: Report) -> dict[str, Any]:
    """Every field under its own name."""
    return {"bar_met": measured.bar_met, **_report.dump_python(measured, mode="json")}


def print_text(measured: Report) -> None:
    """What was measured, the tables, and who is ahead where, at the end where the terminal stops scrolling."""
    for table in (words.films_table(measured), words.sent_table(measured), words.seen_table(measured)):
        print("\n".join(aligned(table)), end="\n\n")
    lines = (f"verdicts: {measured.verdicts}", *words.notes(measured), "")
    compared = (words.dominance(measured, each) for each in measured.comparisons)
    for line in (*lines, *compared, words.verdict(measured)):
        print(line)


def aligned(table: plot_page.Table) -> list[str]:
    """A table as lines that can be read in a file as well: no box, no wrapping."""
    cells = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.head))]
    lines = []
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
