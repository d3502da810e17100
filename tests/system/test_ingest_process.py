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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import pytest

from appliance.base.json_lines import decode_ingest, encode_command
from appliance.config import SiteConfig
from appliance.types import (
    CameraMeter,
    CameraState,
    ConfigureCommand,
    FrameBoxes,
    Gap,
    HealthEvent,
    IngestHealth,
    IngestMessage,
    SegmentRow,
    StreamHeader,
)
from tests.support.scripted_sources import clip
from tests.support.unmeasured import UNMEASURED
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t"


class Process:
    """`python -m appliance.ingest` with its channel read by a thread."""

    def __init__(self, site: dict[str, Any], *, use_fd: bool = True) -> None:
        self.heard: list[tuple[float, IngestMessage]] = []
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

    @property
    def messages(self) -> list[IngestMessage]:
        return [message for _, message in tuple(self.heard)]

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    def gone(self) -> bool:
        return self.child.poll() is not None

    def wait(self, seconds: float = 60) -> int:
        code = self.child.wait(seconds)
        for thread in self._threads:
            thread.join(60)
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
            if not line.strip():
                continue  # a sign of life while the detector comes up
            self.heard.append((time.time(), decode_ingest(line)))

    def _listen(self) -> None:
        assert self.child.stderr is not None
        self.noise = self.child.stderr.read()


def site_in(folder: Path) -> dict[str, Any]:
    made = clip(folder / "c.mp4", 600, fps=10, gop=10)
    return {
        "storage": {"dir": str(folder / "data"), "segment_s": 1, "disk_free_min_mb": 0},
        "detector": UNMEASURED,
        "cameras": {
            "gate": {"url": f"file:{made}"},
            "dead": {"url": f"rtsp://viewer:{SECRET}@127.0.0.1:1/main"},
            "gone": {"url": "file:/nowhere/at/all.mp4"},
        },
    }


@pytest.fixture
def site(tmp_path: Path) -> dict[str, Any]:
    return site_in(tmp_path)


@pytest.fixture
def process(site: dict[str, Any]) -> Iterator[Process]:
    running = Process(site)
    yield running
    running.end()


