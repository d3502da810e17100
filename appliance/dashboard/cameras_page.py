"""The pages of cameras: all of them, and one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.config import LineRule, Rule
from appliance.dashboard import headroom_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_reader import AlertFilter, AlertFilterQuery, Reader
from appliance.dashboard.arming_api import PAUSE_LENGTHS, Armed, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.headroom_api import Headroom
from appliance.dashboard.health_api import HealthPart
from appliance.dashboard.schemas import API
from appliance.dashboard.settings_api import Settings
from appliance.web.auth import TemplatesPart
from appliance.web.texts import gettext as _

RECENT = 6  # alerts in one row of the page

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras")
def cameras_page(
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    health: HealthPart,
    headroom: Headroom,
    settings: Settings,
    arming: Armed,
) -> HTMLResponse:
    """All cameras with their latest frames, and what the detector has left for them."""
    items = cameras.items()
    summary = _("{live} of {n} live").format(live=sum(camera.state == "live" for camera in items), n=len(items))
    faults = health.open_titles()
    found = headroom.report()
    return templates.page(
        "cameras.html", here="/cameras", rev=rev, paused={row.camera: row for row in arming.paused() if not row.rule},
        cameras=items, summary=summary, faults=faults,
        headroom=found, outlook=headroom_api.sentence(found), editable=settings.is_editable,
    )  # fmt: skip


@router.get("/cameras/{name}")
def camera_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    alerts: Reader,
    health: HealthPart,
    settings: Settings,
    arming: Armed,
    name: str,
) -> HTMLResponse:
    """One camera: its latest frame with boxes, zones and lines; its interruptions and numbers."""
    camera = cameras.full(name)
    configured = cameras.configured.get(name)
    rules = [{"name": rule.name, "words": _rule_text(rule)} for rule in (configured.rules if configured else ())]
    items, _ = alerts.page(AlertFilter(AlertFilterQuery(camera=name)), "", RECENT)
    events, _ = health.page(name, None, "", RECENT)
    return templates.page(
        "camera.html", here="/cameras", rev=rev, camera=camera, gaps=camera.gaps, rules=rules, alerts=items,
        arming=ArmingReport.of(arming, name), off_rules=sorted(arming.off_rules(name)), lengths=PAUSE_LENGTHS,
        lasting=health.open(name), health=[event for event in events if event.t_end is not None],
        editable=settings.is_editable and configured is not None,
        ptz=configured is not None and configured.onvif is not None and may("POST", f"{API}/cameras/{{name}}/ptz"),
    )  # fmt: skip


def _rule_text(rule: Rule) -> str:
    labels = ", ".join(rule.labels)
    if isinstance(rule, LineRule):
        way = {"both": "", "left_to_right": " left to right", "right_to_left": " right to left"}[rule.direction]
        return f"{labels} crosses line {rule.line}{way}"
    verb = {"enter": "enters", "exit": "leaves", "dwell": "stays in"}[rule.kind]
    stay: Any = f" for {rule.seconds:g} s" if rule.kind == "dwell" else ""
    return f"{labels} {verb} zone {rule.zone}{stay}"
