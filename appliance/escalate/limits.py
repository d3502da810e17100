"""How much the uplink may send, and for how long it waits: `uplink` of the site file, as the uplink needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.config import SiteConfig, Uplink
from appliance.wire import PRIORITY_OF


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None: no limit. See config.Uplink."""

    kbps_max: float | None = None
    mb_day: float | None = None
    over_mb_day: Literal["urgent", "wait"] = "urgent"
    outbox_mb_max: float = 2048.0
    silent_s: float = 300.0

    @classmethod
    def of(cls, uplink: Uplink) -> Limits:
        return cls(
            kbps_max=uplink.kbps_max,
            mb_day=uplink.mb_day,
            over_mb_day=uplink.over_mb_day,
            outbox_mb_max=uplink.outbox_mb_max,
            silent_s=uplink.silent_s,
        )


def ttl_s(config: SiteConfig) -> dict[str, float]:
    """By priority, the seconds after which a question is given up; of none longer than escalation.expire_hours."""
    hours = config.uplink.ttl_hours if config.uplink is not None else None
    most = config.escalation.expire_hours
    given = hours.model_dump() if hours is not None else {}
    return {
        priority: min(most, given[severity] if given.get(severity) is not None else most) * 3600
        for severity, priority in PRIORITY_OF.items()
    }
