"""`/api/v1/alerts`: the list, one alert, and its escalation by a person."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query

from appliance.dashboard.alert_filter import PAGE_LENGTH, Before, Filtered
from appliance.dashboard.alert_reader import AlertWithNotices, Reader
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.schemas import (
    API,
    AlertItem,
    AlertPage,
    NothingMore,
)
from appliance.web.dependencies import provided
from appliance.web.problems import Problem

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])


@router.get("")
def list_alerts(
    alerts: Reader, wanted: Filtered, before: Before = "", limit: Annotated[int, Query(ge=1, le=200)] = PAGE_LENGTH
) -> AlertPage:
    """Alerts, newest first, page by page."""
    items, older = alerts.page(wanted, before, limit)
    return AlertPage(alerts=items, next=None if older is None else urlencode({**older, "limit": limit}))


@router.get("/{alert_id}")
def one_alert(alerts: Reader, alert_id: str) -> AlertWithNotices:
    """One alert with its events, evidence, delivery and verdict, and its notices."""
    return alerts.full(alert_id)


@router.post("/{alert_id}/escalate")
def escalate_alert(
    alerts: Reader, probes: Annotated[CoreProbes, Depends(provided(CoreProbes))], alert_id: str, change: NothingMore
) -> AlertItem:
    """Ask the cloud about this alert, whatever the router thinks of it; privacy and budget hold. 409 says why not."""
    alerts.detail(alert_id)
    if probes.escalate is None:
        raise Problem(409, "It is not escalated: this site has no uplink.")
    answer = probes.escalate(alert_id)
    if not answer.accepted:
        raise Problem(409, f"It is not escalated: {answer.reason}.")
    return alerts.escalated(alert_id, answer.reason)
