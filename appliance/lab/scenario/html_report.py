"""The HTML report of scenarios as one file without scripts or requests, with stills of each fault cut from the
clips.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from appliance.clock import iso_utc
from appliance.errors import SourceError
from appliance.ingest.clip_reader import frame_size
from appliance.lab.conditions.condition_spec import ConditionSet
from appliance.lab.conditions.frame_transform import frame_transform_of
from appliance.lab.conditions.stream_faults import with_stream_faults
from appliance.lab.footage import ClipSource
from appliance.lab.replay.replay_report import format_time
from appliance.lab.scenario.diagnosis import format_estimate
from appliance.lab.scenario.event_metrics import Estimate, EventFigures
from appliance.lab.scenario.expectations import EventPattern
from appliance.lab.scenario.scenario_result import Fault, FaultMoment, ScenarioResult, WatchedCamera
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import FrameConverter
from appliance.media.stills import encode_jpeg
from appliance.types import Box, Event, Point

logger = logging.getLogger(__name__)

STILL_SIDE_MAX = 960
STILL_QUALITY = 80
STILLS_MAX = 40  # of one scenario
REPORT_STILLS_MAX = 400  # of one report, some 40 MB


@dataclass(frozen=True, slots=True)
class ReportStill:
    """A JPEG of one moment; size (width, height) is that of the film, in which boxes are shares."""

    jpeg: bytes
    size: tuple[int, int]


StillsByFrame = Mapping[tuple[str, int], ReportStill]
"""By camera and frame."""


def cut_stills(verdict: ScenarioResult, before: Sequence[StillsByFrame] = ()) -> StillsByFrame:
    """The pictures of all moments of a scenario, the first STILLS_MAX; each clip is decoded once, up to the last.

    before: those of the same report so far; all together are at most REPORT_STILLS_MAX.

    A clip that cannot be read (any more) gives no pictures and a line in the log.
    """
    wanted: dict[str, set[int]] = {}
    room = max(0, REPORT_STILLS_MAX - sum(map(len, before)))
    for moment in _moments(verdict)[: min(STILLS_MAX, room)]:
        wanted.setdefault(moment.camera, set()).add(moment.frame)
    found: dict[tuple[str, int], ReportStill] = {}
    for part in verdict.watched:
        frames = wanted.get(part.camera)
        if frames:
            shown = _Shown(part.clip, part.camera, ConditionSet.parse(verdict.weather, verdict.seed))
            found.update({(part.camera, frame): still for frame, still in _cut(shown, frames)})
    return found


def _moments(verdict: ScenarioResult) -> Sequence[FaultMoment]:
    return [moment for fault in verdict.faults for moment in fault.moments]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A clip as the detector saw it."""

    clip: Path
    camera: str
    weather: ConditionSet


def _cut(shown: _Shown, frames: set[int]) -> Iterable[tuple[int, ReportStill]]:
    pictures, lens, last = FrameConverter(), frame_transform_of(shown.weather), max(frames)
    found = []
    try:
        for frame in with_stream_faults(ClipSource(shown.clip, shown.camera), shown.camera, shown.weather).play():
            if isinstance(frame, DecodedFrame) and frame.index in frames:
                size = frame_size(frame)
                seen = lens(frame.index, round(frame.t, 3), frame.av_frame) if lens else frame.av_frame
                still = ReportStill(
                    encode_jpeg(pictures.bgr(seen, size), side_max=STILL_SIDE_MAX, quality=STILL_QUALITY), size
                )
                found.append((frame.index, still))
            if isinstance(frame, DecodedFrame) and frame.index >= last:
                break
    except SourceError as error:
        logger.warning("no pictures for the report: %s", error)
    return found


TEMPLATES = Path(__file__).parent / "templates"
# As the dashboard draws tracks (static/draw.js): colours that stand out on a picture, which is seldom white.
TRACK_COLOURS = ("#3fd0b5", "#f0a259", "#8fa8ff", "#e58bcb", "#b9c95a", "#ff8f94")
_HITS_MAX = 200


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box drawn into a picture, in the film's pixels."""

    x: float
    y: float
    width: float
    height: float
    tag: str
    colour: str
    meant: bool


