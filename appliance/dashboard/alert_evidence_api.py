"""`/api/v1/alerts/{id}/evidence`: the still, the clip and the boxes of an alert."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from appliance.dashboard.alert_reader import Reader, why_not
from appliance.dashboard.openapi import media
from appliance.dashboard.schemas import (
    API,
    EVIDENCE_NAMES,
)
from appliance.store.rows import EvidenceKind
from appliance.web.problems import Problem

_TYPES = {"still.jpg": "image/jpeg", "clip.mp4": "video/mp4", "boxes.json": "application/json"}
_KINDS: dict[str, EvidenceKind] = {"still.jpg": "still", "clip.mp4": "clip", "boxes.json": "boxes"}
assert set(_KINDS) == set(EVIDENCE_NAMES.values())

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])


@router.get(
    "/{alert_id}/evidence/{name}", response_class=FileResponse,
    responses=media("image/jpeg", "video/mp4", "application/json", ranges=True),
)  # fmt: skip
@router.head("/{alert_id}/evidence/{name}", include_in_schema=False)
def evidence_file(
    alerts: Reader, request: Request, alert_id: str, name: Literal["still.jpg", "clip.mp4", "boxes.json"]
) -> Response:
    """Return the still, the clip (with HTTP ranges) or the boxes of an alert."""
    detail = alerts.detail(alert_id)
    row = detail.piece(_KINDS[name])
    if row is None or row.state != "ready":
        raise Problem(404, why_not(row))
    # A browser asks each time whether it may show what it has kept: after signing out it may not.
    etag = f'"{row.sha256 or f"{row.bytes}-{row.t_end}"}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return FileResponse(alerts.file(row), headers=headers, media_type=_TYPES[name])
