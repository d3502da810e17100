"""Plots (inline SVG) and tables as one HTML file that can be mailed or kept: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from appliance.base.clock import iso_utc

WIDTH, HEIGHT = 760, 400  # of a plot, SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 16, 14, 54  # pixels, for the labels of the axes
_PLOT_AREA = (WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM)
_TICKS_PER_AXIS = 6  # labels that do not touch
_CLIP_MARGIN = 6  # pixels, so that a marker at the border is whole
STYLES = 6  # as many as plot.html has colours and dashes for

XY = tuple[float, float]
TEMPLATES = Path(__file__).parent / "templates"
ROWS_MAX = 400  # of a table made of a plot's own points


def format_number(value: float) -> str:
    """Write four digits, or all before the point: `0.003`, `12.5`, `30 000`."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", " ")


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """low and high in the axis' own unit; a log axis needs low > 0."""

    name: str
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def position(self, value: float) -> float:
        """Return where `value` lies: 0 at low, 1 at high, outside of that beyond them."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return log10(max(value, self.low / 10) / self.low) / log10(self.high / self.low)

    def ticks(self) -> list[float]:
        """Round values from low to high; of a log axis 1 and 3 of each decade, or only 1 where there are many."""
        if self.log:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            steps = (1, 3) if len(decades) <= 6 else (1,)
            found = [step * 10.0**decade for decade in decades for step in steps]
        else:
            step = _round_step((self.high - self.low) / _TICKS_PER_AXIS)
            found = [count * step for count in range(floor(self.low / step), ceil(self.high / step) + 1)]
        slack = 1e-9 * abs(self.high - self.low)
        return [value for value in found if self.low - slack <= value <= self.high + slack]

    def format(self, value: float) -> str:
        """Return the value with its unit: `0.3 %`."""
        return f"{format_number(value)} {self.unit}".rstrip()

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One line. points: (x, y), x rising; band: (x, low, high), drawn behind the line.

    step: y holds until the next x. strong: the line that the plot is about. dots: points are drawn as well (a single
    point always is).
    """

    name: str
    points: Sequence[XY]
    band: Sequence[tuple[float, float, float]] = ()
    step: bool = False
    strong: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class PlotMark:
    """The chosen point, ringed and named."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """bars: reference values, as (`x` or `y`, value, text); note: a caption."""

    title: str
    x: PlotAxis
    y: PlotAxis
    series: tuple[PlotSeries, ...]
    mark: PlotMark | None = None
    bars: tuple[tuple[str, float, str], ...] = ()
    note: str = ""


def plot_svg(plot: Plot) -> str:
    """Return the drawing, with title, axes and the names of the lines as `aria-label`."""
    names = ", ".join(series.name for series in plot.series)
    description = f"{plot.title}. Across: {plot.x.label}; upwards: {plot.y.label}. Lines: {names}."
    description += f" Marked: {plot.mark.label}." if plot.mark else ""
    inner = [*_bars(plot), *(band for index, each in enumerate(plot.series) for band in _band(plot, each, index))]
    # The line that matters is drawn last, on top of the others.
    order = sorted(range(len(plot.series)), key=lambda index: plot.series[index].strong)
    inner += [part for index in order for part in _line(plot, plot.series[index], index)]
    (width, height), margin = _PLOT_AREA, _CLIP_MARGIN
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">'
        f"{''.join(_grid(plot))}"
        # A nested drawing clips what lies outside the axes, except for half a dot on the edge.
        f'<svg x="{_LEFT - margin}" y="{_TOP - margin}" width="{width + 2 * margin}" height="{height + 2 * margin}" '
        f'viewBox="{-margin} {-margin} {width + 2 * margin} {height + 2 * margin}">{"".join(inner)}</svg>'
        f"{''.join(_mark(plot))}</svg>"
    )


def _round_step(rough: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def _to_svg(plot: Plot, x: float, y: float) -> XY:
    """Return a point in SVG units of the plot area, y downwards."""
    return round(plot.x.position(x) * _PLOT_AREA[0], 1), round((1 - plot.y.position(y)) * _PLOT_AREA[1], 1)


def _grid(plot: Plot) -> list[str]:
    parts = []
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in plot.y.ticks():
        y = _TOP + _to_svg(plot, plot.x.low, value)[1]
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_number(value)}</text>')
    for value in plot.x.ticks():
        x = _LEFT + _to_svg(plot, value, plot.y.low)[0]
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{format_number(value)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    across, up = _LEFT + _PLOT_AREA[0] / 2, _TOP + _PLOT_AREA[1] / 2
    for words, place in (
        (plot.x.label, f'x="{across}" y="{HEIGHT - 10}"'),
        (plot.y.label, f'transform="translate(16 {up}) rotate(-90)"'),
    ):
        parts.append(f'<text class="name" {place} text-anchor="middle">{escape(words)}</text>')
    return parts


def _bars(plot: Plot) -> list[str]:
    parts = []
    for axis, value, words in plot.bars:
        title = f"<title>{escape(words)}</title>"
        if axis == "x":
            x, _ = _to_svg(plot, value, plot.y.low)
            parts.append(f'<path class="bar" d="M{x} 0V{_PLOT_AREA[1]}">{title}</path>')
            side, anchor = (-5, "end") if x > 0.8 * _PLOT_AREA[0] else (5, "start")
            words_at = f'x="{x + side}" y="{_PLOT_AREA[1] - 8}" text-anchor="{anchor}"'
            parts.append(f"<text {words_at}>{escape(words)}</text>")
        else:
            _, y = _to_svg(plot, plot.x.low, value)
            parts.append(f'<path class="bar" d="M0 {y}H{_PLOT_AREA[0]}">{title}</path>')
            parts.append(f'<text x="6" y="{y - 5}">{escape(words)}</text>')
    return parts


def _band(plot: Plot, series: PlotSeries, index: int) -> list[str]:
    if len(series.band) < 2:
        return []
    above = _corners([_to_svg(plot, x, high) for x, _, high in series.band], series.step)
    below = _corners([_to_svg(plot, x, low) for x, low, _ in series.band], series.step)
    points = " ".join(f"{x},{y}" for x, y in [*above, *reversed(below)])
    return [f'<polygon class="band s{index % STYLES}" points="{points}"/>']


def _line(plot: Plot, series: PlotSeries, index: int) -> list[str]:
    style = f"s{index % STYLES}{' strong' if series.strong else ''}"
    corners = [_to_svg(plot, x, y) for x, y in series.points]
    parts = []
    if len(corners) > 1:
        points = " ".join(f"{x},{y}" for x, y in _corners(corners, series.step))
        parts.append(
            f'<polyline class="line {style}" points="{points}"><title>{escape(series.name)}</title></polyline>'
        )
    if series.dots or len(corners) == 1:
        for (x, y), (x_value, value) in zip(corners, series.points, strict=True):
            title = escape(f"{series.name}: {plot.x.format(x_value)}, {plot.y.format(value)}")
            parts.append(f'<circle class="dot {style}" cx="{x}" cy="{y}" r="4"><title>{title}</title></circle>')
    return parts


def _corners(corners: Sequence[XY], step: bool) -> list[XY]:
    """Return the corners of the line; with `step`, one more before each point."""
    if not step:
        return list(corners)
    found = list(corners[:1])
    for (_, before), (x, y) in pairwise(corners):
        found += [(x, before), (x, y)]
    return found


def _mark(plot: Plot) -> list[str]:
    if plot.mark is None:
        return []
    x, y = _to_svg(plot, plot.mark.x, plot.mark.y)
    left = x > 0.6 * _PLOT_AREA[0]
    side, anchor = (-12, "end") if left else (12, "start")
    down = 22 if y < 24 else -12
    return [
        f'<circle class="ring" cx="{_LEFT + x}" cy="{_TOP + y}" r="8"/>',
        f'<text class="chosen" x="{_LEFT + x + side}" y="{_TOP + y + down}" text-anchor="{anchor}">'
        f"{escape(plot.mark.label)}</text>",
    ]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Cells as they are shown; the first of each row is its heading."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading, sentences, a plot and the figures under it. table None: the plot's own points, folded."""

    title: str
    sentences: tuple[str, ...] = ()
    plot: Plot | None = None
    table: ReportTable | None = None


