"""One measurement: cameras are served, a contender watches them, and between two moments everything is counted."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.ingest import process_tree
from benchmarks.ingest.contender import (
    ROOT,
    CameraStreams,
    ContenderFactory,
    ContenderPlan,
    DetectionReport,
    Running,
    running,
)
from benchmarks.ingest.footage import FPS, FootageSpec, make
from benchmarks.ingest.recall_score import FrameClock, ReportedFrame, Score, Truth, score

START_S_MAX = 120.0
MEMORY_EVERY_S = 5.0
LATE_S = 1.5
FRESH_S_MAX = 2.0
SUB_LINES = 360


class MeasurementFailed(Exception):
    """The contender or the cameras did not come up, or ended before their time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The scenes and streams of the cameras.

    `lines` are those of the main stream. `streams` of 2 adds a sub-stream of 640x360 to detect on.
    """

    scene: str
    lines: int = 720
    streams: int = 1
    cameras: int = 1
    gop_s: int = 2

    def films(self) -> list[FootageSpec]:
        """Return one film a camera: views in turn, each camera at another place of its loop."""
        loop_s = 60
        found = []
        for k in range(self.cameras):
            phase = (k * 28 % loop_s) // 4 * 4  # a multiple of every GOP, so that a turned loop begins at a key frame
            found.append(FootageSpec(("yard", "gate")[k % 2], self.scene, self.lines, self.gop_s, phase))
        return found


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


@dataclass(slots=True)
class _ServedCameras:
    """The served cameras: port, truth, and when their frames were taken."""

    port: int
    truths: dict[str, Truth]
    taken: dict[str, FrameClock]


def measure(setting: Setting, way: ContenderFactory, terms: Terms, footage: Path) -> Measured:
    """Measure one contender for `terms.seconds`. Raise SlotFailed."""
    with served_cameras(setting, footage) as cameras, tempfile.TemporaryDirectory() as storage:
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
        total += score(cameras.truths[name], looks[name], begin, end, taken)
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


def prepare(setting: Setting, footage: Path) -> tuple[dict[str, Path], dict[str, Truth]]:
    """Return the setting's streams as files, by the names they are served under, and the truth of each camera."""
    files: dict[str, Path] = {}
    truths: dict[str, Truth] = {}
    for k, film in enumerate(setting.films()):
        files[f"cam{k}"], truths[f"cam{k}"] = make(film, footage)
        if setting.streams == 2:
            files[f"cam{k}-sub"], _ = make(replace(film, lines=SUB_LINES), footage)
    return files, truths


@contextmanager
def served_cameras(setting: Setting, footage: Path) -> Iterator[_ServedCameras]:
    """Serve the setting's cameras, by a process of their own, until left."""
    files, truths = prepare(setting, footage)
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ingest.cameras", *(f"{name}={path}" for name, path in files.items())],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        first = child.stdout.readline()
        if not first:
            raise MeasurementFailed("the cameras did not come up; the lines above say why")
        served = _ServedCameras(json.loads(first)["port"], truths, {name: FrameClock(FPS) for name in files})
        threading.Thread(target=_read_frame_times, args=(child, served.taken), name="witness", daemon=True).start()
        yield served
    finally:
        child.terminate()
        child.wait(10)


def _read_frame_times(child: subprocess.Popen[bytes], taken: Mapping[str, FrameClock]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        message = json.loads(line)
        taken[message["camera"]].note(message["n"], message["t"])


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
    return _Totals(process_tree.cpu_s(pid), detector_s, packets, decoded, output.dropped)


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
