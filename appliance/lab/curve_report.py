"""The report of `vedette scenario curve`: its tables, sentences and plots, and the page that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, log10

from appliance.lab.curve_measurement import (
    BaselineComparison,
    CascadeCurve,
    CascadePoint,
    CurvePanel,
    CurveReport,
    RecallCurve,
)
from appliance.lab.curve_ranking import Lead
from appliance.lab.scenario.plot_page import (
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    ReportSection,
    ReportTable,
    plot_page,
)
from appliance.replay.replay_report import format_bytes, format_count, format_time
from appliance.scenario.metrics import Estimate

STRATEGY_LABELS = {"random": "random (mean)"}
_RECALL = PlotAxis("recall of labelled incidents", "%", 0, 100)
_BANDED = ("router", "random")


def format_share(share: float) -> str:
    """Write `0.3 %`, `0.51 %`, `557 %`."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def format_recall(figure: Estimate) -> str:
    """Format the recall with its interval: `0.93 (0.81-1.00)`."""
    if figure.value is None:
        return "–"
    return f"{figure.value:.2f} ({figure.low or 0:.2f}-{1.0 if figure.high is None else figure.high:.2f})"


def sent_table(report: CurveReport) -> ReportTable:
    """Recall at each budget, the least budget with the goal, and the cost of sending everything."""
    curves = [curve for curve in report.sent.curves if not curve.whole]
    rows = [
        (format_share(budget), *(format_recall(curve.at[place]) for curve in curves))
        for place, budget in enumerate(report.sent.budgets)
    ]
    rows.append((f"{report.goal:g} from", *(_smallest_text(curve, format_share) for curve in curves)))
    rows.append(("all it has", *(_spent_text(curve, format_share) for curve in curves)))
    head = ("of the camera bytes", *(STRATEGY_LABELS.get(curve.name, curve.name) for curve in curves))
    return ReportTable(head, tuple(rows))


def wholes_sentence(report: CurveReport) -> str:
    """Return a sentence on the strategies that send all or nothing."""
    lines = [f"{curve.name}: recall {_spent_text(curve, format_share)}" for curve in report.sent.curves if curve.whole]
    return "; ".join(lines)


def _spent_text(curve: RecallCurve, text_of: Callable[[float], str]) -> str:
    return f"{curve.reached:.2f} at {text_of(curve.spent)}"


def _smallest_text(curve: RecallCurve, text_of: Callable[[float], str]) -> str:
    figure = curve.smallest
    if figure.value is None:
        return "never"
    if curve.whole:
        return text_of(figure.value)
    high = "never" if figure.high is None else text_of(figure.high)
    return f"{text_of(figure.value)} ({text_of(figure.low or 0.0)} to {high})"


def _format_load(things: float) -> str:
    return f"{things:.0f}" if things >= 10 else f"{things:.1f}"


def seen_table(report: CurveReport) -> ReportTable:
    """Make the table of alerts that a person has to review in an hour of one camera."""
    (every,) = report.seen.budgets
    head = ("to look at per camera-hour", f"recall at {_format_load(every)}", f"{report.goal:g} from", "all it has")
    rows = [
        (
            STRATEGY_LABELS.get(curve.name, curve.name),
            "–" if curve.whole and every < curve.spent else format_recall(curve.at[0]),
            _smallest_text(curve, _format_load),
            _spent_text(curve, _format_load),
        )
        for curve in report.seen.curves
    ]
    return ReportTable(head, tuple(rows))


def footage_table(report: CurveReport) -> ReportTable:
    """Make the table of each camera's share of the footage."""
    head = ("scenario", "camera", "footage", "bytes", "incidents", "alerts", "of them false", "asked", "bytes asked")
    rows = [
        (
            camera.scenario,
            camera.camera,
            format_time(camera.seconds),
            format_bytes(camera.bytes),
            str(camera.incidents),
            str(camera.alerts),
            str(camera.false_alerts),
            str(camera.asked),
            format_bytes(camera.asked_bytes),
        )
        for camera in report.films
    ]
    return ReportTable(head, tuple(rows))


