"""`/healthz`: is everything as it should be, and if not, what is not."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from appliance.dashboard.alerts_api import failing_targets
from appliance.dashboard.deps import DashboardDeps, Deps

router = APIRouter(tags=["health"])


class HealthReport(BaseModel):
    """`reasons`: one sentence a matter. They name cameras, so they are for those who may look."""

    status: Literal["ok", "degraded"]
    reasons: list[str] = []


def reasons(desk: DashboardDeps) -> list[str]:
    """What is not as it should be, most important first."""
    found: list[str] = []
    if desk.probes.health is not None:
        state = desk.probes.health()
        if not state.ingest_running:
            found.append("the ingest process is not running; it is being started again")
        found += state.warnings
    for row in desk.cameras.all():
        if row.state in {"lost", "stalled"}:
            found.append(f"camera {row.name} is {row.state}" + (f": {row.reason}" if row.reason else ""))
    for event in desk.health_events.open():
        if event.kind != "stalled":  # said by the camera's state
            found.append((f"camera {event.camera}: " if event.camera else "") + event.reason)
    if desk.probes.link is not None:
        link = desk.probes.link()
        if not link.up:
            why = f": {link.error}" if link.error else ""
            found.append(f"the cloud link is down{why}; what was flagged waits, unverified")
        elif link.breaker != "closed":
            found.append(f"the cloud does not answer: {link.breaker_why}; what was flagged waits, unverified")
    return found + failing_targets(desk)


@router.get("/healthz")
def healthz(desk: Deps, request: Request) -> HealthReport:
    """200 with `ok` or `degraded`: a degraded box still watches, so nothing should kill it. 503: the store is gone."""
    found = reasons(desk)
    shown = found if request.state.known else []
    return HealthReport(status="degraded" if found else "ok", reasons=shown)
