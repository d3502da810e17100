"""Serves `/api/v1/costs`: what judging and the whole site cost, in sum and by day, as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from fastapi import Depends, Query
from starlette.responses import Response

from appliance.base.clock import day_bounds, local_day
from appliance.config import CostsConfig, PricesConfig
from appliance.dashboard.savings_api import DAY_S, DAYS_MAX
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.costs import (
    DAY_H,
    MILLION,
    Bill,
    GpuOffer,
    has_prices,
    price_each,
    price_idle,
    price_offers,
    price_span,
    price_work,
    uplink_gb_to_cloud,
)
from appliance.store.database import Database
from appliance.store.meter import HOUR_S, Meter
from appliance.store.verdict_stats import DailyJudgeWork, EngineWork, JudgeWorkCache
from appliance.web.routes import RouteList, provided
from appliance.web.templating import csv_file

COST_DAYS = 30  # a month, as bills are

router = RouteList(prefix=API, tags=["savings"])


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
    offers: tuple[GpuOffer, ...]


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


def first_day_t(now: float, days: int) -> float:
    """Return the beginning of the first of `days` days, the last of which is that of `now`; both UTC seconds."""
    noon = day_bounds(local_day(now))[0] + DAY_S / 2  # a day of 23 or 25 hours moves it to no other day
    return day_bounds(local_day(noon - (days - 1) * DAY_S))[0]


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
        since_t = first_day_t(self.db.clock.now(), days)
        rows = self.work.since(since_t)
        found, whole, verdicts = [], Bill(), 0
        for day, of_day in groupby(rows, key=lambda row: row.day):
            works = list(of_day)
            money = sum((price_work(each, self.prices) for each in works), self._idle(day, works))
            whole, verdicts = whole + money, verdicts + sum(each.verdicts for each in works)
            found.append(
                DayCost(day=day, cameras=[self._camera(each) for each in works], money=MoneyItem.model_validate(money))
            )
        engines = self.work.engines(since_t)
        comparison = self._compare(engines, whole, local_day(since_t))
        return CostReport(
            priced=has_prices(self.prices),
            verdicts=verdicts,
            money=MoneyItem.model_validate(whole),
            per_verdict=whole.total / verdicts if verdicts else None,
            days=found,
            comparison=comparison,
            engines=[self._engine(each) for each in engines],
            offers=self._offers(rows, verdicts, comparison.hours if comparison else 0.0),
        )

    def history(self, days: int = COST_DAYS) -> MoneyHistory:
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
                asked += self._idle(each.day, works)
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

    def _idle(self, day: str, works: Sequence[DailyJudgeWork]) -> Bill:
        begin, end = day_bounds(day)
        return price_idle(works, self.prices, min(1.0, (self.db.clock.now() - begin) / (end - begin)))

    def _offers(self, rows: Sequence[DailyJudgeWork], verdicts: int, hours: float) -> tuple[GpuOffer, ...]:
        if not verdicts or not hours:
            return ()
        return price_offers(sum(row.judge_s for row in rows), verdicts, hours / DAY_H, self.costs.judge)

    def _engine(self, work: EngineWork) -> EngineCost:
        money = price_work(work, self.prices)
        n = work.verdicts or None
        return EngineCost(
            engine=work.engine, model=work.model, verdicts=work.verdicts, gpu_s=round(work.judge_s, 3),
            gpu_s_each=round(work.judge_s / n, 3) if n else None, money=MoneyItem.model_validate(money),
            money_each=money.total / n if n else None,
        )  # fmt: skip

    def _compare(self, engines: Sequence[EngineWork], asked: Bill, first_day: str) -> CostComparison | None:
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
            tokens_million=self._tokens_million(engines),
            prices=_price_items(self.costs, self.prices),
            asking_prices=_asking_items(self.prices),
        )

    def _tokens_million(self, engines: Sequence[EngineWork]) -> float | None:
        writing = [each for each in engines if each.tokens_out]  # the seconds of other engines make no token
        seconds, tokens = sum(each.judge_s for each in writing), sum(each.tokens_out for each in writing)
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


CostPart = Annotated[CostReader, Depends(provided(CostReader))]
Days = Annotated[int, Query(ge=1, le=DAYS_MAX)]


@router.get("/costs")
def costs(reader: CostPart, days: Days = COST_DAYS) -> CostReport:
    """Return what judging took and cost in the last days, and the whole site beside all to the cloud."""
    return reader.report(days)


@router.get("/costs/history")
def costs_history(reader: CostPart, days: Days = COST_DAYS) -> MoneyHistory:
    """Return what this site cost beside all to the cloud, day by day and summed up."""
    return reader.history(days)


@router.get("/costs.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def costs_csv(reader: CostPart, days: Days = COST_DAYS) -> Response:
    """`costs/history` as CSV."""
    found = reader.history(days)
    names = list(DayMoney.model_fields)
    rows = [[getattr(each, name) for name in names] + [found.currency] for each in found.days]
    return csv_file("costs-days.csv", [*names, "currency"], rows)
