"""The page of savings: bytes received against bytes sent, money, and their charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query
from markupsafe import Markup
from starlette.responses import HTMLResponse

from appliance.dashboard.access_rights import may
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.cascade_api import CascadePart
from appliance.dashboard.costs_api import COST_DAYS, CostPart, MoneyHistory
from appliance.dashboard.deps import PagePart
from appliance.dashboard.savings_api import (
    HEADLINE_AFTER_S,
    KIND_TEXTS,
    SETTLED_AFTER_S,
    By,
    PeriodKind,
    SavingsHistory,
    SavingsPart,
)
from appliance.dashboard.schemas import API
from appliance.dashboard.settings_api import Settings
from appliance.store.meter import Since
from appliance.web.routes import RouteList
from appliance.web.templating import money, size

HEIGHT, TOP, BOTTOM = 168.0, 18.0, 22.0  # px of the drawing, above the bars and below them
BAR_SHARE = 0.74  # of a bar's place; the rest is the gap
BAR_PX_MIN = 1.5  # what is there at all is seen
TICKS_MAX = 5  # labels that fit beside each other on a phone
_BASE = HEIGHT - BOTTOM

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SavingsReaders:
    """The readers of the page's three parts."""

    savings: SavingsPart
    costs: CostPart
    cascade: CascadePart


@router.get("/savings")
def savings_page(
    *,
    page: PagePart,
    readers: Annotated[SavingsReaders, Depends()],
    cameras: Cameras,
    settings: Settings,
    since: Annotated[Since, Query()] = "today",
    by: By = "day",
    camera: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """Return the page of what came from the cameras against what was sent up.

    It has charts of the site or of one camera.
    """
    names = sorted(cameras.configured)
    editable = settings.is_editable and may("POST", f"{API}/settings")
    return page(
        "savings.html",
        here="/savings",
        since=since,
        savings=readers.savings.report(since),
        costs=readers.costs.report(),
        cascade=readers.cascade.report(),
        cost_days=COST_DAYS,
        charts=draw(readers, by, camera if camera in names else ""),
        camera_names=names,
        price_base=settings.service.status().digest if editable else "",
        kind_texts=KIND_TEXTS,
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
    )


@dataclass(frozen=True, slots=True)
class SavingsCharts:
    """The charts of the page. received: main streams with what was sent in them; sent: alone, on its own scale."""

    history: SavingsHistory
    received: str
    sent: str
    money: MoneyHistory
    spent: str


def draw(readers: SavingsReaders, by: PeriodKind, camera: str) -> SavingsCharts:
    """Draw the charts of the page."""
    found, spent = readers.savings.history(by, camera), readers.costs.history()
    where, which = camera or "the site", "hour" if by == "hour" else "day"
    short = [each.begin[-5:] for each in found.periods]
    texts = [f"{each.begin}: {size(each.received_main)} in, {size(each.sent)} up" for each in found.periods]
    both, sent = (
        [ChartBar(*row) for row in zip(short, of, (each.sent for each in found.periods), texts, strict=True)]
        for of in ([each.received_main for each in found.periods], [0] * len(texts))
    )
    lines = [
        ChartLine([each.all_to_cloud_so_far for each in spent.days], "cloud"),
        ChartLine([each.site_so_far for each in spent.days], "site"),
    ]
    return SavingsCharts(
        found,
        bar_chart(both, f"Bytes from the cameras and sent up, each {which}, {where}", size),
        bar_chart(sent, f"Bytes sent up, each {which}, {where}", size),
        spent,
        line_chart(lines, [each.day[-5:] for each in spent.days], f"Money so far, {spent.currency}", money),
    )


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar: `of` in full, `part` of it in the strong colour; text: what it says when it is pointed at."""

    label: str
    of: float
    part: float
    text: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line over the labels of the chart; kind: the class that colours it."""

    values: Sequence[float]
    kind: str


def bar_chart(bars: Sequence[ChartBar], name: str, unit: Callable[[float], str]) -> Markup:
    """Bars from left to right. name: what it shows, for who cannot see it. unit: writes an amount."""
    top = round_up(max((max(each.of, each.part) for each in bars), default=0.0))
    step = 100 / max(len(bars), 1)
    drawn = [
        _bar(kind, n * step + step * (1 - BAR_SHARE) / 2, step * BAR_SHARE, amount / top, each.text)
        for n, each in enumerate(bars)
        for kind, amount in (("of", each.of), ("part", each.part))
        if amount > 0
    ]
    labels = [(100 * (n + 0.5) / len(bars), each.label) for n, each in enumerate(bars)]
    return _chart(name, Markup("").join(drawn), _words(labels, top, unit))


def line_chart(lines: Sequence[ChartLine], labels: Sequence[str], name: str, unit: Callable[[float], str]) -> Markup:
    """Lines that rise from left to right; each has one value a label."""
    top = round_up(max((value for each in lines for value in each.values), default=0.0))
    last = max(len(labels) - 1, 1)
    drawn = []
    for each in lines:
        points = " ".join(f"{n * 100 / last:.2f},{100 - 100 * value / top:.2f}" for n, value in enumerate(each.values))
        drawn.append(Markup('<polyline class="{}" points="{}"/>').format(each.kind, points))
    plot = Markup(
        '<svg y="{}" width="100%" height="{}" viewBox="0 0 100 100" preserveAspectRatio="none" class="lines">{}</svg>'
    ).format(TOP, _BASE - TOP, Markup("").join(drawn))
    return _chart(name, plot, _words([(n * 100 / last, each) for n, each in enumerate(labels)], top, unit))


def round_up(amount: float) -> float:
    """Return the next of 1, 2, 2.5, 5 times a power of ten, for the top of an axis; 1 for nothing."""
    if amount <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(amount))
    return next((factor * power for factor in (1, 2, 2.5, 5) if amount <= factor * power), 10 * power)


def _bar(kind: str, x: float, width: float, share: float, text: str) -> Markup:
    height = max(BAR_PX_MIN, share * (_BASE - TOP))
    return Markup(
        '<rect class="{}" x="{:.2f}%" width="{:.2f}%" y="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    ).format(kind, x, width, _BASE - height, height, text)


def _level(share: float) -> float:
    return _BASE - share * (_BASE - TOP)


def _words(labels: Sequence[tuple[float, str]], top: float, unit: Callable[[float], str]) -> Markup:
    """Return the texts at the axes: two amounts, and some of the labels, each with its place in per cent."""
    drawn = [
        Markup('<text class="axis" x="0" y="{:.1f}">{}</text>').format(_level(share) - 4, unit(share * top))
        for share in (1.0, 0.5)
    ]
    every = max(1, math.ceil(len(labels) / TICKS_MAX))
    for x, label in labels[::every]:
        anchor = "start" if x < 8 else "end" if x > 92 else "middle"
        drawn.append(
            Markup('<text class="axis" x="{:.2f}%" y="{:.1f}" text-anchor="{}">{}</text>').format(
                x, HEIGHT - 5, anchor, label
            )
        )
    return Markup("").join(drawn)


def _chart(name: str, plot: Markup, words: Markup) -> Markup:
    rules = Markup("").join(
        Markup('<line class="rule" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(_level(share))
        for share in (1.0, 0.5, 0.0)
    )
    return Markup('<svg class="chart" width="100%" height="{:.0f}" role="img" aria-label="{}">{}{}{}</svg>').format(
        HEIGHT, name, rules, plot, words
    )
