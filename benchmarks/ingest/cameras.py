"""The cameras of the benchmark: our RTSP server in a process of its own, which prints when frames were taken.

    python -m benchmarks.ingest.cameras yard=FILE.mp4

Prints JSON lines: {"port": N} when it listens, and {"camera": NAME, "n": N, "t": UTC} for the first frame and
again for each frame N whose time is not where the rate says, as it happens when the machine is too busy. A camera
begins with its first viewer, so every contender is shown the same frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtsp_mount import Mount, MountViewer, SentUnit
from appliance.demo.rtsp_server import RtspServer

OFF_S_MAX = 0.03


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


async def serve(files: dict[str, Path]) -> None:
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
        asyncio.run(serve({name: Path(path) for name, path in (text.split("=", 1) for text in sys.argv[1:])}))
    sys.stdout.flush()
