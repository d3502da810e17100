"""The pages Who looked, for admins, and of a link to a clip, for whoever has it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from starlette.responses import HTMLResponse

from appliance.dashboard.access_log_api import Filtered
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import DatabasePart, StorageRoot
from appliance.dashboard.exports_api import ExporterPart, Log, exports_of, shared_export
from appliance.store.erasure import SpanEraser
from appliance.store.users import LOG_ROWS_MAX
from appliance.web.auth import TemplatesPart, address_of
from appliance.web.dependencies import provided
from appliance.web.route_list import RouteList

LOG_SHOWN = 200  # rows on the page

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/access")
def access_page(
    templates: TemplatesPart,
    log: Log,
    wanted: Filtered,
    exporter: ExporterPart,
    cameras: Cameras,
    db: DatabasePart,
    root: Annotated[StorageRoot, Depends(provided(StorageRoot))],
) -> HTMLResponse:
    """Show who looked: the access log, exports and links, and what was erased."""
    return templates.page(
        "access.html", here="/access", log=wanted.rows(log, LOG_SHOWN), names=[name for name in log.names() if name],
        cameras=sorted(cameras.configured), chosen=wanted.chosen, shown_max=LOG_SHOWN, kept_max=LOG_ROWS_MAX,
        exports=exports_of(exporter, log.now), erasures=SpanEraser(db, root.path).receipts(),
        query=urlencode({name: value for name, value in wanted.chosen.items() if value}),
    )  # fmt: skip


@router.get("/shared/{token}")
def shared_page(
    request: Request, templates: TemplatesPart, exporter: ExporterPart, log: Log, token: str
) -> HTMLResponse:
    """Return the page of a link: the clip, and until when the link works."""
    row = shared_export(request, exporter, token)
    exporter.store.count(row.id, "opened")
    about = f"{row.id}, made by {row.who or 'the owner'}"
    log.write("whoever has the link", address_of(request.scope), "opened a link", about, row.camera)
    return templates.page("shared.html", nav=False, row=row, clip=f"/shared/{quote(token)}/clip.mp4")
