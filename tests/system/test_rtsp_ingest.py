"""Cameras over RTSP/TCP: the real server, the real FFmpeg, and everything that goes wrong on the way."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from appliance import config
from appliance.base.clock import SystemClock
from appliance.base.errors import SourceLost, SourceRefused, VedetteError
from appliance.ingest import socket_meter
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.decoder import Decoder
from appliance.media.frames import FrameConverter
from appliance.media.source import SourceStalled
from appliance.types import CameraMeter, CameraState, FrameBoxes, Gap, SegmentRow, StreamHeader
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.camera_rig import CameraRig
from tests.support.numbered_footage import number
from tests.support.scripted_sources import clip
from tests.support.waiting import PATIENCE, until

PASSWORD = "s3cr:t/w@rd"


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("film") / "film.mp4", 100, fps=20, gop=10)


@pytest.fixture
def server(film: Path) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": film, "sub": film}, user="viewer", password=PASSWORD) as running:
        yield running


def source(url: str, **waits: float) -> RtspSource:
    return RtspSource("gate", url, SystemClock(), SocketFinder(), **{"connect_s": 20.0, "stall_s": 10.0, **waits})


def lost(camera: RtspSource, *, at_packet: int = 0, then: object = None) -> VedetteError:
    """Open and read; after `at_packet` packets call `then`; the error that ends it."""
    try:
        camera.open()
        for n, _ in enumerate(camera.packets()):
            if n == at_packet and callable(then):
                then()
    except VedetteError as error:
        return error
    finally:
        camera.close()
    raise AssertionError("the stream ended without an error")


def test_pictures_arrive_in_order_with_the_time_of_day(server: RtspServerThread) -> None:
    camera = source(server.url("main"))
    info = camera.open()
    assert (info.codec, info.size) == ("h264", (320, 240))
    decoder, pictures, seen = Decoder("gate", info), FrameConverter(), []
    for packet in camera.packets():
        seen += [(frame.t, number(pictures.bgr(frame.av_frame, (320, 240)))) for frame in decoder.decode(packet)]
        if len(seen) >= 30:
            break
    assert abs(seen[-1][0] - time.time()) < 60
    camera.close()
    for (t, n), (t_next, n_next) in itertools.pairwise(seen):
        assert (n + 1) % 100 == n_next
        assert t_next - t == pytest.approx(0.05, abs=0.02)


def test_opening_takes_no_probing(tmp_path: Path) -> None:
    """The SDP carries the parameter sets. Default probing reads on for five seconds where few pictures come."""
    slow = clip(tmp_path / "slow.mp4", 60, fps=4, gop=2)
    with FaultyRtspServer.in_thread({"main": slow}) as server:
        camera = source(server.url("main"))
        began = time.monotonic()
        camera.open()
        next(camera.packets())
        took = time.monotonic() - began
        camera.close()
    assert took < 4


def test_received_bytes_are_what_the_server_sent_within_a_percent(server: RtspServerThread) -> None:
    camera = source(server.url("main"))
    camera.open()
    for n, _ in enumerate(camera.packets()):
        if n == 60:
            break
    camera.close()
    received = camera.received()
    until(lambda: [info for info in server.sessions() if info.mount == "main" and info.ended])
    (sent,) = [info.bytes_sent for info in server.sessions() if info.mount == "main"]
    assert received.exact
    assert received.bytes == pytest.approx(sent, rel=0.01)


def test_received_bytes_count_on_over_reconnects_and_belong_to_the_right_camera(
    server: RtspServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_meter, "TURN_S_MAX", 60.0)  # on a busy machine three opens before one's own take longer
    finder, clock = SocketFinder(), SystemClock()
    cameras = [RtspSource(f"c{n}", server.url("main"), clock, finder) for n in range(4)]
    for _ in range(2):
        threads = [threading.Thread(target=camera.open) for camera in cameras]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for camera in cameras:
            next(camera.packets())
            camera.close()
    got = sorted(camera.received().bytes for camera in cameras)
    until(lambda: sum(bool(info.ended) for info in server.sessions() if info.mount) == 8)
    sent = sum(info.bytes_sent for info in server.sessions())
    assert all(camera.received().exact for camera in cameras)
    # What a client never read when it hung up was sent all the same, so the server may say a little more.
    assert sum(got) == pytest.approx(sent, rel=0.1)


def test_without_the_kernels_count_the_sum_of_packets_is_taken_and_said(
    server: RtspServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = RtspSource("gate", server.url("main"), SystemClock(), BlindFinder())
    camera.open()
    size = next(camera.packets()).size
    assert (camera.received().bytes, camera.received().exact) == (size, False)
    camera.close()


def test_a_look_whether_the_host_answers_is_not_taken_for_the_stream_of_another_camera() -> None:
    """Several channels of one recorder are opened side by side."""
    with socket.create_server(("127.0.0.1", 0)) as host:
        with SocketFinder().watching(host.getsockname()) as found:
            streams = [socket.create_connection(host.getsockname()) for _ in range(3)]
            peers = [host.accept()[0] for _ in streams]
            peers[1].sendall(b"RTSP/1.0 200 OK")
            streams[1].recv(100)
            meter = found.meter()
            peers[2].sendall(b"RTSP/1.0 200 OK")
            streams[2].recv(100)
            assert found.meter() is None, "it may be either"
        assert meter is not None
        assert meter.received() == len(b"RTSP/1.0 200 OK")
        for each in (meter, *streams, *peers):
            each.close()


def test_a_socket_that_closes_while_it_is_looked_at_does_not_hide_the_stream_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its descriptor's number is the next free one, which is the one that the meter of the stream gets."""
    with socket.create_server(("127.0.0.1", 0)) as host, SocketFinder().watching(host.getsockname()) as found:
        stream = socket.create_connection(host.getsockname())
        peer = host.accept()[0]
        peer.sendall(b"RTSP/1.0 200 OK")
        stream.recv(100)
        gone = os.dup(stream.fileno())
        os.close(gone)
        listed = [(os.fstat(stream.fileno()).st_ino, stream.fileno()), (1, gone)]
        monkeypatch.setattr(socket_meter, "_sockets", lambda: iter(listed))
        meter = found.meter()
        assert meter is not None
        assert meter.received() == len(b"RTSP/1.0 200 OK")
        for each in (meter, stream, peer):
            each.close()


