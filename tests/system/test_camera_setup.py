"""Adding a camera: a real RTSP camera is tried in a process of its own, its password is kept beside the site file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance import config
from appliance.base.clock import SystemClock
from appliance.base.errors import ConfigError
from appliance.cli.site_check import _secrets
from appliance.config import SiteConfig
from appliance.config.site_file import secrets_path
from appliance.dashboard.app import create_app
from appliance.dashboard.camera_address import VENDORS, second_stream
from appliance.dashboard.deps import NO_PROBES
from appliance.ingest.camera_probe import ProbeFailed, probe_camera
from appliance.onvif.camera_client import inspect_camera
from appliance.onvif.soap_client import OnvifAddress
from appliance.settings.settings_service import SettingsService
from tests.servers.onvif_camera import OnvifCamera, Stream
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.dashboard_site import Site
from tests.support.scripted_sources import clip

PASSWORD = "p@ss:w/ord"  # as people choose them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    film = clip(tmp_path_factory.mktemp("film") / "c.mp4", 300, fps=10, gop=10)
    with FaultyRtspServer.in_thread(
        {"main": film, "sub": film, "Streaming/Channels/101": film}, user="viewer", password=PASSWORD
    ) as running:
        yield running


class Setup:
    def __init__(self, folder: Path, port: int) -> None:
        self.file = folder / "site.yaml"
        self.file.write_text("cameras:\n  gate: {url: 'rtsp://h/1'}  # first\n")
        (folder / "data").mkdir()
        self.port = port
        self.in_force: list[SiteConfig] = []
        self.clock = SystemClock()
        site = Site(folder / "data", self.clock)
        service = SettingsService(self.file, folder, site.clock, self._take)
        app = create_app(site.stored, site.config.for_dashboard(), settings=service)
        self.app = app
        self.http = TestClient(app, base_url="http://127.0.0.1")

    def _take(self, config: SiteConfig) -> tuple[str, ...]:
        self.in_force.append(config)
        return ()

    def take_in_force(self) -> None:
        """As the core does with what was changed."""
        self.app.state.configure(self.in_force[-1].for_dashboard(), NO_PROBES)

    def post(self, path: str, status: int, **body: Any) -> Any:
        answer = self.http.post(f"/api/v1/setup/{path}", json={"url": f"rtsp://127.0.0.1:{self.port}/main", **body})
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def setup(tmp_path: Path, server: RtspServerThread) -> Setup:
    return Setup(tmp_path, server.port)


def test_a_camera_is_tried_seen_and_added_with_its_password_apart(setup: Setup) -> None:
    login = {"user": "viewer", "password": PASSWORD}
    found = setup.post("probe", 200, **login)
    assert (found["codec"], found["width"] > 100, 8 < found["fps"] < 12) == ("h264", True, True)
    assert found["keyframe_s"] == pytest.approx(1.0, abs=0.3)
    assert found["kbit_s"] > 1
    picture = setup.http.get(found["picture"])
    assert picture.content[:2] == b"\xff\xd8"

    base = setup.http.get("/api/v1/settings").json()["digest"]
    sub = f"rtsp://127.0.0.1:{setup.port}/sub"
    report = setup.post("cameras", 201, base=base, name="back-yard", detect_url=sub, record="pre_roll", **login)
    text = setup.file.read_text()
    assert "ord" not in text.replace("record", "")
    assert "url: rtsp://${CAMERA_BACK_YARD_USER}:${CAMERA_BACK_YARD_PASSWORD}@127.0.0.1" in text
    assert "# first" in text
    assert PASSWORD not in str(report)
    assert secrets_path(setup.file).stat().st_mode & 0o777 == 0o600
    camera = setup.in_force[0].cameras["back-yard"]
    assert (camera.record, camera.detect_url is not None) == ("pre_roll", True)
    assert probe_camera(camera.url).codec == "h264", "the address in force opens the camera"
    assert config.load(setup.file).cameras["back-yard"].url == camera.url
    base = setup.http.get("/api/v1/settings").json()["digest"]
    assert "already" in setup.post("cameras", 409, base=base, name="back-yard")["detail"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "asks for a user and a password"),
        ({"user": "viewer", "password": "wrong"}, "refused the password"),
        ({"user": "viewer", "password": PASSWORD, "url": "/none"}, "does not exist"),
        ({"url": "rtsp://127.0.0.1:1/x"}, "cannot be reached"),
    ],
)
def test_each_failure_is_said_with_its_remedy_and_without_the_password(
    setup: Setup, change: dict[str, str], words: str
) -> None:
    if change.get("url", "").startswith("/"):
        change = {**change, "url": f"rtsp://127.0.0.1:{setup.port}{change['url']}"}
    answer = setup.post("probe", 422, **change)
    assert words in answer["detail"]
    assert PASSWORD not in str(answer)


def test_the_second_stream_is_tried_too_and_proposed_where_it_is_not_given(setup: Setup) -> None:
    login = {"user": "viewer", "password": PASSWORD}
    main = f"rtsp://127.0.0.1:{setup.port}/Streaming/Channels/101"
    found = setup.post("probe", 200, url=main, **login)
    assert (found["detect"], found["ahead_s"]) == (None, None)
    assert found["proposed_detect_url"] == main.removesuffix("101") + "102"
    sub = f"rtsp://127.0.0.1:{setup.port}/sub"
    found = setup.post("probe", 200, url=main, detect_url=sub, **login)
    assert (found["detect"]["width"], found["detect"]["codec"], found["proposed_detect_url"]) == (320, "h264", "")
    answer = setup.post("probe", 422, detect_url=sub + "x", **login)
    assert answer["detail"].startswith("The second stream: ")
    assert "does not exist" in answer["detail"]


@pytest.mark.parametrize(
    ("url", "second"),
    [
        ("rtsp://h/cam/realmonitor?channel=3&subtype=0", "rtsp://h/cam/realmonitor?channel=3&subtype=1"),
        ("rtsp://h/Streaming/Channels/1201", "rtsp://h/Streaming/Channels/1202"),
        ("rtsp://h/streaming/channels/102", ""),
        ("rtsp://h/h265Preview_02_main", "rtsp://h/h265Preview_02_sub"),
        ("rtsp://h/stream1", "rtsp://h/stream2"),
        ("rtsp://h/axis-media/media.amp", "rtsp://h/axis-media/media.amp?resolution=640x360"),
        ("rtsp://h/main", ""),
    ],
)
def test_the_second_stream_of_a_known_make_is_known(url: str, second: str) -> None:
    assert second_stream(url) == second


def test_each_make_s_first_stream_leads_to_its_second() -> None:
    for make in VENDORS:
        if make.sub:
            assert second_stream(make.main.format(host="h")) == make.sub.format(host="h"), make.name


@pytest.fixture
def onvif(server: RtspServerThread) -> Iterator[OnvifCamera]:
    streams = (Stream("a", "main", (1920, 1080)), Stream("b", "sub", (640, 360)), Stream("c", "sub", (320, 180)))
    made = OnvifCamera(
        rtsp_port=server.port, user="viewer", password=PASSWORD, streams=streams, name="Back yard", ahead_s=600
    )
    with made.running("lo"):
        yield made


def test_a_camera_is_found_asked_and_added_with_its_second_stream(setup: Setup, onvif: OnvifCamera) -> None:
    found = {each["address"]: each for each in setup.http.post("/api/v1/setup/discover", json={}).json()["cameras"]}
    mine = found[onvif.address]
    assert (mine["name"], mine["make"], mine["host"], mine["added"]) == ("Back yard", "C-100", "127.0.0.1", "")
    login = {"user": "viewer", "password": PASSWORD}
    answer = setup.http.post("/api/v1/setup/onvif", json={"address": onvif.address, **login})
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert PASSWORD not in answer.text
    assert (report["main"], report["sub"], report["ptz"]) == ("a", "b", True)
    assert "640 × 360 for detection" in report["why"]
    assert "10 min ahead: set its time" in report["clock_advice"]
    url = {each["token"]: each["url"] for each in report["streams"]}
    streams = {"url": url["a"], "detect_url": url["b"], "onvif": onvif.address, **login}
    probed = setup.post("probe", 200, **streams)
    assert probed["ahead_s"] == pytest.approx(600, abs=5)
    assert any("set its time by NTP" in each for each in probed["advice"])

    base = setup.http.get("/api/v1/settings").json()["digest"]
    setup.post("cameras", 201, base=base, name="back-yard", **streams)
    camera = setup.in_force[0].cameras["back-yard"]
    assert camera.detect_url is not None
    assert camera.detect_url.endswith("/sub")
    assert camera.onvif is not None
    assert camera.health_ignore == ("moved",)
    assert PASSWORD not in setup.file.read_text()
    assert inspect_camera(OnvifAddress.parse(camera.onvif), setup.clock).make.startswith("Example")
    setup.take_in_force()
    found = {each["address"]: each for each in setup.http.post("/api/v1/setup/discover", json={}).json()["cameras"]}
    assert found[onvif.address]["added"] == "back-yard"


def test_a_camera_that_cannot_be_asked_says_why(setup: Setup, onvif: OnvifCamera) -> None:
    def ask(status: int, **body: str) -> str:
        answer = setup.http.post("/api/v1/setup/onvif", json={"address": onvif.address, **body})
        assert answer.status_code == status, answer.text
        return str(answer.json()["detail"])

    assert "asks for a user and a password" in ask(422)
    assert "ONVIF users of their own" in ask(422, user="viewer", password="x")
    assert "cannot be reached" in ask(422, address="127.0.0.1:1")
    assert "not the address of a camera" in ask(422, address="ftp://h")
    base = setup.http.get("/api/v1/settings").json()["digest"]
    setup.post("cameras", 422, base=base, name="x", onvif="file:///etc/passwd")


def test_addresses_that_are_none_and_files_are_refused(setup: Setup) -> None:
    for url in ("file:/etc/passwd", "http://127.0.0.1/", "rtsp://", "rtsp://[::1/x", "rtsp://h:99999/x"):
        setup.post("probe", 422, url=url)
    base = setup.http.get("/api/v1/settings").json()["digest"]
    for name in ("new", "Gate", "a/b", ""):
        setup.post("cameras", 422, base=base, name=name)
    assert setup.in_force == []


def test_what_is_no_camera_fails_in_words(tmp_path: Path) -> None:
    with pytest.raises(ProbeFailed):
        probe_camera(f"file:{tmp_path / 'none.mp4'}")


def test_secrets_are_below_the_environment_and_a_damaged_file_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("cameras: {gate: {url: 'rtsp://${GATE_USER}:${GATE_PASSWORD}@h/1'}}\n")
    secrets_path(site).write_text("# of the gate\nGATE_USER=anna\nGATE_PASSWORD=geheim\n")
    assert config.load(site).cameras["gate"].url == "rtsp://anna:geheim@h/1"
    assert [finding.level for finding in _secrets(site)] == ["warning"], "others may read it"
    secrets_path(site).chmod(0o600)
    assert list(_secrets(site)) == []
    monkeypatch.setenv("GATE_USER", "otto")
    assert config.load(site).cameras["gate"].url == "rtsp://otto:geheim@h/1"
    secrets_path(site).write_text("GATE_USER anna\n")
    with pytest.raises(ConfigError, match="line 1: not NAME=value"):
        config.load(site)
