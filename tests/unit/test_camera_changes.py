"""A camera is changed, renamed, removed and copied in the browser; names for people are any text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig, id_of
from appliance.config.site_file import read_secrets
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import NO_PROBES
from appliance.dashboard.settings_api import SettingsPart
from appliance.dashboard.setup_probe_api import TryCamera, tried
from appliance.settings.settings_service import SettingsService
from appliance.types import CameraState
from appliance.types.accounts import name_problem
from appliance.web.problems import Problem
from tests.support.dashboard_site import Site

SITE = """\
site: {name: depot-7}
cameras:
  gate:
    url: rtsp://viewer:${GATE_PASSWORD:-hunter2}@192.168.1.20/main
    zones: {yard: [[0, 0], [1, 0], [1, 1]]}
    rules: [{name: intruder, kind: enter, zone: yard}]
  dock: {url: rtsp://192.168.1.21/main, zones: {old: [[0, 0], [1, 0], [1, 1]]}}
notify:
  phone: {kind: ntfy, url: https://ntfy.sh, topic: t, cameras: [gate]}
arming: {profiles: {home: {cameras: [gate, dock]}}}
"""


class Box:
    """A dashboard with a site file, whose changes are in force at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "site.yaml"
        self.path.write_text(SITE)
        (folder / "data").mkdir()
        self.site = Site(folder / "data", ManualClock(1_700_000_000.0))
        self.service = SettingsService(self.path, folder, self.site.clock, self._take)
        config = self.service.running.config
        self.app = create_app(self.site.stored, config.for_dashboard(), settings=self.service)
        self.http = TestClient(self.app, base_url="http://127.0.0.1")
        self._take(config)

    def _take(self, config: SiteConfig) -> tuple[str, ...]:
        if hasattr(self, "http"):
            self.site.cameras.configure({name: each.url for name, each in config.cameras.items() if each.enabled})
            self.app.state.configure(config.for_dashboard(), NO_PROBES)
        return ()

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.http.post(f"/api/v1{path}", json={"base": self.service.running.digest, **body})
        assert answer.status_code == status, answer.text
        return answer.json()

    def page(self, path: str, status: int = 200) -> str:
        answer = self.http.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == status, answer.text
        return answer.text

    @property
    def cameras(self) -> Any:
        return self.service.running.config.cameras


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.site.close()


def test_a_new_password_is_one_form_away_and_the_rest_stays(box: Box) -> None:
    assert "/cameras/gate/settings" in box.page("/cameras/gate")
    page = box.page("/cameras/gate/settings")
    assert 'value="rtsp://192.168.1.20/main"' in page
    assert "hunter2" not in page
    streams = {"url": "rtsp://192.168.1.20/main", "user": "viewer", "password": "new word"}
    box.post("/setup/cameras/gate", **streams)
    assert box.cameras["gate"].url == "rtsp://viewer:new%20word@192.168.1.20/main"
    assert read_secrets(box.path)["CAMERA_GATE_PASSWORD"] == "new%20word"
    assert "new%20word" not in box.path.read_text()
    assert [rule.name for rule in box.cameras["gate"].rules] == ["intruder"]


def test_two_ids_that_differ_in_a_sign_alone_keep_a_login_each(box: Box) -> None:
    for name, word in (("a-b", "one"), ("a_b", "two"), ("a-b-2", "three")):
        streams = {"url": "rtsp://192.168.1.30/main", "user": "viewer", "password": word}
        box.post("/setup/cameras", 201, name=name, **streams)
    box.post("/setup/cameras/a-b", url="rtsp://192.168.1.30/main", user="viewer", password="first")
    words = {name: camera.url.partition("viewer:")[2].partition("@")[0] for name, camera in box.cameras.items()}
    assert words == words | {"a-b": "first", "a_b": "two", "a-b-2": "three"}
    assert read_secrets(box.path)["CAMERA_A_B_PASSWORD"] == "first"


@pytest.mark.parametrize("fallback", [True, False])
def test_the_page_shows_what_the_file_says_of_a_camera_s_fallback_and_takes_it_back(
    box: Box, *, fallback: bool
) -> None:
    path = ["cameras", "gate", "decode", "fallback"]
    box.post("/settings", changes=[{"path": path, "value": fallback}])
    shown = box.page("/cameras/gate/settings").partition('<select id="cameras-gate-decode-fallback"')[2]
    assert f'<option value="{str(fallback).lower()}" selected>' in shown.partition("</select>")[0]
    box.post("/settings", changes=[{"path": path, "remove": True}])
    assert box.cameras["gate"].decode.fallback is None


def test_another_camera_takes_its_place_with_the_same_zones(box: Box) -> None:
    box.post("/setup/cameras/gate", url="rtsp://192.168.1.77/live", detect_url="rtsp://192.168.1.77/sub")
    assert (box.cameras["gate"].url, box.cameras["gate"].detect_url) == (
        "rtsp://192.168.1.77/live", "rtsp://192.168.1.77/sub",
    )  # fmt: skip
    assert list(box.cameras["gate"].zones) == ["yard"]
    box.site.live("gate", 1_700_000_000.0)
    assert "its second stream" in box.page("/cameras/gate")  # whose size is shown, not the recording's


def test_what_stays_is_not_written_anew(box: Box) -> None:
    before = box.path.read_text()
    box.post("/setup/cameras/gate", url="rtsp://192.168.1.20/main", user="viewer")
    assert box.path.read_text() == before


def test_the_stored_password_is_tried_where_it_belongs_and_sent_nowhere_else(box: Box) -> None:
    part = SettingsPart(box.service)
    here = TryCamera(url="rtsp://192.168.1.20/other", user="viewer", camera="gate")
    assert tried(part, here).whole() == "rtsp://viewer:hunter2@192.168.1.20/other"
    for other in ({"url": "rtsp://evil.example/x"}, {"url": here.url, "detect_url": "rtsp://evil.example/x"}):
        with pytest.raises(Problem, match="type the password, too"):
            tried(part, TryCamera(user="viewer", camera="gate", **other))
    assert "hunter2" not in tried(part, TryCamera(url="rtsp://evil.example/x", camera="gate")).whole()


def test_a_camera_is_renamed_with_any_text_and_keeps_its_id(box: Box) -> None:
    box.post("/setup/cameras/gate", title="Café Straßenecke")
    assert box.cameras["gate"].title == "Café Straßenecke"
    for page in ("/cameras", "/cameras/gate", "/cameras/gate/edit", "/settings"):
        assert "Café Straßenecke" in box.page(page), page
    box.post("/setup/cameras/gate", title="gate")
    assert "title" not in box.path.read_text()


def test_every_page_shows_names_for_people(box: Box) -> None:
    box.post("/setup/cameras/gate", title="Café Straßenecke")
    change = {"path": ["cameras", "gate", "rules"], "value": [
        {"name": "intruder", "title": "Jemand am Tor", "kind": "enter", "zone": "yard"},
    ]}  # fmt: skip
    box.post("/settings", changes=[change, {"path": ["site", "title"], "value": "Süd & Nord"}])
    box.site.live("gate", 1_700_000_000.0)
    box.site.record("gate", 1_699_999_990.0)
    box.site.raise_alert("a1", 1_699_999_992.0, camera="gate")
    for page in ("/", "/live", "/timeline", "/cameras", "/storage", "/savings", "/alerts/a1",
                 "/cameras/gate/why", "/cameras/gate/trials", "/cameras/gate/timeline"):  # fmt: skip
        text = box.page(page)
        assert "Café Straßenecke" in text, page
        assert "Süd &amp; Nord" in text, page
    for page in ("/", "/cameras/gate", "/alerts/a1"):
        assert "Jemand am Tor" in box.page(page), page


def test_a_refused_page_has_the_name_that_the_site_has_now(box: Box) -> None:
    assert "depot-7" in box.page("/nothing", 404)
    box.post("/settings", changes=[{"path": ["site", "title"], "value": "Front yard"}])
    assert "Front yard" in box.page("/nothing", 404)


def test_where_a_camera_is_lost_the_form_is_one_link_away_and_no_key_is_named(box: Box) -> None:
    reason = "camera gate: 192.168.1.20:554 refused the password (401); check user and password in cameras.gate.url"
    box.site.cameras.write_state(CameraState(camera="gate", state="lost", t=1_700_000_000.0, reason=reason))
    for page in ("/cameras", "/cameras/gate"):
        text = box.page(page)
        assert "/cameras/gate/settings#password" in text, page
        assert "check user and password" in text, page
        assert "cameras.gate.url" not in text, page


def test_recording_sound_and_watching_are_switched(box: Box) -> None:
    box.post("/setup/cameras/gate", record="pre_roll", audio=True, enabled=False)
    gate = box.cameras["gate"]
    assert (gate.record, gate.audio, gate.enabled) == ("pre_roll", True, False)
    page = box.page("/cameras")
    assert "Switched off" in page
    assert "/cameras/gate/settings" in page  # whence it is switched on again
    box.post("/setup/cameras/gate")
    assert "enabled" not in box.path.read_text()


def test_a_camera_goes_with_what_names_it_and_with_its_recordings_if_wanted(box: Box) -> None:
    row = box.site.record("gate", 1_699_990_000.0)
    file = box.site.root / row.path
    box.post("/setup/cameras/gate/remove", 422)
    done = box.post("/setup/cameras/gate/remove", recordings="delete")
    assert done["deleted_bytes"] == row.bytes
    assert not file.exists()
    assert set(box.cameras) == {"dock"}
    assert done["changed"] == ["arming.profiles.home", "notify.phone"]
    config = box.service.running.config
    assert not config.notify["phone"].enabled  # without a camera it would be told of all
    assert config.arming.profiles["home"].cameras == ("dock",)


def test_the_rules_that_only_it_has_go_with_it(box: Box) -> None:
    rules = [{"name": name, "kind": "enter", "zone": "old"} for name in ("intruder", "loiterer")]
    both = {"cameras": ["gate", "dock"], "rules": ["intruder", "loiterer"]}
    box.post("/settings", changes=[
        {"path": ["cameras", "dock", "rules"], "value": rules},
        {"path": ["notify", "phone", "rules"], "value": ["loiterer"]},
        {"path": ["notify", "phone", "cameras"], "value": ["gate"]},
        {"path": ["arming", "profiles", "home"], "value": both},
    ])  # fmt: skip
    done = box.post("/setup/cameras/dock/remove", recordings="keep")
    assert done["changed"] == ["arming.profiles.home", "notify.phone"]
    config = box.service.running.config
    assert (config.notify["phone"].rules, config.notify["phone"].enabled) == ((), False)
    assert (config.arming.profiles["home"].cameras, config.arming.profiles["home"].rules) == (("gate",), ("intruder",))


def test_its_recordings_stay_if_wanted(box: Box) -> None:
    row = box.site.record("dock", 1_699_990_000.0)
    assert box.post("/setup/cameras/dock/remove", recordings="keep")["deleted_bytes"] == 0
    assert (box.site.root / row.path).exists()


def test_zones_and_rules_are_copied(box: Box) -> None:
    box.post("/setup/cameras/gate/copy", to="dock")
    assert list(box.cameras["dock"].zones) == ["yard"]
    assert [rule.name for rule in box.cameras["dock"].rules] == ["intruder"]
    assert box.cameras["dock"].url == "rtsp://192.168.1.21/main"
    box.post("/setup/cameras/gate/copy", 422, to="gate")
    box.post("/setup/cameras/gate/copy", 404, to="none")


@pytest.mark.parametrize("privacy", [{"mask": ["yard"]}, {"never": [{"zones": ["yard"]}]}])
def test_a_copy_moves_no_zone_that_privacy_names(box: Box, privacy: dict[str, Any]) -> None:
    own = {"yard": [[0, 0], [0.5, 0], [0.5, 0.5]]}
    changes = [{"path": ["cameras", "dock", "zones"], "value": own},
               {"path": ["cameras", "dock", "privacy"], "value": privacy}]  # fmt: skip
    box.post("/settings", changes=changes)
    assert "zone yard" in box.post("/setup/cameras/gate/copy", 422, to="dock")["detail"]
    assert box.cameras["dock"].zones["yard"][1] == (0.5, 0)
    same = [{**changes[0], "value": {"yard": [[0, 0], [1, 0], [1, 1]]}}]
    box.post("/settings", changes=same)
    box.post("/setup/cameras/gate/copy", to="dock")
    assert [rule.name for rule in box.cameras["dock"].rules] == ["intruder"]


def test_a_stale_form_is_refused(box: Box) -> None:
    stale = box.service.running.digest
    box.post("/setup/cameras/gate", title="One")
    box.post("/setup/cameras/gate", 409, title="Two", base=stale)


def test_a_camera_is_added_by_its_name_for_people(box: Box) -> None:
    new = {"url": "rtsp://192.168.1.30/main", "title": "Front yard"}
    assert box.post("/setup/cameras", 201, **new)["camera"] == "front-yard"
    assert box.post("/setup/cameras", 201, **new)["camera"] == "front-yard-2"
    assert box.cameras["front-yard"].title == "Front yard"
    assert box.post("/setup/cameras", 201, url=new["url"], title="new")["camera"] == "new-2"  # /cameras/new is a page


def test_a_secret_of_a_form_is_kept_beside_the_file(box: Box) -> None:
    changes = [
        {"path": ["mqtt", "url"], "value": "mqtt://192.168.1.10:1883"}, {"path": ["mqtt", "user"], "value": "box"},
        {"path": ["mqtt", "password"], "value": "quiet words"},
    ]  # fmt: skip
    box.post("/settings", changes=changes)
    assert "quiet words" not in box.path.read_text()
    mqtt = box.service.running.config.mqtt
    assert mqtt is not None
    assert mqtt.password is not None
    assert mqtt.password.get_secret_value() == "quiet words"
    assert "quiet words" not in box.page("/settings/mqtt")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Café Straßenecke", "cafe-strassenecke"),
        ("An der Tür", "an-der-tuer"),
        ("玄関", "camera"),
        ("x" * 60, "x" * 32),
    ],
)
def test_an_id_is_made_of_a_name(title: str, name: str) -> None:
    assert id_of(title) == name
    assert id_of(title, {name}) != name


@pytest.mark.parametrize("name", ["Anna Müller", "o'neill", "jean-luc", "anna@example.org", "张伟"])
def test_people_are_called_what_they_are_called(name: str) -> None:
    assert not name_problem(name)


@pytest.mark.parametrize("name", ["", " anna", "anna ", "a  b", "token alarm", "Token x", "a/b", "a\nb", "x" * 65])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert name_problem(name)
