"""The JSON of cameras. Fields may be added; those that stand here stay."""

from __future__ import annotations

from urllib.parse import quote

from appliance.dashboard.shapes import API, Shape
from appliance.store.cameras import CameraRow
from appliance.types import CameraStateName, DecodeState, Gap, ShedReason


class CameraItem(Shape):
    """A camera and what it last said. `source` is its URL without the password; width 0: not opened yet."""

    name: str
    state: CameraStateName
    reason: str
    since_t: float
    source: str
    model: str
    width: int
    height: int
    rev: int
    url: str
    page: str
    picture: str
    boxes: str

    @classmethod
    def of(cls, row: CameraRow) -> CameraItem:
        name = quote(row.name, safe="")
        return cls(
            name=row.name, state=row.state, reason=row.reason, since_t=row.since_t, source=row.source, model=row.model,
            width=row.size[0], height=row.size[1], rev=row.rev, url=f"{API}/cameras/{name}", page=f"/cameras/{name}",
            picture=f"{API}/cameras/{name}/picture", boxes=f"{API}/cameras/{name}/boxes",
        )  # fmt: skip


class GapItem(Shape):
    """Nothing was received; `t_end` null while it lasts."""

    t_start: float
    t_end: float | None
    reason: str


class CameraFull(CameraItem):
    """One camera with its numbers: fps of the newest recording, looks a second over the last seconds, today's sums.

    decoding: all of its pictures (`everything`, by order or because the stream allows nothing else), all while
    something may happen (`active`), key frames only (`idle`); null: not known yet. skipped_today: packets not decoded.
    unexamined_why_today: `unexamined_today` by reason, see docs/scheduling.md. behind_s:
    how late its packets are read; beyond 2 s they are recorded and not looked at.
    """

    codec: str = ""
    fps: float | None = None
    looks_fps: float | None = None
    received_today: int = 0
    received_exact: bool = True
    examined_today: int = 0
    unexamined_today: int = 0
    unexamined_why_today: dict[ShedReason, int] = {}
    reconnects_today: int = 0
    decoding: DecodeState | None = None
    decoding_reason: str = ""
    behind_s: float = 0.0
    decoded_today: int = 0
    skipped_today: int = 0
    zones: dict[str, tuple[tuple[float, float], ...]] = {}
    lines: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {}
    gaps: list[GapItem] = []


def gap_items(gaps: list[Gap]) -> list[GapItem]:
    return [GapItem.model_validate(gap) for gap in gaps]
