"""The sections `escalation`, `uplink` and `costs`: what is escalated, with what evidence, and what it costs.

`costs` has the prices behind the comparison on the page Savings. The description of each price says where its default
is from; the dashboard and docs/costs.md show it beside the price.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from appliance.base.broker_config import REGION, BrokerAddress, BrokerConfig
from appliance.base.config_model import ConfigModel
from appliance.config.values import Amount, Schedule, Seconds, Share, VerdictSeverityConfig, check_port
from appliance.types import EvidenceStep, Severity


class RouterConfig(ConfigModel):
    """Which alerts are worth an escalation. See docs/router.md."""

    recall_min: Annotated[float, Field(ge=0.5, lt=1)] = 0.98
    error_max: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    cold_share: Share = 0.5
    crowd_max: Annotated[int, Field(ge=1, le=512)] = 12
    answer_s: Annotated[float, Field(gt=0, le=86400)] | None = None
    value_min: Amount = 0.0
    audit_share: Share = 0.02
    silent_frames_day: Annotated[float, Field(ge=0, le=1440)] = 1.0
    repeat_s: Seconds = 600.0
    queue_age_max_s: Annotated[float, Field(gt=0)] = 600.0
    load_max: Annotated[float, Field(gt=0)] | None = None
    temperature_max_c: float | None = None


class OffPeakConfig(Schedule):
    """When escalations of these severities are sent; at other times they wait."""

    severities: tuple[Severity, ...] = ("info", "warning")


class BudgetConfig(ConfigModel):
    """The limits of what escalations cost; None: no limit. alert_reserve: a share for severity `alert` alone."""

    mb_day: Amount | None = None
    mb_month: Amount | None = None
    gpu_s_day: Amount | None = None
    gpu_s_month: Amount | None = None
    money_day: Amount | None = None
    money_month: Amount | None = None
    alert_reserve: Share = 0.2


class PricesConfig(ConfigModel):
    """The prices of escalations, in the owner's currency. gpu_rented_hours_day: paid whether used or not."""

    uplink_gb: Amount = 0.0
    gpu_hour: Amount = 0.0
    gpu_hour_max: Amount | None = None
    gpu_rented_hours_day: Annotated[float, Field(ge=0, le=24)] = 0.0
    tokens_in_million: Amount = 0.0
    tokens_out_million: Amount = 0.0


class LocalJudgeConfig(ConfigModel):
    """A model server on the appliance or its network that judges what waits for the cloud; no url: there is none."""

    url: Annotated[str | None, Field(repr=False)] = None
    model: Annotated[str, Field(min_length=1, max_length=300)] = "vlm"
    api_key: SecretStr | None = None
    when: Literal["uplink_gone", "idle", "always"] = "uplink_gone"
    images_max: Annotated[int, Field(ge=1, le=16)] = 2
    image_side_max: Annotated[int, Field(ge=64, le=4096)] = 512
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 300.0

    @field_validator("url")
    @classmethod
    def _nearby(cls, url: str | None) -> str | None:
        """Refuse what is not of this network: what leaves the site goes over the uplink, with its budget and audit."""
        parts = urlsplit(url or "")
        if url is not None and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise ValueError("must be an address such as http://127.0.0.1:8000/v1")
        check_port(parts)
        if url is not None and not _is_nearby(parts.hostname or ""):
            raise ValueError(
                "must be on this appliance or its network: 127.0.0.1, a private address, or a name without a dot or in "
                ".local, .lan, .internal, .home.arpa. Name a model elsewhere in the worker file (docs/worker.md)"
            )
        return None if url is None else url.rstrip("/")


