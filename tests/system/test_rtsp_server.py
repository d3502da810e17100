"""The RTSP server against a real client (FFmpeg, through PyAV) and against clients that mean harm."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.base.errors import MissingDependency, SourceRefused, UsageError
from appliance.demo.rtsp_server import CLIENTS_MAX, RtspLimits
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support import waiting
from tests.support.numbered_footage import beeping

until = functools.partial(waiting.until, seconds=5.0, every_s=0.02)
FPS = 20
OPTIONS = {
    "libx264": {"preset": "ultrafast", "bf": "0", "sc_threshold": "0"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=error:scenecut=0"},
}
QUICK = {"rtsp_transport": "tcp", "analyzeduration": "0", "probesize": "32"}
SHARED = Path(os.environ.get("VEDETTE_SHARED", Path(__file__).parents[2] / ".." / "shared")) / "data"


def make_clip(
    path: Path, *, codec: str = "libx264", frames: int = 20, size: tuple[int, int] = (192, 128), gop: int = 10
) -> Path:
    """Noise at 20 fps with a key frame every `gop`; the first frame is white, so that a loop can be seen."""
    noise = np.random.default_rng(0)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=FPS)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = gop
        stream.options = OPTIONS.get(codec, {})
        for index in range(frames):
            image = noise.integers(0, 120, (size[1], size[0], 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(image if index else np.full_like(image, 255), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    make_clip(folder / "yard.mp4")
    make_clip(folder / "large.mp4", size=(320, 240))
    make_clip(folder / "gate.mp4", codec="libx265")
    make_clip(folder / "raw.ts")
    make_clip(folder / "old.avi", codec="mpeg4")
    return folder


@pytest.fixture
def server(clips: Path) -> Iterator[RtspServerThread]:
    mounts = {"yard": clips / "yard.mp4", "gate": clips / "gate.mp4", "raw": clips / "raw.ts"}
    with FaultyRtspServer.in_thread(mounts=mounts) as running:
        yield running


def watch(url: str, timeout_s: float = 20.0) -> av.container.InputContainer:
    return av.open(url, options=QUICK, timeout=(20, timeout_s))


def decoded(url: str, count: int) -> list[av.VideoFrame]:
    with watch(url) as container:
        return [frame for frame, _ in zip(container.decode(video=0), range(count), strict=False)]


def ended(server: RtspServerThread) -> list[str]:
    return [session.ended for session in server.sessions() if session.state == "closed"]


class Talker:
    """A client that speaks RTSP by hand."""

    def __init__(self, port: int, window: int = 0) -> None:
        self.socket = socket.socket()
        if window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        self.pending = b""
        self.cseq = 0

    def __enter__(self) -> Talker:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, method: str, url: str, **headers: str) -> None:
        self.cseq += 1
        lines = [f"{method} {url} RTSP/1.0", f"CSeq: {self.cseq}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())

    def ask(self, method: str, url: str, **headers: str) -> tuple[int, dict[str, str], str]:
        self.say(method, url, **headers)
        return self.answer()

    def answer(self) -> tuple[int, dict[str, str], str]:
        """The next response; media that comes before it is thrown away."""
        while self._peek() == b"$":
            self.frame()
        head = self._until(b"\r\n\r\n").decode()
        first, *rest = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest if line)
        return int(first.split(" ")[1]), headers, self._take(int(headers.get("content-length", 0))).decode()

    def frame(self) -> tuple[int, bytes]:
        magic, channel, size = struct.unpack(">cBH", self._take(4))
        assert magic == b"$"
        return channel, self._take(size)

    def closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the server closed"
        self.pending += data

    def _peek(self) -> bytes:
        if not self.pending:
            self._more()
        return self.pending[:1]

    def _take(self, size: int) -> bytes:
        while len(self.pending) < size:
            self._more()
        taken, self.pending = self.pending[:size], self.pending[size:]
        return taken

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.pending:
            self._more()
        return self._take(self.pending.index(mark) + len(mark))

    def play(self, url: str) -> str:
        """Set up and play; returns the session."""
        _, headers, _ = self.ask("SETUP", f"{url}/trackID=0", Transport="RTP/AVP/TCP;unicast;interleaved=0-1")
        session = headers["session"].split(";")[0]
        assert self.ask("PLAY", url, Session=session)[0] == 200
        return session


# -- what a viewer sees


@pytest.mark.parametrize(("name", "file"), [("yard", "yard.mp4"), ("gate", "gate.mp4"), ("raw", "raw.ts")])
def test_every_frame_arrives_as_it_is_in_the_file(server: RtspServerThread, clips: Path, name: str, file: str) -> None:
    with av.open(str(clips / file)) as source:
        wanted = [frame.to_ndarray() for frame in source.decode(video=0)]
    seen = [frame.to_ndarray() for frame in decoded(server.url(name), len(wanted))]
    assert [index for index, (a, b) in enumerate(zip(wanted, seen, strict=True)) if not np.array_equal(a, b)] == []


@pytest.mark.parametrize("name", ["yard", "gate", "raw"])
def test_plays_past_the_end_without_a_seam(server: RtspServerThread, name: str) -> None:
    frames = decoded(server.url(name), 45)
    whites = [index for index, frame in enumerate(frames) if frame.to_ndarray(format="gray").mean() > 200]
    assert whites == [0, 20, 40]
    stamps = [frame.pts for frame in frames if frame.pts is not None]
    assert {after - before for before, after in itertools.pairwise(stamps)} == {90_000 // FPS}


def test_plays_in_real_time(server: RtspServerThread) -> None:
    began = time.monotonic()
    decoded(server.url("yard"), FPS + 1)
    assert time.monotonic() - began > 0.8


def test_one_who_comes_late_begins_with_the_last_key_frame(tmp_path: Path) -> None:
    """Of a film with one key frame in ten seconds: who waited for the next would wait for long."""
    path = make_clip(tmp_path / "long.mp4", frames=10 * FPS, gop=10 * FPS, size=(64, 48))
    with FaultyRtspServer.in_thread({"yard": path}) as server, watch(server.url("yard")) as first:
        assert sum(1 for _ in zip(range(15), first.demux(video=0), strict=False)) == 15
        with Talker(server.port) as second:
            second.play(server.url("yard"))
            second.frame()
            began = time.monotonic()
            units = [second.frame()[1] for _ in range(3)]
            assert time.monotonic() - began < 5
    assert [unit[12] & 0x1F for unit in units[:2]] == [7, 8]
    assert units[2][12] & 0x1F in (5, 6, 28)


def test_several_watch_one_reader(server: RtspServerThread) -> None:
    with Talker(server.port) as one, Talker(server.port) as other:
        one.play(server.url("yard"))
        other.play(server.url("yard"))
        seen = [{each.frame()[1] for _ in range(60)} for each in (one, other)]
    assert len(seen[0] & seen[1]) > 30


def test_sender_reports_carry_the_camera_time(server: RtspServerThread) -> None:
    with Talker(server.port) as client:
        client.play(server.url("yard"))
        channel, report = client.frame()
        assert (channel, report[1]) == (1, 200)
        seconds, fraction, timestamp = struct.unpack(">III", report[8:20])
        wall = seconds - 2_208_988_800 + fraction / (1 << 32)
        assert abs(wall - time.time()) < 60
        channel, packet = client.frame()
        assert (channel, struct.unpack(">I", packet[4:8])[0]) == (0, timestamp)


def test_counts_every_byte_it_sends(server: RtspServerThread) -> None:
    with Talker(server.port) as client:
        session = client.play(server.url("yard"))
        for _ in range(40):
            client.frame()
        client.say("TEARDOWN", server.url("yard"), Session=session)
        client.socket.shutdown(socket.SHUT_WR)
        while data := client.socket.recv(65536):
            client.pending += data
        sent = client.socket.getsockopt(socket.IPPROTO_TCP, 11, 256)  # TCP_INFO: tcpi_bytes_received
        received = struct.unpack_from("<Q", sent, 128)[0]
    until(lambda: server.sessions()[0].state == "closed")
    assert server.sessions()[0].bytes_sent in (received, received - 1)  # the kernel counts the FIN as one


# -- the protocol


def test_speaks_the_state_machine(server: RtspServerThread) -> None:
    url = server.url("yard")
    with Talker(server.port) as client:
        assert "play" in client.ask("OPTIONS", url)[1]["public"]
        status, headers, sdp = client.ask("DESCRIBE", url, Accept="application/sdp")
        assert (status, headers["content-base"]) == (200, f"{url}/")
        assert "a=control:trackID=0" in sdp
        assert client.ask("PLAY", url)[0] == 455
        assert client.ask("SETUP", f"{url}/trackID=0", Transport="RTP/AVP;unicast;client_port=1-2")[0] == 461
        session = client.play(url)
        assert client.frame()[0] == 1
        assert client.ask("PLAY", url, Session="another")[0] == 454
        assert client.ask("SETUP", url, Transport="RTP/AVP/TCP;interleaved=0-1", Session=session)[0] == 455
        assert client.ask("TEARDOWN", url, Session=session)[0] == 200
        assert client.ask("PLAY", url, Session=session)[0] == 455


def test_a_session_after_a_teardown_gets_the_tracks_that_it_set_up(tmp_path: Path) -> None:
    with (
        FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server,
        Talker(server.port) as client,
    ):
        url, sound = server.url("gate"), "RTP/AVP/TCP;unicast;interleaved=2-3"
        _, headers, _ = client.ask("SETUP", f"{url}/trackID=1", Transport=sound)
        assert client.ask("TEARDOWN", url, Session=headers["session"].split(";")[0])[0] == 200
        client.play(url)
        assert {client.frame()[0] for _ in range(60)} <= {0, 1}


def test_pause_is_silence_and_play_continues(server: RtspServerThread) -> None:
    url = server.url("yard")
    with Talker(server.port) as client:
        session = client.play(url)
        client.frame()
        client.say("PAUSE", url, Session=session)
        assert client.answer()[0] == 200
        client.socket.settimeout(0.4)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(20)
        assert client.ask("PLAY", url, Session=session)[0] == 200
        assert client.frame()[0] in (0, 1)


def test_keep_alives_are_answered_and_silence_is_closed(clips: Path) -> None:
    running = FaultyRtspServer.in_thread(mounts={"yard": clips / "yard.mp4"}, limits=RtspLimits(session_timeout_s=2.0))
    with running as server, Talker(server.port) as alive, Talker(server.port) as silent:
        until(lambda: alive.ask("GET_PARAMETER", server.url("yard"))[0] == 200 and len(ended(server)) == 1)
        assert ended(server) == ["no sign of life"]
        assert silent.closed()
        assert alive.ask("GET_PARAMETER", server.url("yard"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("DESCRIBE", "/nothing", 404), ("RECORD", "/yard", 405), ("PAUSE", "/yard", 455), ("TEARDOWN", "/yard", 455)],
)
def test_wrong_requests_get_the_right_status(server: RtspServerThread, method: str, path: str, status: int) -> None:
    with Talker(server.port) as client:
        assert client.ask(method, f"rtsp://127.0.0.1:{server.port}{path}")[0] == status


def test_an_address_that_is_none_is_of_no_camera(server: RtspServerThread) -> None:
    with Talker(server.port) as client:
        assert client.ask("DESCRIBE", "rtsp://[")[0] == 404


def test_declines_extensions_it_does_not_know(server: RtspServerThread) -> None:
    with Talker(server.port) as client:
        status, headers, _ = client.ask("DESCRIBE", server.url("yard"), Require="www.onvif.org/ver20/backchannel")
        assert (status, headers["unsupported"]) == (551, "www.onvif.org/ver20/backchannel")


@pytest.mark.parametrize("schemes", [("digest",), ("basic",), ("digest", "basic")])
def test_the_right_password_opens_and_a_wrong_one_does_not(clips: Path, schemes: tuple[str, ...]) -> None:
    mounts = {"yard": clips / "yard.mp4"}
    with FaultyRtspServer.in_thread(mounts, user="viewer", password="s€cret/@:", schemes=schemes) as server:  # type: ignore[arg-type]
        assert len(decoded(server.url("yard"), 3)) == 3
        with pytest.raises(av.error.HTTPUnauthorizedError):
            decoded(server.url("yard").replace("cret", "wrong"), 1)
        with pytest.raises(av.error.HTTPUnauthorizedError):
            decoded(server.url("yard", credentials=False), 1)


def test_one_who_guesses_passwords_is_shown_out(clips: Path) -> None:
    running = FaultyRtspServer.in_thread({"yard": clips / "yard.mp4"}, user="viewer", password="x")
    with running as server, Talker(server.port) as client:
        for _ in range(8):
            assert client.ask("DESCRIBE", server.url("yard", credentials=False))[0] == 401
        assert client.closed()


# -- faults on request


def test_cut_is_an_end_of_stream_and_the_next_try_works(server: RtspServerThread) -> None:
    with watch(server.url("yard")) as container:
        packets = container.demux(video=0)
        next(packets)
        server.cut("yard")
        assert all(packet.size or packet.dts is None for packet in packets), "it comes to an end"
    assert len(decoded(server.url("yard"), 2)) == 2


def test_cut_leaves_the_other_camera_alone(server: RtspServerThread) -> None:
    with watch(server.url("gate")) as container:
        packets = container.demux(video=0)
        next(packets)
        server.cut("yard")
        assert all(next(packets).size for _ in range(FPS))


def test_stall_is_silence_and_resume_ends_it(server: RtspServerThread) -> None:
    with watch(server.url("yard"), timeout_s=2.0) as container:
        packets = container.demux(video=0)
        next(packets)
        server.stall("yard")
        with pytest.raises(av.error.ExitError):
            for _ in packets:
                pass
    with Talker(server.port) as client:
        client.play(server.url("yard"))
        server.resume("yard")
        assert client.frame()[0] == 1


def test_hang_answers_no_one(server: RtspServerThread) -> None:
    server.hang("yard")
    with Talker(server.port) as client:
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.ask("DESCRIBE", server.url("yard"))
    server.resume()
    assert len(decoded(server.url("yard"), 1)) == 1


def test_refuse_closes_the_port_and_listen_opens_the_same(server: RtspServerThread) -> None:
    port = server.port
    server.refuse()
    with pytest.raises(OSError):
        watch(server.url("yard"))
    server.listen()
    assert server.port == port
    assert len(decoded(server.url("yard"), 1)) == 1


def test_garbage_in_a_good_frame_does_not_end_the_stream(server: RtspServerThread) -> None:
    with watch(server.url("yard")) as container:
        frames = container.decode(video=0)
        next(frames)
        server.garbage("yard", size=3000, framed=True)
        assert sum(1 for _ in zip(range(30), frames, strict=False)) == 30


def test_garbage_between_frames_is_the_client_s_trouble_only(server: RtspServerThread) -> None:
    with watch(server.url("yard"), timeout_s=3.0) as container, watch(server.url("gate")) as other:
        frames, packets = container.decode(video=0), other.demux(video=0)
        next(frames)
        server.garbage("yard", size=3000)
        with contextlib.suppress(av.error.FFmpegError):
            for _ in zip(range(10), frames, strict=False):
                pass
        assert all(next(packets).size for _ in range(5))
    assert len(decoded(server.url("yard"), 2)) == 2


def test_drip_starves_the_client_until_resume(server: RtspServerThread) -> None:
    with watch(server.url("yard"), timeout_s=10) as container:
        packets = container.demux(video=0)
        next(packets)
        server.drip("yard", bytes_per_s=500)
        before, began = server.sessions()[0].bytes_sent, time.monotonic()
        until(lambda: server.sessions()[0].bytes_sent - before > 500)
        took = time.monotonic() - began
        assert server.sessions()[0].bytes_sent - before < 500 * (took + 2) + 2000, "a picture of this film has 9000"
        server.resume("yard")
        stamps = [packet.pts for packet, _ in zip(packets, range(10), strict=False) if packet.pts is not None]
    assert stamps == sorted(stamps)
    assert len(stamps) >= 9


def test_changes_the_clip_and_with_it_the_frame_size(server: RtspServerThread, clips: Path) -> None:
    with watch(server.url("yard")) as container:
        frames = container.decode(video=0)
        assert next(frames).width == 192
        server.change("yard", clips / "large.mp4")
        seen = [frame for frame, _ in zip(frames, range(40), strict=False)]
    assert seen[-1].width == 320
    stamps = [frame.pts for frame in seen if frame.pts is not None]
    assert stamps == sorted(stamps)
    with pytest.raises(SourceRefused):
        server.change("yard", clips / "old.avi")


def test_timestamps_can_jump_back(server: RtspServerThread) -> None:
    with Talker(server.port) as client:
        client.play(server.url("yard"))
        stamps = []
        while len(stamps) < 60:
            channel, packet = client.frame()
            stamps += [struct.unpack(">I", packet[4:8])[0]] if channel == 0 else []
            if len(stamps) == 20:
                server.jump_back("yard", 3.0)
    half = 1 << 31
    steps = [(after - before + half) % (2 * half) - half for before, after in itertools.pairwise(stamps)]
    assert sum(step < 0 for step in steps) == 1
    assert min(steps) == pytest.approx(-3 * 90_000, abs=90_000 // FPS)


# -- clients that mean harm


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"DESCRIBE " + b"a" * 200_000,
        b"PLAY rtsp://h/yard RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 999999999\r\n\r\n",
        os.urandom(100_000),
    ],
    ids=["tls", "http", "endless-line", "endless-body", "noise"],
)
def test_nonsense_is_answered_and_closed_and_no_one_else_notices(server: RtspServerThread, data: bytes) -> None:
    with watch(server.url("yard")) as container:
        packets = container.demux(video=0)
        next(packets)
        with Talker(server.port) as client:
            try:
                client.socket.sendall(data)
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(4096):
                    pass
            except OSError:
                pass
        assert all(next(packets).size for _ in range(5))


def test_one_who_never_reads_is_cut_and_no_one_else_notices(clips: Path) -> None:
    running = FaultyRtspServer.in_thread({"yard": clips / "large.mp4"}, limits=RtspLimits(buffer_bytes_max=100_000))
    with running as server, watch(server.url("yard")) as container, Talker(server.port, window=4096) as sleeper:
        packets = container.demux(video=0)
        sleeper.play(server.url("yard"))
        until(lambda: next(packets).size > 0 and "read too slowly" in ended(server), seconds=30)
        assert all(next(packets).size for _ in range(5))


def test_a_crowd_is_turned_away_at_the_door(server: RtspServerThread) -> None:
    crowd = [Talker(server.port) for _ in range(CLIENTS_MAX)]
    try:
        until(lambda: len(server.sessions()) == CLIENTS_MAX)
        with Talker(server.port) as late:
            assert late.closed()
        assert crowd[0].ask("OPTIONS", server.url("yard"))[0] == 200
    finally:
        for each in crowd:
            each.socket.close()
    until(lambda: all(session.state == "closed" for session in server.sessions()))
    assert len(decoded(server.url("yard"), 1)) == 1


# -- starting


def test_refuses_files_that_no_camera_would_send(clips: Path) -> None:
    for path, words in (
        (clips / "missing.mp4", "no such file"),
        (clips / "old.avi", "mpeg4, and cameras speak H.264 or HEVC"),
        (Path(__file__), "cannot be read as a video"),
    ):
        with pytest.raises(SourceRefused, match=words), FaultyRtspServer.in_thread({"yard": path}):
            pass
    with (
        pytest.raises(UsageError, match="not a name for a camera"),
        FaultyRtspServer.in_thread({"a b": clips / "yard.mp4"}),
    ):
        pass


def test_a_taken_port_is_an_error(clips: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = FaultyRtspServer.in_thread({"yard": clips / "yard.mp4"}, port=port)
        with pytest.raises(MissingDependency, match=f"127.0.0.1:{port}"), running:
            pass


def test_the_command_prints_its_addresses_and_stops_on_request(clips: Path) -> None:
    command = [sys.executable, "-m", "appliance.demo.rtsp_server", "--port", "0", f"yard={clips / 'yard.mp4'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert re.fullmatch(r"rtsp://127\.0\.0\.1:\d+/yard", line)
        assert len(decoded(line, 2)) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("words", [["yard"], ["yard=/nowhere.mp4"]])
def test_the_command_reports_what_is_wrong_in_one_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "appliance.demo.rtsp_server", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["footage/pets09_s2l1_vtest_768x576.mp4", "streams/media3_h265_bframes.mp4"])
def test_plays_real_footage_with_reordered_frames(name: str) -> None:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the repository")
    with FaultyRtspServer.in_thread({"real": path}) as server:
        stamps = [frame.pts for frame in decoded(server.url("real"), 40) if frame.pts is not None]
    assert len(stamps) >= 35
    assert stamps == sorted(set(stamps))
