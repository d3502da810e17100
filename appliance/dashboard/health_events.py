"""`/api/v1/health/events`: what was not as it should be with a camera or the box, and that a person has seen it."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from appliance.dashboard.alerts import PAGE_LENGTH, Before, cursor_of
from appliance.dashboard.desk import AtDesk, Desk
from appliance.dashboard.health_shapes import LEARNABLE, HealthItem, HealthPage
from appliance.dashboard.problems import Problem
from appliance.dashboard.shapes import API
from appliance.types import HealthKind

router = APIRouter(prefix=f"{API}/health/events", tags=["health"])


class Seen(BaseModel):
    """Nothing more to say: an empty object."""

    model_config = ConfigDict(extra="forbid")


def health_of(desk: Desk, event: str) -> HealthItem:
    """The event. Raises Problem when there is none."""
    row = desk.health_events.get(event)
    if row is None:
        raise Problem(404, "There is no such health event; only the newest are kept.")
    return HealthItem.of(row)


def health_page(
    desk: Desk, camera: str, kind: HealthKind | None, before: str, limit: int
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
    desk: AtDesk,
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
def one_health_event(desk: AtDesk, event: str) -> HealthItem:
    """One health event."""
    return health_of(desk, event)


@router.post("/{event}/seen")
def see_health_event(desk: AtDesk, event: str, said: Seen) -> HealthItem:
    """A person has seen it. Of a view that moved, is covered or black: what is seen now is right, and is learnt."""
    row = desk.health_events.see(event, desk.clock.now())
    if row is None:
        raise Problem(404, "There is no such health event; only the newest are kept.")
    if row.t_end is None and row.kind in LEARNABLE and desk.relearn is not None:
        desk.relearn(row.camera, row.kind)
    return HealthItem.of(row)
