"""Computes what the appliance, asking the cloud, and sending everything to the cloud cost. Pure arithmetic.

All costs are computed with the owner's prices. The defaults, and where they come from, are in the section `costs` of
the site file. A rented GPU costs the same whether it is used or not. Therefore a bill has an item for the unused hours
(`Bill.idle`), and the price of a verdict includes its part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from appliance.config import CloudCostConfig, CostsConfig, EdgeCostConfig, JudgeCostConfig, PricesConfig
from appliance.store.meter import MeterTotal, Metric, MetricName
from appliance.store.savings import account_for
from appliance.store.verdict_stats import DailyJudgeWork, EngineWork

GB, MILLION, HOUR_S, KILO = 1e9, 1e6, 3600.0, 1e3  # bytes, inferences, seconds, W in a kW
DAY_H = 24.0  # hours
YEAR_H = 365.25 * DAY_H
MONTH_H = YEAR_H / 12


def amortised_hour(price: float, years: float) -> float:
    """Return the cost per hour of a device that costs `price` and is used for `years`."""
    return price / (years * YEAR_H)


def power_hour(watts: float, kwh_price: float) -> float:
    """Return the cost of the electricity for an hour at `watts`."""
    return watts / KILO * kwh_price


def price_each(hour_price: float, each_hour: float, use: float = 1.0) -> float:
    """Return the cost of one inference or token on a device that makes `each_hour` of them in an hour of work.

    use: the share of the time in which the device works. Unused time is paid, too: with a use of 0.1 each of them costs
    ten times as much.
    """
    return hour_price / (each_hour * use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Splits the cost of escalations. idle: the cost of a rented GPU in the hours in which it was not used."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeBill:
    """Splits the cost of the appliance itself. operations: the part that is paid by inference; the rest is hourly."""

    device: float
    power: float
    connectivity: float
    maintenance: float
    operations: float

    @property
    def total(self) -> float:
        return self.device + self.power + self.connectivity + self.maintenance + self.operations


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudBill:
    """Splits the cost of sending the main streams to the cloud and examining the same frames there."""

    gpu: float
    uplink: float

    @property
    def total(self) -> float:
        return self.gpu + self.uplink


def price_edge(prices: EdgeCostConfig, hours: float, inferences: int) -> EdgeBill:
    """Return the cost of one appliance for `hours`, in which its detector made `inferences`."""
    return EdgeBill(
        device=hours * amortised_hour(prices.device_price, prices.device_years),
        power=hours * power_hour(prices.power_w, prices.electricity_kwh),
        connectivity=hours * prices.connectivity_month / MONTH_H,
        maintenance=hours * prices.maintenance_month / MONTH_H,
        operations=inferences / MILLION * prices.operations_million,
    )


def price_all_to_cloud(prices: CloudCostConfig, uplink_gb: float, inferences: int, bytes_: int) -> CloudBill:
    """Return the cost of `inferences` on a rented GPU, for which `bytes_` were uploaded."""
    return CloudBill(
        gpu=inferences * price_each(prices.gpu_hour, prices.inferences_hour, prices.gpu_use),
        uplink=bytes_ / GB * uplink_gb,
    )


def has_prices(prices: PricesConfig) -> bool:
    """Return True if the owner has named a price."""
    return any((prices.uplink_gb, prices.gpu_hour, prices.tokens_in_million, prices.tokens_out_million))


def price_work(work: DailyJudgeWork | EngineWork, prices: PricesConfig) -> Bill:
    """Return the cost of the work by use: uplink, judge time and tokens."""
    return Bill(
        uplink=work.bytes / GB * prices.uplink_gb,
        gpu=work.judge_s / HOUR_S * prices.gpu_hour,
        tokens=work.tokens_in / MILLION * prices.tokens_in_million
        + work.tokens_out / MILLION * prices.tokens_out_million,
    )


def price_idle(works: Iterable[DailyJudgeWork], prices: PricesConfig, day_share: float = 1.0) -> Bill:
    """Return the cost of the hours of one day for which a GPU was rented and not used.

    It is never negative, although judging two escalations at once counts twice. day_share: of the day that is over.
    """
    rented_s = prices.gpu_rented_hours_day * HOUR_S * day_share
    unused_s = max(0.0, rented_s - sum(each.judge_s for each in works))
    return Bill(idle=unused_s / HOUR_S * prices.gpu_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBill:
    """Compares the cost of this site (`edge` and `asked`) with the cost of sending everything to the cloud.

    hours: the time in which the appliance ran. asked.uplink: the cost of every byte that was sent.
    """

    hours: float
    inferences: int
    received_main: int
    sent: int
    edge: EdgeBill
    asked: Bill
    all_to_cloud: CloudBill

    @property
    def site(self) -> float:
        return self.edge.total + self.asked.total

    @property
    def saved(self) -> float:
        """The saved money; negative if sending everything to the cloud would have been cheaper."""
        return self.all_to_cloud.total - self.site


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOffer:
    """Describes one way to pay for the judge's GPU over some days.

    hours: the hours that are paid. idle_hours: the part of them in which the GPU had nothing to do. hour, total,
    per_verdict: money.
    """

    kind: str
    hour: float
    hours: float
    idle_hours: float
    total: float
    per_verdict: float | None


def price_offers(judge_s: float, verdicts: int, days: float, prices: JudgeCostConfig) -> tuple[GpuOffer, GpuOffer]:
    """Return the cost of the same work on a spot GPU, paid while it is warm, and on a reserved one, paid always."""
    used_h = judge_s / HOUR_S
    warm_h = max(used_h, days * prices.warm_hours_day)
    always_h = max(used_h, days * DAY_H)
    return (
        _offer("spot", prices.spot_hour, warm_h, used_h, verdicts),
        _offer("reserved", prices.reserved_hour, always_h, used_h, verdicts),
    )


def _offer(kind: str, hour: float, hours: float, used_h: float, verdicts: int) -> GpuOffer:
    total = hours * hour
    each = total / verdicts if verdicts else None
    return GpuOffer(kind=kind, hour=hour, hours=hours, idle_hours=hours - used_h, total=total, per_verdict=each)


def uplink_gb_to_cloud(prices: PricesConfig, costs: CostsConfig) -> float:
    """Return the price of a GB for sending everything to the cloud.

    It is the price of this comparison. Only if the site file sets no such price, but one for escalations, the latter
    counts.
    """
    own = costs.cloud.uplink_gb
    named = "uplink_gb" in prices.model_fields_set and "uplink_gb" not in costs.cloud.model_fields_set
    return prices.uplink_gb if named or own is None else own


def uplink_gb_of_site(prices: PricesConfig, costs: CostsConfig) -> float:
    """Return the price of a GB that this site sends: that of escalations if set, else that of the comparison."""
    return prices.uplink_gb if "uplink_gb" in prices.model_fields_set else uplink_gb_to_cloud(prices, costs)


def price_span(totals: Sequence[MeterTotal], asked: Bill, prices: PricesConfig, costs: CostsConfig) -> SpanBill:
    """Return the bill of what the meter counted. asked: the cost of the judges' work in the same time."""
    seconds = sum(each.amount for each in totals if each.metric == Metric(MetricName.UPTIME_S))
    inferences = sum(each.amount for each in totals if each.metric == Metric(MetricName.EXAMINED))
    hours, bytes_ = seconds / HOUR_S, account_for(totals).total
    return SpanBill(
        hours=hours,
        inferences=inferences,
        received_main=bytes_.main_bytes,
        sent=bytes_.uplink_bytes,
        edge=price_edge(costs.edge, hours, inferences),
        asked=replace(asked, uplink=bytes_.uplink_bytes / GB * uplink_gb_of_site(prices, costs)),
        all_to_cloud=price_all_to_cloud(costs.cloud, uplink_gb_to_cloud(prices, costs), inferences, bytes_.main_bytes),
    )
