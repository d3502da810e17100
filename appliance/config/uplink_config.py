"""The section `uplink`: the brokers to which escalations are sent, and how much may be sent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from appliance.base.broker_config import REGION, BrokerAddress, BrokerConfig
from appliance.base.config_model import ConfigModel


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
