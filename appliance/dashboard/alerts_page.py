"""The list of alerts and health events, newest first, with the site at a glance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import HTMLResponse, Response

from appliance.broker import LinkState
from appliance.config import CameraConfig
from appliance.dashboard.alert_counts import AlertCountCache
from appliance.dashboard.alert_filter import PAGE_LENGTH, AlertFilter, Before, Filtered, cursor_of
from appliance.dashboard.alert_reader import AlertReader, Reader
from appliance.dashboard.arming_api import PAUSE_LENGTHS, Armed, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import CoreProbes, Page
from appliance.dashboard.health_api import HealthItem, HealthPart, HealthReader
from appliance.dashboard.savings_api import HEADLINE_AFTER_S, SETTLED_AFTER_S, SavingsPart
from appliance.dashboard.schemas import AlertItem
from appliance.store.health_events import HealthEventRow
from appliance.web.auth import TemplatesPart
from appliance.web.dependencies import provided
from appliance.web.visitor import visitor

MORE_FILTERS = ("from", "to", "zone", "label", "rule")  # folded while nothing is chosen in them

ShowFilter = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SiteGlance:
    """The readers of what stands beside the list."""

    cameras: Cameras
    savings: SavingsPart
    alert_counts: Annotated[AlertCountCache, Depends(provided(AlertCountCache))]
    probes: Annotated[CoreProbes, Depends(provided(CoreProbes))]
    arming: Armed


@router.get("/")
def alerts_page(
    *,
    page: Page,
    alerts: Reader,
    health: HealthPart,
    glance: Annotated[SiteGlance, Depends()],
    wanted: Filtered,
    before: Before = "",
    show: ShowFilter = "",
) -> HTMLResponse:
    """Return the list of alerts, newest first, and the site at a glance."""
    items, older = timeline_of(alerts, health, wanted, show, before, PAGE_LENGTH)
    counted = glance.alert_counts.read()
    counts = counted.counts
    cameras = glance.cameras
    return page(
        "alerts.html",
        here="/",
        items=items,
        older=None if older is None else f"/?{urlencode(older)}",
        newest=not before,
        filters=_filters(
            {name: each for name, each in cameras.configured.items() if visitor().sees(name)}, wanted.chosen
        ),
        chosen={**wanted.chosen, "show": show},
        more_chosen=sum(bool(wanted.chosen[name]) for name in MORE_FILTERS),
        more_filters=MORE_FILTERS,
        filtered=bool(wanted.query or show),
        faults=health.open_titles(),
        counts=counts,
        counts_behind=counted.behind,
        cameras=cameras.items(),
        rules=sum(len(camera.rules) for name, camera in cameras.configured.items() if visitor().sees(name)),
        savings=glance.savings.report("today"),
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
        link_text=_uplink_text(glance.probes.link, counts.undelivered),
        failing_targets=health.failing_targets() if visitor().cameras is None else [],
        arming=ArmingReport.of(glance.arming),
        lengths=PAUSE_LENGTHS,
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(templates: TemplatesPart, alerts: Reader, wanted: Filtered, alert_id: str) -> Response:
    """One card of the list, as the list would show it; 204 when the filter leaves it out."""
    row = alerts.detail(alert_id).alert
    if not alerts.is_listed(alert_id, wanted):
        return Response(status_code=204)
    return templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/health/{event}")
def one_health_line(
    templates: TemplatesPart, health: HealthPart, wanted: Filtered, event: str, show: ShowFilter = ""
) -> Response:
    """One health event of the list, as the list would show it; 204 when the filter leaves it out."""
    row = health.find(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return templates.page("health.html", event=HealthItem.of(row))


def timeline_of(
    alerts: AlertReader,
    health: HealthReader,
    wanted: AlertFilter,
    show: Literal["", "alerts", "health"],
    before: str,
    limit: int,
) -> tuple[list[AlertItem | HealthItem], dict[str, str] | None]:
    """One page of alerts and health events, newest first, and the query of the next (None: this is the last).

    Raises Problem.
    """
    alert_items: list[AlertItem] = []
    health_items: list[HealthItem] = []
    older: dict[str, str] | None = None
    more = False
    if show != "health":
        alert_items, older = alerts.page(wanted, before, limit, listed=True)
        more |= older is not None
    if takes_health(wanted, show):
        begin, end = wanted.wanted.from_t, wanted.wanted.to_t
        at = cursor_of(before)
        cursor = before if end is None or (at is not None and at.t_start < end) else f"{end!r}~"
        health_items, next_health = health.page(wanted.wanted.camera or "", None, cursor, limit)
        more |= next_health is not None
        if begin is not None and health_items and health_items[-1].t_start < begin:
            health_items = [item for item in health_items if item.t_start >= begin]
            more = bool(alert_items) and older is not None
    found: list[AlertItem | HealthItem] = [*alert_items, *health_items]
    both = sorted(found, key=lambda item: (item.t_start, item.id), reverse=True)
    items = both[:limit]
    if not items or not (more or len(both) > limit):
        return items, None
    query = {**wanted.query, **({"show": show} if show else {})}
    return items, {**query, "before": f"{items[-1].t_start!r}~{items[-1].id}"}


def takes_health(wanted: AlertFilter, show: str, row: HealthEventRow | None = None) -> bool:
    """Return whether health events (or this one) belong in the list: they have no severity, review or verdict."""
    if show == "alerts" or wanted.is_for_alerts:
        return False
    asked = wanted.wanted
    return row is None or (
        (asked.camera is None or row.camera in {asked.camera, ""})
        and (asked.from_t is None or row.t_start >= asked.from_t)
        and (asked.to_t is None or row.t_start < asked.to_t)
    )


def _uplink_text(probe: Callable[[], LinkState] | None, waiting: int) -> str:
    """How the uplink does, in a sentence. waiting: alerts without an answer."""
    if probe is None:
        return "Edge only: no uplink is set."
    link = probe()
    if link.up and link.breaker != "closed":
        return f"Cloud does not answer ({link.breaker_why}), {waiting} waiting; nothing is lost."
    if link.up:
        return f"Cloud link up{f', {waiting} waiting for an answer' if waiting else ''}."
    return f"Cloud link down, {waiting} waiting; nothing is lost."


def _filters(
    cameras: Mapping[str, CameraConfig], chosen: Mapping[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Name, word for any, and (value, text) of each choice."""
    rules = [rule for camera in cameras.values() for rule in camera.rules]
    named = {
        "zone": {name for camera in cameras.values() for name in (*camera.zones, *camera.lines)},
        "label": {label for rule in rules for label in rule.labels},
        "rule": {rule.name for rule in rules},
        "camera": set(cameras),
    }

    def names(kind: str) -> list[tuple[str, str]]:
        """With the one that is chosen, which may be of another day's site file."""
        return [(name, name) for name in sorted(named[kind] | ({chosen[kind]} - {""}))]

    return [
        ("show", "Alerts and health", [("alerts", "Alerts only"), ("health", "Health only")]),
        ("camera", "All cameras", names("camera")),
        ("severity", "Any severity", [("alert", "Alert"), ("warning", "Warning"), ("info", "Info")]),
        (
            "review",
            "Any review",
            [("open", "To review"), ("reviewed", "Reviewed"), ("false_alarm", "False alarm"), ("deleted", "Deleted")],
        ),
        (
            "verdict",
            "Any verdict",
            [
                ("confirmed", "Confirmed"),
                ("rechecked", "Rechecked"),
                ("rejected", "Rejected"),
                ("unsure", "Unsure"),
                ("none", "No verdict"),
            ],
        ),
        ("zone", "Any zone or line", names("zone")),
        ("label", "Anything", names("label")),
        ("rule", "Any rule", names("rule")),
    ]
