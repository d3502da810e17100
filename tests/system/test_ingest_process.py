"""The ingest process as the supervisor starts it: one line in, JSON lines out, and an end whenever the parent ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
from streams import clip
from waiting import until

from appliance.config import SiteConfig
from appliance.types import (
    CameraMeter,
    CameraState,
    FrameBoxes,
    Gap,
    IngestHealth,
    IngestMessage,
    SegmentRow,
    StreamHeader,
)
from appliance.wire import decode_ingest

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t"


class Process:
    """`python -m appliance.ingest` with its channel read by a thread."""

    def __init__(self, site: dict[str, Any], *, use_fd: bool = True) -> None:
        self.messages: list[IngestMessage] = []
        self.noise = b""
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "appliance.ingest", *(["--fd", str(writing)] if use_fd else [])]
        self.child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if use_fd else writing,
            stderr=subprocess.PIPE,
            pass_fds=(writing,) if use_fd else (),
        )
        os.close(writing)
        assert self.child.stdin is not None
        self.child.stdin.write(SiteConfig.model_validate(site).model_dump_json().encode() + b"\n")
        self.child.stdin.flush()
        self._channel = os.fdopen(reading, "rb")
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._listen)]
        for thread in self._threads:
            thread.start()

    def of(self, kind: type) -> list[Any]:
        return [message for message in tuple(self.messages) if isinstance(message, kind)]

    def wait(self, seconds: float = 15) -> int:
        code = self.child.wait(seconds)
        for thread in self._threads:
            thread.join(5)
        return code

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.wait()
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr, self._channel):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        for line in self._channel:
            self.messages.append(decode_ingest(line))

    def _listen(self) -> None:
        assert self.child.stderr is not None
        self.noise = self.child.stderr.read()


@pytest.fixture
def site(tmp_path: Path) -> dict[str, Any]:
    made = clip(tmp_path / "c.mp4", 600, fps=10, gop=10)
    return {
        "storage": {"dir": str(tmp_path / "data"), "segment_s": 1, "disk_free_min_mb": 0},
        "cameras": {
            "gate": {"url": f"file:{made}"},
            "dead": {"url": f"rtsp://viewer:{SECRET}@127.0.0.1:1/main"},
            "gone": {"url": "file:/nowhere/at/all.mp4"},
        },
    }


@pytest.fixture
def process(site: dict[str, Any]) -> Iterator[Process]:
    running = Process(site)
    yield running
    running.end()


def test_boxes_segments_states_and_counters_come_out_and_nothing_else(process: Process, tmp_path: Path) -> None:
    until(lambda: len(process.of(FrameBoxes)) > 3 and len(process.of(IngestHealth)) > 2, 40)
    process.child.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    kinds = {type(message) for message in process.messages}
    assert kinds == {StreamHeader, FrameBoxes, CameraState, SegmentRow, Gap, CameraMeter, IngestHealth}
    gate = [message for message in process.messages if getattr(message, "camera", "") == "gate"]
    assert [state.state for state in gate if isinstance(state, CameraState)] == ["connecting", "live"]
    assert max(len(repr(message)) for message in process.messages) < 20_000, "no picture fits into that"


def test_one_camera_that_fails_does_not_disturb_another(process: Process) -> None:
    until(lambda: len(process.of(FrameBoxes)) > 3, 40)
    reasons = {state.camera: state.reason for state in process.of(CameraState) if state.state == "lost"}
    assert "connection refused" in reasons["dead"]
    assert "there is no file" in reasons["gone"]
    assert {boxes.camera for boxes in process.of(FrameBoxes)} == {"gate"}


def test_no_password_in_the_process_list_the_log_or_the_channel(process: Process) -> None:
    until(lambda: len(process.of(Gap)) > 1, 40)
    argv = Path(f"/proc/{process.child.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{process.child.pid}/environ").read_bytes()
    process.child.send_signal(signal.SIGTERM)
    process.wait()
    for text in (argv, environment, process.noise, repr(process.messages).encode()):
        assert SECRET.encode() not in text


def test_told_to_stop_it_closes_its_segments(process: Process, tmp_path: Path) -> None:
    until(lambda: any(row.frames for row in process.of(SegmentRow)), 40)
    process.child.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    rows: dict[str, SegmentRow] = {row.path: row for row in process.of(SegmentRow)}
    assert all(row.complete for row in rows.values())
    for row in rows.values():
        with av.open(str(tmp_path / "data" / row.path)) as segment:
            assert sum(1 for _ in segment.decode(video=0)) == row.frames


def test_it_ends_when_its_parent_does(process: Process) -> None:
    until(lambda: process.of(FrameBoxes), 40)
    assert process.child.stdin is not None
    process.child.stdin.close()
    assert process.wait() == 0


def test_it_ends_when_nobody_reads_any_more(site: dict[str, Any]) -> None:
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "appliance.ingest", "--fd", str(writing)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing,),
    )
    os.close(writing)
    assert child.stdin is not None
    child.stdin.write(SiteConfig.model_validate(site).model_dump_json().encode() + b"\n")
    child.stdin.flush()
    os.read(reading, 100)
    os.close(reading)
    assert child.wait(20) == 0
    child.stdin.close()


def test_after_a_kill_what_was_told_of_can_be_read(process: Process, tmp_path: Path) -> None:
    until(lambda: sum(row.frames > 0 for row in process.of(SegmentRow)) > 2, 40)
    process.child.kill()
    process.wait()
    rows = {row.path: row for row in process.of(SegmentRow)}
    for row in rows.values():
        if row.frames:
            with av.open(str(tmp_path / "data" / row.path)) as segment:
                assert sum(1 for _ in segment.decode(video=0)) >= row.frames


def test_stray_prints_cannot_corrupt_a_channel_on_stdout(site: dict[str, Any]) -> None:
    """Without --fd the messages are on stdout; whatever a library prints there goes to stderr instead."""
    process = Process(site, use_fd=False)
    try:
        until(lambda: process.of(FrameBoxes), 40)
        process.child.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.end()


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"not json\n", b""])
def test_a_wrong_configuration_is_exit_2_and_one_sentence(line: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "appliance.ingest"], cwd=ROOT, input=line, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().startswith("vedette ingest: configuration: ")
    assert done.stderr.count(b"\n") == 1


def test_an_unknown_model_is_exit_2(site: dict[str, Any], tmp_path: Path) -> None:
    site["detector"] = {"model": str(tmp_path / "none.onnx")}
    done = subprocess.run(
        [sys.executable, "-m", "appliance.ingest"],
        cwd=ROOT,
        input=SiteConfig.model_validate(site).model_dump_json().encode() + b"\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"none.onnx" in done.stderr


def test_a_last_resort_is_told_of_as_long_as_it_watches(site: dict[str, Any]) -> None:
    running = Process({**site, "detector": {"model": "builtin:hog"}})
    try:
        until(lambda: len(running.of(IngestHealth)) > 2, 40)
        assert all("a last resort" in health.warning for health in running.of(IngestHealth))
    finally:
        running.end()


def test_what_is_told_is_told_in_time(process: Process) -> None:
    """A box is out of the process within a second of its frame (the bound is loose: HOG is slow on a busy machine)."""
    until(lambda: len(process.of(FrameBoxes)) > 2, 40)
    heard = len(process.of(FrameBoxes))
    until(lambda: len(process.of(FrameBoxes)) > heard, 40)
    assert time.time() - process.of(FrameBoxes)[-1].t < 3


def test_every_line_is_json_of_a_known_kind(process: Process) -> None:
    until(lambda: process.of(IngestHealth), 40)
    health = process.of(IngestHealth)[0]
    assert "last resort" not in health.warning
    assert health.rss_bytes > 10_000_000
    assert json.loads(json.dumps(health.t)) == health.t
