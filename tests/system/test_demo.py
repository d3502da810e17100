"""`vedette demo` as a newcomer runs it: real processes, real footage, real signals."""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from appliance.base.errors import MissingDependency
from appliance.demo.demo_config import find_nats_server
from appliance.demo.demo_run import DETECTOR_JUDGES
from tests.support import waiting

until = functools.partial(waiting.until, seconds=15.0, every_s=0.1)
ROOT = Path(__file__).parents[2]
FOOTAGE = ROOT / "fixtures" / "clips" / "yard.mp4"
FROM_S, TO_S = 44.0, 62.0
ALERT_S_MAX = 240.0
PARTS = ("nats-server", "rtsp", "worker", "vedette")


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The end of the bundled clip: two people cross the yard, then nobody for longer than alerts are merged."""
    if not FOOTAGE.is_file():
        pytest.skip("fixtures/clips/yard.mp4 is not rendered yet")
    path = tmp_path_factory.mktemp("walk") / "walk.mp4"
    with av.open(str(FOOTAGE)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        made = target.add_stream_from_template(stream)
        source.seek(int(FROM_S / stream.time_base), stream=stream)
        first: int | None = None
        for packet in source.demux(stream):
            if packet.dts is None or packet.pts is None or packet.pts * packet.time_base >= TO_S:
                continue
            first = packet.dts if first is None else first
            packet.dts, packet.pts, packet.stream = packet.dts - first, packet.pts - first, made
            target.mux(packet)
    return path


@pytest.fixture(autouse=True)
def _nats_server() -> None:
    try:
        find_nats_server()
    except MissingDependency as error:
        pytest.skip(str(error))


class Running:
    """A demo under test, and everything that it said as JSON lines."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "appliance", "demo", "--json", "--no-browser", "--port", "0", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.said: list[dict[str, Any]] = []
        self.pids: dict[str, int] = {}
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, name="demo-output", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def hear(self, event: str, seconds: float = ALERT_S_MAX, **fields: object) -> dict[str, Any]:
        """Wait for an event with these fields; everything heard on the way is kept in `said`."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line, f"the demo ended before `{event}`; it said {self.said}"
            self.said.append(json.loads(line))
            self._learn_pids(self.said[-1])
            if self.said[-1]["event"] == event and all(
                self.said[-1].get(name) == value for name, value in fields.items()
            ):
                return self.said[-1]

    def _learn_pids(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self.pids.update(event["pids"])
        if event["event"] == "restart":
            self.pids[event["part"]] = event["pid"]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        while line := self._lines.get(timeout=60):
            self.said.append(json.loads(line))
        return code

    def sessions(self) -> list[int]:
        return [pid for pid, state, session in processes() if session in self.pids.values() and state != "Z"]


def processes() -> Iterator[tuple[int, str, int]]:
    """Process id, state and session of all that run."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        yield int(folder.name), state, int(session)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*words: str) -> Running:
        started.append(Running("--data", str(tmp_path / "demo"), *words))
        return started[-1]

    yield begin
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def rows(data: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{data / 'demo' / 'store' / 'vedette.db'}?mode=ro", uri=True) as link:
        return link.execute(query).fetchall()


def test_shows_an_alert_and_its_verdict_and_leaves_nothing_behind(
    start: Callable[..., Running], walk: Path, tmp_path: Path
) -> None:
    demo = start("--clip", str(walk))
    ready = demo.hear("ready")
    assert any(each["event"] == "starting" for each in demo.said), "a person sees that something happens"
    assert sorted(ready["pids"]) == sorted(PARTS)
    assert demo.hear("judge")["judge"] == DETECTOR_JUDGES
    alert = demo.hear("alert")
    verdict = demo.hear("verdict", id=alert["id"])
    assert verdict["verdict"] in {"rechecked", "rejected", "unsure"}, "a detector confirms nothing"
    assert verdict["reason"]
    for name in ("demo.yaml", "worker.yaml", "nats.conf"):
        assert stat.S_IMODE((tmp_path / "demo" / name).stat().st_mode) == 0o600
    assert demo.end() == 0
    assert [event["event"] for event in demo.said[-2:]] == ["stopping", "stopped"]
    assert demo.sessions() == []


def test_nothing_outlives_a_demo_that_is_killed(start: Callable[..., Running], walk: Path) -> None:
    demo = start("--clip", str(walk))
    demo.hear("ready")
    assert len(demo.sessions()) >= len(PARTS)
    demo.process.kill()
    until(lambda: demo.sessions() == [])


@pytest.mark.parametrize("part", ["port", "folder"])
def test_a_taken_port_or_folder_is_reported_in_one_line(part: str, tmp_path: Path, walk: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if part == "port" else 0
        data = tmp_path / "demo"
        if part == "folder":
            data.write_text("a file")
        command = [sys.executable, "-m", "appliance", "demo", "--no-browser", "--clip", str(walk)]
        command += ["--port", str(port), "--data", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert ("--port" if part == "port" else "--data") in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_part_comes_back_and_no_alert_is_lost_or_doubled(
    start: Callable[..., Running], walk: Path, tmp_path: Path
) -> None:
    demo = start("--clip", str(walk))
    demo.hear("ready")
    demo.hear("verdict")
    for part in ("worker", "nats-server", "vedette", "rtsp"):
        os.kill(demo.pids[part], signal.SIGKILL)
        demo.hear("restart", part=part, how="signal 9")
        demo.hear("alert", seconds=120)
    os.kill(_ingest(demo.pids["vedette"]), signal.SIGKILL)
    demo.hear("alert", seconds=120)
    until(lambda: not rows(tmp_path, "SELECT 1 FROM escalation WHERE state NOT IN ('settled')"), seconds=90)
    assert demo.end() == 0
    assert demo.sessions() == []
    asked = rows(tmp_path, "SELECT alert, count(*) FROM escalation GROUP BY alert")
    settled = rows(tmp_path, "SELECT alert, count(*) FROM verdict GROUP BY alert")
    assert asked == settled
    assert {count for _, count in asked} == {1}
    kept = {row[0] for row in rows(tmp_path, "SELECT id FROM alert")}
    reported = [event["id"] for event in demo.said if event["event"] == "alert"]
    assert len(reported) == len(set(reported)) >= 6
    assert set(reported) <= kept


def _ingest(core: int) -> int:
    """The only other process in the core's session."""
    return next(pid for pid, state, session in processes() if session == core and pid != core and state != "Z")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bundled_footage_gives_an_alert_and_a_verdict_for_both_cameras(start: Callable[..., Running]) -> None:
    if not FOOTAGE.with_name("gate.mp4").is_file():
        pytest.skip("fixtures/clips/gate.mp4 is not rendered yet")
    demo = start()
    demo.hear("ready")
    settled: set[str] = set()
    while settled != {"yard", "gate"}:
        verdict = demo.hear("verdict", seconds=150)
        settled.add(
            next(event["camera"] for event in demo.said if event.get("id") == verdict["id"] and "camera" in event)
        )
    assert demo.end(signal.SIGTERM) == 0
