"""Which alerts a list shows: the query of the API and of the page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from appliance.base.clock import day_bounds, parse_moment
from appliance.base.errors import UsageError
from appliance.store.alert_search import AlertQuery, ReviewFilter, VerdictFilter
from appliance.store.alerts import AlertCursor
from appliance.types import Severity
from appliance.web.problems import Problem

PAGE_LENGTH = 50  # cards with pictures: some 2 MB of stills
_TIME_WORDS = "a day (2026-01-31), a moment (2026-01-31T18:00) in the appliance's time zone, or UTC seconds"


class AlertFilterQuery(BaseModel):
    """The choices as an HTML form sends them; an empty one means any."""

    camera: Annotated[str, Field(max_length=64)] = ""
    severity: Severity | Literal[""] = ""
    review: ReviewFilter | Literal[""] = ""
    verdict: VerdictFilter | Literal[""] = ""
    begin: Annotated[str, Field(alias="from", max_length=40, description=_TIME_WORDS)] = ""
    end: Annotated[str, Field(alias="to", max_length=40, description=_TIME_WORDS + "; a day is meant whole")] = ""
    zone: Annotated[str, Field(max_length=64, description="a zone or line of an event")] = ""
    label: Annotated[str, Field(max_length=64)] = ""
    rule: Annotated[str, Field(max_length=64)] = ""
    text: Annotated[str, Field(max_length=100, description="beginnings of words in the note or a verdict")] = ""


class AlertFilter:
    """Which alerts are wanted; an empty choice means any, as an HTML form sends it. Raises Problem for a wrong time."""

    def __init__(self, asked: Annotated[AlertFilterQuery, Query()]) -> None:
        text = asked.text.strip()
        self.chosen: dict[str, str] = {**asked.model_dump(by_alias=True), "text": text}
        self.wanted = AlertQuery(
            camera=asked.camera or None, severity=asked.severity or None, review=asked.review or None,
            verdict=asked.verdict or None, from_t=_time_of("from", asked.begin, 0), to_t=_time_of("to", asked.end, 1),
            zone=asked.zone or None, label=asked.label or None, rule=asked.rule or None, text=text or None,
        )  # fmt: skip

    @property
    def query(self) -> dict[str, str]:
        """The fields that choose something."""
        return {name: value for name, value in self.chosen.items() if value}

    @property
    def listed(self) -> AlertQuery:
        """Return the query of the list on the page.

        It leaves out what a verdict rejected and nobody has reviewed, unless that is searched for.
        """
        asked = self.wanted.verdict == "rejected" or self.wanted.review == "deleted" or self.wanted.text is not None
        return replace(self.wanted, set_aside=asked)

    @property
    def is_for_alerts(self) -> bool:
        """Return whether something is chosen that only alerts have."""
        return bool(self.query.keys() - {"camera", "from", "to"})


def _time_of(name: str, text: str, end: int) -> float | None:
    """UTC seconds; end: 0 the beginning of a day, 1 its end. None: any. Raises Problem."""
    if not text:
        return None
    try:
        return day_bounds(text)[end]
    except (ValueError, OverflowError):
        pass
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_moment(text)
    except (ValueError, UsageError):
        seconds = math.inf
    if not math.isfinite(seconds):
        raise Problem(422, f"`{name}` is a day (2026-01-31), a moment (2026-01-31T18:00) or UTC seconds.")
    return seconds


def cursor_of(before: str) -> AlertCursor | None:
    """Return the cursor that `before` spells; "" is the newest page. Raise Problem if it spells none."""
    if not before:
        return None
    t_start, _, alert = before.partition("~")
    try:
        return AlertCursor(float(t_start), alert)
    except ValueError:
        raise Problem(422, "`before` is the `next` of another page, such as 1700000000.5~id.") from None


Filtered = Annotated[AlertFilter, Depends()]
Before = Annotated[str, Query(max_length=128, description="`next` of the page before")]
