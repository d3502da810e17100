"""`/api/v1/savings` and `/api/v1/costs`: bytes received against bytes sent, what it cost, and both by hour and day."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from appliance.base.clock import day_bounds, local_day, local_hour
from appliance.config import CameraConfig, CostsConfig, PricesConfig
from appliance.dashboard.schemas import API, ApiModel
from appliance.savings.bytes_saved import SavingsAccount, account_for
from appliance.savings.costs import (
    DAY_H,
    MILLION,
    Bill,
    has_prices,
    price_each,
    price_idle,
    price_offers,
    price_span,
    price_work,
    uplink_gb_to_cloud,
)
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import HOUR_S, HOURS_KEPT, Meter, MeterTotal, Metric, MetricName, PeriodTotals, Since
from appliance.store.verdict_stats import DailyJudgeWork, EngineWork, JudgeWorkCache
from appliance.web.charts import ChartBar, ChartLine, bar_chart, line_chart
from appliance.web.dependencies import provided
from appliance.web.route_list import RouteList
from appliance.web.templating import money, size

HEADLINE_AFTER_S = 60.0  # of video; before, one escalation outweighs what came in, and a share would mislead
SETTLED_AFTER_S = 3600.0  # of video; before, a share is shown as one of the beginning
COST_DAYS = 30  # a month, as bills are
DAY_S = 86400.0  # seconds
PeriodKind = Literal["hour", "day"]
DAYS_MAX = 366  # bars of a year
DEFAULT_COUNT: dict[PeriodKind, int] = {"hour": 48, "day": 30}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet runs instead of showing it
KIND_TEXTS = {
    "facts": "Facts (boxes, times)",
    "crop": "Crops",
    "frame": "Pictures",
    "clip": "Clips",
    "notice": "Notifications",
    "mqtt": "Home automation",
    "again": "Sent again after a cut",
    "resent": "Repeated by TCP",
    "protocol": "Protocol and connection",
    "other": "Connection upkeep",
}

router = RouteList(prefix=API, tags=["savings"])


class AccountItem(ApiModel):
    """Bytes of one camera, or of the site. `exact` false: a part is a sum of packet sizes, so a lower bound.

    `received_main`: what would have been sent; the rest of `received` came as a second stream to detect on.
    `share_sent`: sent over received_main; null when nothing was received. `saved` is negative when more went up.
    """

    received: int
    received_main: int
    exact: bool
    sent: int
    sent_by_kind: dict[str, int]
    saved: int
    share_sent: float | None

    @classmethod
    def of(cls, account: SavingsAccount) -> AccountItem:
        return cls(
            received=account.camera_bytes,
            received_main=account.main_bytes,
            exact=account.exact,
            sent=account.uplink_bytes,
            sent_by_kind={each.what: each.bytes for each in account.uplink_kinds},
            saved=account.saved_bytes,
            share_sent=account.share_sent,
        )


class CameraSavings(AccountItem):
    """The account of one camera.

    main_opened: false where nothing is recorded and there is a second stream to detect on: then the account is of that
    one, and less than what would have been sent.
    """

    camera: str
    main_opened: bool


class SavingsReport(ApiModel):
    """The site's account (`overhead`: sent, but for no camera; in the total) and each camera's.

    `counterfactual`: what `saved` is measured against. `watched_s`: seconds of video behind these sums, all cameras
    together, reckoned from the frames due for the detector, so at most the truth (an idle camera has fewer due).
    """

    since: Since
    counterfactual: str
    total: AccountItem
    overhead: int
    cameras: list[CameraSavings]
    watched_s: float


class MoneyItem(ApiModel):
    """In the owner's currency; idle: of a rented GPU, for the hours in which it was unused."""

    uplink: float
    gpu: float
    tokens: float
    idle: float
    total: float


class CameraCost(ApiModel):
    """The cost of one camera's escalations in one day. judge_s: seconds of the judge, not of the wall clock."""

    camera: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int
    money: MoneyItem


class DayCost(ApiModel):
    """One day of this appliance; days without a verdict are left out, and so is what a rented GPU cost then."""

    day: str
    cameras: list[CameraCost]
    money: MoneyItem


class EdgeMoney(ApiModel):
    """The cost of the appliance itself: the device amortised, power, connectivity, maintenance, operations."""

    device: float
    power: float
    connectivity: float
    maintenance: float
    operations: float
    total: float


class AllToCloudMoney(ApiModel):
    """The cost if the main streams were sent up and the same frames examined there."""

    gpu: float
    uplink: float
    total: float


