"""`/api/v1/costs`: what asking the cloud took and cost, per day and camera, idle GPU included."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query

from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.schemas import API, ApiModel
from appliance.savings import Bill, has_prices, price_idle, price_work
from appliance.store.verdict_stats import DailyJudgeWork, judge_work_since

DAY_S = 86400.0
DAYS = 30

router = APIRouter(prefix=f"{API}/costs", tags=["savings"])


class MoneyItem(ApiModel):
    """In the owner's currency; idle: of a rented GPU that nobody used."""

    uplink: float
    gpu: float
    tokens: float
    idle: float
    total: float

    @classmethod
    def of(cls, found: Bill) -> MoneyItem:
        return cls(uplink=found.uplink, gpu=found.gpu, tokens=found.tokens, idle=found.idle, total=found.total)


class CameraCost(ApiModel):
    """What asking about one camera took in one day. judge_s: seconds of the judge, not of the wall."""

    camera: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int
    money: MoneyItem


class DayCost(ApiModel):
    """One day of this box; days without a verdict are left out, and so is what a rented GPU cost then."""

    day: str
    cameras: list[CameraCost]
    money: MoneyItem


class CostReport(ApiModel):
    """priced: the site file names a price. per_verdict: idle GPU included; null: there was no verdict."""

    priced: bool
    verdicts: int
    money: MoneyItem
    per_verdict: float | None
    days: list[DayCost]


def report(desk: DashboardDeps, days: int = DAYS) -> CostReport:
    """The last `days` days, the newest first."""
    prices = desk.config.escalation.prices
    rows = judge_work_since(desk.db, desk.db.clock.now() - days * DAY_S)
    found, whole, verdicts = [], Bill(), 0
    for day, of_day in groupby(rows, key=lambda row: row.day):
        asked = list(of_day)
        money = sum((price_work(each, prices) for each in asked), price_idle(asked, prices))
        whole, verdicts = whole + money, verdicts + sum(each.verdicts for each in asked)
        found.append(DayCost(day=day, cameras=[_camera(desk, each) for each in asked], money=MoneyItem.of(money)))
    return CostReport(
        priced=has_prices(prices),
        verdicts=verdicts,
        money=MoneyItem.of(whole),
        per_verdict=whole.total / verdicts if verdicts else None,
        days=found,
    )


def _camera(desk: DashboardDeps, asked: DailyJudgeWork) -> CameraCost:
    return CameraCost(
        camera=asked.camera,
        verdicts=asked.verdicts,
        judge_s=round(asked.judge_s, 3),
        tokens_in=asked.tokens_in,
        tokens_out=asked.tokens_out,
        bytes=asked.bytes,
        money=MoneyItem.of(price_work(asked, desk.config.escalation.prices)),
    )


@router.get("")
def costs(desk: Deps, days: Annotated[int, Query(ge=1, le=366)] = DAYS) -> CostReport:
    """What asking took and cost in the last days."""
    return report(desk, days)
