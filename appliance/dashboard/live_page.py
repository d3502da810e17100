"""The page of the live wall: all cameras, live where something moves."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.responses import HTMLResponse

from appliance.dashboard.arming_api import ArmingPart
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.health_api import HealthPart
from appliance.dashboard.live_api import LiveHub
from appliance.web.auth import TemplatesPart
from appliance.web.routes import RouteList, provided

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/live")
def live_page(
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    health: HealthPart,
    arming: ArmingPart,
    hub: Annotated[LiveHub, Depends(provided(LiveHub))],
) -> HTMLResponse:
    """Return a wall of all cameras: live where something moves."""
    items = cameras.items()
    hub.expect(*(each.name for each in items))
    paused: dict[str, list[str]] = {}
    for row in arming.pauses.paused():
        paused.setdefault(row.camera, []).append(row.rule)
    return templates.page("live.html", here="/live", rev=rev, cameras=items, faults=health.open_titles(), paused=paused)
