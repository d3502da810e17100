"""`/api/v1/savings/history` and `/api/v1/costs/history`: bytes and money by hour and day, as JSON, CSV and charts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query
from markupsafe import Markup
from starlette.responses import Response

from appliance.base.clock import day_bounds, local_day, local_hour
from appliance.config import CostsConfig, PricesConfig
from appliance.dashboard.savings_api import COST_DAYS, DAY_S
from appliance.dashboard.schemas import API, ApiModel
from appliance.savings.bytes_saved import SavingsAccount, account_for
from appliance.savings.costs import Bill, price_idle, price_span, price_work
from appliance.store.database import Database
from appliance.store.meter import HOUR_S, HOURS_KEPT, Meter, PeriodTotals
from appliance.store.verdict_stats import DailyJudgeWork, JudgeWorkCache
from appliance.web.routes import RouteList, provided
from appliance.web.templating import money, size

PeriodKind = Literal["hour", "day"]
DAYS_MAX = 366  # bars of a year
DEFAULT_COUNT: dict[PeriodKind, int] = {"hour": 48, "day": 30}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet runs instead of showing it

router = RouteList(prefix=API, tags=["savings"])


class PeriodItem(ApiModel):
    """An hour or a day: t: when it began (UTC seconds), begin: the same on the appliance's own clock.

    `received_main`, `sent`, `saved`, `exact` as in the savings report; inferences: frames that were examined.
    """

    t: float
    begin: str
    received: int
    received_main: int
    sent: int
    saved: int
    exact: bool
    inferences: int


class SavingsHistory(ApiModel):
    """Oldest first, without holes: where nothing was counted all is 0. camera '': the site."""

    by: PeriodKind
    camera: str
    periods: list[PeriodItem]


class DayMoney(ApiModel):
    """The cost of a day, and of all days up to it: this site (edge and escalations) and all to the cloud instead."""

    day: str
    hours: float
    edge: float
    asking: float
    all_to_cloud: float
    saved: float
    site_so_far: float
    all_to_cloud_so_far: float


class MoneyHistory(ApiModel):
    """Oldest first; days in which the appliance did not run are left out."""

    currency: str
    days: list[DayMoney]


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """Reads what was counted, period by period. Any thread."""

    db: Database
    meter: Meter
    prices: PricesConfig
    costs: CostsConfig
    work: JudgeWorkCache

    def savings(self, by: PeriodKind, camera: str = "", count: int | None = None) -> SavingsHistory:
        """Return the last `count` hours or days (None: as many as a chart shows), the one that runs included."""
        found = [_period(each, camera, by) for each in self._periods(by, count or DEFAULT_COUNT[by])]
        return SavingsHistory(by=by, camera=camera, periods=found)

    def cameras(self, by: PeriodKind, count: int) -> Iterator[tuple[str, PeriodItem]]:
        """Each period of each camera in which anything was counted for it."""
        for each in self._periods(by, count):
            for name in sorted({row.camera for row in each.totals} - {""}):
                yield name, _period(each, name, by)

    def money(self, days: int = COST_DAYS) -> MoneyHistory:
        """Return the last `days` days; the sums of the last one are those of `/api/v1/costs`."""
        since_t = self.db.clock.now() - days * DAY_S
        work: dict[str, list[DailyJudgeWork]] = {}
        for row in self.work.since(since_t):
            work.setdefault(row.day, []).append(row)
        rows, site, instead = [], 0.0, 0.0
        for each in self.meter.by_day(local_day(since_t)):
            works = work.get(each.day, [])
            asked = sum((price_work(one, self.prices) for one in works), Bill())
            if works:
                asked += price_idle(works, self.prices)
            bill = price_span(each.totals, asked, self.prices, self.costs)
            if not bill.hours:
                continue
            site, instead = site + bill.site, instead + bill.all_to_cloud.total
            rows.append(
                DayMoney(
                    day=each.day, hours=bill.hours, edge=bill.edge.total, asking=bill.asked.total,
                    all_to_cloud=bill.all_to_cloud.total, saved=bill.saved, site_so_far=site,
                    all_to_cloud_so_far=instead,
                )
            )  # fmt: skip
        return MoneyHistory(currency=self.costs.currency, days=rows)

    def _periods(self, by: PeriodKind, count: int) -> list[PeriodTotals]:
        now = self.db.clock.now()
        if by == "hour":
            begins = [(int(now) // HOUR_S - n) * HOUR_S for n in reversed(range(count))]
            wanted = [PeriodTotals(t, local_day(t), ()) for t in begins]
            counted = {each.t: each for each in self.meter.by_hour(begins[0])}
            return [counted.get(each.t, each) for each in wanted]
        days = [local_day(now)]
        while len(days) < count:
            days.append(local_day(day_bounds(days[-1])[0] - DAY_S / 2))  # noon of the day before, whatever its length
        known = {each.day: each for each in self.meter.by_day(days[-1])}
        return [known.get(day, PeriodTotals(day_bounds(day)[0], day, ())) for day in reversed(days)]


def _period(found: PeriodTotals, camera: str, by: PeriodKind) -> PeriodItem:
    totals = [each for each in found.totals if not camera or each.camera == camera]
    account: SavingsAccount = account_for(totals, 0.0).total
    return PeriodItem(
        t=found.t, begin=found.day if by == "day" else local_hour(found.t), received=account.camera_bytes,
        received_main=account.main_bytes, sent=account.uplink_bytes, saved=account.saved_bytes, exact=account.exact,
        inferences=sum(each.amount for each in totals if each.kind == "examined"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavingsCharts:
    """The charts of the page. received: main streams with what was sent in them; sent: alone, on its own scale."""

    history: SavingsHistory
    received: str
    sent: str
    money: MoneyHistory
    spent: str


def draw(reader: HistoryReader, by: PeriodKind, camera: str) -> SavingsCharts:
    """Draw the charts of the page."""
    found, spent = reader.savings(by, camera), reader.money()
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


History = Annotated[HistoryReader, Depends(provided(HistoryReader))]
By = Annotated[PeriodKind, Query(description="an hour (kept for 31 days) or a day each")]
Count = Annotated[int | None, Query(ge=1, le=HOURS_KEPT, description="how many; left out: 48 hours or 30 days")]


@router.get("/savings/history")
def savings_history(
    reader: History, by: By = "day", camera: Annotated[str, Query(max_length=64)] = "", count: Count = None
) -> SavingsHistory:
    """Bytes received and sent, hour by hour or day by day."""
    return reader.savings(by, camera, _count(by, count))


@router.get("/costs/history")
def costs_history(reader: History, days: Annotated[int, Query(ge=1, le=DAYS_MAX)] = COST_DAYS) -> MoneyHistory:
    """Return what this site cost beside all to the cloud, day by day and summed up."""
    return reader.money(days)


@router.get("/savings.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def savings_csv(
    reader: History, by: By = "day", of: Literal["site", "cameras"] = "site", count: Count = None
) -> Response:
    """`savings/history` as CSV: one row a period, or one a period and camera."""
    wanted = _count(by, count)
    rows: Iterable[tuple[str, PeriodItem]]
    if of == "site":
        rows = (("", each) for each in reader.savings(by, "", wanted).periods)
    else:
        rows = reader.cameras(by, wanted)
    names = ("received", "received_main", "sent", "saved", "exact", "inferences")
    found = [
        [each.begin, *([camera] if of == "cameras" else []), *(getattr(each, n) for n in names)]
        for camera, each in rows
    ]
    return csv_file(f"savings-{of}-{by}s.csv", ["begin", *(["camera"] if of == "cameras" else []), *names], found)


@router.get("/costs.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def costs_csv(reader: History, days: Annotated[int, Query(ge=1, le=DAYS_MAX)] = COST_DAYS) -> Response:
    """`costs/history` as CSV."""
    found = reader.money(days)
    names = list(DayMoney.model_fields)
    rows = [[getattr(each, name) for name in names] + [found.currency] for each in found.days]
    return csv_file("costs-days.csv", [*names, "currency"], rows)


def _count(by: PeriodKind, count: int | None) -> int:
    return min(count or DEFAULT_COUNT[by], HOURS_KEPT if by == "hour" else DAYS_MAX)


def csv_file(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return a CSV (RFC 4180) to download. A text that a spreadsheet would run as a formula gets a quote before it."""
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(header)
    out.writerows([_inert(each) for each in row] for row in rows)
    return Response(
        text.getvalue(), media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )  # fmt: skip


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


HEIGHT, TOP, BOTTOM = 168.0, 18.0, 22.0  # px of the drawing, above the bars and below them
BAR_SHARE = 0.74  # of a bar's place; the rest is the gap
BAR_PX_MIN = 1.5  # what is there at all is seen
TICKS_MAX = 5  # labels that fit beside each other on a phone
_BASE = HEIGHT - BOTTOM


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
