"""`/api/v1/stream`: changes of alerts, cameras and health as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from appliance.dashboard.cameras_api import CameraItem
from appliance.dashboard.event_stream import REV_DIGITS_MAX, StreamEvent, StreamHub, TooManyViewers, ViewerResponse
from appliance.dashboard.health_api import HealthItem
from appliance.dashboard.schemas import API, AlertItem
from appliance.store.alerts import AlertStore
from appliance.store.cameras import CameraStore
from appliance.store.health_events import HealthEventStore
from appliance.web.auth import AccessPart
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided

router = RouteList(prefix=API, tags=["stream"])

_health_json = TypeAdapter(HealthItem)


def changes_of(
    last_rev: Callable[[], int], alerts: AlertStore, cameras: CameraStore, health: HealthEventStore | None = None
) -> Callable[[int, int], list[StreamEvent]]:
    """Return a reader of everything that changed after a change number, in the order of the changes.

    last_rev: the number of the last change. It is read first. A change that happens while the stores are read, one
    after the other, would otherwise be sent from one store before an earlier change in another, which would never be
    sent.
    """

    def read(rev: int, limit: int) -> list[StreamEvent]:
        last = last_rev()
        rows = alerts.changed_since(rev, limit)
        faults = health.changed_since(rev, limit) if health is not None else []
        # Later changes of others wait until those before them were sent: numbers only go up.
        end = min((last, *(full[-1].rev for full in (rows, faults) if len(full) >= limit)))
        found = [
            StreamEvent("health", row.rev, _health_json.dump_json(HealthItem.of(row)).decode(), row.camera)
            for row in faults
            if row.rev <= end
        ]
        found += [
            StreamEvent("alert", row.rev, AlertItem.of(replace(row, parts=())).model_dump_json(), row.camera)
            for row in rows
            if row.rev <= end
        ]
        found += [
            StreamEvent("camera", row.rev, CameraItem.of(row).model_dump_json(), row.name)
            for row in cameras.all()
            if rev < row.rev <= end
        ]
        return sorted(found, key=lambda change: change.rev)

    return read


@router.get("/stream", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def stream(
    hub: Annotated[StreamHub, Depends(provided(StreamHub))],
    access: AccessPart,
    request: Request,
    last_event_id: Annotated[str, Header()] = "",
    since: Annotated[int | None, Query(ge=0, lt=10**REV_DIGITS_MAX)] = None,
) -> StreamingResponse:
    """Events `alert`, `camera` and `health`, each with the changed row as JSON and its change number as id.

    `Last-Event-ID` (or `since`) resumes after that number without loss; without either, it begins now.
    """
    resumes = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= REV_DIGITS_MAX
    try:
        viewer = hub.join(int(last_event_id) if resumes else since, access.still(request))
    except TooManyViewers as error:
        raise Problem(503, sentence(error), {"Retry-After": "10"}) from None
    return ViewerResponse(viewer)
