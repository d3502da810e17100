"""The pages that people see; each is rendered whole, its script only keeps it fresh."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from appliance.config import LineRule, Rule
from appliance.dashboard import alert_page, costs_api, savings_api, scenarios_api, storage_api
from appliance.dashboard.alerts_api import (
    PAGE_LENGTH,
    AlertFilter,
    Before,
    Filtered,
    detail_of,
    failing_targets,
    page_of,
)
from appliance.dashboard.cameras_api import CameraItem, camera_of, full_camera
from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.health_api import HEALTH_TITLES, HealthItem, health_page
from appliance.dashboard.schemas import AlertItem
from appliance.store.health_events import HealthEventRow
from appliance.store.meter import Since

ShowFilter = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]


def timeline_of(
    desk: DashboardDeps, wanted: AlertFilter, show: Literal["", "alerts", "health"], before: str, limit: int
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


def takes_health(wanted: AlertFilter, show: str, row: HealthEventRow | None = None) -> bool:
    """Do health events (or this one) belong in the list? They have no severity, review or verdict."""
    if show == "alerts" or wanted.severity or wanted.review or wanted.verdict:
        return False
    return row is None or not wanted.camera or row.camera in {wanted.camera, ""}


RECENT = 6

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def alerts_page(desk: Deps, wanted: Filtered, before: Before = "", show: ShowFilter = "") -> HTMLResponse:
    """The list of alerts, newest first, and the box at a glance."""
    rev = desk.db.rev()  # before anything is read: what changes meanwhile comes over the stream
    items, older = timeline_of(desk, wanted, show, before, PAGE_LENGTH)
    return desk.templates.page(
        "alerts.html",
        here="/",
        rev=rev,
        items=items,
        older=None if older is None else f"/?{urlencode(older)}",
        newest=not before,
        filters=_filters(desk),
        chosen={**wanted.chosen, "show": show},
        filtered=bool(wanted.query or show),
        ill=_ill(desk),
        counts=desk.counts.read(),
        cameras=[CameraItem.of(row) for row in desk.cameras.all()],
        rules=sum(len(camera.rules) for camera in desk.config.cameras.values()),
        savings=savings_api.report(desk, "today"),
        headline_after_s=savings_api.HEADLINE_AFTER_S,
        settled_after_s=savings_api.SETTLED_AFTER_S,
        link_words=_link_words(desk),
        untold=failing_targets(desk),
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(desk: Deps, wanted: Filtered, alert_id: str) -> Response:
    """One card of the list, as the list would show it; 204 when the filter leaves it out."""
    row = detail_of(desk, alert_id).alert
    if not wanted.takes(row):
        return Response(status_code=204)
    return desk.templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/health/{event}")
def one_health_line(desk: Deps, wanted: Filtered, event: str, show: ShowFilter = "") -> Response:
    """One health event of the list, as the list would show it; 204 when the filter leaves it out."""
    row = desk.health_events.get(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return desk.templates.page("health.html", event=HealthItem.of(row))


@router.get("/alerts/{alert_id}")
def alert_page_of(desk: Deps, alert_id: str) -> HTMLResponse:
    """One alert: evidence, track life, verdict, review."""
    rev = desk.db.rev()
    detail = detail_of(desk, alert_id)
    keep = scenarios_api.panel(desk, detail)
    return desk.templates.page("alert.html", rev=rev, keep=keep, **alert_page.values(desk, detail))


@router.get("/cameras")
def cameras_page(desk: Deps) -> HTMLResponse:
    """All cameras with their latest pictures."""
    rev = desk.db.rev()
    cameras = [CameraItem.of(row) for row in desk.cameras.all()]
    live = sum(camera.state == "live" for camera in cameras)
    summary = f"{live} of {len(cameras)} live"
    return desk.templates.page(
        "cameras.html", here="/cameras", rev=rev, cameras=cameras, summary=summary, ill=_ill(desk)
    )


@router.get("/cameras/{name}")
def camera_page(desk: Deps, name: str) -> HTMLResponse:
    """One camera: live picture with boxes, zones and lines; its interruptions and numbers."""
    rev = desk.db.rev()
    camera = full_camera(desk, camera_of(desk, name))
    configured = desk.config.cameras.get(name)
    rules = [{"name": rule.name, "words": _rule_words(rule)} for rule in (configured.rules if configured else ())]
    items, _ = page_of(desk, AlertFilter(camera=name), "", RECENT)
    health, _ = health_page(desk, name, None, "", RECENT)
    lasting = [HealthItem.of(row) for row in desk.health_events.open() if row.camera in {name, ""}]
    return desk.templates.page(
        "camera.html", here="/cameras", rev=rev, camera=camera, gaps=camera.gaps, rules=rules, alerts=items,
        lasting=lasting, health=[event for event in health if event.t_end is not None],
    )  # fmt: skip


@router.get("/savings")
def savings_page(desk: Deps, since: Annotated[Since, Query()] = "today") -> HTMLResponse:
    """What came from the cameras against what was sent up."""
    rev = desk.db.rev()
    return desk.templates.page(
        "savings.html",
        here="/savings",
        rev=rev,
        since=since,
        savings=savings_api.report(desk, since),
        costs=costs_api.report(desk),
        cost_days=costs_api.DAYS,
        kind_words=savings_api.KIND_TEXTS,
        headline_after_s=savings_api.HEADLINE_AFTER_S,
        settled_after_s=savings_api.SETTLED_AFTER_S,
    )


@router.get("/scenarios")
def scenarios_page(desk: Deps) -> HTMLResponse:
    """What was kept of alerts, to prove changes on."""
    rev = desk.db.rev()
    return desk.templates.page("scenarios.html", here="/scenarios", rev=rev, kept=scenarios_api.listed(desk))


@router.get("/storage")
def storage_page(desk: Deps) -> HTMLResponse:
    """What the recording takes, how long that lasts, and what was deleted."""
    rev = desk.db.rev()
    found = storage_api.report(desk)
    return desk.templates.page(
        "storage.html",
        here="/storage",
        rev=rev,
        storage=found,
        class_words=storage_api.CLASS_TEXTS,
        reason_words=storage_api.REASON_TEXTS,
        mode_words=storage_api.MODE_TEXTS,
        days=storage_api.days,
        outlook=storage_api.sentence(found.forecast),
        lasts={each.camera: storage_api.lasts(each) for each in found.cameras},
    )


def _filters(desk: DashboardDeps) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Name, word for any, and (value, text) of each choice."""
    return [
        ("show", "Alerts and health", [("alerts", "Alerts only"), ("health", "Health only")]),
        ("camera", "All cameras", [(name, name) for name in sorted(desk.config.cameras)]),
        ("severity", "Any severity", [("alert", "Alert"), ("warning", "Warning"), ("info", "Info")]),
        (
            "review",
            "Any review",
            [("open", "To review"), ("reviewed", "Reviewed"), ("false_alarm", "False alarm")],
        ),
        (
            "verdict",
            "Any verdict",
            [("confirmed", "Confirmed"), ("rejected", "Rejected"), ("unsure", "Unsure"), ("none", "No verdict")],
        ),
    ]


