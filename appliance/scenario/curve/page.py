"""The report as one HTML file: both curves drawn, each over its table."""

from __future__ import annotations

from math import floor, log10

from appliance.scenario.curve import words
from appliance.scenario.curve.report import Curve, Panel, Report
from appliance.scenario.plot import Axis, Mark, Plot, Series
from appliance.scenario.plot_page import Section, page

_RECALL = Axis("recall of labelled incidents", "%", 0, 100)
_BANDED = ("router", "random")


def curve_page(report: Report, now: float) -> str:
    """The whole file. now: UTC seconds."""
    told = tuple(words.dominance(report, each) for each in report.comparisons)
    sections = (
        Section(
            "Recall against bytes", (words.verdict(report), *told), plot=_sent(report), table=words.sent_table(report)
        ),
        Section(
            "What a person has to look at",
            (f"Verdicts here are nobody's: {report.verdicts}.",),
            plot=_seen(report),
            table=words.seen_table(report),
        ),
        Section("Footage", words.notes(report), table=words.films_table(report)),
    )
    lead = (
        f"{words.count(report.incidents, 'labelled incident')}, {words.count(len(report.films), 'camera')}, "
        f"model {', '.join(report.models)}"
    )
    return page("The router against what it is held against", lead, sections, now)


def _sent(report: Report) -> Plot:
    low = _decade_below(report.sent, 0.01)
    series = tuple(_series(each, 100.0, low, 100.0) for each in report.sent.curves if each.spent <= 1 or not each.whole)
    left_out = [each for each in report.sent.curves if each.whole and each.spent > 1]
    note = "Bands: of the router the 95 % interval, of random 95 % of its seeds. "
    note += " ".join(f"{each.name} lies beyond the right edge, at {words.percent(each.spent)}." for each in left_out)
    smallest = report.sent.curves[0].smallest.value
    return Plot(
        "Recall of labelled incidents against the share of the cameras' bytes that is sent",
        Axis("sent, as a share of the cameras' bytes", "%", low, 100.0, log=True),
        _RECALL,
        series,
        mark=None if smallest is None else _mark(report.sent.curves[0], smallest, report.goal),
        bars=(
            ("x", 100 * report.bar, f"bar: {words.percent(report.bar)}"),
            ("y", 100 * report.goal, f"bar: {report.goal:g}"),
        ),
        note=note,
    )


def _mark(router: Curve, smallest: float, goal: float) -> Mark:
    recall = max(recall for share, recall in router.points if share <= smallest)
    return Mark(100 * smallest, 100 * recall, f"the router has {goal:g} from {words.percent(smallest)}")


def _seen(report: Report) -> Plot:
    low = _decade_below(report.seen, 1.0)
    high = max(each.spent for each in report.seen.curves)
    # What is in both plots has the same colour in both.
    in_order = sorted(report.seen.curves, key=lambda each: each.name.startswith("router,"))
    return Plot(
        "Recall of labelled incidents against things to look at per camera-hour",
        Axis("to look at per camera-hour", "", low, 10.0 ** (floor(log10(high)) + 1), log=True),
        _RECALL,
        tuple(_series(each, 1.0, low, high) for each in in_order),
        note=f"Bands: of the router the 95 % interval, of random 95 % of its seeds. Verdicts: {report.verdicts}.",
    )


def _decade_below(panel: Panel, high: float) -> float:
    """Where a log axis begins: a power of ten below everything that is drawn, at most `high` (both as drawn)."""
    first = min((share for each in panel.curves for share, _ in each.points[:1] if share > 0), default=high)
    scale = 100.0 if 1.0 in panel.budgets else 1.0
    return min(high, float(10.0 ** floor(log10(first * scale))))


def _series(curve: Curve, scale: float, low: float, high: float) -> Series:
    """A curve begins at recall 0 on the left edge, and holds its last recall to the right edge."""
    points = [(scale * share, 100 * recall) for share, recall in curve.points]
    band = [(scale * share, 100 * below, 100 * above) for share, below, above in curve.band]
    if curve.whole:
        return Series(curve.name, points)
    last = max([high, *(x for x, _ in points), *(x for x, _, _ in band)])
    ends = [(last, points[-1][1])] if points else [(last, 0.0)]
    drawn = band if curve.name in _BANDED else []
    return Series(
        words.NAMES.get(curve.name, curve.name),
        [(low, 0.0), *points, *ends],
        band=[*drawn, (last, *drawn[-1][1:])] if drawn else (),
        step=True,
        strong=curve.name == "router",
    )