@dataclass(frozen=True)
class Life:
    """A process from its start to SIGTERM: what it told, and where. folder: of its storage."""

    process: Process
    folder: Path
    shown: bytes  # its command line and environment, as `ps` sees them
    code: int

    def of(self, kind: type) -> list[Any]:
        return self.process.of(kind)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    folder = tmp_path_factory.mktemp("life")
    (folder / "data/substreams/removed").mkdir(parents=True)
    process = Process(site_in(folder))
    try:
        until(lambda: process.gone() or (len(process.of(FrameBoxes)) > 3 and len(process.of(IngestHealth)) > 2), 40)
        until(
            lambda: process.gone() or (len(process.of(Gap)) > 1 and any(row.frames for row in process.of(SegmentRow)))
        )
        assert not process.gone(), process.noise
        shown = b"".join(Path(f"/proc/{process.child.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        process.child.send_signal(signal.SIGTERM)
        return Life(process, folder / "data", shown, process.wait())
    finally:
        process.end()


def test_boxes_segments_states_and_counters_come_out_and_nothing_else(life: Life) -> None:
    assert life.code == 0
    kinds = {type(message) for message in life.process.messages}
    kinds.discard(HealthEvent)  # on a slow machine it lived long enough to call the two that are away ill
    assert kinds == {StreamHeader, FrameBoxes, CameraState, SegmentRow, Gap, CameraMeter, IngestHealth}
    gate = [message for message in life.process.messages if getattr(message, "camera", "") == "gate"]
    assert [state.state for state in gate if isinstance(state, CameraState)] == ["connecting", "live"]
    assert max(len(repr(message)) for message in life.process.messages) < 20_000, "no picture fits into that"
    assert not (life.folder / "substreams/removed").exists(), "of a camera that there is no more"


def test_one_camera_that_fails_does_not_disturb_another(life: Life) -> None:
    reasons = {state.camera: state.reason for state in life.of(CameraState) if state.state == "lost"}
    assert "connection refused" in reasons["dead"]
    assert "there is no file" in reasons["gone"]
    assert {boxes.camera for boxes in life.of(FrameBoxes)} == {"gate"}


def test_no_password_in_the_process_list_the_log_or_the_channel(life: Life) -> None:
    for text in (life.shown, life.process.noise, repr(life.process.messages).encode()):
        assert SECRET.encode() not in text


def test_told_to_stop_it_closes_its_segments(life: Life) -> None:
    rows: dict[str, SegmentRow] = {row.path: row for row in life.of(SegmentRow)}
    assert all(row.complete for row in rows.values())
    for row in rows.values():
        with av.open(str(life.folder / row.path)) as segment:
            assert sum(1 for _ in segment.decode(video=0)) == row.frames


def test_what_is_told_is_told_in_time(life: Life) -> None:
    """A box is out of the process within a second of its frame; on a busy machine, the quickest within five."""
    ages = [heard - message.t for heard, message in life.process.heard if isinstance(message, FrameBoxes)]
    assert -0.1 < min(ages) < 5


def test_what_it_says_of_itself_is_true(life: Life) -> None:
    health = life.of(IngestHealth)[0]
    assert "last resort" not in health.warning
    assert health.rss_bytes > 10_000_000
    assert json.loads(json.dumps(health.t)) == health.t


def test_cameras_are_added_changed_and_removed_and_the_others_go_on(process: Process, site: dict[str, Any]) -> None:
    until(lambda: process.of(FrameBoxes) and process.of(IngestHealth), 40)
    url = site["cameras"]["gate"]["url"]
    gate = {
        "url": url,
        "zones": {"z": [[0, 0], [1, 0], [1, 1]]},
        "rules": [{"name": "r", "kind": "enter", "zone": "z"}],
    }
    yard = {"url": url, "detect_url": url}
    configure(process, {"gate": gate, "yard": yard, "off": {"url": url, "enabled": False}})
    until(lambda: any(boxes.camera == "yard" for boxes in process.of(FrameBoxes)), 40)
    before = len(process.messages)

    def since(kind: type) -> list[Any]:
        return [message for message in process.messages[before:] if isinstance(message, kind)]

    until(lambda: len(since(IngestHealth)) > 2 and any(boxes.camera == "gate" for boxes in since(FrameBoxes)), 40)
    meters = {message.camera for message in since(CameraMeter)}
    assert meters == {"gate", "yard"}, "removed: dead, gone; disabled: off"
    assert len([header for header in process.of(StreamHeader) if header.camera == "gate"]) == 1, "it was not touched"

    configure(process, {"gate": {**gate, "record": False}, "yard": yard})
    until(lambda: len([header for header in process.of(StreamHeader) if header.camera == "gate"]) == 2, 40)
    assert len([header for header in process.of(StreamHeader) if header.camera == "yard"]) == 1
    configure(process, {"gate": {"url": "http://x"}})
    before = len(process.of(IngestHealth))
    until(lambda: len(process.of(IngestHealth)) > before + 1, 40)
    os.kill(process.child.pid, signal.SIGTERM)
    assert process.wait() == 0
    assert b"the new cameras are refused: gate.url: Value error, must begin with rtsp://" in process.noise
    assert list((Path(site["storage"]["dir"]) / "substreams").iterdir()) == [], "what is read no more leaves nothing"
    closed = [row.camera for row in process.of(SegmentRow)]
    assert {"gate", "yard"} <= set(closed), "the segments of a camera that was changed are closed"


def configure(process: Process, cameras: dict[str, Any]) -> None:
    assert process.child.stdin is not None
    process.child.stdin.write(encode_command(ConfigureCommand(cameras=cameras)))
    process.child.stdin.flush()


def test_it_ends_when_its_parent_does(process: Process) -> None:
    """Of which the kernel tells at once, and once for each thread that the parent dies with."""
    until(lambda: process.of(FrameBoxes), 40)
    assert process.child.stdin is not None
    process.child.stdin.close()
    for _ in range(300):
        process.child.send_signal(signal.SIGTERM)
    assert process.wait() == 0


HANGS = """
import sys, threading
import appliance.ingest.__main__ as ingest

class Cameras:
    def run(self):
        print("running", flush=True)
        threading.Event().wait()

    def stop(self):
        {stop}

ingest.END_S_MAX, ingest.ALARM_S = {limits}
sys.exit(ingest.run_until_stopped(Cameras()))
"""


@pytest.mark.parametrize(
    ("stop", "limits", "code", "said"),
    [
        ("pass", "0.2, 60", 0, "cameras did not stop within 0.2 s; it is in wait (threading.py"),
        ("threading.Event().wait()", "0.2, 1", -signal.SIGALRM, ""),
    ],
    ids=["its cameras hang", "its main thread hangs"],
)
def test_it_does_not_outlive_its_parent_whatever_hangs(stop: str, limits: str, code: int, said: str) -> None:
    script = HANGS.format(stop=stop, limits=limits)
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"running\n"
            _, noise = child.communicate(timeout=60)  # which closes its standard input first
        finally:
            child.kill()
    assert child.returncode == code
    assert said in noise.decode()


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
    while not os.read(reading, 100).strip():
        pass  # a sign of life while the detector comes up
    os.close(reading)
    assert child.wait(80) == 0
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
        [sys.executable, "-m", "appliance.ingest"], cwd=ROOT, input=line, capture_output=True, timeout=200, check=False
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
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert b"none.onnx" in done.stderr


def test_a_rule_for_a_class_that_the_network_does_not_have_is_told_of_as_long_as_it_runs(site: dict[str, Any]) -> None:
    camera = next(iter(site["cameras"].values())) | {
        "zones": {"z": [[0, 0], [1, 0], [1, 1]]},
        "rules": [{"name": "dog", "kind": "enter", "zone": "z", "labels": ["unicorn"]}],
    }
    running = Process({**site, "cameras": {"gate": camera}})
    try:
        until(lambda: len(running.of(IngestHealth)) > 2, 40)
        assert all("camera gate: rule `dog` wants `unicorn`" in health.warning for health in running.of(IngestHealth))
    finally:
        running.end()


def test_a_last_resort_is_told_of_as_long_as_it_watches(site: dict[str, Any]) -> None:
    running = Process({**site, "detector": {"model": "builtin:hog"}})
    try:
        until(lambda: len(running.of(IngestHealth)) > 2, 40)
        assert all("a last resort" in health.warning for health in running.of(IngestHealth))
    finally:
        running.end()
