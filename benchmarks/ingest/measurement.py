"""One measurement: cameras are served, a contender watches them, and between two moments everything is counted.

Counted are what the contender takes (CPU, memory, frames) and its recall (`score`): the seconds and visits of the true
objects that it found, how soon, and its boxes where nothing is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.base import machine
from appliance.types import Box, iou
from benchmarks.ingest import process_tree
from benchmarks.ingest.cameras import FrameClock, MeasurementFailed, Setting, prepare, served
from benchmarks.ingest.contender import (
    CameraStreams,
    ContenderFactory,
    ContenderPlan,
    DetectionReport,
    Running,
    running,
)
from benchmarks.ingest.footage import FPS, Truth, Visit

START_S_MAX = 120.0
MEMORY_EVERY_S = 5.0
LATE_S = 1.5
FRESH_S_MAX = 2.0
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


@dataclass(frozen=True, slots=True)
class Terms:
    """The same for all contenders. settle_s: seconds after a camera's first frame before counting begins."""

    detector: Mapping[str, Any]
    fps: float = 5.0
    seconds: float = 30.0
    settle_s: float = 8.0
    record: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one contender in one slot, all cameras together.

    `camera_minutes` counts the footage taken in, by its packets, and `asked_minutes` the footage shown. A contender
    with less of the first fell behind, as happens where the machine is too busy; frames it has not taken in have cost
    nothing yet. `ages_s` is, for each report, the time from its frame being taken to its being reported. For
    `live_age_ms` see `ContenderOutput`.
    """

    camera_minutes: float
    asked_minutes: float
    cpu_s: float
    detector_s: float
    looks: int
    decoded: int
    dropped: int
    pss_bytes: int
    score: Score
    ages_s: tuple[float, ...] = ()
    live_age_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Totals:
    cpu_s: float
    detector_s: float
    packets: int
    decoded: int
    dropped: int


def measure(setting: Setting, way: ContenderFactory, terms: Terms, footage: Path) -> Measured:
    """Measure one contender for `terms.seconds`. Raise MeasurementFailed."""
    files, truths = prepare(setting, footage)
    with served(files) as cameras, tempfile.TemporaryDirectory() as storage:
        plan = ContenderPlan(
            streams=_streams_of(setting, cameras.port),
            detector=terms.detector,
            fps=terms.fps,
            storage=Path(storage),
            record=terms.record or setting.streams == 2,
        )
        with running(way(plan)) as contender:
            watched = {name: cameras.taken[_detect_stream(name, setting)] for name in plan.streams}
            _await(lambda: all(each.begun for each in watched.values()), contender)
            begin_t = max(each.t(0) for each in watched.values()) + terms.settle_s
            _sleep_until(begin_t, contender)
            before = _fresh_totals(contender)
            begin_t = time.time()
            contender.output.live_age_ms.clear()
            pss_bytes = _peak_memory_until(begin_t + terms.seconds, contender)
            after = _fresh_totals(contender)
            end_t = time.time()
            live_age_ms = tuple(contender.output.live_age_ms)
            _sleep_until(end_t + LATE_S, contender)
        looks = {name: _looks(contender.output.looks, name, taken) for name, taken in watched.items()}
    if after.packets <= before.packets:
        raise MeasurementFailed(f"{contender.child.args!r} took in no packet while it was measured")
    total = Score()
    ages_s: list[float] = []
    for name, taken in watched.items():
        begin, end = taken.frame(begin_t), taken.frame(end_t)
        total += score(truths[name], looks[name], begin, end, taken)
        ages_s += [look.reported_t - taken.t(look.frame) for look in looks[name] if begin <= look.frame < end]
    streams = setting.streams if contender.detector_threads else 1  # others read the sub-stream only
    return Measured(
        camera_minutes=(after.packets - before.packets) / streams / FPS / 60,
        asked_minutes=len(watched) * (end_t - begin_t) / 60,
        cpu_s=after.cpu_s - before.cpu_s,
        detector_s=after.detector_s - before.detector_s,
        looks=len(ages_s),
        decoded=after.decoded - before.decoded,
        dropped=after.dropped - before.dropped,
        pss_bytes=pss_bytes,
        score=total,
        ages_s=tuple(ages_s),
        live_age_ms=live_age_ms,
    )


def _streams_of(setting: Setting, port: int) -> dict[str, CameraStreams]:
    base = f"rtsp://127.0.0.1:{port}"
    names = [f"cam{k}" for k in range(setting.cameras)]
    return {
        name: CameraStreams(f"{base}/{name}", f"{base}/{name}-sub" if setting.streams == 2 else None) for name in names
    }


def _detect_stream(name: str, setting: Setting) -> str:
    return f"{name}-sub" if setting.streams == 2 else name


def _looks(heard: list[DetectionReport], camera: str, taken: FrameClock) -> list[ReportedFrame]:
    found = []
    for each in heard:
        if each.camera == camera:
            frame = each.frame if each.frame is not None else taken.frame(each.t or 0.0)
            found.append(ReportedFrame(frame, each.reported_t, each.boxes))
    return found


def _fresh_totals(contender: Running) -> _Totals:
    """Read just after a report of packets (Vedette: once a second), so that packets and CPU time belong together."""
    packets = sum(contender.output.packets.values())
    deadline = time.monotonic() + FRESH_S_MAX
    while sum(contender.output.packets.values()) == packets and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.05)  # the other cameras' share of the same report
    return _totals(contender)


def _totals(contender: Running) -> _Totals:
    pid, output = contender.child.pid, contender.output
    threads = contender.detector_threads
    detector_s = process_tree.threads_cpu_s(pid, threads) if threads else sum(output.detector_s.values())
    packets, decoded = sum(output.packets.values()), sum(output.decoded.values())
    return _Totals(machine.family_cpu_s(pid), detector_s, packets, decoded, output.dropped)


def _peak_memory_until(end_t: float, contender: Running) -> int:
    """Return the peak memory until `end_t`, read every few seconds."""
    peak = 0
    while True:
        peak = max(peak, process_tree.pss_bytes(contender.child.pid))
        if time.time() >= end_t - MEMORY_EVERY_S:
            _sleep_until(end_t, contender)
            return max(peak, process_tree.pss_bytes(contender.child.pid))
        _sleep_until(time.time() + MEMORY_EVERY_S, contender)


def _await(condition: Callable[[], bool], contender: Running) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{contender.child.args!r} watched no camera within {START_S_MAX:.0f} s")
        _sleep_until(time.time() + 0.05, contender)


def _sleep_until(t: float, contender: Running) -> None:
    if contender.child.poll() is not None:
        raise MeasurementFailed(
            f"{contender.child.args!r} ended ({contender.child.returncode}); the lines above say why"
        )
    time.sleep(max(0.0, t - time.time()))


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
