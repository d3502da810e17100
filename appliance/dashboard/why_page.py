"""The page Why: what happened to each object in a time span of a camera, drawn on a strip under the video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from starlette.responses import HTMLResponse

from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import PagePart
from appliance.dashboard.recording_jobs_api import Jobs, job_of
from appliance.dashboard.timeline_api import T_MAX
from appliance.dashboard.why_api import SPAN_S_MAX, TrackItem, Why, WhyReport, page_at
from appliance.web.routes import RouteList
from appliance.web.texts import N_, gettext, tell
from appliance.web.visitor import visitor

ROWS_MAX = 12  # tracks with a row of their own on the strip; all are listed
MARKS_MAX = 1500  # of one row
SPAN_S = 60.0  # seconds shown at first: a walk through a garden
STAGES = {"reported": ("good", N_("reported")), "cooldown": ("mid", N_("held back by a cooldown"))}
HELD = ("held", N_("held back before"))  # by any other stage

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on a row of the strip: x, width in percent of the span; y, height in pixels; look: its class."""

    x: float
    width: float
    y: float = 0.0
    height: float = 12.0
    look: str = ""
    title: str = ""


class StripView:
    """The rows of the strip of a report. Widths are percent of the span, so that it fits every screen."""

    def __init__(self, report: WhyReport) -> None:
        self._report = report
        self._span = report.t_end - report.t_start

    def recorded(self) -> list[Mark]:
        return [self._bar(each.t_start, each.t_end, look="kept") for each in self._report.timeline.recorded]

    def decoded(self) -> list[Mark]:
        moments = self._report.replay.moments if self._report.replay else []
        return [self._tick(each.t, look="keys" if each.keys_only else "every") for each in moments[:MARKS_MAX]]

    def motion(self) -> list[Mark]:
        """Higher, the more of the picture moved; not in proportion, since a person far away moves one part in 300."""
        found = []
        for each in (self._report.replay.moments if self._report.replay else [])[:MARKS_MAX]:
            if each.motion > 0:
                high = max(2.0, round(24 * min(1.0, 10 * each.motion) ** 0.4, 1))
                found.append(self._tick(each.t, y=24 - high, height=high, look="moved"))
        return found

    def examined(self) -> list[Mark]:
        if self._report.replay:
            shown = [each for each in self._report.replay.moments if each.what != "gated"]
            return [self._tick(each.t, look=each.what) for each in shown[:MARKS_MAX]]
        return [self._tick(t, look="due" if answered else "failed") for t, answered in self._report.looks[:MARKS_MAX]]

    def detections(self) -> list[Mark]:
        found = self._report.replay.detections if self._report.replay else []
        return [
            Mark(self._x(each.t), 0, round(58 - 54 * each.score, 1), 0, each.use, f"{label} {each.score:.2f}")
            for each in sorted(found, key=lambda each: each.use == "confirmed")[-MARKS_MAX:]
            for label in (tell(each.label),)
        ]

    def tracks(self) -> list[tuple[TrackItem, list[Mark]]]:
        """Those that came furthest, in the order of their beginning, each as its stretches."""
        best = sorted(self._report.tracks, key=_how_far, reverse=True)[:ROWS_MAX]
        return [
            (
                track,
                [
                    self._bar(each.t_start, each.t_end, look=look, title=gettext(title))
                    for each in track.spans or ()
                    for look, title in (STAGES.get(each.stage, HELD),)
                ]
                or [self._bar(track.t_start, track.t_end, look="held")],
            )
            for track in sorted(best, key=lambda each: each.t_start)
        ]

    def events(self) -> list[Mark]:
        report = self._report
        found = [*report.events, *(report.stored_events if report.source == "stored" else ())]
        return [
            self._tick(each.t, look="mid" if each.held else "good", title=f"{each.rule}: {tell(each.label)}")
            for each in found
        ]

    def _x(self, t: float) -> float:
        return round(100 * (t - self._report.t_start) / self._span, 2)

    def _bar(self, t0: float, t1: float, *, look: str, title: str = "") -> Mark:
        left, right = max(0.0, self._x(t0)), min(100.0, self._x(t1))
        return Mark(left, max(0.3, round(right - left, 2)), look=look, title=title)

    def _tick(self, t: float, *, look: str, y: float = 0.0, height: float = 12.0, title: str = "") -> Mark:
        return Mark(self._x(t), 0.25, y, height, look, title)


def _how_far(track: TrackItem) -> tuple[int, float]:
    order = ("label", "place", "settling", "way", "start", "stay")
    stage = track.furthest.stage if track.furthest else "label"
    return (order.index(stage) if stage in order else len(order)), track.score


@router.get("/cameras/{name}/why")
def why_page(
    *,
    page: PagePart,
    cameras: Cameras,
    reader: Why,
    jobs: Jobs,
    name: str,
    t: Annotated[float | None, Query(ge=0, le=T_MAX, allow_inf_nan=False)] = None,
    span: Annotated[float, Query(ge=2, le=SPAN_S_MAX, allow_inf_nan=False)] = SPAN_S,
    job: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """Why a camera reported nobody, or whom, around `t`; by what is stored, or (`job`) as it was decided again."""
    camera = cameras.full(name)
    begun = job_of(jobs, name, job) if job else None
    if begun is not None and begun.kind == "replay_span" and begun.state == "done":
        report = reader.replayed(begun)
    else:
        middle = reader.newest(name) - span / 2 if t is None else t
        begin = round(max(0.0, middle - span / 2), 1)
        report = reader.stored(name, begin, begin + span)
    wide, middle = report.t_end - report.t_start, (report.t_start + report.t_end) / 2
    links = {
        "earlier": page_at(name, middle - wide, wide), "later": page_at(name, middle + wide, wide),
        "other": page_at(name, middle, 20 if wide > 30 else SPAN_S), "widest": page_at(name, middle, SPAN_S_MAX),
    }  # fmt: skip
    return page(
        "why.html", here="/cameras", camera=camera, report=report, strip=StripView(report), job=begun,
        links=links, span=wide, may_run=visitor().may("reviewer"), middle=middle,
    )  # fmt: skip
