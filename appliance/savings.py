"""What the appliance saved, and what asking the cloud cost: bytes and money. Pure arithmetic.

Savings are bytes received from the cameras against bytes put on the uplink. The counterfactual is named beside every
number: all camera streams sent to the cloud as they are. A negative saving is a result like any other and is shown.
Costs are reckoned at the owner's prices. A GPU that is rented costs the same whether it is used or not: unused hours
are a line of their own, and the price of a verdict has them in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.config import PricesConfig
from appliance.store.meter import MeterTotal, Metric, MetricName
from appliance.store.verdict_stats import DailyJudgeWork

COUNTERFACTUAL = "all camera streams sent to the cloud"
UPLINK_BYTES = Metric(MetricName.UPLINK_BYTES)
GB, MILLION, HOUR_S = 1e9, 1e6, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkKind:
    """Bytes sent up for one purpose: facts, crop, frame, clip, notice, …; "other" for those of unknown purpose."""

    what: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsAccount:
    """Bytes of one camera, or of the site. Rates in kbit/s over the time the account covers; None: no time passed."""

    camera_bytes: int
    exact: bool  # False: a part was counted as packet sizes, without the protocol around them, so it is a lower bound
    uplink_bytes: int
    uplink_kinds: tuple[UplinkKind, ...]
    camera_kbit_s: float | None
    uplink_kbit_s: float | None

    @property
    def saved_bytes(self) -> int:
        """Against the counterfactual; negative when more went up than came in."""
        return self.camera_bytes - self.uplink_bytes

    @property
    def share_sent(self) -> float | None:
        """Uplink bytes as a share of camera bytes; None when nothing came in."""
        return self.uplink_bytes / self.camera_bytes if self.camera_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraAccount:
    """The account of one camera."""

    camera: str
    account: SavingsAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """The site's account over `seconds`, and each camera's.

    `overhead_bytes`: uplink bytes that belong to no camera (keep-alive, acknowledgements); in the total, in no camera.
    """

    seconds: float
    total: SavingsAccount
    cameras: tuple[CameraAccount, ...]
    overhead_bytes: int
    counterfactual: str = COUNTERFACTUAL


def account_for(totals: Iterable[MeterTotal], seconds: float, cameras: Iterable[str] = ()) -> Savings:
    """Balance the meter's totals over `seconds`; `cameras` get an account even if nothing was counted for them."""
    rows = [each for each in totals if each.metric.name in (MetricName.CAMERA_BYTES, MetricName.UPLINK_BYTES)]
    names = sorted({row.camera for row in rows if row.camera} | set(cameras))
    return Savings(
        seconds=seconds,
        total=_account(rows, seconds),
        cameras=tuple(
            CameraAccount(camera=name, account=_account([row for row in rows if row.camera == name], seconds))
            for name in names
        ),
        overhead_bytes=_sum(row for row in rows if not row.camera and row.metric == UPLINK_BYTES),
    )


def _account(rows: list[MeterTotal], seconds: float) -> SavingsAccount:
    received = [row for row in rows if row.metric.name is MetricName.CAMERA_BYTES]
    exact, estimated = (_sum(row for row in received if row.metric.label == label) for label in ("", "estimated"))
    sent = _sum(row for row in rows if row.metric == UPLINK_BYTES)
    kinds: Counter[str] = Counter()
    for row in rows:
        if row.metric.name is MetricName.UPLINK_BYTES and row.metric.label:
            kinds[row.metric.label] += row.amount
    if sent > kinds.total():
        kinds["other"] = sent - kinds.total()
    return SavingsAccount(
        camera_bytes=exact + estimated,
        exact=estimated == 0,
        uplink_bytes=sent,
        uplink_kinds=tuple(UplinkKind(what=what, bytes=kinds[what]) for what in sorted(kinds)),
        camera_kbit_s=_kbit_s(exact + estimated, seconds),
        uplink_kbit_s=_kbit_s(sent, seconds),
    )


def _sum(rows: Iterable[MeterTotal]) -> int:
    return sum(row.amount for row in rows)


def _kbit_s(count: int, seconds: float) -> float | None:
    return count * 8 / 1000 / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Money in the owner's currency, by what it is for. idle: of a rented GPU, for the hours in which it was unused."""

    uplink: float = 0.0
    gpu: float = 0.0
    tokens: float = 0.0
    idle: float = 0.0

    @property
    def total(self) -> float:
        return self.uplink + self.gpu + self.tokens + self.idle

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            uplink=self.uplink + other.uplink,
            gpu=self.gpu + other.gpu,
            tokens=self.tokens + other.tokens,
            idle=self.idle + other.idle,
        )


def has_prices(prices: PricesConfig) -> bool:
    """The owner has named a price."""
    return any((prices.uplink_gb, prices.gpu_hour, prices.tokens_in_million, prices.tokens_out_million))


def price_work(work: DailyJudgeWork, prices: PricesConfig) -> Bill:
    """What the work cost by use: uplink, judge time and tokens."""
    return Bill(
        uplink=work.bytes / GB * prices.uplink_gb,
        gpu=work.judge_s / HOUR_S * prices.gpu_hour,
        tokens=work.tokens_in / MILLION * prices.tokens_in_million
        + work.tokens_out / MILLION * prices.tokens_out_million,
    )


def price_idle(works: Iterable[DailyJudgeWork], prices: PricesConfig) -> Bill:
    """What was rented for one day and not used. Judging two escalations at once cannot make it negative."""
    rented_s = prices.gpu_rented_hours_day * HOUR_S
    unused_s = max(0.0, rented_s - sum(each.judge_s for each in works))
    return Bill(idle=unused_s / HOUR_S * prices.gpu_hour)
