"""`/api/v1/cameras`: what each camera does now, its latest picture, and the boxes of that very picture."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from appliance.clock import iso_utc
from appliance.dashboard.camera_shapes import CameraFull, CameraItem, gap_items
from appliance.dashboard.desk import AtDesk, Desk
from appliance.dashboard.pictures import newest_readable
from appliance.dashboard.problems import Problem
from appliance.dashboard.shapes import API, FrameItem
from appliance.errors import EvidenceError
from appliance.store.cameras import CameraRow
from appliance.types import SHED_REASONS, SegmentRow

LOOKS_OVER_S = 10.0
BOXES_OFF_S_MAX = 0.5

router = APIRouter(prefix=f"{API}/cameras", tags=["cameras"])


def camera_of(desk: Desk, name: str) -> CameraRow:
    """The camera. Raises Problem when there is none."""
    row = desk.cameras.get(name)
    if row is None:
        raise Problem(404, "There is no such camera in the site file.")
    return row


def full_camera(desk: Desk, row: CameraRow) -> CameraFull:
    """The camera with its gaps, its rates and today's sums."""
    segment = newest_readable(desk.segments, row.name)
    today = {each.kind: each.amount for each in desk.meter.totals("today") if each.camera == row.name}
    estimated = today.get("camera_bytes_estimated", 0)
    configured = desk.config.cameras.get(row.name)
    decoding = desk.meter.decoding().get(row.name) if row.state == "live" else None
    return CameraFull(
        **CameraItem.of(row).model_dump(),
        zones=configured.zones if configured else {},
        lines=configured.lines if configured else {},
        codec=segment.codec if segment else "",
        fps=_fps(segment),
        looks_fps=_looks_fps(desk, row),
        received_today=today.get("camera_bytes", 0) + estimated,
        received_exact=not estimated,
        examined_today=today.get("examined", 0),
        unexamined_today=today.get("unexamined", 0),
        unexamined_why_today={why: n for why in SHED_REASONS if (n := today.get(f"unexamined_{why}", 0))},
        reconnects_today=today.get("reconnects", 0),
        decoding=decoding.state if decoding else None,
        decoding_reason=decoding.reason if decoding else "",
        behind_s=round(decoding.behind_s, 1) if decoding else 0.0,
        decoded_today=today.get("decoded", 0),
        skipped_today=today.get("skipped", 0),
        gaps=gap_items(desk.cameras.gaps(row.name)),
    )


def _fps(segment: SegmentRow | None) -> float | None:
    if segment is None or segment.frames < 2 or segment.t_end <= segment.t_start:
        return None
    return segment.frames / (segment.t_end - segment.t_start)


def _looks_fps(desk: Desk, row: CameraRow) -> float | None:
    newest = desk.boxes.latest(row.name)
    if row.state != "live" or newest is None:
        return None
    frames = desk.boxes.span(row.name, newest.t - LOOKS_OVER_S, newest.t)
    looked = [each.t for each in frames if each.looked]
    return (len(looked) - 1) / (looked[-1] - looked[0]) if len(looked) > 1 and looked[-1] > looked[0] else None


@router.get("")
def list_cameras(desk: AtDesk) -> list[CameraItem]:
    """Every configured camera, by name."""
    return [CameraItem.of(row) for row in desk.cameras.all()]


@router.get("/{name}")
def one_camera(desk: AtDesk, name: str) -> CameraFull:
    """One camera: state with its reason, gaps (newest first), rates, and today's sums."""
    return full_camera(desk, camera_of(desk, name))


@router.get("/{name}/picture", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}, 204: {}})
async def latest_picture(desk: AtDesk, name: str) -> Response:
    """The latest picture as JPEG; `X-Frame-Time` is the camera's time of it, for `boxes?t=`.

    204: nothing is recorded of this camera yet, as just after the start. 503: its recording could not be read.
    """
    if name not in desk.config.cameras:
        raise Problem(404, "There is no such camera in the site file.")
    try:
        picture = await desk.pictures.latest(name)
    except EvidenceError as error:
        raise Problem(503, f"No picture: {error}.", {"Retry-After": "2"}) from None
    if picture is None:
        return Response(status_code=204)
    headers = {"X-Frame-Time": f"{picture.t!r}", "X-Frame-Time-UTC": iso_utc(picture.t)}
    return Response(picture.jpeg, media_type="image/jpeg", headers=headers)


@router.get("/{name}/boxes")
def boxes_at(desk: AtDesk, name: str, t: Annotated[float, Query(allow_inf_nan=False)]) -> FrameItem | None:
    """What was seen in the examined frame at camera time `t`, the nearest one, at most half a second away.

    null: nobody looked then. A frame without objects: looked, and saw nothing.
    """
    camera_of(desk, name)
    near = desk.boxes.span(name, t - BOXES_OFF_S_MAX, t + BOXES_OFF_S_MAX)
    if not near:
        return None
    frame = min(near, key=lambda each: abs(each.t - t))
    return FrameItem(t=frame.t, looked=frame.looked, objects=frame.objects)