class BlindFinder(SocketFinder):
    """As on a kernel without TCP_INFO."""

    @contextlib.contextmanager
    def watching(self, address: tuple[str, int]) -> Iterator[object]:  # type: ignore[override]
        class Nothing:
            def meter(self) -> None:
                return None

        yield Nothing()


@pytest.mark.parametrize(
    ("url", "kind", "sentence"),
    [
        ("wrong password", SourceRefused, "refused the password (401); check user and password in cameras.gate.url"),
        ("no password", SourceRefused, "asks for a user and a password (401)"),
        ("wrong path", SourceRefused, "does not exist (404); check the path in cameras.gate.url"),
        ("nobody listens", SourceLost, "cannot be reached: connection refused"),
        ("no such host", SourceLost, "the name nowhere.invalid cannot be resolved"),
        ("no host", SourceRefused, "is not an address like rtsp://host:554/…"),
    ],
)
def test_a_refusal_is_one_clear_sentence_without_the_password(
    server: RtspServerThread, url: str, kind: type[VedetteError], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = {
        "wrong password": f"rtsp://viewer:hunter2@127.0.0.1:{server.port}/main",
        "no password": f"rtsp://127.0.0.1:{server.port}/main",
        "wrong path": server.url("attic"),
        "nobody listens": "rtsp://viewer:hunter2@127.0.0.1:1/main",
        "no such host": "rtsp://viewer:hunter2@nowhere.invalid/main",
        "no host": "rtsp://viewer:hunter2@/main",
    }
    error = lost(source(urls[url]))
    assert type(error) is kind
    assert sentence in str(error)
    assert str(error).startswith("camera gate: ")
    assert "\n" not in str(error)
    out, err = capfd.readouterr()
    for secret in ("hunter2", PASSWORD, "s3cr"):
        assert secret not in str(error) + out + err


@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [
        (403, SourceRefused, "does not let this user watch (403)"),
        (461, SourceRefused, "RTSP over TCP (461)"),
        (503, SourceLost, "has trouble of its own"),
    ],
)
def test_what_a_camera_answers_is_told(status: int, kind: type[VedetteError], sentence: str) -> None:
    with answering(f"RTSP/1.0 {status} No\r\nCSeq: 1\r\n\r\n".encode()) as port:
        error = lost(source(f"rtsp://viewer:hunter2@127.0.0.1:{port}/main"))
    assert (type(error), sentence in str(error)) == (kind, True), str(error)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 200 OK\r\n\r\n<html>", b"\0" * 5000, b"SSH-2.0-OpenSSH_9\r\n", b""])
