"""`/api/v1/cameras`: the state of each camera, its latest frame as JPEG, and the boxes of that very frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query
from starlette.responses import Response

from appliance.base.clock import iso_utc, local_hour
from appliance.base.errors import EvidenceError
from appliance.config import CameraConfig
from appliance.dashboard.openapi import media
from appliance.dashboard.schemas import API, ApiModel, FrameItem
from appliance.dashboard.snapshots import SnapshotCache, newest_readable
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraRow, CameraStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.segments import SegmentStore
from appliance.types import DROP_REASONS, PAUSED, CameraStateName, DecodeState, DropReason, SegmentRow
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.templating import span
from appliance.web.texts import gettext as _
from appliance.web.texts import ngettext
from appliance.web.visitor import visitor

EXAMINED_OVER_S = 10.0  # the rate of examined frames is of so many seconds
STARTING_S_MAX = 60.0  # one that has been in its state for less, and has no recording today, is still coming up
MISSED_S_MIN = 10.0  # a day with less is whole: connecting anew takes some seconds
BOXES_OFF_S_MAX = 0.5  # boxes belong to a frame at most this far away

router = RouteList(prefix=f"{API}/cameras", tags=["cameras"])


class CameraItem(ApiModel):
    """A camera and its last state. `source` is its URL without the password; width 0: not opened yet."""

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
        api = f"{API}/cameras/{name}"
        width, height = row.size
        return cls.of_row(
            row, width=width, height=height, url=api, page=f"/cameras/{name}", picture=f"{api}/picture",
            boxes=f"{api}/boxes",
        )  # fmt: skip


class GapItem(ApiModel):
    """Nothing was received, or (`unrecorded`) the disk took nothing of it; `t_end` null while it lasts."""

    t_start: float
    t_end: float | None
    reason: str
    unrecorded: bool = False


class CameraFull(CameraItem):
    """One camera with its numbers: fps of the newest recording, examined frames a second now, today's sums.

    decoding: all of its frames (`everything`, by order or because the stream allows nothing else), all while
    something may happen (`active`), key frames only (`idle`); null: not known yet. decoder: `software`, or which
    hardware decodes it; empty: nothing does. skipped_today: packets not decoded.
    unexamined_why_today: `unexamined_today` by reason, see docs/scheduling.md. behind_s:
    how late its packets are read; beyond 2 s they are recorded and not examined. promised_fps: inferences a second that
    were due over the last seconds, examined_fps: those that came; null: not known now. held_back_today: events that a
    cooldown held back, by rule.
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
    decoder: str = ""
    behind_s: float = 0.0
    promised_fps: float | None = None
    examined_fps: float | None = None
    decoded_today: int = 0
    skipped_today: int = 0
    held_back_today: dict[str, int] = {}
    zones: dict[str, tuple[tuple[float, float], ...]] = {}
    lines: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {}
    gaps: list[GapItem] = []


