"""Alerts and health events in one list, as they happened."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from appliance.dashboard.alerts import Filter, page_of
from appliance.dashboard.desk import Desk
from appliance.dashboard.health_events import health_page
from appliance.dashboard.health_shapes import HealthItem
from appliance.dashboard.shapes import AlertItem
from appliance.store.health import HealthRow

Show = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]


def timeline_of(
    desk: Desk, wanted: Filter, show: Literal["", "alerts", "health"], before: str, limit: int
) -> tuple[list[AlertItem | HealthItem], dict[str, str] | None]:
    """One page of both, newest first, and the query of the next (None: this is the last). Raises Problem."""
    alerts: list[AlertItem] = []
    health: list[HealthItem] = []
    more = False
    if show != "health":
        alerts, older = page_of(desk, wanted, before, limit)
        more |= older is not None
    if takes_health(wanted, show):
        health, next_health = health_page(desk, wanted.camera, None, before, limit)
        more |= next_health is not None
    found: list[AlertItem | HealthItem] = [*alerts, *health]
    both = sorted(found, key=lambda item: (item.t_start, item.id), reverse=True)
    items = both[:limit]
    if not items or not (more or len(both) > limit):
        return items, None
    query = {**wanted.query, **({"show": show} if show else {})}
    return items, {**query, "before": f"{items[-1].t_start!r}~{items[-1].id}"}


def takes_health(wanted: Filter, show: str, row: HealthRow | None = None) -> bool:
    """Do health events (or this one) belong in the list? They have no severity, review or verdict."""
    if show == "alerts" or wanted.severity or wanted.review or wanted.verdict:
        return False
    return row is None or not wanted.camera or row.camera in {wanted.camera, ""}
