"""`/api/v1/costs`: what asking the cloud took and cost, per day and camera, idle GPU included."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query

from appliance.dashboard.desk import AtDesk, Desk
from appliance.dashboard.shapes import API, Shape
from appliance.savings.cost import Bill, bill, idle, priced
from appliance.store.costs import Asked, asked_since

DAY_S = 86400.0
DAYS = 30

router = APIRouter(prefix=f"{API}/costs", tags=["savings"])


class MoneyItem(Shape):
    """In the owner's currency; idle: of a rented GPU that nobody used."""

    uplink: float
    gpu: float
    tokens: float
    idle: float
    total: float

    @classmethod
    def of(cls, found: Bill) -> MoneyItem:
        return cls(uplink=found.uplink, gpu=found.gpu, tokens=found.tokens, idle=found.idle, total=found.total)


class CameraCost(Shape):
    """What asking about one camera took in one day. judge_s: seconds of the judge, not of the wall."""

    camera: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int
    money: MoneyItem


class DayCost(Shape):
    """One day of this box; days without a verdict are left out, and so is what a rented GPU cost then."""

    day: str
    cameras: list[CameraCost]
    money: MoneyItem


class CostReport(Shape):
    """priced: the site file names a price. per_verdict: idle GPU included; null: there was no verdict."""

    priced: bool
    verdicts: int
    money: MoneyItem
    per_verdict: float | None
    days: list[DayCost]


def report(desk: Desk, days: int = DAYS) -> CostReport:
    """The last `days` days, the newest first."""
    prices = desk.config.escalation.prices
    rows = asked_since(desk.db, desk.db.clock.now() - days * DAY_S)
    found, whole, verdicts = [], Bill(), 0
    for day, of_day in groupby(rows, key=lambda row: row.day):
        asked = list(of_day)
        money = sum((bill(each, prices) for each in asked), idle(asked, prices))
        whole, verdicts = whole + money, verdicts + sum(each.verdicts for each in asked)
        found.append(DayCost(day=day, cameras=[_camera(desk, each) for each in asked], money=MoneyItem.of(money)))
    return CostReport(
        priced=priced(prices),
        verdicts=verdicts,
        money=MoneyItem.of(whole),
        per_verdict=whole.total / verdicts if verdicts else None,
        days=found,
    )


def _camera(desk: Desk, asked: Asked) -> CameraCost:
    return CameraCost(
        camera=asked.camera,
        verdicts=asked.verdicts,
        judge_s=round(asked.judge_s, 3),
        tokens_in=asked.tokens_in,
        tokens_out=asked.tokens_out,
        bytes=asked.bytes,
        money=MoneyItem.of(bill(asked, desk.config.escalation.prices)),
    )


@router.get("")
def costs(desk: AtDesk, days: Annotated[int, Query(ge=1, le=366)] = DAYS) -> CostReport:
    """What asking took and cost in the last days."""
    return report(desk, days)
