"""The pages of one day of recording: of every camera, and of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from starlette.responses import HTMLResponse

from appliance.dashboard.arming_api import ArmingPart, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import DatabasePart, Rev
from appliance.dashboard.exports_api import missed_people
from appliance.dashboard.recordings_api import RenditionsPart
from appliance.web.auth import TemplatesPart
from appliance.web.problems import Problem
from appliance.web.routes import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


class TimelinePage:
    """Makes the page of one day. One a request."""

    def __init__(
        self, rev: Rev, templates: TemplatesPart, cameras: Cameras, arming: ArmingPart, db: DatabasePart,
        renditions: RenditionsPart,
    ) -> None:  # fmt: skip
        self.names = [each.name for each in cameras.items()]
        self._rev, self._templates, self._arming, self._db, self._renditions = rev, templates, arming, db, renditions

    def of(self, chosen: str, only: str | None = None) -> HTMLResponse:
        """Return the page with the recording of `chosen`. only: the one camera that is on it; None: all are."""
        self._renditions.expect(chosen)
        return self._templates.page(
            "timeline.html", here="/timeline", rev=self._rev, camera=only or "", chosen=chosen,
            cameras=self.names if only is None else [only],
            pauses=ArmingReport.of(self._arming, only).pauses, missed=missed_people(self._db, chosen),
        )  # fmt: skip


@router.get("/timeline")
def timeline_page(
    page: Annotated[TimelinePage, Depends()], camera: Annotated[str, Query(max_length=64)] = ""
) -> HTMLResponse:
    """One day of every camera, `camera` being the one whose recording is shown."""
    return page.of(camera if camera in page.names else next(iter(page.names), ""))


@router.get("/cameras/{name}/timeline")
def camera_timeline_page(page: Annotated[TimelinePage, Depends()], name: str) -> HTMLResponse:
    """One day of a camera; the script reads the moment from `?t=`."""
    if name not in page.names:
        raise Problem(404, "There is no such camera in the site file.")
    return page.of(name, only=name)
