"""`/api/v1/savings` and `/api/v1/costs`: bytes from the cameras against bytes sent up, and what judging cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from appliance.config import CameraConfig, PricesConfig
from appliance.dashboard.deps import provided
from appliance.dashboard.schemas import API, ApiModel
from appliance.savings import Bill, SavingsAccount, account_for, has_prices, price_idle, price_work
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter, MeterTotal, Metric, MetricName, Since
from appliance.store.verdict_stats import DailyJudgeWork, judge_work_since

HEADLINE_AFTER_S = 60.0  # of video; before, one escalation outweighs what came in, and a share would mislead
SETTLED_AFTER_S = 3600.0  # of video; before, a share is shown as one of the beginning
COST_DAYS = 30
DAY_S = 86400.0
KIND_TEXTS = {
    "facts": "Facts (boxes, times)",
    "crop": "Crops",
    "frame": "Pictures",
    "clip": "Clips",
    "notice": "Notifications",
    "again": "Sent again after a cut",
    "resent": "Repeated by TCP",
    "protocol": "Protocol and connection",
    "other": "Connection upkeep",
}

router = APIRouter(prefix=API, tags=["savings"])


class AccountItem(ApiModel):
    """Bytes of one camera, or of the site. `exact` false: a part is a sum of packet sizes, so a lower bound.

    `share_sent`: sent over received; null when nothing was received. `saved` is negative when more went up.
    """

    received: int
    exact: bool
    sent: int
    sent_by_kind: dict[str, int]
    saved: int
    share_sent: float | None

    @classmethod
    def of(cls, account: SavingsAccount) -> AccountItem:
        return cls(
            received=account.camera_bytes,
            exact=account.exact,
            sent=account.uplink_bytes,
            sent_by_kind={each.what: each.bytes for each in account.uplink_kinds},
            saved=account.saved_bytes,
            share_sent=account.share_sent,
        )


class CameraSavings(AccountItem):
    """The account of one camera."""

    camera: str


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
    """One day of this appliance; days without a verdict are left out, and so is what a rented GPU cost then."""

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


class SavingsReader:
    """Balances what came from the cameras against what was sent up. Any thread may call."""

    def __init__(self, meter: Meter, cameras: CameraStore, configured: Mapping[str, CameraConfig]) -> None:
        """configured: the cameras of the site file, by name."""
        self._meter = meter
        self._cameras = cameras
        self._configured = configured

    def report(self, since: Since) -> SavingsReport:
        """The sums since this core started, since midnight, or ever."""
        # No rates here: the store does not know how long the core ran today, and a wrong rate is worse than none.
        totals = self._meter.totals(since)
        found = account_for(totals, 0.0, (row.name for row in self._cameras.all()))
        return SavingsReport(
            since=since,
            counterfactual=found.counterfactual,
            total=AccountItem.of(found.total),
            overhead=found.overhead_bytes,
            cameras=[
                CameraSavings(camera=each.camera, **AccountItem.of(each.account).model_dump()) for each in found.cameras
            ],
            watched_s=self._watched_s(totals),
        )

    def _watched_s(self, totals: Iterable[MeterTotal]) -> float:
        due = (Metric(MetricName.EXAMINED), Metric(MetricName.UNEXAMINED))
        rows = [each for each in totals if each.metric in due and each.camera in self._configured]
        return sum(each.amount / self._configured[each.camera].detect.fps for each in rows)


class CostReader:
    """Reckons what judging took and cost at the owner's prices. Any thread may call."""

    def __init__(self, db: Database, prices: PricesConfig) -> None:
        self._db = db
        self._prices = prices

    def report(self, days: int = COST_DAYS) -> CostReport:
        """The last `days` days, the newest first."""
        rows = judge_work_since(self._db, self._db.clock.now() - days * DAY_S)
        found, whole, verdicts = [], Bill(), 0
        for day, of_day in groupby(rows, key=lambda row: row.day):
            works = list(of_day)
            money = sum((price_work(each, self._prices) for each in works), price_idle(works, self._prices))
            whole, verdicts = whole + money, verdicts + sum(each.verdicts for each in works)
            found.append(DayCost(day=day, cameras=[self._camera(each) for each in works], money=MoneyItem.of(money)))
        return CostReport(
            priced=has_prices(self._prices),
            verdicts=verdicts,
            money=MoneyItem.of(whole),
            per_verdict=whole.total / verdicts if verdicts else None,
            days=found,
        )

    def _camera(self, work: DailyJudgeWork) -> CameraCost:
        return CameraCost(
            camera=work.camera,
            verdicts=work.verdicts,
            judge_s=round(work.judge_s, 3),
            tokens_in=work.tokens_in,
            tokens_out=work.tokens_out,
            bytes=work.bytes,
            money=MoneyItem.of(price_work(work, self._prices)),
        )


SavingsPart = Annotated[SavingsReader, Depends(provided(SavingsReader))]
CostPart = Annotated[CostReader, Depends(provided(CostReader))]


@router.get("/savings")
def savings(reader: SavingsPart, since: Annotated[Since, Query()] = "today") -> SavingsReport:
    """Bytes received from the cameras and bytes sent up, since the core started, since midnight, or ever."""
    return reader.report(since)


@router.get("/costs")
def costs(reader: CostPart, days: Annotated[int, Query(ge=1, le=366)] = COST_DAYS) -> CostReport:
    """What judging took and cost in the last days."""
    return reader.report(days)