def bar_sentence(report: CurveReport) -> str:
    """Return the bar, met or missed, in one sentence."""
    router = report.sent.curves[0]
    goal_text = f"{report.goal:g} of {format_count(report.incidents, 'labelled incident')}"
    smallest = router.smallest.value
    text = f"the router never finds {goal_text}"
    if smallest is not None:
        text = f"the router finds {goal_text} from {format_share(smallest)} of the camera bytes"
    text += f" (bar: {format_share(report.bar)})"
    baselines = [each.baseline for each in report.comparisons if each.baseline_ahead]
    if baselines:
        text += f", and {' and '.join(baselines)} {'are' if baselines[1:] else 'is'} ahead of it at some budgets"
    at_bar = router.at[report.sent.budgets.index(report.bar)]
    text += f"; at {format_share(report.bar)} it finds {format_recall(at_bar)}"
    return f"bar {'met' if report.bar_met else 'missed'}: {text}"


def comparison_sentence(report: CurveReport, comparison: BaselineComparison) -> str:
    """Say which is ahead where, and at which of the report's budgets that shows."""
    name, ahead = comparison.baseline, comparison.baseline_ahead
    router = f"the router is ahead {_spans(comparison.router_ahead)}" if comparison.router_ahead else "nowhere behind"
    if not ahead:
        return f"{name}: never ahead of the router; {router}"
    shown = [format_share(budget) for budget in report.sent.budgets if any(lead.holds(budget) for lead in ahead)]
    where = f"in the table at {', '.join(shown)}" if shown else "at no budget of the table"
    return f"{name}: AHEAD of the router {_spans(ahead)}, {where}; {router}"


def _spans(leads: Sequence[Lead]) -> str:
    """Write `from 0.3 % to 2.1 % (by up to 0.25)`; of many the three widest and the number of the others."""
    lines = sorted(sorted(leads, key=lambda lead: lead.start - lead.end)[:3], key=lambda lead: lead.start)
    words = [f"from {format_share(lead.start)} to {format_share(lead.end)} (by up to {lead.by:.2f})" for lead in lines]
    return ", ".join(words) + (f" and in {len(leads) - 3} shorter spans" if len(leads) > 3 else "")


def reading_notes(report: CurveReport) -> tuple[str, ...]:
    """Return the notes that a reader of the figures needs."""
    lines = [
        wholes_sentence(report),
        f"{format_count(report.incidents, 'labelled incident')} of {format_count(len(report.films), 'camera')} in "
        f"{format_time(report.camera_seconds)} of footage, {format_bytes(report.camera_bytes)}; "
        f"model {', '.join(report.models)}",
        f"95 % intervals: bootstrap over clips and their incidents ({report.resamples} draws); where all incidents "
        f"came out alike, the exact bound for so many. random: mean of {report.seeds} seeds",
    ]
    untimed = sum(camera.untimed for camera in report.films)
    if untimed:
        lines.append(f"{untimed} of the entries of `expect` say no moment and are no labels here")
    if report.missed:
        lines.append(f"the router finds at no budget: {'; '.join(report.missed)}")
    if report.raised < report.incidents:
        least = "never" if report.raised_smallest is None else f"from {format_share(report.raised_smallest)}"
        lines.append(
            f"{report.incidents - report.raised} of the incidents raised no alert at all, which no router can mend; of "
            f"the {report.raised} that did the router finds {report.goal:g} {least}"
        )
    lines += [f"the scenarios' verdicts: {each}" for each in report.judged_by]
    return (*lines, *report.skipped)


