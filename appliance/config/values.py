"""Value types that several sections of the site file share: shares, seconds, amounts, schedules."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from appliance.base.config_model import ConfigModel
from appliance.types import SEVERITIES, Decision, Severity

Share = Annotated[float, Field(ge=0, le=1)]
SharePoint = tuple[Share, Share]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Amount = Annotated[float, Field(ge=0)]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-(([01]\d|2[0-3]):([0-5]\d)|24:00)$")


class Schedule(ConfigModel):
    """When a rule is armed, in the appliance's own time zone. A span may run past midnight: `22:00-06:00`."""

    days: Annotated[tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...], Field(min_length=1)] = DAYS
    hours: tuple[str, ...] = ("00:00-24:00",)

    @field_validator("hours")
    @classmethod
    def _spans(cls, hours: tuple[str, ...]) -> tuple[str, ...]:
        for span in hours:
            if not _SPAN.match(span):
                raise ValueError(f"`{span}` is not a span of hours such as 22:00-06:00")
        return hours


class VerdictSeverityConfig(ConfigModel):
    """The severity that an alert takes with a verdict; None: it keeps its own. Only `confirmed` may make it graver."""

    confirmed: Severity | None = None
    rechecked: Severity | None = None
    rejected: Severity | None = "info"

    def after(self, severity: Severity, decision: Decision) -> Severity:
        """Return the severity after a verdict; severity: by the rules."""
        if decision == "confirmed":
            return self.confirmed or severity
        wanted = {"rechecked": self.rechecked, "rejected": self.rejected}.get(decision) or severity
        return min(wanted, severity, key=SEVERITIES.index)
