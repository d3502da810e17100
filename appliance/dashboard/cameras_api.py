"""`/api/v1/cameras`: the state of each camera, its latest frame as JPEG, and the boxes of that very frame."""

from __future__ import annotations

from collections import Counter
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.responses import Response

from appliance.clock import iso_utc
from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.problems import Problem
from appliance.dashboard.schemas import API, ApiModel, FrameItem
from appliance.dashboard.snapshots import newest_readable
from appliance.errors import EvidenceError
from appliance.store.cameras import CameraRow
from appliance.store.meter import Metric, MetricName
from appliance.types import DROP_REASONS, CameraStateName, DecodeState, DropReason, Gap, SegmentRow


class CameraItem(ApiModel):
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


class GapItem(ApiModel):
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
    unexamined_why_today: dict[DropReason, int] = {}
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


EXAMINED_OVER_S = 10.0
BOXES_OFF_S_MAX = 0.5

router = APIRouter(prefix=f"{API}/cameras", tags=["cameras"])


def camera_of(desk: DashboardDeps, name: str) -> CameraRow:
    """The camera. Raises Problem when there is none."""
    row = desk.cameras.get(name)
    if row is None:
        raise Problem(404, "There is no such camera in the site file.")
    return row


def full_camera(desk: DashboardDeps, row: CameraRow) -> CameraFull:
    """The camera with its gaps, its rates and today's sums."""
    segment = newest_readable(desk.segments, row.name)
    today = Counter({each.metric: each.amount for each in desk.meter.totals("today") if each.camera == row.name})
    estimated = today[Metric(MetricName.CAMERA_BYTES, "estimated")]
    configured = desk.config.cameras.get(row.name)
    decoding = desk.meter.decoding().get(row.name) if row.state == "live" else None
    return CameraFull(
        **CameraItem.of(row).model_dump(),
        zones=configured.zones if configured else {},
        lines=configured.lines if configured else {},
        codec=segment.codec if segment else "",
        fps=_fps(segment),
        looks_fps=_looks_fps(desk, row),
        received_today=today[Metric(MetricName.CAMERA_BYTES)] + estimated,
        received_exact=not estimated,
        examined_today=today[Metric(MetricName.EXAMINED)],
        unexamined_today=today[Metric(MetricName.UNEXAMINED)],
        unexamined_why_today={why: n for why in DROP_REASONS if (n := today[Metric(MetricName.UNEXAMINED, why)])},
        reconnects_today=today[Metric(MetricName.RECONNECTS)],
        decoding=decoding.state if decoding else None,
        decoding_reason=decoding.reason if decoding else "",
        behind_s=round(decoding.behind_s, 1) if decoding else 0.0,
        decoded_today=today[Metric(MetricName.DECODED)],
        skipped_today=today[Metric(MetricName.SKIPPED)],
        gaps=gap_items(desk.cameras.gaps(row.name)),
    )


def _fps(segment: SegmentRow | None) -> float | None:
    if segment is None or segment.frames < 2 or segment.t_end <= segment.t_start:
        return None
    return segment.frames / (segment.t_end - segment.t_start)


def _looks_fps(desk: DashboardDeps, row: CameraRow) -> float | None:
    newest = desk.boxes.latest(row.name)
    if row.state != "live" or newest is None:
        return None
    frames = desk.boxes.span(row.name, newest.t - EXAMINED_OVER_S, newest.t)
    looked = [each.t for each in frames if each.looked]
    return (len(looked) - 1) / (looked[-1] - looked[0]) if len(looked) > 1 and looked[-1] > looked[0] else None


@router.get("")
def list_cameras(desk: Deps) -> list[CameraItem]:
    """Every configured camera, by name."""
    return [CameraItem.of(row) for row in desk.cameras.all()]


@router.get("/{name}")
def one_camera(desk: Deps, name: str) -> CameraFull:
    """One camera: state with its reason, gaps (newest first), rates, and today's sums."""
    return full_camera(desk, camera_of(desk, name))


@router.get("/{name}/picture", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}, 204: {}})
async def latest_picture(desk: Deps, name: str) -> Response:
    """The latest picture as JPEG; `X-Frame-Time` is the camera's time of it, for `boxes?t=`.

    204: nothing is recorded of this camera yet, as just after the start. 503: its recording could not be read.
    """
    if name not in desk.config.cameras:
        raise Problem(404, "There is no such camera in the site file.")
    try:
        picture = await desk.snapshots.latest(name)
    except EvidenceError as error:
        raise Problem(503, f"No picture: {error}.", {"Retry-After": "2"}) from None
    if picture is None:
        return Response(status_code=204)
    headers = {"X-Frame-Time": f"{picture.t!r}", "X-Frame-Time-UTC": iso_utc(picture.t)}
    return Response(picture.jpeg, media_type="image/jpeg", headers=headers)


@router.get("/{name}/boxes")
def boxes_at(desk: Deps, name: str, t: Annotated[float, Query(allow_inf_nan=False)]) -> FrameItem | None:
    """What was seen in the examined frame at camera time `t`, the nearest one, at most half a second away.

    null: nobody looked then. A frame without objects: looked, and saw nothing.
    """
    camera_of(desk, name)
    near = desk.boxes.span(name, t - BOXES_OFF_S_MAX, t + BOXES_OFF_S_MAX)
    if not near:
        return None
    frame = min(near, key=lambda each: abs(each.t - t))
    return FrameItem(t=frame.t, looked=frame.looked, objects=frame.objects)
