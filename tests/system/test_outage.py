"""A camera that is cut for 30 s: it comes back by itself, and the gap is on its page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.box import Box
from streams import clip
from waiting import until

from appliance.demo.rtsp_server import RtspServer
from appliance.demo.rtsp_thread import RunningServer

PASSWORD = "hunter2-s3cret"
CUT_S = 30.0
BACK_S_MAX = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    film = clip(tmp_path_factory.mktemp("film") / "film.mp4", 200, fps=20, gop=20)
    with RtspServer.in_thread({"main": film}, user="viewer", password=PASSWORD) as running:
        yield running


def test_a_camera_that_was_cut_for_30_s_is_back_within_10_s_and_its_gap_is_on_its_page(
    tmp_path: Path, server: RunningServer
) -> None:
    with Box(tmp_path, f"cameras: {{gate: {{url: '{server.url('main')}'}}}}\n") as box:
        until(lambda: box.get("/cameras/gate")["state"] == "live")
        until(lambda: box.get("/cameras/gate")["fps"])

        server.refuse()
        until(lambda: box.get("/cameras/gate")["state"] == "lost")
        told = box.get("/cameras/gate")
        assert any(words in told["reason"] for words in ("ended the stream", "broke off", "cannot be reached"))
        assert told["gaps"][0]["t_end"] is None
        threading.Event().wait(CUT_S)

        server.listen()
        returned = time.monotonic()
        until(lambda: box.get("/cameras/gate")["state"] == "live")
        assert time.monotonic() - returned < BACK_S_MAX

        gap = box.get("/cameras/gate")["gaps"][0]
        assert CUT_S - 2 < gap["t_end"] - gap["t_start"] < CUT_S + BACK_S_MAX + 5
        page = box.page("/cameras/gate")
        assert "No picture" in page
        assert all(PASSWORD not in text for text in (page, box.log, str(box.get("/cameras"))))
    assert PASSWORD not in box.log
