"""Recall of a contender: seconds and visits found, how soon, and boxes where nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.base.geometry import iou
from benchmarks.ingest.frame_clock import FrameClock
from benchmarks.ingest.scene_truth import Box, Truth, Visit

IOU_MIN = 0.4
ON_SOMETHING_MIN = 0.1
SECOND_SHARE_MIN = 0.5
ROOM_S = 3.0
GROUPS = {"person": "person", "car": "vehicle", "truck": "vehicle", "bus": "vehicle", "van": "vehicle"}


@dataclass(frozen=True, slots=True)
class ReportedFrame:
    """The report on one frame.

    `frame` is counted from the camera's first; `reported_t` is in UTC seconds.
    """

    frame: int
    reported_t: float
    boxes: tuple[tuple[str, Box], ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts that add up over cameras and rounds. first_*_s: seconds after an object came into view."""

    seconds: int = 0
    seconds_found: int = 0
    visits: int = 0
    visits_found: int = 0
    wrong: int = 0
    first_reported_s: tuple[float, ...] = field(default=())
    first_seen_s: tuple[float, ...] = field(default=())

    def __add__(self, other: Score) -> Score:
        return Score(
            self.seconds + other.seconds,
            self.seconds_found + other.seconds_found,
            self.visits + other.visits,
            self.visits_found + other.visits_found,
            self.wrong + other.wrong,
            self.first_reported_s + other.first_reported_s,
            self.first_seen_s + other.first_seen_s,
        )


def score(truth: Truth, reports: Sequence[ReportedFrame], begin: int, end: int, taken: FrameClock) -> Score:
    """Score one camera between two frames. `taken`: when its frames were taken.

    A second of an object counts when half its frames show it well enough, and is found when one report in it has a box
    of its kind there. A visit is found when one of its seconds is.
    """
    within = [report for report in reports if begin <= report.frame < end]
    visits = list(truth.shown(begin, end))
    total = Score(wrong=sum(_wrong(report, visits) for report in within))
    for visit in visits:
        total += _score_visit(visit, within, truth.fps, end, taken)
    return total


def _score_visit(visit: Visit, reports: Sequence[ReportedFrame], fps: int, end: int, taken: FrameClock) -> Score:
    shown: dict[int, int] = {}
    for frame, sight in visit.sights.items():
        shown[frame // fps] = shown.get(frame // fps, 0) + sight.counts
    due = {second for second, frames in shown.items() if frames >= SECOND_SHARE_MIN * fps}
    hits = [report for report in reports if _finds(report, visit)]
    found = due & {report.frame // fps for report in hits}
    if not due:
        return Score()
    part = Score(seconds=len(due), seconds_found=len(found), visits=1, visits_found=int(bool(found)))
    first = next((frame for frame, sight in sorted(visit.sights.items()) if sight.counts), None)
    # Timed only where it comes into view, with time left to be reported before the measurement ends.
    if first is None or first == min(visit.sights) or first > end - ROOM_S * fps or not hits:
        return part
    reported_s = min(report.reported_t for report in hits) - taken.t(first)
    seen = (min(report.frame for report in hits) - first) / fps
    return part + Score(first_reported_s=(reported_s,), first_seen_s=(seen,))


def _finds(report: ReportedFrame, visit: Visit) -> bool:
    sight = visit.sights.get(report.frame)
    return sight is not None and any(
        GROUPS.get(label) == visit.label and iou(box, sight.box) >= IOU_MIN for label, box in report.boxes
    )


def _wrong(report: ReportedFrame, visits: Sequence[Visit]) -> int:
    """Count the boxes of people and vehicles that lie on no true object."""
    there = [visit.sights[report.frame].box for visit in visits if report.frame in visit.sights]
    return sum(
        label in GROUPS and all(iou(box, each) < ON_SOMETHING_MIN for each in there) for label, box in report.boxes
    )
