"""A whole box and a camera that goes wrong: what is noticed, how soon, what is tried, and what a person may say."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import SystemClock
from appliance.base.json_lines import decode_ingest
from appliance.config import SiteConfig
from appliance.inference import inference_worker
from appliance.ingest import process
from appliance.ingest.camera_detectors import NetworkTable
from appliance.ingest.core_channel import IngestChannel
from appliance.types import Detections, HealthEvent
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.red_camera import one
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.scripted_sources import CountingTracker, clip
from tests.support.tampered_footage import films_of
from tests.support.tiny_networks import Thing, yolo
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(400)
BOUND_S = 10.0  # of the camera's time, from the fault to the report: a busy machine does not stretch it
_SITE = """
detector: {{model: '{model}'}}
cameras:
  gate: {{url: '{url}', stall_timeout_s: 3, detect: {{fps: 5, heartbeat_s: 1}}}}
"""


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return films_of(tmp_path_factory.mktemp("films"))


@pytest.fixture
def server(films: dict[str, Path]) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": films["healthy"]}) as running:
        yield running


@contextlib.contextmanager
def watching(folder: Path, server: RtspServerThread) -> Iterator[ApplianceProcess]:
    model = yolo(folder / "none.onnx", [Thing((40, 20, 70, 110), 0.9, 0)], ["person"])
    with ApplianceProcess(folder, _SITE.format(model=model, url=server.url("main"))) as running:
        until(lambda: running.get("/cameras/gate")["state"] == "live", 40)
        yield running


@pytest.fixture
def box(tmp_path: Path, server: RtspServerThread) -> Iterator[ApplianceProcess]:
    with watching(tmp_path, server) as running:
        yield running


@pytest.fixture(scope="module")
def lasting(
    tmp_path_factory: pytest.TempPathFactory, films: dict[str, Path]
) -> Iterator[tuple[ApplianceProcess, RtspServerThread]]:
    """A box that two tests share, and its camera, which shows the healthy film when each begins."""
    with (
        FaultyRtspServer.in_thread({"main": films["healthy"]}) as server,
        watching(tmp_path_factory.mktemp("lasting"), server) as running,
    ):
        yield running, server


def watched(box: ApplianceProcess, seconds: float) -> None:
    """Wait until the camera has shown so much more, by its own time."""
    newest = "SELECT coalesce(max(t_end), 0) FROM segment"
    until(lambda: one(box, newest) > 0, 20, every_s=0.1)
    began = one(box, newest)
    until(lambda: one(box, newest) > began + seconds, 20 + seconds, every_s=0.1)


def event(box: ApplianceProcess, kind: str) -> dict[str, Any] | None:
    found = box.get(f"/health/events?kind={kind}")["events"]
    return found[0] if found else None


def wait_for(
    box: ApplianceProcess, kind: str, condition: Callable[[dict[str, Any]], object], seconds: float
) -> dict[str, Any]:
    until(lambda: (found := event(box, kind)) and condition(found), seconds, f"{kind}: {event(box, kind)}", every_s=0.1)
    found = event(box, kind)
    assert found is not None
    return found


def assert_reported_in_time(found: dict[str, Any], began: float) -> None:
    """The event was opened within ten seconds of its own beginning, and begins where the fault did."""
    assert found["told_t"] - found["t_start"] <= BOUND_S
    assert abs(found["t_start"] - began) < 2.0 * PATIENCE


def streaming_sessions(server: RtspServerThread) -> int:
    """Sessions that got as far as a stream, so far."""
    return sum(bool(session.mount) for session in server.sessions())


def say_seen(box: ApplianceProcess, url: str) -> dict[str, Any]:
    request = urllib.request.Request(
        box.url + url + "/seen", b"{}", {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: dict[str, Any] = json.loads(answer.read())
    return said


def test_a_stalled_camera_and_a_clock_that_jumps(lasting: tuple[ApplianceProcess, RtspServerThread]) -> None:
    box, server = lasting
    watched(box, 2.0)
    server.stall("main")
    began = time.time()
    found = wait_for(box, "stalled", lambda each: each["t_end"] is None and each["attempts"], 15)
    assert_reported_in_time(found, began)
    assert any("gate" in reason or "stalled" in reason for reason in json.loads(box.page("/healthz"))["reasons"])
    assert 'vedette_health_open{camera="gate",kind="stalled"} 1' in box.page("/metrics")
    server.resume("main")
    wait_for(box, "stalled", lambda each: each["t_end"] is not None, 30)
    assert 'vedette_health_events_total{camera="gate",kind="stalled"} 1' in box.page("/metrics")

    server.jump_back("main", 11)
    found = wait_for(box, "clock", lambda each: each["t_end"] is not None, 20)
    assert (found["camera"], found["attempts"]) == ("gate", 1)
    assert "camera gate is ill (stalled)" in box.log
    assert "camera gate is well again: stalled ended" in box.log


def test_two_streams_whose_clocks_differ_are_told(tmp_path: Path, films: dict[str, Path]) -> None:
    model = yolo(tmp_path / "none.onnx", [Thing((40, 20, 70, 110), 0.9, 0)], ["person"])
    with FaultyRtspServer.in_thread({"main": films["healthy"], "sub": films["healthy"]}) as server:
        server.set_clock_off("sub", -6.0)
        text = _SITE.format(model=model, url=server.url("main")).replace(
            "stall_timeout_s: 3", f"stall_timeout_s: 3, detect_url: '{server.url('sub')}'"
        )
        with ApplianceProcess(tmp_path, text) as running:
            found = wait_for(running, "offset", lambda each: each["t_end"] is None, 60)
            assert "its second stream is" in found["reason"]
            assert "behind its main stream" in found["reason"]
            assert any("second stream" in reason for reason in json.loads(running.page("/healthz"))["reasons"])


def test_a_frozen_image_leads_to_a_reconnection(
    box: ApplianceProcess, server: RtspServerThread, films: dict[str, Path]
) -> None:
    watched(box, 2.0)
    before = len(server.sessions())
    server.change("main", films["frozen"])
    began = time.time()
    found = wait_for(box, "frozen", lambda each: each["attempts"] >= 1, 25)
    assert_reported_in_time(found, began)
    assert found["recovery"] == "connecting to the camera again"
    until(lambda: len(server.sessions()) > before, 15)
    assert "the picture stands still; connecting again" in box.log
    server.change("main", films["healthy"])
    wait_for(box, "frozen", lambda each: each["t_end"] is not None, 25)


def test_a_turned_camera_stays_so_until_a_person_confirms_the_view(
    lasting: tuple[ApplianceProcess, RtspServerThread], films: dict[str, Path]
) -> None:
    box, server = lasting
    watched(box, 11.0)  # it learns where it looks
    server.change("main", films["turned"])
    began = time.time()
    found = wait_for(box, "moved", lambda each: each["t_end"] is None, 25)
    assert_reported_in_time(found, began)
    assert "8% of the picture's width to the right" in found["reason"]
    assert "Camera moved" in box.page("/cameras/gate")
    assert say_seen(box, found["url"])["seen_t"] is not None
    wait_for(box, "moved", lambda each: each["t_end"] is not None, 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["covered", "black"])
def test_what_cannot_be_seen_through_is_noticed_and_one_new_connection_tried(
    box: ApplianceProcess, server: RtspServerThread, films: dict[str, Path], kind: str
) -> None:
    watched(box, 11.0)  # it learns where it looks
    before = streaming_sessions(server)
    server.change("main", films[kind])
    began = time.time()
    found = wait_for(box, kind, lambda each: each["attempts"] == 1, 25)
    assert_reported_in_time(found, began)
    until(lambda: streaming_sessions(server) > before, 15)
    assert f"({kind})" in box.log
    server.change("main", films["healthy"])
    wait_for(box, kind, lambda each: each["t_end"] is not None, 30)
    assert streaming_sessions(server) == before + 1


class Hangs:
    """A detector that answers once and then never again, until it is let go."""

    name, warning, labels = "hangs", "", ("person",)

    def __init__(self) -> None:
        self.go = threading.Event()
        self._looks = 0

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, pictures: object) -> list[Detections]:
        self._looks += 1
        if self._looks > 1:
            self.go.wait(200)
        return [Detections.empty()]


def test_a_detector_that_hangs_is_reported_and_the_process_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_worker, "HUNG_S", 5.0)
    monkeypatch.setattr(process, "STOP_S_MAX", 1.0)
    made = clip(tmp_path / "c.mp4", 300)
    site = SiteConfig.model_validate(
        {"storage": {"dir": str(tmp_path)}, "cameras": {"gate": {"url": f"file:{made}"}}, "health": {"detector_s": 2}}
    )
    reading, writing = os.pipe()
    lines: list[bytes] = []
    with os.fdopen(reading, "rb") as channel:
        reader = threading.Thread(target=lambda: lines.extend(channel))
        reader.start()
        detector = Hangs()
        ingest = process.IngestProcess(
            site.for_ingest(), NetworkTable({"": detector}, {}), CountingTracker, IngestChannel(writing), SystemClock()
        )
        with pytest.raises(inference_worker.DetectorHung):
            ingest.run()
        detector.go.set()
        os.close(writing)
        reader.join(10)
    said = [message for message in map(decode_ingest, lines) if isinstance(message, HealthEvent)]
    assert {(each.camera, each.kind) for each in said} == {("", "detector")}, "nobody looked, but that is one cause"
    assert said[0].t - said[0].t_start <= BOUND_S
    assert said[-1].recovery == "starting the ingest process again"