@dataclass(frozen=True, slots=True)
class AnnotatedStill:
    """A still with what is drawn over it. places: (name, points as SVG wants them, whether it is meant)."""

    url: str
    size: tuple[int, int]
    caption: str
    frames: tuple[DrawnBox, ...]
    zones: tuple[tuple[str, str, Point, bool], ...]
    lines: tuple[tuple[str, tuple[float, float, float, float], bool], ...]
    truth: DrawnBox | None


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """Something on a rule's row; left and width in per cent of the clip."""

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
    verdicts: Sequence[ScenarioResult], stills: Sequence[StillsByFrame], total: EventFigures, now: float
) -> str:
    """The whole file. stills: of each verdict, in the same order; now: UTC seconds, for the line that says when."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clock=format_time, said=format_estimate, percent=percent_text)
    shown = [
        (
            verdict,
            tuple((fault, _pictures(verdict, fault, found)) for fault in verdict.faults),
            tuple((part, _rows(verdict, part)) for part in verdict.watched),
        )
        for verdict, found in zip(verdicts, stills, strict=True)
    ]
    return environment.get_template("report.html").render(
        shown=shown,
        total=total,
        counts={
            status: sum(v.status == status for v in verdicts)
            for status in ("passed", "failed", "skipped", "known failing")
        },
        models=sorted({verdict.model for verdict in verdicts if verdict.model}),
        judges=sorted({verdict.judged_by for verdict in verdicts if verdict.judged_by}),
        unjudged=sum(len(verdict.judgement.unjudged) for verdict in verdicts),
        written=iso_utc(now)[:16].replace("T", " ") + " UTC",
        hits_max=_HITS_MAX,
    )


def percent_text(figure: Estimate) -> str:
    """`83 %`, or an en dash where nothing was observed."""
    return "–" if figure.value is None else f"{100 * figure.value:.0f} %"


def _pictures(verdict: ScenarioResult, fault: Fault, stills: StillsByFrame) -> tuple[AnnotatedStill, ...]:
    found = []
    for moment in fault.moments:
        still = stills.get((moment.camera, moment.frame))
        part = next((each for each in verdict.watched if each.camera == moment.camera), None)
        if still is not None and part is not None:
            found.append(_picture(part, fault, moment, still))
    return tuple(found)


def _picture(part: WatchedCamera, fault: Fault, moment: FaultMoment, still: ReportStill) -> AnnotatedStill:
    width, height = still.size
    who = f"track {moment.focus}" if moment.focus is not None else "nothing of the kind was followed here"
    return AnnotatedStill(
        url="data:image/jpeg;base64," + base64.b64encode(still.jpeg).decode(),
        size=still.size,
        caption=f"{format_time(moment.t)}, frame {moment.frame}: {who}",
        frames=tuple(
            _frame(
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
        truth=_frame(moment.truth, "truth", "#fff", False, still) if moment.truth else None,
    )


def _frame(box: Box, tag: str, colour: str, meant: bool, still: ReportStill) -> DrawnBox:
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
    """Where a zone's name stands: at its highest corner."""
    x, y = min(points, key=lambda point: (point[1], point[0]))
    return x * width, y * height


def _rows(verdict: ScenarioResult, part: WatchedCamera) -> tuple[TimelineRow, ...]:
    """What was wanted and what came, rule by rule."""
    marks: dict[str, list[TimelineMark]] = {}

    def add(rule: str, mark: TimelineMark) -> None:
        marks.setdefault(rule or "any rule", []).append(mark)

    judged, length = verdict.judgement, max(part.footage_s, 0.1)
    for hit in judged.hits:
        if hit.event.camera == part.camera:
            add(hit.event.rule, _window("came", hit.wanted.pattern, length, "came as it should"))
            add(hit.event.rule, _tick("hit", hit.event, length))
    for miss in judged.misses:
        if miss.wanted.pattern.camera in ("", part.camera):
            add(miss.wanted.pattern.rule, _window("miss", miss.wanted.pattern, length, "missed"))
    for kind, events in (("false", [each.event for each in judged.false_alarms]), ("other", judged.unjudged)):
        for event in events:
            if event.camera == part.camera:
                add(event.rule, _tick(kind, event, length))
    return tuple(
        TimelineRow(name, tuple(sorted(found, key=lambda mark: mark.width == 0))) for name, found in marks.items()
    )


def _window(kind: str, pattern: EventPattern, length: float, word: str) -> TimelineMark:
    end = length if pattern.end == inf else min(pattern.end, length)
    left = min(pattern.start, length)
    return TimelineMark(kind, 100 * left / length, max(0.6, 100 * (end - left) / length), f"{word}: {pattern.text()}")


def _tick(kind: str, event: Event, length: float) -> TimelineMark:
    words = {"hit": "came", "false": "false alarm", "other": "not spoken of"}[kind]
    return TimelineMark(
        kind, 100 * min(event.t, length) / length, 0, f"{words} at {format_time(event.t)}: {event.label}"
    )