def template_environment() -> Environment:
    """Return Jinja for the reports: it escapes text, refuses undefined names."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def plot_page(title: str, lead: str, sections: tuple[ReportSection, ...], now: float) -> str:
    """Return the whole file. lead: one line under the title; now: UTC seconds, shown as the date of the page."""
    environment = template_environment()
    environment.globals.update(svg=plot_svg, table_of=table_of_plot, styles=STYLES)
    return environment.get_template("plot.html").render(
        title=title, lead=lead, sections=sections, written=iso_utc(now)[:16].replace("T", " ") + " UTC"
    )


def aligned_lines(table: ReportTable) -> list[str]:
    """Return a table as plain text: columns aligned, no wrapping."""
    cells = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.head))]
    lines = []
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def table_of_plot(plot: Plot) -> ReportTable:
    """List every point of every line, with its band where one has the same x; rows beyond ROWS_MAX are counted."""
    rows = []
    for series in plot.series:
        bands = {x: (low, high) for x, low, high in series.band}
        for x, y in series.points:
            ends = bands.get(x)
            low, high = ("", "") if ends is None else (plot.y.format(ends[0]), plot.y.format(ends[1]))
            rows.append((series.name, plot.x.format(x), plot.y.format(y), low, high))
    if len(rows) > ROWS_MAX:
        rows = [*rows[:ROWS_MAX], (f"and {len(rows) - ROWS_MAX} more", "", "", "", "")]
    return ReportTable(("line", plot.x.label, plot.y.label, "from", "to"), tuple(rows))
