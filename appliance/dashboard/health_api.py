"""`/api/v1/health/events`: faults of a camera or of the appliance, and that a person has seen them."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from appliance.dashboard.alerts_api import PAGE_LENGTH, Before, cursor_of
from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.problems import Problem
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.health_events import HealthEventRow
from appliance.types import HealthKind

HEALTH_TITLES: dict[HealthKind, str] = {
    "stalled": "No picture comes",
    "frozen": "Frozen picture",
    "black": "Black picture",
    "covered": "Covered or out of focus",
    "moved": "Camera moved",
    "clock": "Clock jumped",
    "detector": "Detector stuck",
    "unexamined": "Not examined",
}
LEARNABLE: frozenset[HealthKind] = frozenset({"black", "covered", "moved"})


class HealthItem(ApiModel):
    """Something was not as it should be; `camera` "" for the box, `t_end` null while it lasts.

    told_t: when it was noticed. recovery: what was tried last, attempts: how often; times: how often it came back.
    seen_t: when a person said that it was seen. learnable: seen means that what is seen now is right.
    """

    id: str
    camera: str
    kind: HealthKind
    title: str
    t_start: float
    t_end: float | None
    told_t: float
    reason: str
    recovery: str
    attempts: int
    times: int
    ended_by: str
    seen_t: float | None
    learnable: bool
    rev: int
    url: str
    camera_page: str | None

    @classmethod
    def of(cls, row: HealthEventRow) -> HealthItem:
        return cls(
            id=row.id, camera=row.camera, kind=row.kind, title=HEALTH_TITLES[row.kind], t_start=row.t_start,
            t_end=row.t_end, told_t=row.told_t, reason=row.reason, recovery=row.recovery, attempts=row.attempts,
            times=row.times, ended_by=row.ended_by, seen_t=row.seen_t, learnable=row.kind in LEARNABLE, rev=row.rev,
            url=f"{API}/health/events/{quote(row.id, safe='')}",
            camera_page=f"/cameras/{quote(row.camera, safe='')}" if row.camera else None,
        )  # fmt: skip


class HealthPage(ApiModel):
    """`next` is the query of the page with older events; null: there are none."""

    events: list[HealthItem]
    next: str | None


router = APIRouter(prefix=f"{API}/health/events", tags=["health"])


class SeenChange(BaseModel):
    """Nothing more to say: an empty object."""

    model_config = ConfigDict(extra="forbid")


def health_of(desk: DashboardDeps, event: str) -> HealthItem:
    """The event. Raises Problem when there is none."""
    row = desk.health_events.get(event)
    if row is None:
        raise Problem(404, "There is no such health event; only the newest are kept.")
    return HealthItem.of(row)


def health_page(
    desk: DashboardDeps, camera: str, kind: HealthKind | None, before: str, limit: int
) -> tuple[list[HealthItem], str | None]:
    """One page of events, newest first, and the cursor of the next (None: this is the last). Raises Problem."""
    cursor = cursor_of(before)
    rows = desk.health_events.page(
        camera=camera or None,
        kind=kind,
        before=None if cursor is None else (cursor.t_start, cursor.id),
        limit=limit + 1,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    return [HealthItem.of(row) for row in rows[:limit]], None if last is None else f"{last.t_start!r}~{last.id}"


@router.get("")
def list_health_events(
    desk: Deps,
    camera: Annotated[str, Query(max_length=64)] = "",
    kind: HealthKind | Literal[""] = "",
    before: Before = "",
    limit: Annotated[int, Query(ge=1, le=199)] = PAGE_LENGTH,
) -> HealthPage:
    """Health events, newest first, page by page; with `camera`, those of the box too. `t_end` null: it lasts."""
    items, older = health_page(desk, camera, kind or None, before, limit)
    query = {"camera": camera, "kind": kind, "before": older, "limit": limit}
    return HealthPage(
        events=items, next=None if older is None else urlencode({name: each for name, each in query.items() if each})
    )


@router.get("/{event}")
def one_health_event(desk: Deps, event: str) -> HealthItem:
    """One health event."""
    return health_of(desk, event)


@router.post("/{event}/seen")
def see_health_event(desk: Deps, event: str, said: SeenChange) -> HealthItem:
    """A person has seen it. Of a view that moved, is covered or black: what is seen now is right, and is learnt."""
    row = desk.health_events.mark_seen(event, desk.clock.now())
    if row is None:
        raise Problem(404, "There is no such health event; only the newest are kept.")
    if row.t_end is None and row.kind in LEARNABLE and desk.probes.rebaseline is not None:
        desk.probes.rebaseline(row.camera, row.kind)
    return HealthItem.of(row)