@dataclass(frozen=True, slots=True)
class CameraReader:
    """Cameras as the API and the pages show them: state, rates, today's sums, boxes. Any thread may call.

    configured: the cameras of the site file by name.
    """

    cameras: CameraStore
    segments: SegmentStore
    boxes: BoxStore
    meter: Meter
    configured: Mapping[str, CameraConfig]

    def items(self) -> list[CameraItem]:
        """Every configured camera that the visitor may see, by name."""
        return [CameraItem.of(row) for row in self.cameras.all() if visitor().sees(row.name)]

    def day_text(self, begin: float, now: float) -> str:
        """Return a sentence: since when all record, or which did not, and for how long; '': none should."""
        starts = {
            each.name: began
            for each in self.items()
            if (c := self.configured.get(each.name))
            and c.record == "continuous"
            and (
                (began := self.segments.recorded_since(each.name, begin)) is not None
                or now - each.since_t >= STARTING_S_MAX
            )
        }
        missing: dict[str, str] = {}
        since = begin
        for name, began in starts.items():
            gaps = [
                (max(gap.t_start, begin), now if gap.t_end is None else gap.t_end) for gap in self.cameras.gaps(name)
            ]
            lost_s = sum(max(0.0, end - start) for start, end in gaps)
            if began is None:
                missing[name] = _("never")
                continue
            since = max(since, began)
            if lost_s >= MISSED_S_MIN:
                missing[name] = span(lost_s)
        if missing:
            names = ", ".join(f"{name} ({lost})" for name, lost in missing.items())
            return _("Not recorded today: {names}.").format(names=names)
        if not starts:
            return ""
        if since - begin >= MISSED_S_MIN:
            text = ngettext(
                "The camera has recorded since {time}.", "All {n} cameras have recorded since {time}.", len(starts)
            )
            return text.format(n=len(starts), time=local_hour(since)[-5:])
        text = ngettext("The camera recorded all day.", "All {n} cameras recorded all day.", len(starts))
        return text.format(n=len(starts))

    def full(self, name: str) -> CameraFull:
        """Return the camera with its gaps, its rates and today's sums. Raise Problem if there is none."""
        row = self._row(name)
        segment = newest_readable(self.segments, name)
        today = Counter({each.metric: each.amount for each in self.meter.totals("today") if each.camera == name})
        estimated = today[Metric(MetricName.CAMERA_BYTES, "estimated")]
        configured = self.configured.get(name)
        decoding = self.meter.decoding().get(name) if row.state == "live" else None
        return CameraFull(
            **CameraItem.of(row).model_dump(),
            zones=configured.zones if configured else {},
            lines=configured.lines if configured else {},
            codec=segment.codec if segment else "",
            fps=_fps(segment),
            looks_fps=self._examined_fps(row),
            received_today=today[Metric(MetricName.CAMERA_BYTES)] + estimated,
            received_exact=not estimated,
            examined_today=today[Metric(MetricName.EXAMINED)],
            unexamined_today=today[Metric(MetricName.UNEXAMINED)],
            unexamined_why_today={why: n for why in DROP_REASONS if (n := today[Metric(MetricName.UNEXAMINED, why)])},
            reconnects_today=today[Metric(MetricName.RECONNECTS)],
            decoding=decoding.state if decoding else None,
            decoding_reason=decoding.reason if decoding else "",
            decoder=decoding.decoder if decoding else "",
            behind_s=round(decoding.behind_s, 1) if decoding else 0.0,
            promised_fps=decoding.promised_fps if decoding else None,
            examined_fps=decoding.examined_fps if decoding else None,
            decoded_today=today[Metric(MetricName.DECODED)],
            skipped_today=today[Metric(MetricName.SKIPPED)],
            held_back_today={
                metric.label: n
                for metric, n in sorted(today.items(), key=lambda item: item[0].label)
                if metric.name is MetricName.HELD_BACK
            },
            gaps=[GapItem.of_row(gap, unrecorded=gap.reason.startswith(PAUSED)) for gap in self.cameras.gaps(name)],
        )

    def boxes_at(self, name: str, t: float) -> FrameItem | None:
        """Return the examined frame nearest to camera time `t`; None: none is near.

        Raise Problem for an unknown camera.
        """
        self._row(name)
        near = self.boxes.span(name, t - BOXES_OFF_S_MAX, t + BOXES_OFF_S_MAX)
        if not near:
            return None
        frame = min(near, key=lambda each: abs(each.t - t))
        return FrameItem(t=frame.t, looked=frame.looked, objects=frame.objects)

    def _row(self, name: str) -> CameraRow:
        row = self.cameras.get(name)
        if row is None:
            raise _unknown()
        return row

    def _examined_fps(self, row: CameraRow) -> float | None:
        newest = self.boxes.latest(row.name)
        if row.state != "live" or newest is None:
            return None
        frames = self.boxes.span(row.name, newest.t - EXAMINED_OVER_S, newest.t)
        times = [each.t for each in frames if each.looked]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else None


Cameras = Annotated[CameraReader, Depends(provided(CameraReader))]


def _fps(segment: SegmentRow | None) -> float | None:
    if segment is None or segment.frames < 2 or segment.t_end <= segment.t_start:
        return None
    return segment.frames / (segment.t_end - segment.t_start)


def _unknown() -> Problem:
    return Problem(404, "There is no such camera in the site file.")


@router.get("")
def list_cameras(cameras: Cameras) -> list[CameraItem]:
    """Every configured camera, by name."""
    return cameras.items()


@router.get("/{name}")
def one_camera(cameras: Cameras, name: str) -> CameraFull:
    """One camera: state with its reason, gaps (newest first), rates, and today's sums."""
    return cameras.full(name)


@router.get("/{name}/picture", response_class=Response, responses={**media("image/jpeg", etag=False), 204: {}})
async def latest_image(
    cameras: Cameras, snapshots: Annotated[SnapshotCache, Depends(provided(SnapshotCache))], name: str
) -> Response:
    """Return the latest frame as JPEG; `X-Frame-Time` is the camera's time of it, for `boxes?t=`.

    204: nothing is recorded of this camera yet, as just after the start. 503: its recording could not be read.
    """
    if name not in cameras.configured:
        raise _unknown()
    try:
        snapshot = await snapshots.latest(name)
    except EvidenceError as error:
        raise Problem(503, f"No picture: {error}.", {"Retry-After": "2"}) from None
    if snapshot is None:
        return Response(status_code=204)
    headers = {"X-Frame-Time": f"{snapshot.t!r}", "X-Frame-Time-UTC": iso_utc(snapshot.t)}
    return Response(snapshot.jpeg, media_type="image/jpeg", headers=headers)


@router.get("/{name}/boxes")
def boxes_at(cameras: Cameras, name: str, t: Annotated[float, Query(allow_inf_nan=False)]) -> FrameItem | None:
    """Return the detections of the examined frame nearest to camera time `t`, at most half a second away.

    null: no frame was examined then. A frame without objects: examined, and empty.
    """
    return cameras.boxes_at(name, t)