class PriceItem(ApiModel):
    """A price of `costs` or `escalation.prices`. default: the file does not name it; source: where it is from."""

    key: str
    value: float
    default: bool
    source: str


class CostComparison(ApiModel):
    """This site as it is (`edge` and `cloud`) against all to the cloud, over the same hours, bytes and inferences.

    hours: in which the appliance ran; cloud.uplink: of every byte sent. per_inference: null without any.
    saved is negative where all to the cloud would have been cheaper. tokens_million: what a million tokens of the
    judge's answers cost at its GPU's price and measured pace; null: no GPU price, or no token.
    """

    currency: str
    hours: float
    inferences: int
    received_main: int
    sent: int
    edge: EdgeMoney
    cloud: MoneyItem
    all_to_cloud: AllToCloudMoney
    saved: float
    per_inference: float | None
    per_inference_cloud: float | None
    tokens_million: float | None
    prices: list[PriceItem]
    asking_prices: list[PriceItem]


class EngineCost(ApiModel):
    """The verdicts of one engine and model. gpu_s: seconds of the judge; money: without idle GPU."""

    engine: str
    model: str
    verdicts: int
    gpu_s: float
    gpu_s_each: float | None
    money: MoneyItem
    money_each: float | None


class GpuOfferItem(ApiModel):
    """The judge's GPU, spot or reserved, over the hours of the comparison. idle_hours: kept warm, unused."""

    kind: str
    hour: float
    hours: float
    idle_hours: float
    total: float
    per_verdict: float | None


class CostReport(ApiModel):
    """priced: the site file names a price of asking. per_verdict: idle GPU included; null: there was no verdict.

    comparison: null until the appliance has run for a second. engines: the busiest first. offers: the same work on a
    spot GPU and on a reserved one, at the prices of `costs.judge`.
    """

    priced: bool
    verdicts: int
    money: MoneyItem
    per_verdict: float | None
    days: list[DayCost]
    comparison: CostComparison | None
    engines: list[EngineCost]
    offers: list[GpuOfferItem]


@dataclass(frozen=True, slots=True)
class SavingsReader:
    """Balances what came from the cameras against what was sent up. Any thread may call.

    configured: the cameras of the site file by name.
    """

    meter: Meter
    cameras: CameraStore
    configured: Mapping[str, CameraConfig]

    def report(self, since: Since) -> SavingsReport:
        """Return the sums since this core started, since midnight, or ever."""
        # No rates here: the store does not know how long the core ran today, and a wrong rate is worse than none.
        totals = self.meter.totals(since)
        found = account_for(totals, 0.0, (row.name for row in self.cameras.all()))
        return SavingsReport(
            since=since,
            counterfactual=found.counterfactual,
            total=AccountItem.of(found.total),
            overhead=found.overhead_bytes,
            cameras=[
                CameraSavings(
                    camera=each.camera,
                    main_opened=self._opens_main(each.camera),
                    **AccountItem.of(each.account).model_dump(),
                )
                for each in found.cameras
            ],
            watched_s=self._watched_s(totals),
        )

    def _opens_main(self, camera: str) -> bool:
        known = self.configured.get(camera)
        return known is None or known.detect_url is None or bool(known.record)

    def _watched_s(self, totals: Iterable[MeterTotal]) -> float:
        due = (Metric(MetricName.EXAMINED), Metric(MetricName.UNEXAMINED))
        rows = [each for each in totals if each.metric in due and each.camera in self.configured]
        return sum(each.amount / self.configured[each.camera].detect.fps for each in rows)


