"""The page with the list of alerts and health events, and the site at a glance beside it.

`Cameras`, `Settings` and the types that end in `Part` are parts of the running program, which FastAPI passes in
(`appliance.web.routes`); `AlertFilterPart` has what the visitor chose in the form above the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Depends, Query
from starlette.responses import HTMLResponse, Response

from appliance.base.clock import day_bounds, local_day
from appliance.broker.nats_connection import LinkState
from appliance.config import CameraConfig
from appliance.dashboard.alert_reader import (
    PAGE_LENGTH,
    AlertCountCache,
    AlertFilter,
    AlertFilterPart,
    AlertReader,
    AlertsPart,
    Before,
    cursor_of,
)
from appliance.dashboard.arming_api import PAUSE_LENGTHS, ArmingPart, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import CoreProbes, DatabasePart, PagePart
from appliance.dashboard.health_api import HealthItem, HealthPart, HealthReader
from appliance.dashboard.notify_api import NotifyPart
from appliance.dashboard.push_api import may_subscribe
from appliance.dashboard.savings_api import HEADLINE_AFTER_S, SETTLED_AFTER_S, SavingsPart
from appliance.dashboard.schemas import AlertItem
from appliance.dashboard.settings_api import Settings
from appliance.store.alert_search import AlertQuery
from appliance.store.health_events import HealthEventRow
from appliance.web.auth import TemplatesPart
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

MORE_FILTERS = ("from", "to", "zone", "label", "rule")  # folded away until something is chosen in one of them

ShowFilter = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SiteGlance:
    """The parts that the summary beside the list is read from."""

    cameras: Cameras
    savings: SavingsPart
    alert_counts: Annotated[AlertCountCache, Depends(provided(AlertCountCache))]
    probes: Annotated[CoreProbes, Depends(provided(CoreProbes))]
    arming: ArmingPart
    notify: NotifyPart
    settings: Settings


@router.get("/")
def alerts_page(
    *,
    page: PagePart,
    db: DatabasePart,
    alerts: AlertsPart,
    health: HealthPart,
    glance: Annotated[SiteGlance, Depends()],
    wanted: AlertFilterPart,
    before: Before = "",
    show: ShowFilter = "",
) -> HTMLResponse:
    """Return the list of alerts, newest first, and the site at a glance."""
    items, older = read_list(alerts, health, wanted, show, before, PAGE_LENGTH)
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
        day_text=cameras.day_text(day_bounds(local_day(db.clock.now()))[0], db.clock.now()),
        rules=sum(len(camera.rules) for name, camera in cameras.configured.items() if visitor().sees(name)),
        savings=glance.savings.report("today"),
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
        link_text=_uplink_text(glance.probes.link, counts.undelivered),
        failing_targets=health.failing_targets() if visitor().cameras is None else [],
        arming=ArmingReport.of(glance.arming),
        may_subscribe=may_subscribe(glance.notify, glance.settings),
        lengths=PAUSE_LENGTHS,
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(templates: TemplatesPart, alerts: AlertsPart, wanted: AlertFilterPart, alert_id: str) -> Response:
    """Return one card of the list, as the list would show it; 204 if the filter leaves it out."""
    row = alerts.detail(alert_id).row
    if not alerts.is_listed(alert_id, wanted):
        return Response(status_code=204)
    return templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/troubles")
def troubles(templates: TemplatesPart) -> HTMLResponse:
    """Return the part of each page that says what is wrong now."""
    return templates.page("troubles.html")


@router.get("/fragments/health/{event}")
def one_health_line(
    templates: TemplatesPart, health: HealthPart, wanted: AlertFilterPart, event: str, show: ShowFilter = ""
) -> Response:
    """Return one health event, as the list would show it; 204 if the filter leaves it out."""
    row = health.find(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return templates.page("health.html", event=HealthItem.of(row))


def read_list(
    alerts: AlertReader,
    health: HealthReader,
    wanted: AlertFilter,
    show: Literal["", "alerts", "health"],
    before: str,
    limit: int,
) -> tuple[list[AlertItem | HealthItem], dict[str, str] | None]:
    """One page of alerts and health events, newest first, and the query of the next (None: this is the last).

    Alerts and health events are in two tables, and both are read from the same cursor on: `before` is the time and the
    id of the last item of the page before, of either kind. At most `limit` rows of each are read, which is enough
    whichever kind is newer, and the newest `limit` of them all are returned. What is cut off here is older than the
    last item returned, so the next page, whose cursor is that item, reads it again.

    Raises Problem.
    """
    alert_items: list[AlertItem] = []
    health_items: list[HealthItem] = []
    more_alerts = more_health = False
    if show != "health":
        alert_items, next_alerts = alerts.page(wanted, before, limit, listed=True)
        more_alerts = next_alerts is not None
    if takes_health(wanted, show):
        health_items, more_health = _read_health(health, wanted.alert_query, before, limit)
    both: list[AlertItem | HealthItem] = sorted(
        [*alert_items, *health_items], key=lambda item: (item.t_start, item.id), reverse=True
    )
    items = both[:limit]
    if not items or not (more_alerts or more_health or len(both) > limit):
        return items, None
    query = {**wanted.query, **({"show": show} if show else {})}
    return items, {**query, "before": f"{items[-1].t_start!r}~{items[-1].id}"}


def _read_health(health: HealthReader, wanted: AlertQuery, before: str, limit: int) -> tuple[list[HealthItem], bool]:
    """At most `limit` health events of the wanted camera and time before the cursor; whether there are more.

    Raises Problem.
    """
    begin, end = wanted.from_t, wanted.to_t
    cursor = cursor_of(before)
    if end is not None and (cursor is None or cursor.t_start >= end):
        before = f"{end!r}~"  # no id is less than "", so this is all that began before the wanted end
    items, next_cursor = health.page(wanted.camera or "", None, before, limit)
    if begin is not None and items and items[-1].t_start < begin:
        return [item for item in items if item.t_start >= begin], False  # what follows is older still
    return items, next_cursor is not None


def takes_health(wanted: AlertFilter, show: str, row: HealthEventRow | None = None) -> bool:
    """Return whether health events (or this one) belong in the list: they have no severity, review or verdict."""
    if show == "alerts" or wanted.is_for_alerts:
        return False
    asked = wanted.alert_query
    return row is None or (
        (asked.camera is None or row.camera in {asked.camera, ""})
        and (asked.from_t is None or row.t_start >= asked.from_t)
        and (asked.to_t is None or row.t_start < asked.to_t)
    )


def _uplink_text(probe: Callable[[], LinkState] | None, waiting: int) -> str:
    """Return the state of the uplink in a sentence; '' if there is no uplink. waiting: alerts without an answer."""
    if probe is None:
        return ""
    link = probe()
    if link.up and link.breaker != "closed":
        return f"Cloud does not answer ({link.breaker_why}), {waiting} waiting; nothing is lost."
    if link.up:
        return f"Cloud link up{f', {waiting} waiting for an answer' if waiting else ''}."
    return f"Cloud link down, {waiting} waiting; nothing is lost."


def _filters(
    cameras: Mapping[str, CameraConfig], chosen: Mapping[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return each filter of the form: its name, the word for any, and the value and text of each choice."""
    rules = [rule for camera in cameras.values() for rule in camera.rules]
    named = {
        "zone": {name for camera in cameras.values() for name in (*camera.zones, *camera.lines)},
        "label": {label for rule in rules for label in rule.labels},
        "rule": {rule.name for rule in rules},
        "camera": set(cameras),
    }

    def names(kind: str) -> list[tuple[str, str]]:
        """Return the names in the site file and the chosen one, which an earlier site file may have had."""
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
