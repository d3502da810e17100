"""The rules of a camera: what in its picture is an event."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from appliance.config.values import Schedule, Seconds, Share
from appliance.types import Severity
from appliance.yamlfile import Section


class RuleBase(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    labels: Annotated[tuple[str, ...], Field(min_length=1)] = ("person",)
    score_min: Share = 0.5
    severity: Severity = "warning"
    cooldown_s: Seconds = 0.0
    schedule: Schedule | None = None
    escalate: bool = True
    ask: Annotated[str, Field(max_length=500)] = ""


class EnterRule(RuleBase):
    kind: Literal["enter"]
    zone: str


class ExitRule(RuleBase):
    kind: Literal["exit"]
    zone: str


class DwellRule(RuleBase):
    kind: Literal["dwell"]
    zone: str
    seconds: Annotated[float, Field(gt=0, le=86400)]


class LineRule(RuleBase):
    kind: Literal["line"]
    line: str
    direction: Literal["left_to_right", "right_to_left", "both"] = "both"


Rule = Annotated[EnterRule | ExitRule | DwellRule | LineRule, Field(discriminator="kind")]
