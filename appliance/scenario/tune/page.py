"""The sweep as one HTML file: the trade-off drawn, the chosen point ringed, the figures under it."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.scenario.measures import Estimate
from appliance.scenario.plot import Axis, Mark, Plot, Series
from appliance.scenario.plot_page import Section, page
from appliance.scenario.tune import words
from appliance.scenario.tune.choice import Choice
from appliance.scenario.tune.point import Point
from appliance.scenario.tune.sweep import Sweep

_SHARE = Axis("share of events", "%", 0, 100)


def tune_page(points: Sequence[Point], choice: Choice, sweeps: Sequence[Sweep], lead: str, now: float) -> str:
    """The whole file. now: UTC seconds."""
    told = tuple(words.sentences(choice, points))
    sections = [
        Section("The trade-off", told, plot=_trade_off(points, choice), table=words.table(points, choice)),
    ]
    if len(sweeps) == 1 and all(isinstance(value, float) for value in sweeps[0].values):
        sections.append(Section(f"Along {sweeps[0].key}", plot=_along(points, choice, sweeps[0])))
    return page(f"Tuned: {', '.join(sweep.key for sweep in sweeps)}", lead, tuple(sections), now)


def _trade_off(points: Sequence[Point], choice: Choice) -> Plot:
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
        Axis("recall", "%", low, 100),
        Axis("precision", "%", low, 100),
        (
            Series("settings tried", places, dots=True, strong=True),
            Series("present", [present], dots=True),
        ),
        mark=Mark(*chosen, f"chosen: {choice.point.words}"),
        bars=bars,
    )


def _along(points: Sequence[Point], choice: Choice, sweep: Sweep) -> Plot:
    """Both figures with their intervals at each value."""
    tried = sorted((float(point.setting[0][1]), point) for point in points if point.setting)
    values = [value for value, _ in tried]
    spare = (values[-1] - values[0]) / 20 or 0.05
    recalls = [(value, point.figures.recall) for value, point in tried]
    precisions = [(value, point.figures.precision) for value, point in tried]
    mark = None
    if choice.point.setting:
        mark = Mark(float(choice.point.setting[0][1]), 100 * (choice.point.figures.recall.value or 0.0), "chosen")
    return Plot(
        f"Recall and precision along {sweep.key}",
        Axis(sweep.key, "", max(0.0, values[0] - spare), values[-1] + spare),
        _SHARE,
        (_with_band("recall", recalls), _with_band("precision", precisions)),
        mark=mark,
        note="Bands: 95 % intervals.",
    )


def _with_band(name: str, estimates: Sequence[tuple[float, Estimate]]) -> Series:
    known = [(value, each) for value, each in estimates if each.value is not None]
    return Series(
        name,
        [(value, 100 * (each.value or 0.0)) for value, each in known],
        band=[(value, 100 * (each.low or 0.0), 100 * (each.high or 0.0)) for value, each in known],
        dots=True,
        strong=name == "recall",
    )


def _place(point: Point) -> tuple[float, float]:
    recall, precision = point.figures.recall.value, point.figures.precision.value
    return 100 * (1.0 if recall is None else recall), 100 * (1.0 if precision is None else precision)
