"""A camera that is cut for a while: it comes back by itself, and the gap is on its page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.appliance_process import ApplianceProcess
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.scripted_sources import clip
from tests.support.waiting import PATIENCE, until

PASSWORD = "hunter2-s3cret"
BACK_S_MAX = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    film = clip(tmp_path_factory.mktemp("film") / "film.mp4", 200, fps=20, gop=20)
    with FaultyRtspServer.in_thread({"main": film}, user="viewer", password=PASSWORD) as running:
        yield running


@pytest.mark.parametrize("cut_s", [5.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_a_camera_that_was_cut_is_back_within_10_s_and_its_gap_is_on_its_page(
    tmp_path: Path, server: RtspServerThread, cut_s: float
) -> None:
    with ApplianceProcess(tmp_path, f"cameras: {{gate: {{url: '{server.url('main')}'}}}}\n") as box:
        until(lambda: box.get("/cameras/gate")["state"] == "live")
        until(lambda: box.get("/cameras/gate")["fps"])

        server.refuse()
        until(lambda: box.get("/cameras/gate")["state"] == "lost")
        told = box.get("/cameras/gate")
        assert any(words in told["reason"] for words in ("ended the stream", "broke off", "cannot be reached"))
        assert told["gaps"][0]["t_end"] is None
        refused = time.monotonic()
        until(lambda: time.monotonic() - refused > cut_s, cut_s, every_s=0.5)

        server.listen()
        returned = time.monotonic()
        until(lambda: box.get("/cameras/gate")["state"] == "live")
        assert time.monotonic() - returned < BACK_S_MAX * PATIENCE

        gap = box.get("/cameras/gate")["gaps"][0]
        assert cut_s - 2 < gap["t_end"] - gap["t_start"] < time.monotonic() - refused + 5
        page = box.page("/cameras/gate")
        assert "No picture" in page
        assert all(PASSWORD not in text for text in (page, box.log, str(box.get("/cameras"))))
    assert PASSWORD not in box.log
