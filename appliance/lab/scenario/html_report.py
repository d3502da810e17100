"""The HTML report of scenarios: one file without scripts or requests, with stills of each fault cut from the clips."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from appliance.base.clock import iso_utc
from appliance.base.errors import SourceError
from appliance.lab.scenario.plot_page import template_environment
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import FrameConverter, upright_size
from appliance.media.stills import encode_jpeg
from appliance.replay.footage import ClipSource, FrameSource
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.frame_transform import frame_transform_of
from appliance.replay.replay_report import format_time
from appliance.replay.stream_faults import with_stream_faults
from appliance.scenario.expectations import EventPattern
from appliance.scenario.metrics import Estimate, EventFigures, format_estimate
from appliance.scenario.scenario_result import Fault, FaultMoment, ScenarioResult, WatchedCamera
from appliance.types import Box, Event, Point

logger = logging.getLogger(__name__)

STILL_SIDE_MAX = 960  # pixels; the report is one file with its stills inside
STILL_QUALITY = 80  # JPEG, likewise
STILLS_MAX = 40  # of one scenario
# As the dashboard draws tracks (static/draw.js): colours that stand out on camera images.
TRACK_COLOURS = ("#3fd0b5", "#f0a259", "#8fa8ff", "#e58bcb", "#b9c95a", "#ff8f94")
_HITS_MAX = 200  # listed of one scenario
REPORT_STILLS_MAX = 400  # of one report, some 40 MB


@dataclass(frozen=True, slots=True)
class ReportStill:
    """A JPEG of one moment. size: (width, height) of the footage, of which boxes are shares."""

    jpeg: bytes
    size: tuple[int, int]


StillsByFrame = Mapping[tuple[str, int], ReportStill]
"""By camera and frame."""


def cut_stills(result: ScenarioResult, previous: Sequence[StillsByFrame] = ()) -> StillsByFrame:
    """Cut the stills of all moments of a scenario, the first STILLS_MAX; each clip is decoded once, up to the last.

    previous: those of the same report so far; all together are at most REPORT_STILLS_MAX.

    A clip that cannot be read (any more) gives no stills and a line in the log.
    """
    wanted: dict[str, set[int]] = {}
    free = max(0, REPORT_STILLS_MAX - sum(map(len, previous)))
    moments = [moment for fault in result.faults for moment in fault.moments]
    for moment in moments[: min(STILLS_MAX, free)]:
        wanted.setdefault(moment.camera, set()).add(moment.frame)
    found: dict[tuple[str, int], ReportStill] = {}
    for part in result.watched:
        frames = wanted.get(part.camera)
        if frames:
            conditions = ConditionSet.parse(result.weather, result.seed)
            source = with_stream_faults(ClipSource(part.clip, part.camera), part.camera, conditions)
            found.update({(part.camera, frame): still for frame, still in _cut(source, conditions, frames)})
    return found


def _cut(source: FrameSource, conditions: ConditionSet, frames: set[int]) -> Iterable[tuple[int, ReportStill]]:
    """Return the stills of these frames, as the detector was given them under the conditions."""
    converter, transform, last = FrameConverter(), frame_transform_of(conditions), max(frames)
    found = []
    try:
        for frame in source.play():
            if isinstance(frame, DecodedFrame) and frame.index in frames:
                size = upright_size(frame.av_frame)
                seen = transform(frame.index, round(frame.t, 3), frame.av_frame) if transform else frame.av_frame
                still = ReportStill(
                    encode_jpeg(converter.bgr(seen, size), side_max=STILL_SIDE_MAX, quality=STILL_QUALITY), size
                )
                found.append((frame.index, still))
            if isinstance(frame, DecodedFrame) and frame.index >= last:
                break
    except SourceError as error:
        logger.warning("no stills for the report: %s", error)
    return found


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box drawn over a still, in pixels of the footage. meant: it is the object that the fault is about."""

    x: float
    y: float
    width: float
    height: float
    tag: str
    colour: str
    meant: bool


