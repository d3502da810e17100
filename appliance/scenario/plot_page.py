"""Plots and tables as one file that can be mailed or kept: no script, no request to anywhere, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from appliance.clock import iso_utc
from appliance.scenario.plot import STYLES, Plot, svg

FOLDER = Path(__file__).parent / "templates"
ROWS_MAX = 400  # of a table made of a plot's own points


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown; the first of each row names it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, a plot and the figures under it. table None: the plot's own points, folded."""

    title: str
    words: tuple[str, ...] = ()
    plot: Plot | None = None
    table: Table | None = None


def page(title: str, lead: str, sections: tuple[Section, ...], now: float) -> str:
    """The whole file. lead: one line under the title; now: UTC seconds, for the line that says when."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(svg=svg, table_of=table_of, styles=STYLES)
    return environment.get_template("plot.html").render(
        title=title, lead=lead, sections=sections, written=iso_utc(now)[:16].replace("T", " ") + " UTC"
    )


def table_of(plot: Plot) -> Table:
    """Every point of every line, with its band where one has the same x; beyond ROWS_MAX rows the rest is counted."""
    rows = []
    for series in plot.series:
        bands = {x: (low, high) for x, low, high in series.band}
        for x, y in series.points:
            ends = bands.get(x)
            low, high = ("", "") if ends is None else (plot.y.said(ends[0]), plot.y.said(ends[1]))
            rows.append((series.name, plot.x.said(x), plot.y.said(y), low, high))
    if len(rows) > ROWS_MAX:
        rows = [*rows[:ROWS_MAX], (f"and {len(rows) - ROWS_MAX} more", "", "", "", "")]
    return Table(("line", plot.x.words, plot.y.words, "from", "to"), tuple(rows))
