"""What asking costs in money, at the owner's prices. Pure arithmetic.

A GPU that is rented costs the same whether it is asked or not: hours that nobody used are a line of their own, and the
price of a verdict has them in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from appliance.config import Prices

GB, MILLION, HOUR_S = 1e9, 1e6, 3600.0


class Taken(Protocol):
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


def priced(prices: Prices) -> bool:
    """The owner has named a price."""
    return any((prices.uplink_gb, prices.gpu_hour, prices.tokens_in_million, prices.tokens_out_million))


def bill(taken: Taken, prices: Prices) -> Bill:
    """Of what was used."""
    return Bill(
        uplink=taken.bytes / GB * prices.uplink_gb,
        gpu=taken.judge_s / HOUR_S * prices.gpu_hour,
        tokens=taken.tokens_in / MILLION * prices.tokens_in_million
        + taken.tokens_out / MILLION * prices.tokens_out_million,
    )


def idle(used: Iterable[Taken], prices: Prices) -> Bill:
    """Of one day: what was rented and not used. Judging two questions at once cannot make it negative."""
    rented_s = prices.gpu_rented_hours_day * HOUR_S
    unused_s = max(0.0, rented_s - sum(each.judge_s for each in used))
    return Bill(idle=unused_s / HOUR_S * prices.gpu_hour)
