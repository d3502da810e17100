"""Live video from a camera over RTSP to a reader of `/api/v1/live`: how far behind it is, cuts, sessions, rights."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from appliance import config
from appliance.base.clock import SystemClock
from appliance.dashboard.live_api import MEDIA_TYPE
from appliance.types import SegmentRow
from appliance.web.server import WebServer
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.camera_rig import CameraRig
from tests.support.dashboard_site import Site, config_of, running
from tests.support.live_stream import KeptBySite, LiveMessage, LiveParser, numbered_frames
from tests.support.scripted_sources import clip
from tests.support.waiting import ANSWER_S, PATIENCE, until

TOKEN = "a token of this test"
BEHIND_S_MAX = 1.2  # of what has arrived; a player keeps 0.2 s more in hand


class LiveReader:
    """Reads the stream in a thread. State: the messages, each with the time at which it came."""

    def __init__(self, url: str, query: str, headers: dict[str, str]) -> None:
        self.got: list[tuple[float, LiveMessage]] = []
        self.status = 0
        self.problem = ""
        self.ended = False
        self._stop = threading.Event()
        self._where = (f"{url}/api/v1/live?{query}", headers)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def of(self, kind: str, index: int = 0) -> list[bytes]:
        return [each.content for _, each in tuple(self.got) if each.kind == kind and each.index == index]

    def numbers(self, index: int = 0) -> list[int]:
        video = b"".join(self.of("v", index))
        return [n for _, n in numbered_frames(video)] if video else []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _read(self) -> None:
        url, headers = self._where
        parser = LiveParser()
        with httpx.stream("GET", url, headers=headers, timeout=60) as answer:
            self.status = answer.status_code
            assert self.status != 200 or answer.headers["content-type"] == MEDIA_TYPE
            if self.status != 200:
                self.problem = json.loads(answer.read())["detail"]
                return
            for data in answer.iter_raw():
                self.got += [(time.time(), each) for each in parser.feed(data)]
                if self._stop.is_set():
                    return
        self.ended = True


@contextmanager
def reading(url: str, query: str = "camera=gate", token: str = TOKEN) -> Iterator[LiveReader]:
    reader = LiveReader(url, query, {"Authorization": f"Bearer {token}"} if token else {})
    try:
        yield reader
    finally:
        reader.stop()


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("film") / "film.mp4", 400, fps=20, gop=20)


@pytest.fixture
def camera(film: Path) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": film}) as server:
        yield server


@pytest.fixture
def house(tmp_path: Path, camera: RtspServerThread) -> Iterator[tuple[Site, str]]:
    """A site whose camera `gate` is recorded over RTSP, and the address of its dashboard."""
    site = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN))
    gate = config.CameraConfig.model_validate({"url": camera.url("main")})
    rig = CameraRig(tmp_path, {"gate": gate}, tick_s=1.0, heard=KeptBySite(site))
    with rig, running(site.serve()) as url:
        yield site, url
    site.close()


def behind_s(reader: LiveReader) -> list[float]:
    """Of each fragment but the first ones: by how much the last of its pictures was behind the clock as it came."""
    found, head = [], b""
    for at, each in tuple(reader.got):
        if each.kind != "v":
            continue
        if b"ftyp" in each.content[:8]:
            head = each.content
        elif (shown := numbered_frames(head + each.content)) and at - reader.got[0][0] > 1.0:
            found.append(at - shown[-1][0])
    return found


def test_video_is_about_a_second_behind_the_camera_over_several_files(
    house: tuple[Site, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = house
    with reading(url) as reader:
        until(lambda: len(reader.of("v")) > 14, what="six seconds of video")
        until(lambda: len(reader.of("b")) > 1, what="the boxes of it")
    numbers = reader.numbers()
    assert numbers == [(numbers[0] + n) % 400 for n in range(len(numbers))], "no picture is lost, none comes twice"
    behind = sorted(behind_s(reader))
    with capsys.disabled():
        print(f"\nlive video: newest picture {behind[0]:.2f} to {behind[-1]:.2f} s old as it arrives")
    assert behind[len(behind) // 2] < BEHIND_S_MAX * PATIENCE
    looks = [look for part in reader.of("b") for look in json.loads(part)]
    by_time = {round(t, 2): n for t, n in numbered_frames(b"".join(reader.of("v")))}
    same = [
        (by_time[round(look["t"], 2)], look["objects"][0]["box"][0]) for look in looks if round(look["t"], 2) in by_time
    ]
    assert len(same) > 5
    assert all(box == pytest.approx(n / 1000, abs=1e-4) for n, box in same), "boxes have the time of their very picture"


def test_a_cut_camera_comes_back_into_the_same_stream(house: tuple[Site, str], camera: RtspServerThread) -> None:
    _, url = house
    with reading(url) as reader:
        until(lambda: len(reader.of("v")) > 4)
        camera.cut("main")
        inits = sum(b"ftyp" in each[:8] for each in reader.of("v"))
        until(lambda: sum(b"ftyp" in each[:8] for each in reader.of("v")) > inits, what="a new file after the cut")
        count = len(reader.of("v"))
        until(lambda: len(reader.of("v")) > count + 2)
        times = [t for t, _ in numbered_frames(b"".join(reader.of("v")))]
        assert times == sorted(times)


def test_signing_out_ends_the_stream(house: tuple[Site, str]) -> None:
    _, url = house
    with httpx.Client(base_url=url, timeout=ANSWER_S) as browser:
        json_type = {"Content-Type": "application/json", "Origin": url}
        assert browser.post("/login", json={"token": TOKEN}, headers=json_type).status_code == 200
        cookie = {"Cookie": f"vedette_session={browser.cookies['vedette_session']}"}
        reader = LiveReader(url, "camera=gate", cookie)
        until(lambda: bool(reader.of("v")))
        browser.post("/logout", json={}, headers=json_type)
        until(lambda: reader.ended, what="the end of the stream")


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("camera=nowhere", 404, "There is no such camera among yours."),
        ("camera=gate&camera=nowhere", 404, "There is no such camera among yours."),
        ("camera=gate&camera=gate&camera=dock", 422, "Name each camera once."),
        ("when=always", 422, "camera"),
        ("&".join(["camera=gate"] * 65), 422, "camera"),
        ("camera=gate&when=sometimes", 422, "when"),
    ],
)
def test_what_is_wrong_is_refused_in_words(house: tuple[Site, str], query: str, status: int, why: str) -> None:
    with reading(house[1], query) as reader:
        until(lambda: bool(reader.problem))
    assert reader.status == status
    assert why in reader.problem


def test_one_stream_has_several_cameras_and_nothing_for_strangers(house: tuple[Site, str]) -> None:
    _, url = house
    with reading(url, token="") as reader:
        until(lambda: bool(reader.problem))
    assert reader.status == 401
    with reading(url, "camera=dock&camera=gate") as reader:
        until(lambda: bool(reader.of("v", 1)), what="the second camera's video")
    assert reader.of("v", 0) == []
    assert "nothing is being recorded" in json.loads(reader.of("n", 0)[-1])["problem"]


def test_a_wall_gets_the_second_stream_from_the_session_that_there_is(tmp_path: Path, film: Path) -> None:
    small = clip(tmp_path / "small.mp4", 400, first=1000, fps=20, gop=20, size=(160, 120))
    with FaultyRtspServer.in_thread({"main": film, "sub": small}) as camera:
        site = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN))
        gate = {"url": camera.url("main"), "detect_url": camera.url("sub")}
        folder = tmp_path / "substreams" / "gate"
        folder.mkdir(parents=True)
        (folder / "left by a kill.mp4").write_bytes(b"")
        rig = CameraRig(
            tmp_path, {"gate": config.CameraConfig.model_validate(gate)}, tick_s=1.0, heard=KeptBySite(site)
        )
        with rig, running(site.serve()) as url:
            with reading(url, "camera=gate&stream=sub") as wall, reading(url) as large:
                until(lambda: len(wall.of("v")) > 20, what="ten seconds, over three files")
                until(lambda: len(large.of("v")) > 4)
                numbers = wall.numbers()
                sessions = [each for each in camera.sessions() if each.state != "closed"]
                assert len(sessions) == 2, "no further connection to the camera"
                until(lambda: len(list(folder.iterdir())) <= 2, what="only the last files are kept")
            assert numbers == [1000 + (numbers[0] - 1000 + n) % 400 for n in range(len(numbers))]
            assert max(large.numbers()) < 1000, "the recording is of the main stream"
            rig.substreams["gate"].pause(True)
            until(lambda: list(folder.iterdir()) == [], what="a box that is short of memory keeps none")
            assert not any("substreams" in row.path for row in rig.of("gate", SegmentRow))
        site.close()


@pytest.mark.parametrize("asked", ["codec=h264", "h264=gate"])
def test_who_cannot_play_h265_gets_the_second_stream_where_that_is_h264(tmp_path: Path, asked: str) -> None:
    film = clip(tmp_path / "film.mp4", 100, codec="libx265")
    small = clip(tmp_path / "small.mp4", 100, first=1000, size=(160, 120))
    with FaultyRtspServer.in_thread({"main": film, "sub": small}) as camera:
        site = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN))
        gate = {"url": camera.url("main"), "detect_url": camera.url("sub")}
        cameras = {"gate": config.CameraConfig.model_validate(gate)}
        rig = CameraRig(tmp_path, cameras, tick_s=1.0, heard=KeptBySite(site))
        app = site.app()
        with rig, running(WebServer(app, "127.0.0.1", 0)) as url, reading(url, f"camera=gate&{asked}") as reader:
            until(lambda: min(reader.numbers() or [0]) >= 1000)
            told = json.loads(reader.of("n")[-1])
            assert (told["instead"], told["codec"]) == ("second", "hevc")
            assert not app.state.streams[1].conversions.running, "nothing is converted"
        site.close()
