"""Plots are drawn where they should be, and the page needs nothing from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from appliance.lab.scenario.plot_page import (
    HEIGHT,
    ROWS_MAX,
    WIDTH,
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    ReportSection,
    ReportTable,
    plot_page,
    plot_svg,
    table_of_plot,
)

PER_CENT = PlotAxis("share", "%", 0.01, 100, log=True)
RECALL = PlotAxis("recall", "%", 0, 100)
LINE = PlotSeries("router", [(0.01, 0), (1, 50), (100, 100)], band=[(0.01, 0, 10), (1, 40, 60), (100, 90, 100)])


def plot(*series: PlotSeries, **more: object) -> Plot:
    return Plot("Recall", PER_CENT, RECALL, series or (LINE,), **more)  # type: ignore[arg-type]


def points(drawing: str, tag: str, name: str) -> list[tuple[float, float]]:
    """The corners of the first `tag` with this class."""
    found = re.search(rf'<{tag} class="{name}[^"]*" points="([^"]+)"', drawing)
    assert found is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.group(1).split())]


def test_a_log_axis_puts_each_decade_at_the_same_distance() -> None:
    assert [PER_CENT.position(value) for value in (0.01, 0.1, 1, 10, 100)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert PER_CENT.ticks() == pytest.approx([0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100])
    assert PlotAxis("bytes", low=1, high=1e9, log=True).ticks() == pytest.approx([10.0**n for n in range(10)])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0.3, 0.7, [0.3, 0.4, 0.5, 0.6, 0.7])],
)
def test_linear_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert PlotAxis("score", low=low, high=high).ticks() == pytest.approx(ticks)


def test_a_line_runs_from_corner_to_corner() -> None:
    """The middle of a log axis from 0.01 to 100 is 1; the middle of 0 to 100 is 50; y runs downwards."""
    (x0, y0), (x1, y1), (x2, y2) = points(plot_svg(plot()), "polyline", "line s0")
    assert (x0, y2) == (0, 0)
    assert (x1, y1) == pytest.approx((x2 / 2, y0 / 2), abs=0.1)


def test_a_staircase_holds_its_value_until_the_next() -> None:
    stairs = PlotSeries("router", [(0.01, 0), (1, 50), (100, 50)], step=True)
    corners = points(plot_svg(plot(stairs)), "polyline", "line s0")
    (x0, low), (x1, before), (x2, after), _, (_, last) = corners
    assert (before, after) == (low, last)
    assert x0 < x1 == x2


def test_a_band_goes_along_its_top_and_back_along_its_bottom() -> None:
    drawing = plot_svg(plot())
    assert len(points(drawing, "polygon", "band s0")) == 6
    assert drawing.index('class="band') < drawing.index('class="line')


def test_the_line_that_matters_is_drawn_last_and_single_points_are_dots() -> None:
    drawing = plot_svg(
        plot(PlotSeries("a", LINE.points, strong=True), PlotSeries("b", LINE.points), PlotSeries("c", [(100, 100)]))
    )
    assert drawing.index("line s1") < drawing.index("line s0 strong")
    assert drawing.count("<circle") == 1
    assert "c: 100 %, 100 %" in drawing


def test_the_chosen_point_and_the_bars_are_named() -> None:
    drawing = plot_svg(plot(mark=PlotMark(1, 50, "chosen & kept"), bars=(("x", 3, "bar: 3 %"), ("y", 95, "bar: 0.95"))))
    assert drawing.count('class="ring"') == 1
    assert "chosen &amp; kept" in drawing
    assert drawing.count('class="bar"') == 2


def test_it_is_spoken_and_well_formed() -> None:
    root = ElementTree.fromstring(plot_svg(plot(PlotSeries("a < b", LINE.points), mark=PlotMark(1, 50, "chosen"))))
    assert root.get("role") == "img"
    assert root.get("aria-label") == ("Recall. Across: share (%); upwards: recall (%). Lines: a < b. Marked: chosen.")
    assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"


def test_the_page_is_one_file_light_and_dark_with_the_figures_under_the_plot() -> None:
    table = ReportTable(("strategy", "at 1 %"), (("<router>", "0.50"),))
    made = plot_page(
        "Curves", "two", (ReportSection("One", ("a & b",), plot(), table), ReportSection("Two", (), plot())), 0.0
    )
    assert "prefers-color-scheme: dark" in made
    for outside in ("<script", "http:", "https:", "url(", "@import", "<link"):
        assert outside not in made.replace("http-equiv", "")
    assert made.index('<svg class="plot"') < made.index("&lt;router&gt;")
    assert "a &amp; b" in made
    assert made.count('<svg class="plot"') == 2
    assert "<summary>The figures of the plot</summary>" in made
    assert made.count("<details>") == 1
    ElementTree.fromstring(re.sub(r"<!doctype html>|<meta [^>]+>", "", made))


def test_the_figures_of_a_plot_say_the_band_and_where_they_end() -> None:
    assert table_of_plot(plot()).rows[1] == ("router", "1 %", "50 %", "40 %", "60 %")
    long = table_of_plot(plot(PlotSeries("long", [(n, n) for n in range(1, ROWS_MAX + 51)])))
    assert (len(long.rows), long.rows[-1][0]) == (ROWS_MAX + 1, "and 50 more")
