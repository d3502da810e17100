"""Adding a camera: a real RTSP camera is tried in a process of its own, its password is kept beside the site file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from streams import clip

from appliance import config
from appliance.clock import ManualClock
from appliance.config import SiteConfig
from appliance.config.secrets_file import secrets_path
from appliance.dashboard.app import create_app
from appliance.demo.rtsp_server import RtspServer, RtspServerThread
from appliance.errors import ConfigError
from appliance.ingest.probe_process import ProbeFailed, probe_camera
from appliance.settings.settings_service import SettingsService
from appliance.site_check import _secrets
from tests.dashboard_site import Site

PASSWORD = "p@ss:w/ord"  # as people choose them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    film = clip(tmp_path_factory.mktemp("film") / "c.mp4", 300, fps=10, gop=10)
    with RtspServer.in_thread({"main": film, "sub": film}, user="viewer", password=PASSWORD) as running:
        yield running


class Setup:
    def __init__(self, folder: Path, port: int) -> None:
        self.file = folder / "site.yaml"
        self.file.write_text("cameras:\n  gate: {url: 'rtsp://h/1'}  # first\n")
        (folder / "data").mkdir()
        self.port = port
        self.in_force: list[SiteConfig] = []
        site = Site(folder / "data", ManualClock(1_700_000_000.0))
        service = SettingsService(self.file, folder, site.clock, self._take)
        app = create_app(
            db=site.db, meter=site.meter, root=site.root, config=site.config, clock=site.clock, settings=service
        )
        self.http = TestClient(app, base_url="http://127.0.0.1")

    def _take(self, config: SiteConfig) -> tuple[str, ...]:
        self.in_force.append(config)
        return ()

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
