"""`/api/v1/alerts`: the list, one alert, and what a person says of it."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query

from appliance.dashboard.desk import AtDesk, Desk
from appliance.dashboard.notices import AlertTold
from appliance.dashboard.problems import Problem
from appliance.dashboard.shapes import API, AlertItem, AlertPage, ReviewChange
from appliance.store.alerts import AlertDetail, Cursor
from appliance.store.rows import AlertRow
from appliance.types import Severity

PAGE_LENGTH = 50

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])

ReviewChoice = Literal["open", "reviewed", "false_alarm"]
VerdictChoice = Literal["none", "confirmed", "rejected", "unsure"]


class Filter:
    """Which alerts are wanted; an empty choice means any, as an HTML form sends it."""

    def __init__(
        self,
        camera: Annotated[str, Query(max_length=64)] = "",
        severity: Severity | Literal[""] = "",
        review: ReviewChoice | Literal[""] = "",
        verdict: VerdictChoice | Literal[""] = "",
    ) -> None:
        self.camera = camera
        self.severity: Severity | None = severity or None
        self.review: ReviewChoice | None = review or None
        self.verdict: VerdictChoice | None = verdict or None

    @property
    def chosen(self) -> dict[str, str]:
        """Every field, "" for any."""
        return {
            "camera": self.camera,
            "severity": self.severity or "",
            "review": self.review or "",
            "verdict": self.verdict or "",
        }

    @property
    def query(self) -> dict[str, str]:
        """The fields that choose something."""
        return {name: value for name, value in self.chosen.items() if value}

    def takes(self, row: AlertRow) -> bool:
        """Does this alert belong in the list?"""
        return (
            (not self.camera or row.camera == self.camera)
            and (self.severity is None or row.severity == self.severity)
            and (self.review is None or (row.review or "open") == self.review)
            and (self.verdict is None or (row.verdict or "none") == self.verdict)
        )


Filtered = Annotated[Filter, Depends()]
Before = Annotated[str, Query(max_length=128, description="`next` of the page before")]


def page_of(desk: Desk, wanted: Filter, before: str, limit: int) -> tuple[list[AlertItem], dict[str, str] | None]:
    """One page of alerts, newest first, and the query of the next (None: this is the last). Raises Problem."""
    rows = desk.alerts.page(
        cursor_of(before),
        limit + 1,
        camera=wanted.camera or None,
        severity=wanted.severity,
        review=wanted.review,
        verdict=wanted.verdict,
    )
    older = None
    if len(rows) > limit:
        last = rows[limit - 1]
        older = {**wanted.query, "before": f"{last.t_start!r}~{last.id}"}
    return [AlertItem.of(row) for row in rows[:limit]], older


def cursor_of(before: str) -> Cursor | None:
    """The cursor that `before` spells; "" is the newest page. Raises Problem."""
    if not before:
        return None
    t_start, _, alert = before.partition("~")
    try:
        return Cursor(float(t_start), alert)
    except ValueError:
        raise Problem(400, "`before` is the `next` of another page, such as 1700000000.5~id.") from None


def detail_of(desk: Desk, alert_id: str) -> AlertDetail:
    """The alert. Raises Problem when there is none."""
    detail = desk.alerts.get(alert_id)
    if detail is None:
        raise Problem(404, "There is no such alert; it may have been removed with its evidence.")
    return detail


@router.get("")
def list_alerts(
    desk: AtDesk, wanted: Filtered, before: Before = "", limit: Annotated[int, Query(ge=1, le=200)] = PAGE_LENGTH
) -> AlertPage:
    """Alerts, newest first, page by page."""
    items, older = page_of(desk, wanted, before, limit)
    return AlertPage(alerts=items, next=None if older is None else urlencode({**older, "limit": limit}))


@router.get("/{alert_id}")
def one_alert(desk: AtDesk, alert_id: str) -> AlertTold:
    """One alert with its events, evidence, delivery and verdict, and who was told of it."""
    return AlertTold.read(desk, detail_of(desk, alert_id))


@router.post("/{alert_id}/review")
def review_alert(desk: AtDesk, alert_id: str, change: ReviewChange) -> AlertItem:
    """Say what you think of it: `reviewed`, `false_alarm`, or null to take it back."""
    if not desk.alerts.review(alert_id, change.review, desk.clock.now()):
        raise Problem(404, "There is no such alert; it may have been removed with its evidence.")
    return AlertItem.of(detail_of(desk, alert_id).alert)