def _is_nearby(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
    return address.is_loopback or address.is_private or address.is_link_local


class EscalationConfig(ConfigModel):
    enabled: bool = True
    severities: tuple[Severity, ...] = ("warning", "alert")
    first: EvidenceStep = "crops"
    crops: Annotated[int, Field(ge=1, le=3)] = 2
    crop_bytes_max: Annotated[int, Field(ge=2048, le=128 * 1024)] = 12 * 1024
    frame_bytes_max: Annotated[int, Field(ge=8 * 1024, le=4 * 1024 * 1024)] = 32 * 1024
    clip_bytes_max: Annotated[int, Field(ge=64 * 1024, le=16 * 1024 * 1024)] = 2 * 1024 * 1024
    frames: Annotated[int, Field(ge=1, le=8)] = 4
    frame_side_max: Annotated[int, Field(ge=160, le=4096)] = 1280
    span_s: Annotated[float, Field(ge=0, le=30)] = 3.0
    expire_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 72.0
    router: RouterConfig = RouterConfig()
    off_peak: OffPeakConfig | None = None
    budget: BudgetConfig = BudgetConfig()
    prices: PricesConfig = PricesConfig()
    severity_on_verdict: VerdictSeverityConfig = VerdictSeverityConfig()
    local_judge: LocalJudgeConfig = LocalJudgeConfig()


class TtlHoursConfig(ConfigModel):
    """How long an escalation of this severity waits for its verdict; None: escalation.expire_hours."""

    alert: Annotated[float | None, Field(gt=0, le=24 * 365)] = None
    warning: Annotated[float | None, Field(gt=0, le=24 * 365)] = None
    info: Annotated[float | None, Field(gt=0, le=24 * 365)] = 24.0


class UplinkConfig(BrokerConfig):
    """The broker, and how much may be sent to it. See docs/uplink.md."""

    kbps_max: Annotated[float | None, Field(ge=8)] = None
    mb_day: Annotated[float | None, Field(gt=0)] = None
    over_mb_day: Literal["urgent", "wait"] = "urgent"
    outbox_mb_max: Annotated[float, Field(gt=0)] = 2048.0
    ttl_hours: TtlHoursConfig = TtlHoursConfig()
    silent_s: Annotated[float, Field(ge=5, le=86400)] = 300.0
    residency: tuple[Annotated[str, Field(pattern=REGION)], ...] = ()
    failover_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    failback_s: Annotated[float, Field(ge=1, le=86400)] = 300.0

    @model_validator(mode="after")
    def _allowed_region(self) -> UplinkConfig:
        regions = {each.region for each in self.urls}
        if self.residency and not regions.intersection(self.residency):
            known = f"they are in {', '.join(sorted(regions))}" if regions else "uplink.url names no region: use urls"
            raise ValueError(f"residency allows {', '.join(self.residency)}, and no broker is there: {known}")
        return self

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """The brokers that may be connected to, in order: never one in a region that `residency` does not name."""
        allowed = [each for each in super().addresses if not self.residency or each.region in self.residency]
        return tuple(allowed)


_GB = "1 GB by mobile network in the UK, 2023, by cable.co.uk (237 countries: Israel 0.02, USA 6.00)"
_PI_NODE = "a Raspberry Pi 5 as a node in a shop, early 2026: 150 over 3 years, 5 a month for its connection"


class EdgeCostConfig(ConfigModel):
    """The costs of one appliance. operations_million: people and services, for a million inferences."""

    device_price: Annotated[Amount, Field(description=_PI_NODE)] = 150.0
    device_years: Annotated[float, Field(gt=0, le=50, description=_PI_NODE)] = 3.0
    power_w: Annotated[
        Amount, Field(description="a Raspberry Pi 5 under load, at the wall: github.com/geerlingguy/sbc-reviews 60")
    ] = 9.0
    electricity_kwh: Annotated[Amount, Field(description="0.10 a kWh, early 2026; in much of Europe 0.30")] = 0.10
    connectivity_month: Annotated[Amount, Field(description=_PI_NODE)] = 5.0
    maintenance_month: Annotated[Amount, Field(description="nothing until you say so")] = 0.0
    operations_million: Annotated[Amount, Field(description="nothing until you say so")] = 0.0


class CloudCostConfig(ConfigModel):
    """The costs of sending every main stream to the cloud and of running the detector there.

    gpu_use: the share of its paid hours in which the GPU works. uplink_gb: also of what escalations send; where
    escalation.prices.uplink_gb is named and this is not, that one; None: always that one.
    """

    gpu_hour: Annotated[Amount, Field(description="an NVIDIA L4 on demand, RunPod by deploybase.ai, 2026")] = 0.44
    inferences_hour: Annotated[
        float, Field(gt=0, description="one in 10 ms on an L4, early 2026: an upper bound of its time")
    ] = 360_000.0
    gpu_use: Annotated[float, Field(gt=0, le=1, description="never idle; at 0.1 an inference costs ten times")] = 1.0
    uplink_gb: Annotated[Amount | None, Field(description=_GB)] = 0.62


class JudgeCostConfig(ConfigModel):
    """The prices of the judge's GPU, for spot beside reserved. warm_hours_day: it is kept on for, used or not."""

    spot_hour: Annotated[Amount, Field(description="an H100 on the spot market, early 2026")] = 0.80
    reserved_hour: Annotated[Amount, Field(description="an H100, early 2026; an H200 3.69")] = 2.01
    warm_hours_day: Annotated[float, Field(ge=0, le=24, description="always: a cold model takes a minute")] = 24.0


class CostsConfig(ConfigModel):
    """The prices behind the comparison on the page Savings, all in one currency."""

    currency: Annotated[str, Field(min_length=1, max_length=8, description="that of the defaults")] = "USD"
    edge: EdgeCostConfig = EdgeCostConfig()
    cloud: CloudCostConfig = CloudCostConfig()
    judge: JudgeCostConfig = JudgeCostConfig()
