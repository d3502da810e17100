"""A camera is turned through the API and its page: it always stops, also when who turned it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.dashboard import ptz_api
from appliance.dashboard.deps import NO_PROBES
from appliance.store.users import AccessLog
from appliance.web.server import WebServer
from tests.servers.onvif_camera import OnvifCamera
from tests.support.dashboard_site import Site, running
from tests.support.waiting import holds, until


@pytest.fixture
def camera() -> Iterator[OnvifCamera]:
    made = OnvifCamera(password="geheim")
    with made.running():
        yield made


class Turning:
    """The dashboard of a site whose camera `gate` can be turned, and `dock` cannot."""

    def __init__(self, folder: Path, camera: OnvifCamera) -> None:
        onvif = camera.address.replace("://", "://viewer:geheim@")
        cameras = {"gate": {"url": "rtsp://h/1", "onvif": onvif}, "dock": {"url": "rtsp://h/2"}}
        config = SiteConfig.model_validate({"cameras": cameras, "dashboard": {"port": 0}})
        self.site = Site(folder, SystemClock(), config)
        self.server: WebServer = self.site.serve()
        self.url = ""

    def post(self, status: int = 200, name: str = "gate", **body: Any) -> Any:
        answer = httpx.post(f"{self.url}/api/v1/cameras/{name}/ptz", json=body, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def turning(tmp_path: Path, camera: OnvifCamera) -> Iterator[Turning]:
    made = Turning(tmp_path, camera)
    with running(made.server) as made.url:
        yield made
    made.site.close()


def test_a_movement_ends_by_itself_and_a_later_one_takes_its_place(turning: Turning, camera: OnvifCamera) -> None:
    assert turning.post(action="move", pan=-0.5, seconds=3) == {"turning": True}
    assert turning.post(action="move", pan=-0.5, seconds=10) == {"turning": True}
    holds(lambda: camera.turning, 4, "the first one's end did not end the second")
    turning.post(action="move", tilt=1, seconds=0.3)
    began = time.monotonic()
    until(lambda: not camera.turning, 30)
    assert time.monotonic() - began < ptz_api.CALL_S_MAX, "after its seconds, not with those of a lost answer"
    assert camera.moves == [(-0.5, 0.0, 0.0), (-0.5, 0.0, 0.0), (0.0, 1.0, 0.0)]
    assert camera.calls.count("Stop") == 1
    log = [row.what for row in AccessLog(turning.site.db).newest() if row.about == "gate"]
    assert log == ["turned a camera"], "once a movement"


def test_stop_presets_and_home(turning: Turning, camera: OnvifCamera) -> None:
    found = httpx.get(f"{turning.url}/api/v1/cameras/gate/ptz", timeout=60).json()
    assert found == {
        "presets": [{"token": "1", "name": "Door"}, {"token": "2", "name": "Yard & gate"}],
        "turning": False,
    }
    turning.post(action="move", zoom=1, seconds=10)
    assert camera.turning
    assert turning.post(action="stop") == {"turning": False}
    assert not camera.turning
    turning.post(action="preset", preset="2")
    assert camera.at_preset == "2"
    turning.post(action="home")
    assert camera.at_preset == "home"


@pytest.mark.parametrize("to", [{"action": "preset", "preset": "2"}, {"action": "home"}])
def test_on_its_way_to_a_preset_no_earlier_movement_stops_it(
    turning: Turning, camera: OnvifCamera, to: dict[str, str]
) -> None:
    turning.post(action="move", pan=1, seconds=1)
    assert turning.post(**to) == {"turning": False}
    holds(lambda: "Stop" not in camera.calls, 2, "the movement's stop did not come")


def test_a_preset_that_is_refused_leaves_nothing_turning(turning: Turning, camera: OnvifCamera) -> None:
    turning.post(action="move", pan=1, seconds=1)
    camera.fault, camera.fault_at = "garbage", "GotoPreset"
    turning.post(422, action="preset", preset="2")
    until(lambda: not camera.turning, 30)


def test_a_lost_answer_and_a_refused_stop_leave_nothing_turning(turning: Turning, camera: OnvifCamera) -> None:
    turning.post(action="move", tilt=0.5, seconds=10)
    camera.fault, camera.fault_at = "garbage", "Stop"
    assert "does not answer as an ONVIF camera" in turning.post(422, action="stop")["detail"]
    assert camera.turning
    camera.fault = ""
    until(lambda: not camera.turning, 30)


def test_a_camera_that_turns_is_stopped_where_its_address_changes(turning: Turning, camera: OnvifCamera) -> None:
    turning.post(action="move", pan=1, seconds=10)
    onvif = camera.address.replace("127.0.0.1", "viewer:geheim@localhost")
    moved = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://h/1", "onvif": onvif}}})
    turning.server.configure(moved.for_dashboard(), NO_PROBES)
    assert httpx.get(f"{turning.url}/api/v1/cameras/gate/ptz", timeout=60).json()["turning"] is False
    assert not camera.turning


def test_the_end_of_the_appliance_stops_it_too(tmp_path: Path, camera: OnvifCamera) -> None:
    made = Turning(tmp_path, camera)
    with running(made.server) as made.url:
        made.post(action="move", pan=1, seconds=10)
        assert camera.turning
    assert not camera.turning
    made.site.close()


@pytest.mark.parametrize(
    "body",
    [
        {"action": "move"}, {"action": "move", "pan": 2}, {"action": "move", "pan": 1, "seconds": 11},
        {"action": "move", "pan": 1, "seconds": 0}, {"action": "preset"}, {"action": "spin"}, {"pan": 1},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(turning: Turning, camera: OnvifCamera, body: dict[str, Any]) -> None:
    turning.post(422, **body)
    assert camera.calls == []


def test_a_camera_without_an_address_and_one_that_is_away(turning: Turning, camera: OnvifCamera) -> None:
    assert "no `onvif`" in turning.post(404, name="dock", action="home")["detail"]
    camera.fault, camera.fault_at = "redirect", "GotoHomePosition"
    assert "sent us elsewhere" in turning.post(422, action="home")["detail"]
    page = httpx.get(f"{turning.url}/cameras/gate", timeout=60).text
    assert 'data-ptz="/api/v1/cameras/gate/ptz"' in page
    assert "geheim" not in page
    assert "data-ptz" not in httpx.get(f"{turning.url}/cameras/dock", timeout=60).text


def test_many_who_turn_at_once_are_served_one_after_the_other(turning: Turning, camera: OnvifCamera) -> None:
    works = [
        threading.Thread(target=turning.post, kwargs={"action": "move", "pan": 0.1, "seconds": 0.5}) for _ in range(8)
    ]
    for each in works:
        each.start()
    for each in works:
        each.join(60)
    until(lambda: not camera.turning, 30)
    assert len(camera.moves) == 8
    assert ptz_api.MOVE_S_MAX == 10
