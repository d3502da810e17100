"""The report in words and cells, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.replay.report import clock_time
from appliance.scenario.curve.ranking import Lead
from appliance.scenario.curve.report import Comparison, Curve, Report
from appliance.scenario.measures import Estimate
from appliance.scenario.plot_page import Table

NAMES = {"random": "random (mean)"}


def percent(share: float) -> str:
    """`0.3 %`, `0.51 %`, `557 %`."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def estimate(figure: Estimate) -> str:
    """`0.93 (0.81-1.00)`"""
    if figure.value is None:
        return "–"
    return f"{figure.value:.2f} ({figure.low or 0:.2f}-{1.0 if figure.high is None else figure.high:.2f})"


def size(count: float) -> str:
    """Bytes with the unit in which people read them."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def sent_table(report: Report) -> Table:
    """Recall at each budget, the least budget with the goal, and what sending all of it comes to."""
    curves = [curve for curve in report.sent.curves if not curve.whole]
    rows = [
        (percent(budget), *(estimate(curve.at[place]) for curve in curves))
        for place, budget in enumerate(report.sent.budgets)
    ]
    rows.append((f"{report.goal:g} from", *(_smallest(curve, percent) for curve in curves)))
    rows.append(("all it has", *(_spent(curve, percent) for curve in curves)))
    head = ("of the camera bytes", *(NAMES.get(curve.name, curve.name) for curve in curves))
    return Table(head, tuple(rows))


def wholes(report: Report) -> str:
    """What sends all or nothing."""
    told = [f"{curve.name}: recall {_spent(curve, percent)}" for curve in report.sent.curves if curve.whole]
    return "; ".join(told)


def _spent(curve: Curve, said: Callable[[float], str]) -> str:
    return f"{curve.reached:.2f} at {said(curve.spent)}"


def _smallest(curve: Curve, said: Callable[[float], str]) -> str:
    figure = curve.smallest
    if figure.value is None:
        return "never"
    if curve.whole:
        return said(figure.value)
    return (
        f"{said(figure.value)} ({said(figure.low or 0.0)} to {'never' if figure.high is None else said(figure.high)})"
    )


def _load(things: float) -> str:
    return f"{things:.0f}" if things >= 10 else f"{things:.1f}"


def seen_table(report: Report) -> Table:
    """What somebody has to look at in an hour of one camera."""
    (every,) = report.seen.budgets
    head = ("to look at per camera-hour", f"recall at {_load(every)}", f"{report.goal:g} from", "all it has")
    rows = [
        (
            NAMES.get(curve.name, curve.name),
            "–" if curve.whole and every < curve.spent else estimate(curve.at[0]),
            _smallest(curve, _load),
            _spent(curve, _load),
        )
        for curve in report.seen.curves
    ]
    return Table(head, tuple(rows))


def films_table(report: Report) -> Table:
    """What each camera contributes."""
    head = ("scenario", "camera", "footage", "bytes", "incidents", "alerts", "of them false", "asked", "bytes asked")
    rows = [
        (
            film.scenario,
            film.camera,
            clock_time(film.seconds),
            size(film.bytes),
            str(film.incidents),
            str(film.alerts),
            str(film.false_alerts),
            str(film.asked),
            size(film.asked_bytes),
        )
        for film in report.films
    ]
    return Table(head, tuple(rows))


def verdict(report: Report) -> str:
    """The bar, met or missed, in one sentence."""
    router = report.sent.curves[0]
    whose = f"{report.goal:g} of {count(report.incidents, 'labelled incident')}"
    smallest = router.smallest.value
    said = f"the router never finds {whose}"
    if smallest is not None:
        said = f"the router finds {whose} from {percent(smallest)} of the camera bytes"
    said += f" (bar: {percent(report.bar)})"
    behind = [each.baseline for each in report.comparisons if each.baseline_ahead]
    if behind:
        said += f", and {' and '.join(behind)} {'are' if behind[1:] else 'is'} ahead of it at some budgets"
    at_bar = router.at[report.sent.budgets.index(report.bar)]
    said += f"; at {percent(report.bar)} it finds {estimate(at_bar)}"
    return f"bar {'met' if report.bar_met else 'missed'}: {said}"


def dominance(report: Report, comparison: Comparison) -> str:
    """Who is ahead where, and at which of the report's budgets that shows."""
    name, ahead = comparison.baseline, comparison.baseline_ahead
    router = f"the router is ahead {_spans(comparison.router_ahead)}" if comparison.router_ahead else "nowhere behind"
    if not ahead:
        return f"{name}: never ahead of the router; {router}"
    shown = [percent(budget) for budget in report.sent.budgets if any(lead.holds(budget) for lead in ahead)]
    where = f"in the table at {', '.join(shown)}" if shown else "at no budget of the table"
    return f"{name}: AHEAD of the router {_spans(ahead)}, {where}; {router}"


def _spans(leads: Sequence[Lead]) -> str:
    """`from 0.3 % to 2.1 % (by up to 0.25)`; of many the three widest are told, and how many more there are."""
    told = sorted(sorted(leads, key=lambda lead: lead.start - lead.end)[:3], key=lambda lead: lead.start)
    words = [f"from {percent(lead.start)} to {percent(lead.end)} (by up to {lead.by:.2f})" for lead in told]
    return ", ".join(words) + (f" and in {len(leads) - 3} shorter spans" if len(leads) > 3 else "")


def notes(report: Report) -> tuple[str, ...]:
    """What one must know to read the figures."""
    told = [
        wholes(report),
        f"{count(report.incidents, 'labelled incident')} of {count(len(report.films), 'camera')} in "
        f"{clock_time(report.camera_seconds)} of footage, {size(report.camera_bytes)}; "
        f"model {', '.join(report.models)}",
        f"95 % intervals: bootstrap over clips and their incidents ({report.resamples} draws); where all incidents "
        f"came out alike, the exact bound for so many. random: mean of {report.seeds} seeds",
    ]
    untimed = sum(film.untimed for film in report.films)
    if untimed:
        told.append(f"{untimed} of the entries of `expect` say no moment and are no labels here")
    if report.missed:
        told.append(f"the router finds at no budget: {'; '.join(report.missed)}")
    if report.raised < report.incidents:
        least = "never" if report.raised_smallest is None else f"from {percent(report.raised_smallest)}"
        told.append(
            f"{report.incidents - report.raised} of the incidents raised no alert at all, which no router can mend; of "
            f"the {report.raised} that did the router finds {report.goal:g} {least}"
        )
    told += [f"the scenarios' verdicts: {each}" for each in report.judged_by]
    return (*told, *report.skipped)