def test_who_is_no_camera_is_called_no_camera(reply: bytes) -> None:
    with answering(reply) as port:
        error = lost(source(f"rtsp://127.0.0.1:{port}/main", connect_s=1.0))
    assert type(error) is SourceLost


def test_who_accepts_and_says_nothing_is_given_up(server: RtspServerThread) -> None:
    server.hang("main")
    began = time.monotonic()
    error = lost(source(server.url("main"), connect_s=1.0))
    assert "gave no RTSP answer within 1 s" in str(error)
    assert time.monotonic() - began < 3 * PATIENCE


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """A listener that answers whatever it is asked with `reply` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(30)
                        while connection.recv(4096) and reply:
                            connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_the_end_of_a_stream_is_a_loss(server: RtspServerThread) -> None:
    error = lost(source(server.url("main")), at_packet=5, then=lambda: server.cut("main"))
    assert type(error) is SourceLost
    assert "ended the stream" in str(error)


def test_a_reset_connection_is_a_loss(server: RtspServerThread) -> None:
    error = lost(source(server.url("main")), at_packet=5, then=lambda: server.cut("main", reset=True))
    assert type(error) is SourceLost


def test_a_stall_is_noticed_within_the_time_out(server: RtspServerThread) -> None:
    error = lost(source(server.url("main"), stall_s=1.0), at_packet=5, then=lambda: server.stall("main"))
    assert type(error) is SourceStalled
    assert "sent nothing for 1 s" in str(error)


@pytest.mark.parametrize("framed", [False, True], ids=["between frames", "as a frame"])
def test_garbage_in_the_stream_is_survived_or_a_loss_but_never_a_hang(server: RtspServerThread, framed: bool) -> None:
    camera = source(server.url("main"), stall_s=2.0)
    decoder = Decoder("gate", camera.open())
    with contextlib.suppress(SourceLost):
        for n, packet in enumerate(camera.packets()):
            if n == 5:
                server.garbage("main", size=20_000, framed=framed)
            decoder.decode(packet)
            if n > 40:
                break
    decoder = Decoder("gate", camera.open())
    assert any(decoder.decode(packet) for packet in itertools.islice(camera.packets(), 20)), "it comes back"
    camera.close()


def test_a_clock_that_jumps_back_in_the_middle_keeps_time_rising(server: RtspServerThread) -> None:
    camera = source(server.url("main"))
    camera.open()
    times, jumps = [], 0
    for n, packet in enumerate(camera.packets()):
        if n == 20:
            server.jump_back("main", 1000.0)
        times.append(packet.t)
        jumps += packet.jump
        if n == 60:
            break
    camera.close()
    assert jumps == camera.jumps == 1
    assert all(0 < b - a < 1 for a, b in itertools.pairwise(times))


class House(CameraRig):
    """A camera as `vedette run` has it, over RTSP."""

    def __init__(self, root: Path, camera: config.CameraConfig) -> None:
        super().__init__(root, {"gate": camera}, tick_s=0.3)
        self.camera = self.cameras["gate"]

    def states(self) -> list[str]:
        return [state.state for state in self.heard.of(CameraState)]


def test_a_camera_that_was_gone_is_back_by_itself_and_its_gap_is_told(server: RtspServerThread, tmp_path: Path) -> None:
    with House(tmp_path, config.CameraConfig(url=server.url("main"), stall_timeout_s=10)) as house:
        until(lambda: len(house.heard.of(FrameBoxes)) > 3)
        server.refuse()
        until(lambda: house.states()[-1] == "lost")
        until(lambda: "connection refused" in house.heard.of(CameraState)[-1].reason)
        boxes = len(house.heard.of(FrameBoxes))
        server.listen()
        returned = time.monotonic()
        until(lambda: house.states()[-1] == "live")
        assert time.monotonic() - returned < 10, "RETRY_S_MAX and a connect"
        until(lambda: len(house.heard.of(FrameBoxes)) > boxes + 2)
        until(lambda: sum(meter.reconnects for meter in house.heard.of(CameraMeter)) == 1)
    begun, ended = house.heard.of(Gap)
    assert (begun.t_start, begun.t_end) == (ended.t_start, None)
    assert ended.t_end is not None
    assert ended.t_end >= ended.t_start
    assert len({header.run for header in house.heard.of(StreamHeader)}) == 2
    times = [seen.t for seen in house.heard.of(FrameBoxes)]
    assert times == sorted(times)
    segments = [row for row in house.heard.of(SegmentRow) if row.complete and row.frames]
    assert len({row.path.rsplit("-", 1)[-1] for row in segments}) == 2


def test_a_stalled_camera_says_stalled_then_comes_back(server: RtspServerThread, tmp_path: Path) -> None:
    with House(tmp_path, config.CameraConfig(url=server.url("main"), stall_timeout_s=2.5)) as house:
        until(lambda: house.states()[-1:] == ["live"])
        server.stall("main")
        until(lambda: house.states()[-1] == "stalled")
        server.resume("main")
        until(lambda: house.states()[-1] == "live")
    assert all(PASSWORD not in state.reason for state in house.heard.of(CameraState))


def test_a_camera_that_changes_its_picture_size_begins_a_new_run(server: RtspServerThread, tmp_path: Path) -> None:
    wider = clip(tmp_path / "wider.mp4", 100, fps=20, gop=10, size=(480, 320))
    with House(tmp_path, config.CameraConfig(url=server.url("main"))) as house:
        until(lambda: len(house.heard.of(FrameBoxes)) > 3)
        server.change("main", wider)
        until(lambda: len(house.heard.of(StreamHeader)) > 1)
        boxes = len(house.heard.of(FrameBoxes))
        until(lambda: len(house.heard.of(FrameBoxes)) > boxes + 3)
        until(lambda: {row.size for row in house.heard.of(SegmentRow)} >= {(320, 240), (480, 320)})
    headers = house.heard.of(StreamHeader)
    assert [header.size for header in headers] == [(320, 240), (480, 320)]
    assert headers[0].run != headers[1].run
    for row in house.heard.of(SegmentRow):
        if row.complete and row.frames:
            with av.open(str(tmp_path / row.path)) as segment:
                sizes = {(frame.width, frame.height) for frame in segment.decode(video=0)}
            assert sizes == {row.size}


def test_boxes_fit_the_recording_also_when_they_come_from_the_second_stream(
    server: RtspServerThread, tmp_path: Path
) -> None:
    """Main and sub show the same numbered film, started apart; the recording at a box's time shows the box's number."""
    plan = config.CameraConfig(url=server.url("main"), detect_url=server.url("sub"))
    with House(tmp_path, plan) as house:
        until(lambda: len(house.heard.of(FrameBoxes)) > 15, 30)
        last = house.heard.of(FrameBoxes)[-1].t
        until(lambda: any(row.t_end > last for row in house.heard.of(SegmentRow)))
    shown = recorded(tmp_path, house.heard.of(SegmentRow))
    differences = []
    for seen in house.heard.of(FrameBoxes):
        number_seen = round(seen.objects[0].box[0] * 1000)
        near = min(shown, key=lambda pair: abs(pair[0] - seen.t))
        if abs(near[0] - seen.t) < 0.05:
            differences.append((number_seen - near[1] + 50) % 100 - 50)
    assert len(differences) > 5
    assert np.ptp(differences) <= 2, "the distance does not wander"
    # The mounts play the film from moments of their own, so their numbers differ by what lies between those moments.
    apart = (server.started_at("main") - server.started_at("sub")) * 20
    wrong = [(difference - apart + 50) % 100 - 50 for difference in differences]
    assert max(map(abs, wrong)) <= 1.5, f"the streams' clocks differ: by {wrong} frames of 50 ms"


def recorded(root: Path, rows: list[SegmentRow]) -> list[tuple[float, int]]:
    """(camera time, number) of every recorded picture."""
    found = []
    for row in rows:
        if row.complete and row.frames:
            with av.open(str(root / row.path)) as segment:
                found += [
                    (row.t_start + float(frame.time), number(frame.to_ndarray(format="rgb24")))
                    for frame in segment.decode(video=0)
                ]
    return found
