"""`/api/v1/savings/history` and `/api/v1/costs/history`: bytes and money by hour and day, as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from appliance.base.clock import day_bounds, local_day, local_hour
from appliance.config import CostsConfig, PricesConfig
from appliance.dashboard.savings_api import COST_DAYS, DAY_S, first_day_t
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.database import Database
from appliance.store.meter import HOUR_S, HOURS_KEPT, Meter, PeriodTotals
from appliance.store.savings import Bill, SavingsAccount, account_for, price_idle, price_span, price_work
from appliance.store.verdict_stats import DailyJudgeWork, JudgeWorkCache
from appliance.web.routes import RouteList, provided

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
        since_t = first_day_t(self.db.clock.now(), days)
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
    account: SavingsAccount = account_for(totals).total
    return PeriodItem(
        t=found.t, begin=found.day if by == "day" else local_hour(found.t), received=account.camera_bytes,
        received_main=account.main_bytes, sent=account.uplink_bytes, saved=account.saved_bytes, exact=account.exact,
        inferences=sum(each.amount for each in totals if each.kind == "examined"),
    )  # fmt: skip


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
