"""The cameras of the benchmark: our RTSP server in a process of its own, which tells when frames were taken.

    python -m benchmarks.ingest.cameras yard=FILE.mp4

Prints JSON lines: {"port": N} when it listens, and {"camera": NAME, "n": N, "t": UTC} for the first frame and
again for each frame N whose time is not where the rate says, as it happens when the machine is too busy. A camera
begins with its first viewer, so every contender is shown the same frames. `served` starts that process and keeps what
it tells as a `FrameClock` a camera.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtsp_mount import Mount, MountViewer, SentUnit
from appliance.demo.rtsp_server import RtspServer
from benchmarks.ingest.footage import FPS, LOOP_S, FootageSpec, Truth, make

ROOT = Path(__file__).parents[2]
OFF_S_MAX = 0.03
SUB_LINES = 360
STOP_S_MAX = 120.0


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
        found = []
        for k in range(self.cameras):
            phase = (k * 28 % LOOP_S) // 4 * 4  # a multiple of every GOP, so that a turned loop begins at a key frame
            found.append(FootageSpec(("yard", "gate")[k % 2], self.scene, self.lines, self.gop_s, phase))
        return found


class FrameClock:
    """State: the frames from which on the rate holds. Written by the thread that reads the server's lines."""

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._marks: list[tuple[int, float]] = []

    def note(self, frame: int, t: float) -> None:
        """From `frame` on, taken at `t`, the rate holds; in rising order."""
        self._marks.append((frame, t))  # both at once: another thread reads them

    @property
    def begun(self) -> bool:
        return bool(self._marks)

    def t(self, frame: int) -> float:
        """Return the UTC seconds of a frame."""
        first, begun_t = self._marks[max(0, bisect_right(self._marks, frame, key=itemgetter(0)) - 1)]
        return begun_t + (frame - first) / self._fps

    def frame(self, t: float) -> int:
        """Return the frame that was taken nearest to `t`."""
        at = bisect_right(self._marks, t + 0.5 / self._fps, key=itemgetter(1))
        first, begun_t = self._marks[max(0, at - 1)]
        return first + round((t - begun_t) * self._fps)


@dataclass(frozen=True, slots=True)
class ServedCameras:
    """The running server. taken: by camera, when its frames were taken."""

    port: int
    taken: Mapping[str, FrameClock]


def prepare(setting: Setting, footage: Path) -> tuple[dict[str, Path], dict[str, Truth]]:
    """Return the setting's streams as files, by the names they are served under, and the truth of each camera."""
    files: dict[str, Path] = {}
    truths: dict[str, Truth] = {}
    for k, film in enumerate(setting.films()):
        files[f"cam{k}"], truths[f"cam{k}"] = make(film, footage)
        if setting.streams == 2:
            files[f"cam{k}-sub"], _ = make(replace(film, lines=SUB_LINES), footage)
    return files, truths


@contextlib.contextmanager
def served(
    files: Mapping[str, Path], fps: Mapping[str, float] | None = None, prefix: Sequence[str] = ()
) -> Iterator[ServedCameras]:
    """Serve files as cameras, by a process of their own, until left. Raise MeasurementFailed.

    fps: by camera, where it is not that of our footage. prefix: of the command, as for another network namespace.
    """
    mounts = [f"{name}={path}" for name, path in files.items()]
    child = subprocess.Popen(
        [*prefix, sys.executable, "-m", "benchmarks.ingest.cameras", *mounts],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        first = child.stdout.readline()
        if not first:
            raise MeasurementFailed("the cameras did not come up; the lines above say why")
        clocks = {name: FrameClock((fps or {}).get(name, FPS)) for name in files}
        threading.Thread(target=_read_frame_times, args=(child, clocks), name="witness", daemon=True).start()
        yield ServedCameras(json.loads(first)["port"], clocks)
    finally:
        child.terminate()
        child.wait(STOP_S_MAX)


def _read_frame_times(child: subprocess.Popen[bytes], taken: Mapping[str, FrameClock]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        message = json.loads(line)
        taken[message["camera"]].note(message["n"], message["t"])


class FrameTimeReporter:
    """Plays a mount from its first frame on and prints when frames were taken; receives no bytes."""

    def __init__(self, camera: str, fps: float, clock: Clock) -> None:
        self._camera, self._fps, self._clock = camera, fps, clock
        self._n = 0
        self._zero: float | None = None

    def send_unit(self, unit: SentUnit) -> None:
        expected = None if self._zero is None else self._zero + self._n / self._fps
        if expected is None or abs(unit.taken_at - expected) > OFF_S_MAX:
            self._zero = unit.taken_at - self._n / self._fps
            t = unit.taken_at + self._clock.now() - self._clock.monotonic()
            print(json.dumps({"camera": self._camera, "n": self._n, "t": t}), flush=True)
        self._n += 1


class TimedMount(Mount):
    """A mount whose frame times are reported from just before its first viewer."""

    def __init__(self, name: str, clip: LoopingClip, clock: Clock) -> None:
        super().__init__(name, clip, clock)
        self._reporter: MountViewer | None = FrameTimeReporter(name, clip.fps, clock)

    def join(self, player: MountViewer) -> None:
        witness, self._reporter = self._reporter, None
        if witness is not None:
            super().join(witness)
        super().join(player)


async def _serve(files: Mapping[str, Path]) -> None:
    clock = SystemClock()
    server = RtspServer({}, clock=clock)
    server.mounts.update({name: TimedMount(name, LoopingClip(path), clock) for name, path in files.items()})
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_reader(sys.stdin.fileno(), stopped.set)  # its end: the parent process is gone
    await server.start()
    print(json.dumps({"port": server.port}), flush=True)
    await stopped.wait()
    await server.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve({name: Path(path) for name, path in (text.split("=", 1) for text in sys.argv[1:])}))
    sys.stdout.flush()
