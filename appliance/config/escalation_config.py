"""The section `escalation`: what is escalated, with what evidence, and within which budget."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from appliance.base.config_model import ConfigModel
from appliance.config.values import Amount, Schedule, Seconds, Share, check_port
from appliance.config.verdict_severity import VerdictSeverityConfig
from appliance.types import EvidenceStep, Severity

_DOT = r"[.\u3002\uff0e\uff61]"  # of a host name, those of other scripts, too (RFC 3490)
_NUMBER = r"\d+|0x[\da-f]+"  # a whole IPv4 address: 134744072 is 8.8.8.8


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
        is_far = re.search(_DOT, host) or re.fullmatch(_NUMBER, host)
        return not is_far or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
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
