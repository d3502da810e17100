"""Presents a sweep: its table and sentences, and one HTML page with the trade-off drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.markup import escape

from appliance.base.clock import SystemClock
from appliance.base.console import COUNTED, CommandProgress
from appliance.base.errors import UsageError
from appliance.lab.operating_points import SCENARIOS_MIN, OperatingPoint, TuningChoice, choose_point, read_aim
from appliance.lab.scenario.plot_page import (
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    ReportSection,
    ReportTable,
    aligned_lines,
    plot_page,
)
from appliance.lab.scenario.scenario_command import check_writable, load_scenarios, write_report
from appliance.lab.tune_sweep import MemoizedDetectors, Sweep, SweepProgress, read_sweep, run_sweep, sweep_grid
from appliance.replay.replay_report import format_count
from appliance.scenario.metrics import Estimate, EventFigures
from appliance.scenario.scenario_loader import ScenarioPlan, find_scenarios

_SHARE = PlotAxis("share of events", "%", 0, 100)


def points_table(points: Sequence[OperatingPoint], choice: TuningChoice) -> ReportTable:
    """Return one row per point, the present one first."""
    head = ("setting", "", "recall", "precision", "false", "alerts/h", "delay", "bytes")
    return ReportTable(head, tuple(_points_row(point, choice) for point in points))


def choice_sentences(choice: TuningChoice, points: Sequence[OperatingPoint]) -> list[str]:
    """Return the choice, what it changes, why not the others, and how certain it is."""
    lines = [f"aim: {choice.aim.text}", f"chosen: {choice.point.text}", f"  {_figures_text(choice.point.figures)}"]
    if not choice.reached:
        lines.append(
            f"no point reaches the aim; this is the nearest to a {choice.aim.floor_of} of {choice.aim.floor:g}"
        )
    if choice.point is choice.present:
        lines.append("that is the present setting: nothing to change")
    else:
        lines.append(f"present: {_figures_text(choice.present.figures)}")
        lines.append(_change_sentence(choice))
    more = (
        _plateau_sentence(choice, points),
        _runner_up_sentence(choice, points),
        _confidence_sentence(choice),
        _left_out_sentence(choice),
    )
    lines += [sentence for sentence in more if sentence]
    return lines


def _points_row(point: OperatingPoint, choice: TuningChoice) -> tuple[str, ...]:
    figures = point.figures
    flag = "chosen" if point is choice.point else "present" if point.present else ""
    delay = figures.delay_s.value
    return (
        point.text,
        flag,
        _share_text(figures.recall),
        _share_text(figures.precision),
        str(point.wrong),
        f"{figures.alerts_per_hour or 0:.0f}",
        "-" if delay is None else f"{delay:.1f} s",
        str(point.bytes) if point.bytes else "-",
    )


def _figures_text(figures: EventFigures) -> str:
    return (
        f"recall {_share_text(figures.recall)} of {figures.recall.of}, precision {_share_text(figures.precision)} of "
        f"{figures.precision.of}, {figures.alerts_per_hour or 0:.0f} alerts an hour"
    )


def _change_sentence(choice: TuningChoice) -> str:
    events = choice.point.reported - choice.present.reported
    wrong = choice.point.wrong - choice.present.wrong
    parts = [_more_or_fewer(events, "event that had to be reported", "events that had to be reported")]
    parts.append(_more_or_fewer(wrong, "false alarm", "false alarms"))
    return f"against the present: {', '.join(parts)}"


def _more_or_fewer(count: int, one: str, several: str) -> str:
    if count == 0:
        return f"as many {several}"
    return f"{abs(count)} {one if abs(count) == 1 else several} {'more' if count > 0 else 'fewer'}"


def _plateau_sentence(choice: TuningChoice, points: Sequence[OperatingPoint]) -> str:
    """Say which points do just the same: a choice in the middle of many is a safe one."""
    same = [point.text for point in points if point is not choice.point and point.outcomes == choice.point.outcomes]
    return f"just the same comes of: {'; '.join(same)}" if same else "no other setting tried does just the same"


def _runner_up_sentence(choice: TuningChoice, points: Sequence[OperatingPoint]) -> str:
    """Return a sentence on the point that would be better without the floor: the cost of the aim."""
    if choice.aim.floor_of == "f1" or not choice.reached:
        return ""
    other = "precision" if choice.aim.floor_of == "recall" else "recall"

    def value(point: OperatingPoint) -> float:
        return getattr(point.figures, other).value or 0.0

    below = [point for point in points if not choice.aim.reached(point.figures) and value(point) > value(choice.point)]
    if not below:
        return ""
    best = max(below, key=lambda point: choice.aim.rank(point.figures))
    return (
        f"not {best.text}: its {other} of {value(best):.3f} is better, but its {choice.aim.floor_of} is "
        f"{getattr(best.figures, choice.aim.floor_of).value or 0.0:.3f}"
    )


def _confidence_sentence(choice: TuningChoice) -> str:
    if choice.point is choice.present:
        return ""
    gained = choice.gained
    if gained is None:
        return "the two looked at other frames, so their events cannot be paired"
    text = f"recall differs by {gained.value:+.3f} ({gained.low:+.3f} to {gained.high:+.3f}, 95 %, same events)"
    return text if gained.clear else f"{text}: so little footage cannot tell whether it is the better or the worse one"


def _left_out_sentence(choice: TuningChoice) -> str:
    if choice.left_out is None:
        more = f"{SCENARIOS_MIN} scenarios or more tell how much"
        return f"chosen and measured on the same footage: expect less of other footage ({more})"
    recall, precision = choice.left_out.recall, choice.left_out.precision
    return (
        f"chosen without the clip that it is measured on, each clip in turn: recall {_share_text(recall)}, "
        f"precision {_share_text(precision)}; that is what other footage may give"
    )


def _share_text(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    ends = "" if estimate.low is None or estimate.high is None else f" ({estimate.low:.3f}-{estimate.high:.3f})"
    return f"{estimate.value:.3f}{ends}"


def tune_page(
    points: Sequence[OperatingPoint], choice: TuningChoice, sweeps: Sequence[Sweep], lead: str, now: float
) -> str:
    """Return the whole file. now: UTC seconds."""
    lines = tuple(choice_sentences(choice, points))
    sections = [
        ReportSection("The trade-off", lines, plot=_trade_off(points, choice), table=points_table(points, choice)),
    ]
    if len(sweeps) == 1 and all(isinstance(value, float) for value in sweeps[0].values):
        sections.append(ReportSection(f"Along {sweeps[0].key}", plot=_along(points, choice, sweeps[0])))
    return plot_page(f"Tuned: {', '.join(sweep.key for sweep in sweeps)}", lead, tuple(sections), now)


def _trade_off(points: Sequence[OperatingPoint], choice: TuningChoice) -> Plot:
    """Recall against precision, the dots in the order of the sweep."""
    places = sorted({_place(point) for point in points if not point.present})
    present = _place(choice.present)
    low = max(0.0, min(min(both) for both in [*places, present]) - 10)
    chosen = _place(choice.point)
    bars: tuple[tuple[str, float, str], ...] = ()
    if choice.aim.floor_of != "f1" and 100 * choice.aim.floor >= low:
        across = "x" if choice.aim.floor_of == "recall" else "y"
        bars = ((across, 100 * choice.aim.floor, f"aim: {choice.aim.floor:g}"),)
    return Plot(
        "Precision against recall at every setting",
        PlotAxis("recall", "%", low, 100),
        PlotAxis("precision", "%", low, 100),
        (
            PlotSeries("settings tried", places, dots=True, strong=True),
            PlotSeries("present", [present], dots=True),
        ),
        mark=PlotMark(*chosen, f"chosen: {choice.point.text}"),
        bars=bars,
    )


def _along(points: Sequence[OperatingPoint], choice: TuningChoice, sweep: Sweep) -> Plot:
    """Draw both figures with their intervals at each value."""
    tried = sorted((float(point.setting[0][1]), point) for point in points if point.setting)
    values = [value for value, _ in tried]
    spare = (values[-1] - values[0]) / 20 or 0.05
    recalls = [(value, point.figures.recall) for value, point in tried]
    precisions = [(value, point.figures.precision) for value, point in tried]
    mark = None
    if choice.point.setting:
        mark = PlotMark(float(choice.point.setting[0][1]), 100 * (choice.point.figures.recall.value or 0.0), "chosen")
    return Plot(
        f"Recall and precision along {sweep.key}",
        PlotAxis(sweep.key, "", max(0.0, values[0] - spare), values[-1] + spare),
        _SHARE,
        (_with_band("recall", recalls), _with_band("precision", precisions)),
        mark=mark,
        note="Bands: 95 % intervals.",
    )


def _with_band(name: str, estimates: Sequence[tuple[float, Estimate]]) -> PlotSeries:
    known = [(value, each) for value, each in estimates if each.value is not None]
    return PlotSeries(
        name,
        [(value, 100 * (each.value or 0.0)) for value, each in known],
        band=[(value, 100 * (each.low or 0.0), 100 * (each.high or 0.0)) for value, each in known],
        dots=True,
        strong=name == "recall",
    )


def _place(point: OperatingPoint) -> tuple[float, float]:
    recall, precision = point.figures.recall.value, point.figures.precision.value
    return 100 * (1.0 if recall is None else recall), 100 * (1.0 if precision is None else precision)


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
) -> int:
    """Return 0 when a point reaches the aim, else 1. Raises UsageError before anything is run; SourceError."""
    clock = SystemClock()
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
    minutes = points[0].figures.footage_s / 60
    scenarios, events = format_count(len(plans), "scenario"), format_count(points[0].figures.recall.of, "event")
    text = f"{scenarios}, {minutes:.1f} min of footage, {events} to be reported"
    return text + (f"; left out, as the footage is not there: {format_count(absent, 'scenario')}" if absent else "")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[SweepProgress]:
    with CommandProgress(*COUNTED, quiet=quiet) as bar:
        task = bar.add_task("reading", total=None)

        def report_progress(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=escape(what))

        yield report_progress
