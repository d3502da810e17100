"""What the appliance saved and what asking the cloud cost: bytes from the cameras against bytes on the uplink, and
money at the owner's prices. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from appliance.config import PricesConfig

COUNTERFACTUAL = "all camera streams sent to the cloud"
CAMERA_EXACT = "camera_bytes"
CAMERA_ESTIMATED = "camera_bytes_estimated"
UPLINK = "uplink_bytes"
"""Every byte sent is counted here, and those whose purpose is known once more under `uplink_bytes_<what>`."""
_COUNTED = {CAMERA_EXACT, CAMERA_ESTIMATED, UPLINK}


class MeteredAmount(Protocol):
    """What the ledger needs of a meter's total. `camera` "" is what belongs to no camera."""

    @property
    def camera(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def amount(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkKind:
    """Bytes sent up for one purpose."""

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


def account_for(amounts: Iterable[MeteredAmount], seconds: float, cameras: Iterable[str] = ()) -> Savings:
    """Balance the meter's totals over `seconds`; `cameras` get an account even if nothing was counted for them."""
    rows = list(amounts)
    names = sorted({row.camera for row in rows if row.camera and row.kind in _COUNTED} | set(cameras))
    return Savings(
        seconds=seconds,
        total=_savings_account(rows, seconds),
        cameras=tuple(
            CameraAccount(camera=name, account=_savings_account([row for row in rows if row.camera == name], seconds))
            for name in names
        ),
        overhead_bytes=sum(row.amount for row in rows if not row.camera and row.kind == UPLINK),
    )


def _savings_account(rows: list[MeteredAmount], seconds: float) -> SavingsAccount:
    exact = sum(row.amount for row in rows if row.kind == CAMERA_EXACT)
    estimated = sum(row.amount for row in rows if row.kind == CAMERA_ESTIMATED)
    sent = sum(row.amount for row in rows if row.kind == UPLINK)
    kinds: dict[str, int] = {}
    for row in rows:
        if row.kind.startswith(f"{UPLINK}_"):
            what = row.kind.removeprefix(f"{UPLINK}_")
            kinds[what] = kinds.get(what, 0) + row.amount
    if sent > sum(kinds.values()):
        kinds["other"] = sent - sum(kinds.values())
    return SavingsAccount(
        camera_bytes=exact + estimated,
        exact=estimated == 0,
        uplink_bytes=sent,
        uplink_kinds=tuple(UplinkKind(what=what, bytes=kinds[what]) for what in sorted(kinds)),
        camera_kbit_s=_kbit_s(exact + estimated, seconds),
        uplink_kbit_s=_kbit_s(sent, seconds),
    )


def _kbit_s(count: int, seconds: float) -> float | None:
    return count * 8 / 1000 / seconds if seconds > 0 else None


GB, MILLION, HOUR_S = 1e9, 1e6, 3600.0


class JudgedWork(Protocol):
    """What asking took. judge_s: seconds of the judge; two questions judged at once count both."""

    @property
    def verdicts(self) -> int: ...
    @property
    def judge_s(self) -> float: ...
    @property
    def tokens_in(self) -> int: ...
    @property
    def tokens_out(self) -> int: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Money, by what it is for. idle: of a rented GPU that nobody used."""

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


def price_work(taken: JudgedWork, prices: PricesConfig) -> Bill:
    """Of what was used."""
    return Bill(
        uplink=taken.bytes / GB * prices.uplink_gb,
        gpu=taken.judge_s / HOUR_S * prices.gpu_hour,
        tokens=taken.tokens_in / MILLION * prices.tokens_in_million
        + taken.tokens_out / MILLION * prices.tokens_out_million,
    )


def price_idle(used: Iterable[JudgedWork], prices: PricesConfig) -> Bill:
    """Of one day: what was rented and not used. Judging two questions at once cannot make it negative."""
    rented_s = prices.gpu_rented_hours_day * HOUR_S
    unused_s = max(0.0, rented_s - sum(each.judge_s for each in used))
    return Bill(idle=unused_s / HOUR_S * prices.gpu_hour)