def cascade_table(curve: CascadeCurve) -> ReportTable:
    """Make the table of cost against accuracy, from escalating all to none, and what the claims allow."""
    shares = (0.0, 0.25, 0.5, 0.7, curve.goal, 0.95, 1.0)
    rows = [_cascade_row(f"{100 * share:.0f} % or more", curve, curve.at(share)) for share in shares]
    rows.append(_cascade_row("the most without a loss", curve, curve.most))
    rows.append(_cascade_row("and as right as asking", curve, curve.as_right))
    rows.append(_cascade_row("as claims allow now", curve, curve.claimed))
    head = (
        "stays at the edge",
        "share",
        "sure",
        "doubtful",
        "asked",
        "bytes asked",
        "of all",
        "GPU s",
        "cost",
        "right",
        "lost",
    )
    return ReportTable(head, tuple(rows))


def _cascade_row(name: str, curve: CascadeCurve, at: CascadePoint) -> tuple[str, ...]:
    whole = curve.points[0].bytes
    return (
        name,
        f"{100 * at.kept:.0f} %",
        str(at.sure),
        str(at.doubtful),
        str(at.asked),
        format_bytes(at.bytes),
        format_share(at.bytes / whole) if whole else "–",
        f"{at.gpu_s:.1f}",
        f"{at.money:.4g}",
        f"{at.accuracy:.3f}",
        str(at.lost),
    )


def cascade_sentence(curve: CascadeCurve) -> str:
    """Say how much can stay at the edge without an incident lost, against the goal, and what the claims allow."""
    at, most, whole = curve.at(curve.goal), curve.most, curve.points[0]
    word = "met" if most.kept >= curve.goal - 1e-9 else "missed"
    shown = at if at.lost == 0 else most
    saved = f", {format_share(1 - shown.bytes / whole.bytes)} of the bytes of asking saved" if whole.bytes else ""
    alerts = f"{format_count(curve.alerts, 'alert')} ({curve.right} of them right)"
    held = round(shown.kept * curve.alerts)
    # Of alerts of which more are lost than this, so many without a loss come once in twenty times.
    unseen = 1 - 0.05 ** (1 / held) if held else 1.0
    return (
        f"cascade: {100 * shown.kept:.0f} % of {alerts} stay at the edge without an incident lost "
        f"(goal: {100 * curve.goal:.0f} %, {word}; that few prove only that under {100 * unseen:.0f} % of "
        f"such alerts are lost){saved}; {shown.accuracy:.2f} of the alerts are answered right then, "
        f"{whole.accuracy:.2f} where all are asked about and the judge is wrong in {100 * curve.judge_error:g} %; no "
        f"more wrong answers than that up to {100 * curve.as_right.kept:.0f} %. Each chance is learnt from the other "
        f"clips. By its claims the router would keep {100 * curve.claimed.kept:.0f} % with no more labels than these"
    )


def curve_page(report: CurveReport, now: float) -> str:
    """Return the whole HTML file. now: UTC seconds."""
    lines = tuple(comparison_sentence(report, each) for each in report.comparisons)
    sections = (
        ReportSection(
            "Recall against bytes", (bar_sentence(report), *lines), plot=_sent_plot(report), table=sent_table(report)
        ),
        ReportSection(
            "What a person has to look at",
            (f"Verdicts here are nobody's: {report.verdicts}.",),
            plot=_review_plot(report),
            table=seen_table(report),
        ),
        *_cascade_sections(report),
        ReportSection("Footage", reading_notes(report), table=footage_table(report)),
    )
    lead = (
        f"{format_count(report.incidents, 'labelled incident')}, {format_count(len(report.films), 'camera')}, "
        f"model {', '.join(report.models)}"
    )
    return plot_page("The router against what it is held against", lead, sections, now)


