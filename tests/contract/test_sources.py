"""What every source of packets promises: a file, a camera over RTSP, and the scripted one of the tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.source import MICROSECOND, VideoSource
from tests.servers.rtsp import FaultyRtspServer
from tests.support.scripted_sources import ScriptedSource, clip


@pytest.fixture(params=["replay", "paced file", "rtsp", "scripted"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VideoSource]:
    path = clip(tmp_path / "c.mp4", 60, fps=20, gop=10)
    if request.param == "rtsp":
        with FaultyRtspServer.in_thread({"main": path}) as server:
            yield RtspSource("gate", server.url("main"), SystemClock(), SocketFinder())
        return
    yield {
        "replay": lambda: FileSource("gate", str(path)),
        "paced file": lambda: FileSource("gate", f"file:{path}", ManualClock(time.time())),
        "scripted": lambda: ScriptedSource(path),
    }[request.param]()


def test_packets_begin_with_a_key_frame_and_carry_camera_time_that_rises(source: VideoSource) -> None:
    info = source.open()
    assert (info.codec, info.size) == ("h264", (320, 240))
    packets = list(itertools.islice(source.packets(), 30))
    source.close()
    assert packets[0].keyframe
    for packet in packets:
        assert packet.packet.time_base == MICROSECOND
        assert packet.t == packet.packet.pts / 1e6
        assert packet.size == packet.packet.size > 0
    assert all(a.packet.dts < b.packet.dts for a, b in itertools.pairwise(packets))


def test_it_can_be_opened_again_and_bytes_count_on(source: VideoSource) -> None:
    received = [0]
    for _ in range(2):
        source.open()
        list(itertools.islice(source.packets(), 5))
        received.append(source.received().bytes)
        source.close()
        received.append(source.received().bytes)
    assert received == sorted(received)
    assert received[1] > 0
    assert received[-1] > received[2]


def test_closing_twice_or_unopened_is_harmless(source: VideoSource) -> None:
    source.close()
    assert source.received().bytes == 0
    source.open()
    next(source.packets())
    source.close()
    received = source.received().bytes
    source.close()
    assert source.received().bytes == received > 0
