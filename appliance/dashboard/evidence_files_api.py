"""Evidence files over HTTP: ranges for the clip's scrubber, and a browser that never asks twice."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from appliance.dashboard.alerts_api import detail_of
from appliance.dashboard.deps import Deps
from appliance.dashboard.problems import Problem
from appliance.dashboard.schemas import API, EVIDENCE_NAMES
from appliance.errors import StoreError
from appliance.store.paths import EVIDENCE, inside
from appliance.store.rows import EvidenceKind, EvidenceRow

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])

_TYPES = {"still.jpg": "image/jpeg", "clip.mp4": "video/mp4", "boxes.json": "application/json"}
_KINDS: dict[str, EvidenceKind] = {"still.jpg": "still", "clip.mp4": "clip", "boxes.json": "boxes"}
assert set(_KINDS) == set(EVIDENCE_NAMES.values())


@router.get("/{alert_id}/evidence/{name}", response_class=FileResponse)
@router.head("/{alert_id}/evidence/{name}", include_in_schema=False)
def evidence_file(
    desk: Deps, request: Request, alert_id: str, name: Literal["still.jpg", "clip.mp4", "boxes.json"]
) -> Response:
    """The still, the clip (with HTTP ranges) or the boxes of an alert."""
    detail = detail_of(desk, alert_id)
    row = detail.piece(_KINDS[name])
    if row is None or row.state != "ready":
        raise Problem(404, _why_not(row))
    # While an alert lasts, a better picture may replace the first; afterwards its evidence stays as it is.
    lasting = "private, max-age=86400, immutable" if detail.alert.t_end is not None else "private, no-cache"
    etag = f'"{row.sha256 or f"{row.bytes}-{row.t_end}"}"'
    headers = {"ETag": etag, "Cache-Control": lasting}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    try:
        path = inside(desk.root, row.path, EVIDENCE)
    except StoreError:
        raise Problem(404, "This file is not where evidence is kept.") from None
    if not path.is_file():
        raise Problem(404, "The file is gone from the disk.")
    return FileResponse(path, headers=headers, media_type=_TYPES[name])


def _why_not(row: EvidenceRow | None) -> str:
    if row is None:
        return "This alert has no such evidence."
    return "It is being cut; it will be there soon." if row.state == "waiting" else row.reason or "It could not be cut."