def _cascade_sections(report: CurveReport) -> tuple[ReportSection, ...]:
    curve = report.cascade
    if curve is None:
        return ()
    whole = curve.points[0].bytes or 1
    points = [(100 * each.bytes / whole, 100 * each.accuracy) for each in reversed(curve.points)]
    low = min(90.0, 10 * floor(min(y for _, y in points) / 10))
    plot = Plot(
        "Alerts that are answered right against the bytes of asking, as the appliance keeps fewer of them",
        PlotAxis("asked, as a share of the bytes of asking about all", "%", 0, 100),
        PlotAxis("alerts answered right", "%", low, 100),
        (PlotSeries("cascade", points, strong=True),),
        mark=PlotMark(100 * curve.as_right.bytes / whole, 100 * curve.as_right.accuracy, "no incident lost, as right"),
    )
    return (ReportSection("Cost against accuracy", (cascade_sentence(curve),), plot=plot, table=cascade_table(curve)),)


def _sent_plot(report: CurveReport) -> Plot:
    low = _decade_below(report.sent, 0.01)
    series = tuple(_series(each, 100.0, low, 100.0) for each in report.sent.curves if each.spent <= 1 or not each.whole)
    left_out = [each for each in report.sent.curves if each.whole and each.spent > 1]
    note = "Bands: of the router the 95 % interval, of random 95 % of its seeds. "
    note += " ".join(f"{each.name} lies beyond the right edge, at {format_share(each.spent)}." for each in left_out)
    smallest = report.sent.curves[0].smallest.value
    return Plot(
        "Recall of labelled incidents against the share of the cameras' bytes that is sent",
        PlotAxis("sent, as a share of the cameras' bytes", "%", low, 100.0, log=True),
        _RECALL,
        series,
        mark=None if smallest is None else _mark(report.sent.curves[0], smallest, report.goal),
        bars=(
            ("x", 100 * report.bar, f"bar: {format_share(report.bar)}"),
            ("y", 100 * report.goal, f"bar: {report.goal:g}"),
        ),
        note=note,
    )


def _mark(router: RecallCurve, smallest: float, goal: float) -> PlotMark:
    recall = max(recall for share, recall in router.points if share <= smallest)
    return PlotMark(100 * smallest, 100 * recall, f"the router has {goal:g} from {format_share(smallest)}")


def _review_plot(report: CurveReport) -> Plot:
    low = _decade_below(report.seen, 1.0)
    high = max(each.spent for each in report.seen.curves)
    # A curve that is in both plots has the same colour in both.
    in_order = sorted(report.seen.curves, key=lambda each: each.name.startswith("router,"))
    return Plot(
        "Recall of labelled incidents against things to look at per camera-hour",
        PlotAxis("to look at per camera-hour", "", low, 10.0 ** (floor(log10(high)) + 1), log=True),
        _RECALL,
        tuple(_series(each, 1.0, low, high) for each in in_order),
        note=f"Bands: of the router the 95 % interval, of random 95 % of its seeds. Verdicts: {report.verdicts}.",
    )


def _decade_below(panel: CurvePanel, high: float) -> float:
    """Return where a log axis begins: a power of ten below everything that is drawn, at most `high`."""
    first = min((share for each in panel.curves for share, _ in each.points[:1] if share > 0), default=high)
    scale = 100.0 if 1.0 in panel.budgets else 1.0
    return min(high, float(10.0 ** floor(log10(first * scale))))


def _series(curve: RecallCurve, scale: float, low: float, high: float) -> PlotSeries:
    """Make the line of a curve: from recall 0 on the left edge, holding its last recall to the right edge."""
    points = [(scale * share, 100 * recall) for share, recall in curve.points]
    band = [(scale * share, 100 * below, 100 * above) for share, below, above in curve.band]
    if curve.whole:
        return PlotSeries(curve.name, points)
    last = max([high, *(x for x, _ in points), *(x for x, _, _ in band)])
    ends = [(last, points[-1][1])] if points else [(last, 0.0)]
    drawn = band if curve.name in _BANDED else []
    return PlotSeries(
        STRATEGY_LABELS.get(curve.name, curve.name),
        [(low, 0.0), *points, *ends],
        band=[*drawn, (last, *drawn[-1][1:])] if drawn else (),
        step=True,
        strong=curve.name == "router",
    )
