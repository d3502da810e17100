"""Cost of a live viewer for the appliance: `python -m benchmarks.live_view [--viewers 0 1 5 20] [--seconds 20]`.

A 4 Mbit/s camera (720p, 20 fps, a key frame each second) is recorded in real time by the recorder, which writes as in
the appliance; a process serves its dashboard, and this one reads `/api/v1/live` as browsers do. The cost is the
CPU-seconds (user and system) of the serving process and of its children, which read and convert video, over those that
they take with no viewer, per second and viewer: the share of a core. What the children took is also printed by itself.
The ages tell how old the first frame of each piece is as it arrives; a player must stay behind at least that much.

`--h265 1920x1080`: the camera sends the rendered yard as H.265 of that size, 15 frames a second with a key frame each
two seconds, and viewers ask for H.264. Printed is also what the conversion takes, by its own count, and how long a
viewer waits for the first picture at most, the start of the child included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from appliance.base.clock import SystemClock
from appliance.base.errors import SourceError
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.segments import SegmentStore
from appliance.types import Gap, SegmentRow
from appliance.web.server import WebServer
from benchmarks.transcoding import YARD, encode_h265

BITS_PER_S, FPS, SIZE, FILM_S = 4_000_000, 20, (1280, 720), 20
SETTLE_S = 3.0


def render(path: Path) -> None:
    """Noise that moves: as many bits as are asked for."""
    chance = np.random.default_rng(7)
    noise = chance.integers(0, 255, (SIZE[1] + 200, SIZE[0] + 200, 3), np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.bit_rate, stream.codec_context.gop_size = BITS_PER_S, FPS
        rate = str(BITS_PER_S)
        stream.options = {"preset": "ultrafast", "bf": "0", "maxrate": rate, "bufsize": rate}
        for n in range(FPS * FILM_S):
            x, y = (7 * n) % 200, (3 * n) % 200
            frame = av.VideoFrame.from_ndarray(noise[y : y + SIZE[1], x : x + SIZE[0]].copy(), format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, FPS)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def serve(root: Path) -> None:
    """Serve the dashboard and keep the index of what is recorded, until standard input ends. Prints the port."""
    clock = SystemClock()
    db = Database(root / "vedette.db", clock)
    config = SiteConfig.model_validate(
        {"site": {"name": "bench"}, "cameras": {"gate": {"url": "rtsp://10.0.0.1/main"}}, "dashboard": {"port": 0}}
    )
    CameraStore(db).ensure({"gate": "rtsp://10.0.0.1/main"})
    app = create_app(StoredSite(db, Meter(db, "core"), root, clock), config.for_dashboard())
    server = WebServer(app, "127.0.0.1", 0)
    threading.Thread(target=server.run, daemon=True).start()
    print(server.port, flush=True)
    segments = SegmentStore(db)
    for line in sys.stdin:
        path, t_start, t_end, size, frames, complete, codec = line.split()
        segments.put(
            SegmentRow(
                camera="gate",
                path=path,
                t_start=float(t_start),
                t_end=float(t_end),
                bytes=int(size),
                frames=int(frames),
                codec=codec,
                size=SIZE,
                complete=complete == "True",
            )
        )
    server.stop()


class Camera:
    """Records the film in a loop, in real time, from a thread, and tells `out` of each segment as ingest does."""

    def __init__(self, film: Path, root: Path, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._stop = threading.Event()
        self._source = FileSource("gate", str(film), SystemClock(), self._stop)
        self._recorder = SegmentRecorder(RecordTarget(root, "gate", 10.0, 0), SystemClock(), self._emit)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._recorder.begin(self._source.open(), "bench")
                for packet in self._source.packets():
                    self._recorder.take(packet)
            except SourceError:
                return
        self._recorder.end()

    def _emit(self, row: SegmentRow | Gap) -> None:
        if isinstance(row, SegmentRow) and self._child.stdin is not None:
            values = (row.path, repr(row.t_start), repr(row.t_end), row.bytes, row.frames, row.complete, row.codec)
            self._child.stdin.write(" ".join(map(str, values)) + "\n")
            self._child.stdin.flush()


@dataclass
class Noted:
    """How old pieces were as they came, and how long each viewer waited for the first one; seconds."""

    ages: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


async def view(port: int, until: float, noted: Noted, query: str, number: int) -> int:
    """One viewer; the bytes that it got. One address may have eight, so each has its own on the loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{number + 2}", 0))
    writer.write(f"GET /api/v1/live?camera=gate{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    got, began, waits, tail = 0, time.monotonic(), True, b""
    while time.monotonic() < until:
        data = await asyncio.wait_for(reader.read(65536), 30)
        if not data:
            raise SystemExit("the dashboard ended the stream")
        got += len(data)
        tail = tail[-16:] + data
        at = tail.find(b"tfdt\1\0\0\0")
        if 0 <= at <= len(tail) - 16 and waits:
            noted.waits.append(time.monotonic() - began)
            waits = False
        if 0 <= at <= len(tail) - 16 and time.monotonic() - began > 2:
            noted.ages.append(time.time() - int.from_bytes(tail[at + 8 : at + 16], "big") / 90_000)
            tail = b""
    writer.close()
    return got


async def watch(port: int, viewers: int, seconds: float, query: str) -> tuple[list[int], Noted]:
    noted = Noted()
    until = time.monotonic() + seconds
    if not viewers:
        await asyncio.sleep(seconds)
    return list(await asyncio.gather(*(view(port, until, noted, query, n) for n in range(viewers)))), noted


def converting_s(port: int) -> float:
    """Return what conversions have taken of the processor so far, as the dashboard counts it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counted = re.search(r"^vedette_live_conversion_cpu_seconds_total (\S+)", text, re.MULTILINE)
    assert counted, "the dashboard counts no conversions"
    return float(counted[1])


def cpu_s(pid: int) -> float:
    """Return what a process has taken of the processor, with its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def media_s(pid: int) -> float:
    """Return what the children of a process that live, and theirs, have taken of the processor."""
    children = [each for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]
    return sum(cpu_s(int(child)) + media_s(int(child)) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, nargs="+", default=[0, 1, 5, 20])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--h265", metavar="WxH")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.serve:
        serve(wanted.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        film = root / "film.mp4"
        query = "&codec=h264" if wanted.h265 else ""
        if wanted.h265:
            width, height = map(int, wanted.h265.split("x"))
            encode_h265(YARD, film, (width, height), FILM_S)
        else:
            render(film)
        command = [sys.executable, "-m", "benchmarks.live_view", "--serve", folder]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        port = int(child.stdout.readline())
        camera = Camera(film, root, child)
        time.sleep(SETTLE_S)
        idle: list[float] = []
        for viewers in wanted.viewers * wanted.rounds:
            core, media, began = cpu_s(child.pid), media_s(child.pid), time.monotonic()
            converted = converting_s(port)
            got, noted = asyncio.run(watch(port, viewers, wanted.seconds, query))
            core, media = cpu_s(child.pid) - core, media_s(child.pid) - media
            lasted = time.monotonic() - began
            share = 100 * (core + media) / lasted
            line = f"{viewers:3} viewers: {share:5.2f} % of a core, of it media {100 * media / lasted:.2f} %"
            if not viewers:
                idle.append(share)
            else:
                rate = sum(got) * 8 / lasted / viewers / 1e6
                each = (share - (statistics.mean(idle) if idle else 0.0)) / viewers
                p50, p95 = statistics.median(noted.ages), statistics.quantiles(noted.ages, n=20)[-1]
                line += f", {each:5.2f} % a viewer, {rate:.1f} Mbit/s each; age {p50:.2f} s, p95 {p95:.2f} s"
                if wanted.h265:
                    share = 100 * (converting_s(port) - converted) / lasted
                    line += f"; conversion {share:.1f} % of a core, first picture after {max(noted.waits):.2f} s"
            print(line, flush=True)
        camera.stop()
        assert child.stdin is not None
        child.stdin.close()
        child.wait(30)


if __name__ == "__main__":
    main()
