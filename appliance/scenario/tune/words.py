"""What a sweep found, in sentences and rows."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.scenario.measures import Estimate, EventFigures
from appliance.scenario.plot_page import Table
from appliance.scenario.tune.choice import SCENARIOS_MIN, Choice
from appliance.scenario.tune.point import Point


def table(points: Sequence[Point], choice: Choice) -> Table:
    """One row a point, the present one first."""
    head = ("setting", "", "recall", "precision", "false", "alerts/h", "delay", "bytes")
    return Table(head, tuple(_row(point, choice) for point in points))


def sentences(choice: Choice, points: Sequence[Point]) -> list[str]:
    """The choice, what it changes, why not the others, and how far it can be believed."""
    told = [f"aim: {choice.aim.words}", f"chosen: {choice.point.words}", f"  {_figures(choice.point.figures)}"]
    if not choice.reached:
        told.append(f"no point reaches the aim; this is the nearest to a {choice.aim.floor_of} of {choice.aim.floor:g}")
    if choice.point is choice.present:
        told.append("that is the present setting: nothing to change")
    else:
        told.append(f"present: {_figures(choice.present.figures)}")
        told.append(_change(choice))
    more = (_plateau(choice, points), _runner_up(choice, points), _doubt(choice), _left_out(choice))
    told += [sentence for sentence in more if sentence]
    return told


def _row(point: Point, choice: Choice) -> tuple[str, ...]:
    figures = point.figures
    flag = "chosen" if point is choice.point else "present" if point.present else ""
    delay = figures.delay_s.value
    return (
        point.words,
        flag,
        _share(figures.recall),
        _share(figures.precision),
        str(point.wrong),
        f"{figures.alerts_per_hour or 0:.0f}",
        "-" if delay is None else f"{delay:.1f} s",
        str(point.bytes) if point.bytes else "-",
    )


def _figures(figures: EventFigures) -> str:
    return (
        f"recall {_share(figures.recall)} of {figures.recall.of}, precision {_share(figures.precision)} of "
        f"{figures.precision.of}, {figures.alerts_per_hour or 0:.0f} alerts an hour"
    )


def _change(choice: Choice) -> str:
    events = choice.point.reported - choice.present.reported
    wrong = choice.point.wrong - choice.present.wrong
    parts = [_more(events, "event that had to be reported", "events that had to be reported")]
    parts.append(_more(wrong, "false alarm", "false alarms"))
    return f"against the present: {', '.join(parts)}"


def _more(count: int, one: str, several: str) -> str:
    if count == 0:
        return f"as many {several}"
    return f"{abs(count)} {one if abs(count) == 1 else several} {'more' if count > 0 else 'fewer'}"


def _plateau(choice: Choice, points: Sequence[Point]) -> str:
    """Who does just the same: a choice in the middle of many is a safe one."""
    same = [point.words for point in points if point is not choice.point and point.outcomes == choice.point.outcomes]
    return f"just the same comes of: {'; '.join(same)}" if same else "no other setting tried does just the same"


def _runner_up(choice: Choice, points: Sequence[Point]) -> str:
    """The point that would be better but for the floor: what the aim costs."""
    if choice.aim.floor_of == "f1" or not choice.reached:
        return ""
    other = "precision" if choice.aim.floor_of == "recall" else "recall"

    def value(point: Point) -> float:
        return getattr(point.figures, other).value or 0.0

    below = [point for point in points if not choice.aim.reached(point.figures) and value(point) > value(choice.point)]
    if not below:
        return ""
    best = max(below, key=lambda point: choice.aim.rank(point.figures))
    return (
        f"not {best.words}: its {other} of {value(best):.3f} is better, but its {choice.aim.floor_of} is "
        f"{getattr(best.figures, choice.aim.floor_of).value or 0.0:.3f}"
    )


def _doubt(choice: Choice) -> str:
    if choice.point is choice.present:
        return ""
    gained = choice.gained
    if gained is None:
        return "the two looked at other frames, so their events cannot be paired"
    told = f"recall differs by {gained.value:+.3f} ({gained.low:+.3f} to {gained.high:+.3f}, 95 %, same events)"
    return told if gained.clear else f"{told}: so little footage cannot tell whether it is the better or the worse one"


def _left_out(choice: Choice) -> str:
    if choice.left_out is None:
        more = f"{SCENARIOS_MIN} scenarios or more tell how much"
        return f"chosen and measured on the same footage: expect less of other footage ({more})"
    recall, precision = choice.left_out.recall, choice.left_out.precision
    return (
        f"chosen without the clip that it is measured on, each clip in turn: recall {_share(recall)}, "
        f"precision {_share(precision)}; that is what other footage may give"
    )


def _share(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    ends = "" if estimate.low is None or estimate.high is None else f" ({estimate.low:.3f}-{estimate.high:.3f})"
    return f"{estimate.value:.3f}{ends}"
