"""`/api/v1/alerts`: the list, one alert with its notices, and what a person says of it."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query

from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.problems import Problem
from appliance.dashboard.schemas import API, AlertFull, AlertItem, AlertPage, ApiModel, ReviewChange
from appliance.store.alerts import AlertCursor, AlertDetail
from appliance.store.notices import NoticeRow, NoticeState, Standing
from appliance.store.rows import AlertRow
from appliance.types import Severity

FAILING_S = 60.0  # a target that fails for shorter than this is tried again, and nobody need know

_STANDING_TEXTS: dict[Standing | Literal[""], str] = {
    "": "",
    "edge": "as the box saw it",
    "unverified": "as unverified",
    "confirmed": "as confirmed",
    "withdrawn": "that it was nothing",
    "unsure": "that the cloud is not sure",
}


class NoticeItem(ApiModel):
    """A target of an alert. held_until: it waits for a verdict until then at the latest; null: it does not.

    told_t: when the first message arrived, last_t: the last, standing: what that one said, messages: how many did.
    reason: the last problem, or why nothing (more) is sent. words: all this as a person reads it.
    """

    target: str
    state: NoticeState
    held_until: float | None
    told_t: float | None
    last_t: float | None
    standing: Standing | Literal[""]
    messages: int
    attempts: int
    reason: str
    words: str

    @classmethod
    def of(cls, row: NoticeRow, now: float) -> NoticeItem:
        held = row.state == "waiting" and not row.attempts and now < row.due_t
        return cls(
            target=row.target,
            state=row.state,
            held_until=row.due_t if held else None,
            told_t=row.told_t,
            last_t=row.last_t,
            standing=row.standing,
            messages=row.messages,
            attempts=row.attempts,
            reason=row.reason,
            words=_words(row, held),
        )


class AlertWithNotices(AlertFull):
    """Everything about one alert, and who was told of it."""

    notices: list[NoticeItem]

    @classmethod
    def read(cls, desk: DashboardDeps, detail: AlertDetail) -> AlertWithNotices:
        return cls(**dict(AlertFull.of(detail)), notices=notice_items(desk, detail.alert.id))


def notice_items(desk: DashboardDeps, alert: str) -> list[NoticeItem]:
    """Who is told of an alert, by name."""
    now = desk.clock.now()
    return [NoticeItem.of(row, now) for row in desk.notices.of(alert)]


def failing_targets(desk: DashboardDeps) -> list[str]:
    """A sentence for each target that has not taken a message for long."""
    now = desk.clock.now()
    return [
        f"notify: {state.name} cannot be told for {(now - state.failing_since) / 60:.0f} min, {state.waiting} waiting: "
        f"{state.error}"
        for state in desk.probes.targets()
        if state.failing_since is not None and now - state.failing_since >= FAILING_S
    ]


def _words(row: NoticeRow, held: bool) -> str:
    if row.messages:
        told = f"Told {_STANDING_TEXTS[row.standing]}" + (f" ({row.messages} messages)" if row.messages > 1 else "")
        if row.state == "changed":
            return f"{told}; an update is on its way" + (f": {row.reason}" if row.reason else "")
        return told + (f"; {row.reason}" if row.reason else "")
    if row.state == "waiting":
        if held:
            return "Held for the cloud's verdict"
        return f"Being sent; {row.reason}" if row.reason else "Being sent"
    return row.reason[:1].upper() + row.reason[1:]


PAGE_LENGTH = 50

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])

ReviewChoice = Literal["open", "reviewed", "false_alarm"]
VerdictChoice = Literal["none", "confirmed", "rejected", "unsure"]


class AlertFilter:
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


Filtered = Annotated[AlertFilter, Depends()]
Before = Annotated[str, Query(max_length=128, description="`next` of the page before")]


def page_of(
    desk: DashboardDeps, wanted: AlertFilter, before: str, limit: int
) -> tuple[list[AlertItem], dict[str, str] | None]:
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


def cursor_of(before: str) -> AlertCursor | None:
    """The cursor that `before` spells; "" is the newest page. Raises Problem."""
    if not before:
        return None
    t_start, _, alert = before.partition("~")
    try:
        return AlertCursor(float(t_start), alert)
    except ValueError:
        raise Problem(400, "`before` is the `next` of another page, such as 1700000000.5~id.") from None


def detail_of(desk: DashboardDeps, alert_id: str) -> AlertDetail:
    """The alert. Raises Problem when there is none."""
    detail = desk.alerts.get(alert_id)
    if detail is None:
        raise Problem(404, "There is no such alert; it may have been removed with its evidence.")
    return detail


@router.get("")
def list_alerts(
    desk: Deps, wanted: Filtered, before: Before = "", limit: Annotated[int, Query(ge=1, le=200)] = PAGE_LENGTH
) -> AlertPage:
    """Alerts, newest first, page by page."""
    items, older = page_of(desk, wanted, before, limit)
    return AlertPage(alerts=items, next=None if older is None else urlencode({**older, "limit": limit}))


@router.get("/{alert_id}")
def one_alert(desk: Deps, alert_id: str) -> AlertWithNotices:
    """One alert with its events, evidence, delivery and verdict, and who was told of it."""
    return AlertWithNotices.read(desk, detail_of(desk, alert_id))


@router.post("/{alert_id}/review")
def review_alert(desk: Deps, alert_id: str, change: ReviewChange) -> AlertItem:
    """Say what you think of it: `reviewed`, `false_alarm`, or null to take it back."""
    if not desk.alerts.review(alert_id, change.review, desk.clock.now()):
        raise Problem(404, "There is no such alert; it may have been removed with its evidence.")
    return AlertItem.of(detail_of(desk, alert_id).alert)
