"""The JSON of health events. Fields may be added; those that stand here stay."""

from __future__ import annotations

from urllib.parse import quote

from appliance.dashboard.shapes import API, Shape
from appliance.store.health import HealthRow
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


class HealthItem(Shape):
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
    def of(cls, row: HealthRow) -> HealthItem:
        return cls(
            id=row.id, camera=row.camera, kind=row.kind, title=HEALTH_TITLES[row.kind], t_start=row.t_start,
            t_end=row.t_end, told_t=row.told_t, reason=row.reason, recovery=row.recovery, attempts=row.attempts,
            times=row.times, ended_by=row.ended_by, seen_t=row.seen_t, learnable=row.kind in LEARNABLE, rev=row.rev,
            url=f"{API}/health/events/{quote(row.id, safe='')}",
            camera_page=f"/cameras/{quote(row.camera, safe='')}" if row.camera else None,
        )  # fmt: skip


class HealthPage(Shape):
    """`next` is the query of the page with older events; null: there are none."""

    events: list[HealthItem]
    next: str | None