@dataclass(frozen=True, slots=True)
class CostReader:
    """Reckons what judging took and cost, what the appliance costs and what all to the cloud would. Any thread.

    prices: of asking; costs: of the appliance, and of sending everything.
    """

    db: Database
    meter: Meter
    prices: PricesConfig
    costs: CostsConfig
    work: JudgeWorkCache

    def report(self, days: int = COST_DAYS) -> CostReport:
        """Return the last `days` days, the newest first."""
        since_t = self.db.clock.now() - days * DAY_S
        rows = self.work.since(since_t)
        found, whole, verdicts = [], Bill(), 0
        for day, of_day in groupby(rows, key=lambda row: row.day):
            works = list(of_day)
            money = sum((price_work(each, self.prices) for each in works), price_idle(works, self.prices))
            whole, verdicts = whole + money, verdicts + sum(each.verdicts for each in works)
            found.append(
                DayCost(day=day, cameras=[self._camera(each) for each in works], money=MoneyItem.model_validate(money))
            )
        comparison = self._compare(rows, whole, local_day(since_t))
        return CostReport(
            priced=has_prices(self.prices),
            verdicts=verdicts,
            money=MoneyItem.model_validate(whole),
            per_verdict=whole.total / verdicts if verdicts else None,
            days=found,
            comparison=comparison,
            engines=[self._engine(each) for each in self.work.engines(since_t)],
            offers=self._offers(rows, verdicts, comparison.hours if comparison else 0.0),
        )

    def _offers(self, rows: Sequence[DailyJudgeWork], verdicts: int, hours: float) -> list[GpuOfferItem]:
        if not verdicts or not hours:
            return []
        found = price_offers(sum(row.judge_s for row in rows), verdicts, hours / DAY_H, self.costs.judge)
        return [GpuOfferItem.model_validate(each) for each in found]

    def _engine(self, work: EngineWork) -> EngineCost:
        money = price_work(work, self.prices)
        n = work.verdicts or None
        return EngineCost(
            engine=work.engine, model=work.model, verdicts=work.verdicts, gpu_s=round(work.judge_s, 3),
            gpu_s_each=round(work.judge_s / n, 3) if n else None, money=MoneyItem.model_validate(money),
            money_each=money.total / n if n else None,
        )  # fmt: skip

    def _compare(self, rows: Sequence[DailyJudgeWork], asked: Bill, first_day: str) -> CostComparison | None:
        totals = self.meter.totals_since_day(first_day)
        bill = price_span(totals, asked, self.prices, self.costs)
        if not bill.hours:
            return None
        each = bill.inferences or None
        return CostComparison.of_row(
            bill,
            currency=self.costs.currency,
            edge=EdgeMoney.model_validate(bill.edge),
            cloud=MoneyItem.model_validate(bill.asked),
            all_to_cloud=AllToCloudMoney.model_validate(bill.all_to_cloud),
            per_inference=bill.site / each if each else None,
            per_inference_cloud=bill.all_to_cloud.total / each if each else None,
            tokens_million=self._tokens_million(rows),
            prices=_price_items(self.costs, self.prices),
            asking_prices=_asking_items(self.prices),
        )

    def _tokens_million(self, rows: Sequence[DailyJudgeWork]) -> float | None:
        seconds, tokens = sum(row.judge_s for row in rows), sum(row.tokens_out for row in rows)
        if not (self.prices.gpu_hour and seconds and tokens):
            return None
        return MILLION * price_each(self.prices.gpu_hour, tokens / seconds * HOUR_S)

    def _camera(self, work: DailyJudgeWork) -> CameraCost:
        money = MoneyItem.model_validate(price_work(work, self.prices))
        return CameraCost.of_row(work, judge_s=round(work.judge_s, 3), money=money)


def _asking_items(prices: PricesConfig) -> list[PriceItem]:
    return [
        PriceItem(
            key=f"escalation.prices.{key}", value=getattr(prices, key), default=key not in prices.model_fields_set,
            source="nothing until you say so",
        )
        for key in ("uplink_gb", "gpu_hour", "gpu_rented_hours_day", "tokens_in_million", "tokens_out_million")
    ]  # fmt: skip


def _price_items(costs: CostsConfig, prices: PricesConfig) -> list[PriceItem]:
    found, uplink_gb = [], uplink_gb_to_cloud(prices, costs)
    for name, section in (("edge", costs.edge), ("cloud", costs.cloud), ("judge", costs.judge)):
        for key, field in type(section).model_fields.items():
            value = getattr(section, key)
            found.append(
                PriceItem(
                    key=f"costs.{name}.{key}",
                    value=uplink_gb if key == "uplink_gb" else value,
                    default=key not in section.model_fields_set,
                    source=field.description or "",
                )
            )
    return found


SavingsPart = Annotated[SavingsReader, Depends(provided(SavingsReader))]
CostPart = Annotated[CostReader, Depends(provided(CostReader))]


@router.get("/savings")
def savings(reader: SavingsPart, since: Annotated[Since, Query()] = "today") -> SavingsReport:
    """Bytes received from the cameras and bytes sent up, since the core started, since midnight, or ever."""
    return reader.report(since)


@router.get("/costs")
def costs(reader: CostPart, days: Annotated[int, Query(ge=1, le=366)] = COST_DAYS) -> CostReport:
    """Return what judging took and cost in the last days, and the whole site beside all to the cloud."""
    return reader.report(days)


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
