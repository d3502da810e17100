"""`/api/v1/cameras/{name}/timeline`: a day of a camera, for drawing and looking up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Depends, Query
from pydantic import Field

from appliance.base.clock import Clock
from appliance.config import CameraConfig
from appliance.dashboard.schemas import API, ApiModel, title_of
from appliance.store.boxes import MINUTE_S
from appliance.store.cameras import CameraStore
from appliance.store.deletions import DeletionReason
from appliance.store.timeline import AlertMark, CameraTimeline, MinuteActivity, RecordedSpan, TimelineStore
from appliance.types import HEALTH_TITLES, Decision, HealthKind, Review, Severity
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.texts import tell

SPAN_S_MAX = 2 * 86400.0  # the longest day of a calendar has 25 hours
T_MAX = 253_402_300_800.0  # the year 10000
HOLE_S_MIN = 5.0  # a shorter hole needs no reason of its own
FRESH_S = 30.0  # what is being written reaches the disk within this

HoleKind = Literal["interrupted", "deleted", "not_kept", "unknown"]
Moment = Annotated[float, Field(ge=0, le=T_MAX, allow_inf_nan=False)]
From = Annotated[float, Query(alias="from", ge=0, le=T_MAX, allow_inf_nan=False)]
To = Annotated[float, Query(alias="to", ge=0, le=T_MAX, allow_inf_nan=False)]

REASON_TEXTS: dict[DeletionReason, str] = {
    "age": "its time was up",
    "camera_quota": "the camera's quota was full",
    "quota": "the quota of its class was full",
    "size": "storage.size_max_gb was reached",
    "disk": "the disk was nearly full",
    "ring": "the ring went round",
    "done": "the alert was finished",
    "person": "a person deleted the alert",
}
router = RouteList(prefix=API, tags=["timeline"])


class HoleItem(ApiModel):
    """Nothing is recorded, and why; `t_end` null while it lasts.

    kind: interrupted (nothing came, or it could not be recorded), deleted (it was recorded and had to go), not_kept
    (the camera is set so), unknown.
    """

    t_start: float
    t_end: float | None
    kind: HoleKind
    reason: str


class AlertMarkItem(ApiModel):
    """An alert; `t_end` null while it lasts, `still` null: there is no picture of it."""

    id: str
    severity: Severity
    title: str
    t_start: float
    t_end: float | None
    verdict: Decision | None
    review: Review | None
    page: str
    still: str | None

    @classmethod
    def of(cls, mark: AlertMark) -> AlertMarkItem:
        key = quote(mark.id, safe="")
        return cls.of_row(
            mark, title=title_of(mark.labels, mark.first_event), page=f"/alerts/{key}",
            still=f"{API}/alerts/{key}/evidence/still.jpg" if mark.has_still else None,
        )  # fmt: skip


class HealthMarkItem(ApiModel):
    """A fault of the camera, or (`camera` "") of the appliance."""

    id: str
    camera: str
    kind: HealthKind
    title: str
    reason: str
    t_start: float
    t_end: float | None


class ActivityItem(ApiModel):
    """Minute by minute from `t` on: examined frames, and those of them with any object. More looks mean more motion."""

    t: float
    looks: list[int]
    seen: list[int]

    @classmethod
    def of(cls, minutes: Sequence[MinuteActivity]) -> ActivityItem:
        if not minutes:
            return cls(t=0, looks=[], seen=[])
        t = minutes[0].t
        count = round((minutes[-1].t - t) / MINUTE_S) + 1
        looks, seen = [0] * count, [0] * count
        for each in minutes:
            n = round((each.t - t) / MINUTE_S)
            looks[n], seen[n] = each.looks, each.seen
        return cls(t=t, looks=looks, seen=seen)


class TimelineReport(ApiModel):
    """A camera from `t_start` to `t_end` (asked for), at `now`, each list oldest first.

    recorded: holes of up to `joined_s` are not told apart. missing: what of the span up to now is not recorded.
    alerts_left_out: older alerts of the span that are not in the list. codec: of the newest recording, "" if there is
    none. oldest_t, newest_t: what the recording holds at all; null: nothing. frame, recording: where a picture and a
    recording of it are, with `?t=` and `?from=&to=`.
    """

    camera: str
    t_start: float
    t_end: float
    now: float
    codec: str
    oldest_t: float | None
    newest_t: float | None
    recorded: tuple[RecordedSpan, ...]
    joined_s: float
    missing: list[HoleItem]
    alerts: list[AlertMarkItem]
    alerts_left_out: int
    health: list[HealthMarkItem]
    activity: ActivityItem
    page: str
    frame: str
    recording: str


class TimelineReader:
    """Timelines as the API and the page show them. Any thread may call."""

    def __init__(
        self, store: TimelineStore, cameras: CameraStore, configured: Mapping[str, CameraConfig], clock: Clock
    ) -> None:
        """Take the stores and `configured`, the cameras of the site file by name."""
        self._store = store
        self._cameras = cameras
        self._configured = configured
        self._clock = clock

    def report(self, name: str, t0: float, t1: float) -> TimelineReport:
        """One camera. Raises Problem for an unknown one, and for a span that ends before it begins or is too long."""
        if not t0 < t1 <= t0 + SPAN_S_MAX:
            raise Problem(422, f"`to` must come after `from`, by at most {SPAN_S_MAX / 3600:g} hours.")
        if self._cameras.get(name) is None:
            raise Problem(404, "There is no such camera in the site file.")
        found, now, key = self._store.read(name, t0, t1), self._clock.now(), quote(name, safe="")
        return TimelineReport.of_row(
            found,
            camera=name,
            t_start=t0,
            t_end=t1,
            now=now,
            joined_s=found.join_s,
            missing=_missing(found, self._configured.get(name), now),
            alerts=[AlertMarkItem.of(each) for each in found.alerts],
            health=[
                HealthMarkItem.of_row(each, title=tell(HEALTH_TITLES[each.kind]), reason=tell(each.reason))
                for each in found.health
            ],
            activity=ActivityItem.of(found.activity),
            page=f"/cameras/{key}/timeline",
            frame=f"{API}/cameras/{key}/frame",
            recording=f"{API}/cameras/{key}/recording",
        )  # fmt: skip


Timelines = Annotated[TimelineReader, Depends(provided(TimelineReader))]


def _missing(found: CameraTimeline, configured: CameraConfig | None, now: float) -> list[HoleItem]:
    """Interruptions as they were noted, and a reason for whatever else is not there."""
    noted = [
        HoleItem(t_start=gap.t_start, t_end=gap.t_end, kind="interrupted", reason=tell(gap.reason))
        for gap in found.gaps
    ]
    known = sorted(
        [
            *((each.t_start, each.t_end) for each in found.recorded),
            *((each.t_start, now if each.t_end is None else each.t_end) for each in found.gaps),
        ]
    )
    holes = [
        HoleItem(t_start=begin, t_end=end, kind=kind, reason=tell(reason))
        for begin, end in _between(known, found.t_start, min(found.t_end, now))
        if not (end == now and now - begin < FRESH_S)
        for kind, reason in [_why(found, configured, begin)]
    ]
    return sorted([*noted, *holes], key=lambda hole: hole.t_start)


def _between(known: list[tuple[float, float]], t0: float, t1: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of t0..t1 that none of the known stretches, oldest first, covers."""
    until = t0
    for begin, end in known:
        if begin - until >= HOLE_S_MIN:
            yield until, min(begin, t1)
        until = max(until, end)
    if t1 - until >= HOLE_S_MIN:
        yield until, t1


def _why(found: CameraTimeline, configured: CameraConfig | None, t: float) -> tuple[HoleKind, str]:
    if found.deleted_until_t is not None and found.deleted_why is not None and t < found.deleted_until_t:
        return "deleted", f"deleted: {REASON_TEXTS[found.deleted_why]}"
    if configured is not None and configured.record == "pre_roll":
        return "not_kept", "only the time around alerts is kept (record: pre_roll)"
    if configured is not None and configured.record is False:
        return "not_kept", "this camera is not recorded (record: false)"
    if found.oldest_t is None or t < found.oldest_t:
        return "unknown", "nothing was recorded yet, or it is gone"
    return "unknown", "nothing is recorded, and no interruption was noted"


@router.get("/cameras/{name}/timeline")
def camera_timeline(timelines: Timelines, name: str, t0: From, t1: To) -> TimelineReport:
    """Return what one camera recorded, missed and reported between two times, at most two days apart."""
    return timelines.report(name, t0, t1)