def _ill(desk: DashboardDeps) -> dict[str, list[str]]:
    """What is wrong now, in words, by camera."""
    found: dict[str, list[str]] = {}
    for row in desk.health_events.open():
        found.setdefault(row.camera, []).append(HEALTH_TITLES[row.kind])
    return found


def _link_words(desk: DashboardDeps) -> str:
    if desk.probes.link is None:
        return "Edge only: no uplink is set."
    waiting = desk.counts.read().undelivered
    if desk.probes.link().up and desk.probes.link().breaker != "closed":
        return f"Cloud does not answer ({desk.probes.link().breaker_why}), {waiting} waiting; nothing is lost."
    if desk.probes.link().up:
        return f"Cloud link up{f', {waiting} waiting for an answer' if waiting else ''}."
    return f"Cloud link down, {waiting} waiting; nothing is lost."


def _rule_words(rule: Rule) -> str:
    labels = ", ".join(rule.labels)
    if isinstance(rule, LineRule):
        way = {"both": "", "left_to_right": " left to right", "right_to_left": " right to left"}[rule.direction]
        return f"{labels} crosses line {rule.line}{way}"
    verb = {"enter": "enters", "exit": "leaves", "dwell": "stays in"}[rule.kind]
    stay: Any = f" for {rule.seconds:g} s" if rule.kind == "dwell" else ""
    return f"{labels} {verb} zone {rule.zone}{stay}"
