"""The timeline pages: one day of every camera, or of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import HTMLResponse

from appliance.dashboard.arming_api import Armed, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import DatabasePart, Rev
from appliance.dashboard.exports_api import missed_people
from appliance.dashboard.recordings_api import RenditionsPart
from appliance.web.auth import TemplatesPart
from appliance.web.problems import Problem
from appliance.web.route_list import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/timeline")
def timeline_page(
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    arming: Armed,
    db: DatabasePart,
    renditions: RenditionsPart,
    camera: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """One day of every camera, `camera` being the one whose recording is shown."""
    names = [each.name for each in cameras.items()]
    chosen = camera if camera in names else next(iter(names), "")
    renditions.expect(chosen)
    return templates.page(
        "timeline.html", here="/timeline", rev=rev, camera="", cameras=names, chosen=chosen,
        pauses=ArmingReport.of(arming).pauses, missed=missed_people(db, chosen),
    )  # fmt: skip


@router.get("/cameras/{name}/timeline")
def camera_timeline_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    arming: Armed,
    db: DatabasePart,
    renditions: RenditionsPart,
    name: str,
) -> HTMLResponse:
    """One day of a camera; the script reads the moment from `?t=`."""
    if name not in {each.name for each in cameras.items()}:
        raise Problem(404, "There is no such camera in the site file.")
    renditions.expect(name)
    return templates.page(
        "timeline.html", here="/timeline", rev=rev, camera=name, cameras=[name], chosen=name,
        pauses=ArmingReport.of(arming, name).pauses, missed=missed_people(db, name),
    )  # fmt: skip
