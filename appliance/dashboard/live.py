"""`/api/v1/stream`: changed alerts, cameras and health events as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from appliance.dashboard.camera_shapes import CameraItem
from appliance.dashboard.health_shapes import HealthItem
from appliance.dashboard.problems import Problem
from appliance.dashboard.shapes import API, AlertItem
from appliance.dashboard.stream import Change, Hub, TooManyViewers
from appliance.store.alerts import Alerts
from appliance.store.cameras import Cameras
from appliance.store.health import HealthEvents

router = APIRouter(prefix=API, tags=["stream"])


def changes_of(
    alerts: Alerts, cameras: Cameras, health: HealthEvents | None = None
) -> Callable[[int, int], list[Change]]:
    """A reader of everything that changed after a change number, in the order of the changes."""

    def read(rev: int, limit: int) -> list[Change]:
        rows = alerts.changed_since(rev, limit)
        ill = health.changed_since(rev, limit) if health is not None else []
        # Later changes of others wait until those before them were told: numbers only go up.
        end = min((full[-1].rev for full in (rows, ill) if len(full) >= limit), default=float("inf"))
        found = [Change("health", row.rev, HealthItem.of(row).model_dump_json()) for row in ill if row.rev <= end]
        found += [Change("alert", row.rev, AlertItem.of(row).model_dump_json()) for row in rows if row.rev <= end]
        found += [
            Change("camera", row.rev, CameraItem.of(row).model_dump_json())
            for row in cameras.all()
            if rev < row.rev <= end
        ]
        return sorted(found, key=lambda change: change.rev)

    return read


@router.get("/stream", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def stream(
    request: Request,
    last_event_id: Annotated[str, Header()] = "",
    since: Annotated[int | None, Query(ge=0)] = None,
) -> StreamingResponse:
    """Events `alert`, `camera` and `health`, each with the changed row as JSON and its change number as id.

    `Last-Event-ID` (or `since`) resumes after that number without loss; without either, it begins now.
    """
    hub: Hub = request.app.state.hub
    try:
        viewer = hub.join(int(last_event_id) if last_event_id.isdecimal() else since)
    except TooManyViewers:
        raise Problem(503, "Too many pages are open; close some.", {"Retry-After": "10"}) from None
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(viewer, media_type="text/event-stream", headers=headers)
