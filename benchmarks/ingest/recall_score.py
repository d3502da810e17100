"""Recall of a contender: seconds and visits found, how soon, and boxes where nothing is.

With the true objects of a camera's footage, frame by frame over all its loops, and when each frame was taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.types import iou

Box = tuple[float, float, float, float]
VISIBLE_MIN = 0.5
HEIGHT_MIN = 0.06


@dataclass(frozen=True, slots=True)
class Sight:
    """An object in one frame: its visible part's box in shares of the picture, and how much of it is visible."""

    box: Box
    visible: float

    @property
    def counts(self) -> bool:
        """True if it must be found: it is at least half visible and not tiny."""
        return self.visible >= VISIBLE_MIN and self.box[3] - self.box[1] >= HEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Visit:
    """One object from its first frame to its last. sights: by frame of the loop."""

    label: str
    sights: dict[int, Sight]


@dataclass(frozen=True, slots=True)
class Truth:
    """The visits of a loop of `frames` frames at `fps`; a camera that begins at `phase` (frames) plays it for ever."""

    fps: int
    frames: int
    visits: tuple[Visit, ...]
    phase: int = 0

    def shown(self, begin: int, end: int) -> Iterator[Visit]:
        """Yield the visits between two frames counted since the camera began, passes apart, with frames so counted."""
        first, last = (begin + self.phase) // self.frames, (end + self.phase) // self.frames
        for loop in range(first, last + 1):
            shift = loop * self.frames - self.phase
            for visit in self.visits:
                sights = {n + shift: each for n, each in visit.sights.items() if begin <= n + shift < end}
                if sights:
                    yield Visit(visit.label, sights)

    def as_json(self) -> dict[str, Any]:
        visits = [
            {"label": each.label, "sights": [[n, *sight.box, sight.visible] for n, sight in each.sights.items()]}
            for each in self.visits
        ]
        return {"fps": self.fps, "frames": self.frames, "phase": self.phase, "visits": visits}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Truth:
        visits = tuple(
            Visit(each["label"], {n: Sight((x1, y1, x2, y2), seen) for n, x1, y1, x2, y2, seen in each["sights"]})
            for each in data["visits"]
        )
        return cls(data["fps"], data["frames"], visits, data["phase"])


class FrameClock:
    """State: the frames from which on the rate holds. Written by the thread that reads the server's lines."""

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._frames: list[int] = []
        self._times: list[float] = []

    def note(self, frame: int, t: float) -> None:
        """From `frame` on, taken at `t`, the rate holds; in rising order."""
        self._frames.append(frame)
        self._times.append(t)

    @property
    def begun(self) -> bool:
        return bool(self._frames)

    def t(self, frame: int) -> float:
        """Return the UTC seconds of a frame."""
        at = max(0, bisect_right(self._frames, frame) - 1)
        return self._times[at] + (frame - self._frames[at]) / self._fps

    def frame(self, t: float) -> int:
        """Return the frame that was taken nearest to `t`."""
        at = max(0, bisect_right(self._times, t + 0.5 / self._fps) - 1)
        return self._frames[at] + round((t - self._times[at]) * self._fps)


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
