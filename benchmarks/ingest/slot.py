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

from benchmarks.ingest import proctree
from benchmarks.ingest.contender import ROOT, Eye, Heard, Plan, Running, Way, running
from benchmarks.ingest.footage import FPS, Film, make
from benchmarks.ingest.score import Look, Score, score
from benchmarks.ingest.taken import Taken
from benchmarks.ingest.truth import Truth

START_S_MAX = 120.0
MEMORY_EVERY_S = 5.0
LATE_S = 1.5
FRESH_S_MAX = 2.0
SUB_LINES = 360


class SlotFailed(Exception):
    """The contender or the cameras did not come up, or ended before their time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is shown, and how. lines: of the main stream; streams: 2 adds a sub-stream of 640x360 to detect on."""

    scene: str
    lines: int = 720
    streams: int = 1
    cameras: int = 1
    gop_s: int = 2

    def films(self) -> list[Film]:
        """One a camera: views in turn, each camera at another place of its loop."""
        loop_s = 60
        found = []
        for k in range(self.cameras):
            phase = (k * 28 % loop_s) // 4 * 4  # a multiple of every GOP, so that a turned loop begins at a key frame
            found.append(Film(("yard", "gate")[k % 2], self.scene, self.lines, self.gop_s, phase))
        return found


@dataclass(frozen=True, slots=True)
class Terms:
    """The same for all contenders. settle_s: what passes after a camera's first frame before counting begins."""

    detector: Mapping[str, Any]
    fps: float = 5.0
    seconds: float = 30.0
    settle_s: float = 8.0
    record: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contender did in one slot, all cameras together.

    camera_minutes: of footage taken in, by its packets; asked: of footage shown. Less than that: it fell behind, as
    happens where the machine is too busy, and what it has not taken in yet has cost nothing yet. ages_s: of each
    look, from its frame being taken to its being told; live_age_ms: see `Ledger`.
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
class _Tally:
    cpu_s: float
    detector_s: float
    packets: int
    decoded: int
    dropped: int


@dataclass(slots=True)
class _Street:
    """The served cameras: where, what they show, when their frames were taken."""

    port: int
    truths: dict[str, Truth]
    taken: dict[str, Taken]


def measure(setting: Setting, way: Way, terms: Terms, footage: Path) -> Measured:
    """One contender for `terms.seconds`. Raises SlotFailed."""
    with street(setting, footage) as cameras, tempfile.TemporaryDirectory() as storage:
        plan = Plan(
            eyes=_eyes(setting, cameras.port),
            detector=terms.detector,
            fps=terms.fps,
            storage=Path(storage),
            record=terms.record or setting.streams == 2,
        )
        with running(way(plan)) as contender:
            watched = {name: cameras.taken[_watched(name, setting)] for name in plan.eyes}
            _await(lambda: all(each.begun for each in watched.values()), contender)
            begin_t = max(each.t(0) for each in watched.values()) + terms.settle_s
            _sleep_until(begin_t, contender)
            before = _fresh_tally(contender)
            begin_t = time.time()
            contender.ledger.live_age_ms.clear()
            pss_bytes = _wait_and_weigh(begin_t + terms.seconds, contender)
            after = _fresh_tally(contender)
            end_t = time.time()
            live_age_ms = tuple(contender.ledger.live_age_ms)
            _sleep_until(end_t + LATE_S, contender)
        looks = {name: _looks(contender.ledger.looks, name, taken) for name, taken in watched.items()}
    if after.packets <= before.packets:
        raise SlotFailed(f"{contender.child.args!r} took in no packet while it was measured")
    total = Score()
    ages_s: list[float] = []
    for name, taken in watched.items():
        begin, end = taken.frame(begin_t), taken.frame(end_t)
        total += score(cameras.truths[name], looks[name], begin, end, taken)
        ages_s += [look.told_t - taken.t(look.frame) for look in looks[name] if begin <= look.frame < end]
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
    """The setting's streams as files, by the names they are served under, and what is to be seen by each camera."""
    files: dict[str, Path] = {}
    truths: dict[str, Truth] = {}
    for k, film in enumerate(setting.films()):
        files[f"cam{k}"], truths[f"cam{k}"] = make(film, footage)
        if setting.streams == 2:
            files[f"cam{k}-sub"], _ = make(replace(film, lines=SUB_LINES), footage)
    return files, truths


@contextmanager
def street(setting: Setting, footage: Path) -> Iterator[_Street]:
    """The setting's cameras, served by a process of their own until left."""
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
            raise SlotFailed("the cameras did not come up; the lines above say why")
        served = _Street(json.loads(first)["port"], truths, {name: Taken(FPS) for name in files})
        threading.Thread(target=_note, args=(child, served.taken), name="witness", daemon=True).start()
        yield served
    finally:
        child.terminate()
        child.wait(10)


def _note(child: subprocess.Popen[bytes], taken: Mapping[str, Taken]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        said = json.loads(line)
        taken[said["camera"]].note(said["n"], said["t"])


def _eyes(setting: Setting, port: int) -> dict[str, Eye]:
    base = f"rtsp://127.0.0.1:{port}"
    names = [f"cam{k}" for k in range(setting.cameras)]
    return {name: Eye(f"{base}/{name}", f"{base}/{name}-sub" if setting.streams == 2 else None) for name in names}


def _watched(name: str, setting: Setting) -> str:
    return f"{name}-sub" if setting.streams == 2 else name


def _looks(heard: list[Heard], camera: str, taken: Taken) -> list[Look]:
    found = []
    for each in heard:
        if each.camera == camera:
            frame = each.frame if each.frame is not None else taken.frame(each.t or 0.0)
            found.append(Look(frame, each.told_t, each.boxes))
    return found


def _fresh_tally(contender: Running) -> _Tally:
    """Taken when the packets have just been told (Vedette does so once a second), so that they fit the CPU time."""
    told = sum(contender.ledger.packets.values())
    deadline = time.monotonic() + FRESH_S_MAX
    while sum(contender.ledger.packets.values()) == told and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.05)  # the other cameras' share of the same report
    return _tally(contender)


def _tally(contender: Running) -> _Tally:
    pid, ledger = contender.child.pid, contender.ledger
    threads = contender.detector_threads
    detector_s = proctree.threads_cpu_s(pid, threads) if threads else sum(ledger.detector_s.values())
    packets, decoded = sum(ledger.packets.values()), sum(ledger.decoded.values())
    return _Tally(proctree.cpu_s(pid), detector_s, packets, decoded, ledger.dropped)


def _wait_and_weigh(end_t: float, contender: Running) -> int:
    """Peak memory until `end_t`, weighed every few seconds."""
    peak = 0
    while True:
        peak = max(peak, proctree.pss_bytes(contender.child.pid))
        if time.time() >= end_t - MEMORY_EVERY_S:
            _sleep_until(end_t, contender)
            return max(peak, proctree.pss_bytes(contender.child.pid))
        _sleep_until(time.time() + MEMORY_EVERY_S, contender)


def _await(condition: Callable[[], bool], contender: Running) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise SlotFailed(f"{contender.child.args!r} watched no camera within {START_S_MAX:.0f} s")
        _sleep_until(time.time() + 0.05, contender)


def _sleep_until(t: float, contender: Running) -> None:
    if contender.child.poll() is not None:
        raise SlotFailed(f"{contender.child.args!r} ended ({contender.child.returncode}); the lines above say why")
    time.sleep(max(0.0, t - time.time()))