@dataclass(frozen=True, slots=True)
class AnnotatedStill:
    """A still with what is drawn over it.

    zones: (name, points as SVG text, where the name stands, whether the fault is about it); lines: (name, x1 y1 x2 y2,
    whether the fault is about it); truth: the true box.
    """

    url: str
    size: tuple[int, int]
    caption: str
    frames: tuple[DrawnBox, ...]
    zones: tuple[tuple[str, str, Point, bool], ...]
    lines: tuple[tuple[str, tuple[float, float, float, float], bool], ...]
    truth: DrawnBox | None


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A window or an event on a rule's row; left and width in percent of the clip."""

    kind: str
    left: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One rule of one camera over the length of the clip."""

    name: str
    marks: tuple[TimelineMark, ...]


def html_report(
    results: Sequence[ScenarioResult], stills: Sequence[StillsByFrame], total: EventFigures, now: float
) -> str:
    """Return the whole file.

    stills: of each result, in the same order; now: UTC seconds, shown as the date of the report.
    """
    environment = template_environment()
    environment.filters.update(clock=format_time, estimate=format_estimate, percent=percent_text)
    shown = [
        (
            result,
            tuple((fault, _annotated_stills(result, fault, found)) for fault in result.faults),
            tuple((part, _timeline(result, part)) for part in result.watched),
        )
        for result, found in zip(results, stills, strict=True)
    ]
    return environment.get_template("report.html").render(
        shown=shown,
        total=total,
        counts={
            status: sum(v.status == status for v in results)
            for status in ("passed", "failed", "skipped", "known failing")
        },
        models=sorted({result.model for result in results if result.model}),
        judges=sorted({result.judged_by for result in results if result.judged_by}),
        unjudged=sum(len(result.judgement.unjudged) for result in results),
        written=iso_utc(now)[:16].replace("T", " ") + " UTC",
        hits_max=_HITS_MAX,
    )


def percent_text(figure: Estimate) -> str:
    """Write `83 %`, or an en dash where nothing was observed."""
    return "–" if figure.value is None else f"{100 * figure.value:.0f} %"


def _annotated_stills(result: ScenarioResult, fault: Fault, stills: StillsByFrame) -> tuple[AnnotatedStill, ...]:
    found = []
    for moment in fault.moments:
        still = stills.get((moment.camera, moment.frame))
        part = next((each for each in result.watched if each.camera == moment.camera), None)
        if still is not None and part is not None:
            found.append(_annotate(part, fault, moment, still))
    return tuple(found)


def _annotate(part: WatchedCamera, fault: Fault, moment: FaultMoment, still: ReportStill) -> AnnotatedStill:
    width, height = still.size
    focus_text = f"track {moment.focus}" if moment.focus is not None else "nothing of the kind was followed here"
    return AnnotatedStill(
        url="data:image/jpeg;base64," + base64.b64encode(still.jpeg).decode(),
        size=still.size,
        caption=f"{format_time(moment.t)}, frame {moment.frame}: {focus_text}",
        frames=tuple(
            _drawn_box(
                each.box,
                f"{each.label} {each.track}, {each.score:.2f}",
                TRACK_COLOURS[each.track % len(TRACK_COLOURS)],
                each.track == moment.focus,
                still,
            )
            for each in moment.objects
        ),
        zones=tuple(
            (name, _points(points, width, height), _corner(points, width, height), name == fault.zone)
            for name, points in part.zones
        ),
        lines=tuple(
            (name, (a[0] * width, a[1] * height, b[0] * width, b[1] * height), name == fault.line)
            for name, (a, b) in part.lines
        ),
        truth=_drawn_box(moment.truth, "truth", "#fff", False, still) if moment.truth else None,
    )


def _drawn_box(box: Box, tag: str, colour: str, meant: bool, still: ReportStill) -> DrawnBox:
    width, height = still.size
    return DrawnBox(
        x=round(box[0] * width, 1),
        y=round(box[1] * height, 1),
        width=round((box[2] - box[0]) * width, 1),
        height=round((box[3] - box[1]) * height, 1),
        tag=tag,
        colour=colour,
        meant=meant,
    )


def _points(points: Sequence[Point], width: int, height: int) -> str:
    return " ".join(f"{x * width:.1f},{y * height:.1f}" for x, y in points)


def _corner(points: Sequence[Point], width: int, height: int) -> Point:
    """Return where a zone's name stands: at its highest corner."""
    x, y = min(points, key=lambda point: (point[1], point[0]))
    return x * width, y * height


def _timeline(result: ScenarioResult, part: WatchedCamera) -> tuple[TimelineRow, ...]:
    """Return the expected windows and the reported events, rule by rule."""
    marks: dict[str, list[TimelineMark]] = {}

    def add(rule: str, mark: TimelineMark) -> None:
        marks.setdefault(rule or "any rule", []).append(mark)

    matches, length = result.judgement, max(part.footage_s, 0.1)
    for hit in matches.hits:
        if hit.event.camera == part.camera:
            add(hit.event.rule, _window_mark("came", hit.wanted.pattern, length, "came as it should"))
            add(hit.event.rule, _event_mark("hit", hit.event, length))
    for miss in matches.misses:
        if miss.wanted.pattern.camera in ("", part.camera):
            add(miss.wanted.pattern.rule, _window_mark("miss", miss.wanted.pattern, length, "missed"))
    for kind, events in (("false", [each.event for each in matches.false_alarms]), ("other", matches.unjudged)):
        for event in events:
            if event.camera == part.camera:
                add(event.rule, _event_mark(kind, event, length))
    return tuple(
        TimelineRow(name, tuple(sorted(found, key=lambda mark: mark.width == 0))) for name, found in marks.items()
    )


def _window_mark(kind: str, pattern: EventPattern, length: float, word: str) -> TimelineMark:
    end = length if pattern.end == inf else min(pattern.end, length)
    left = min(pattern.start, length)
    return TimelineMark(kind, 100 * left / length, max(0.6, 100 * (end - left) / length), f"{word}: {pattern.text()}")


def _event_mark(kind: str, event: Event, length: float) -> TimelineMark:
    words = {"hit": "came", "false": "false alarm", "other": "not spoken of"}[kind]
    return TimelineMark(
        kind, 100 * min(event.t, length) / length, 0, f"{words} at {format_time(event.t)}: {event.label}"
    )
