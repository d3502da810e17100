"""The pages that people see; each is rendered whole, its script only keeps it fresh."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from appliance.config import LineRule, Rule
from appliance.dashboard import alert_page, costs, savings, scenarios, storage
from appliance.dashboard.alerts import PAGE_LENGTH, Before, Filter, Filtered, detail_of, page_of
from appliance.dashboard.camera_shapes import CameraItem
from appliance.dashboard.cameras import camera_of, full_camera
from appliance.dashboard.desk import AtDesk, Desk
from appliance.dashboard.health_events import health_page
from appliance.dashboard.health_shapes import HEALTH_TITLES, HealthItem
from appliance.dashboard.notices import failing
from appliance.dashboard.shapes import AlertItem
from appliance.dashboard.timeline import Show, takes_health, timeline_of
from appliance.store.meter import Since

RECENT = 6

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def alerts_page(desk: AtDesk, wanted: Filtered, before: Before = "", show: Show = "") -> HTMLResponse:
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
        counts=desk.counts.now(),
        cameras=[CameraItem.of(row) for row in desk.cameras.all()],
        rules=sum(len(camera.rules) for camera in desk.config.cameras.values()),
        savings=savings.report(desk, "today"),
        headline_after_s=savings.HEADLINE_AFTER_S,
        settled_after_s=savings.SETTLED_AFTER_S,
        link_words=_link_words(desk),
        untold=failing(desk),
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(desk: AtDesk, wanted: Filtered, alert_id: str) -> Response:
    """One card of the list, as the list would show it; 204 when the filter leaves it out."""
    row = detail_of(desk, alert_id).alert
    if not wanted.takes(row):
        return Response(status_code=204)
    return desk.templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/health/{event}")
def one_health_line(desk: AtDesk, wanted: Filtered, event: str, show: Show = "") -> Response:
    """One health event of the list, as the list would show it; 204 when the filter leaves it out."""
    row = desk.health_events.get(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return desk.templates.page("health.html", event=HealthItem.of(row))


@router.get("/alerts/{alert_id}")
def alert_page_of(desk: AtDesk, alert_id: str) -> HTMLResponse:
    """One alert: evidence, track life, verdict, review."""
    rev = desk.db.rev()
    detail = detail_of(desk, alert_id)
    keep = scenarios.panel(desk, detail)
    return desk.templates.page("alert.html", rev=rev, keep=keep, **alert_page.values(desk, detail))


@router.get("/cameras")
def cameras_page(desk: AtDesk) -> HTMLResponse:
    """All cameras with their latest pictures."""
    rev = desk.db.rev()
    cameras = [CameraItem.of(row) for row in desk.cameras.all()]
    live = sum(camera.state == "live" for camera in cameras)
    summary = f"{live} of {len(cameras)} live"
    return desk.templates.page(
        "cameras.html", here="/cameras", rev=rev, cameras=cameras, summary=summary, ill=_ill(desk)
    )


@router.get("/cameras/{name}")
def camera_page(desk: AtDesk, name: str) -> HTMLResponse:
    """One camera: live picture with boxes, zones and lines; its interruptions and numbers."""
    rev = desk.db.rev()
    camera = full_camera(desk, camera_of(desk, name))
    configured = desk.config.cameras.get(name)
    rules = [{"name": rule.name, "words": _rule_words(rule)} for rule in (configured.rules if configured else ())]
    items, _ = page_of(desk, Filter(camera=name), "", RECENT)
    health, _ = health_page(desk, name, None, "", RECENT)
    lasting = [HealthItem.of(row) for row in desk.health_events.open() if row.camera in {name, ""}]
    return desk.templates.page(
        "camera.html", here="/cameras", rev=rev, camera=camera, gaps=camera.gaps, rules=rules, alerts=items,
        lasting=lasting, health=[event for event in health if event.t_end is not None],
    )  # fmt: skip


@router.get("/savings")
def savings_page(desk: AtDesk, since: Annotated[Since, Query()] = "today") -> HTMLResponse:
    """What came from the cameras against what was sent up."""
    rev = desk.db.rev()
    return desk.templates.page(
        "savings.html",
        here="/savings",
        rev=rev,
        since=since,
        savings=savings.report(desk, since),
        costs=costs.report(desk),
        cost_days=costs.DAYS,
        kind_words=savings.KIND_WORDS,
        headline_after_s=savings.HEADLINE_AFTER_S,
        settled_after_s=savings.SETTLED_AFTER_S,
    )


@router.get("/scenarios")
def scenarios_page(desk: AtDesk) -> HTMLResponse:
    """What was kept of alerts, to prove changes on."""
    rev = desk.db.rev()
    return desk.templates.page("scenarios.html", here="/scenarios", rev=rev, kept=scenarios.listed(desk))


@router.get("/storage")
def storage_page(desk: AtDesk) -> HTMLResponse:
    """What the recording takes, how long that lasts, and what was deleted."""
    rev = desk.db.rev()
    found = storage.report(desk)
    return desk.templates.page(
        "storage.html",
        here="/storage",
        rev=rev,
        storage=found,
        class_words=storage.CLASS_WORDS,
        reason_words=storage.REASON_WORDS,
        mode_words=storage.MODE_WORDS,
        days=storage.days,
        outlook=storage.sentence(found.forecast),
        lasts={each.camera: storage.lasts(each) for each in found.cameras},
    )


def _filters(desk: Desk) -> list[tuple[str, str, list[tuple[str, str]]]]:
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


def _ill(desk: Desk) -> dict[str, list[str]]:
    """What is wrong now, in words, by camera."""
    found: dict[str, list[str]] = {}
    for row in desk.health_events.open():
        found.setdefault(row.camera, []).append(HEALTH_TITLES[row.kind])
    return found


def _link_words(desk: Desk) -> str:
    if desk.link is None:
        return "Edge only: no uplink is set."
    waiting = desk.counts.now().undelivered
    if desk.link().up and desk.link().breaker != "closed":
        return f"Cloud does not answer ({desk.link().breaker_why}), {waiting} waiting; nothing is lost."
    if desk.link().up:
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
