"""A camera that names `${NAME}` in its address: no variable of the box reaches it, however the address got here."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.config.site_file import secrets_path
from appliance.dashboard.app import create_app
from appliance.ingest.camera_probe import ProbeFailed, probe_camera
from appliance.settings.settings_service import SettingsService
from tests.servers.onvif_camera import OnvifCamera, Stream
from tests.support.dashboard_site import Site

TOKEN, PASSWORD = "box-token-7f3a9c", "gate-password-51d2"
BAIT = "x-${VEDETTE_TOKEN:-none}-${CAMERA_GATE_PASSWORD:-none}"


class ListeningCamera(socketserver.ThreadingTCPServer):
    """Reads the first request of whoever connects by RTSP."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Read)
        self.heard: list[bytes] = []
        self.port = int(self.server_address[1])

    @property
    def secrets(self) -> list[bytes]:
        """What it was told of the box."""
        return [each for each in self.heard if TOKEN.encode() in each or PASSWORD.encode() in each]


class _Read(socketserver.BaseRequestHandler):
    server: ListeningCamera

    def handle(self) -> None:
        self.server.heard.append(self.request.recv(4096))


class Box:
    """A dashboard with a token in its environment, and the password of another camera beside its site file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "site.yaml"
        self.file.write_text("cameras:\n  gate: {url: 'rtsp://v:${CAMERA_GATE_PASSWORD}@127.0.0.1:1/1'}\n")
        secrets_path(self.file).write_text(f"CAMERA_GATE_PASSWORD={PASSWORD}\n")
        (folder / "data").mkdir()
        self.in_force: list[SiteConfig] = []
        site = Site(folder / "data", SystemClock())
        service = SettingsService(self.file, folder, site.clock, self._take)
        app = create_app(site.stored, site.config.for_dashboard(), settings=service)
        self.http = TestClient(app, base_url="http://127.0.0.1")

    def _take(self, config: SiteConfig) -> tuple[str, ...]:
        self.in_force.append(config)
        return ()

    def add(self, **streams: str) -> Any:
        base = self.http.get("/api/v1/settings").json()["digest"]
        return self.http.post("/api/v1/setup/cameras", json={"base": base, "name": "new-one", **streams})

    def open_cameras(self) -> None:
        """As the detection process does with what is in force."""
        for camera in (each for site in self.in_force[-1:] for each in site.cameras.values()):
            for url in (camera.url, camera.detect_url):
                if url is not None:
                    with pytest.raises(ProbeFailed):
                        probe_camera(url)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("VEDETTE_TOKEN", TOKEN)
    return Box(tmp_path)


@pytest.fixture
def camera() -> Iterator[ListeningCamera]:
    with ListeningCamera() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("key", ["url", "detect_url", "onvif"])
@pytest.mark.parametrize("written", [BAIT, BAIT.replace("${", "$\t{")], ids=["plain", "with a tab that is dropped"])
def test_a_typed_address_that_names_a_variable_is_refused(
    box: Box, camera: ListeningCamera, key: str, written: str
) -> None:
    scheme = "http" if key == "onvif" else "rtsp"
    good = f"rtsp://127.0.0.1:{camera.port}/main"
    answer = box.add(**{"url": good, key: f"{scheme}://127.0.0.1:{camera.port}/{written}?a={written}"})
    box.open_cameras()
    assert camera.secrets == []
    assert answer.status_code == 422, answer.text
    assert "${" in answer.json()["detail"]
    assert box.in_force == []


@pytest.mark.parametrize("media2", [True, False])
def test_a_stream_that_names_a_variable_is_not_offered(box: Box, camera: ListeningCamera, media2: bool) -> None:
    streams = (Stream("good", "main", (1920, 1080)), Stream("bad", f"a/{BAIT}?q={BAIT}", (640, 360)))
    with OnvifCamera(rtsp_port=camera.port, streams=streams, media2=media2).running() as onvif:
        login = {"user": onvif.user, "password": onvif.password}
        report = box.http.post("/api/v1/setup/onvif", json={"address": onvif.address, **login}).json()
    worst = report["streams"][-1]["url"]
    answer = box.add(url=worst, detect_url=worst)
    box.open_cameras()
    assert camera.secrets == []
    assert answer.status_code == 201, answer.text
    assert [each["token"] for each in report["streams"]] == ["good"]
    assert "braces" in str(report["notes"])
    assert b"main" in b"".join(camera.heard), "the camera was asked for the stream that is left"
