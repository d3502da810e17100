"""`/api/v1/settings`: shown without secrets; what is wrong is refused with its key, what is right is in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.errors import UsageError
from appliance.settings.settings_service import SettingsService
from appliance.settings.yaml_edit import SiteChange
from tests.dashboard_site import Site

SITE = """\
site: {name: depot-7}
cameras:
  gate:  # the road
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {yard: [[0, 0], [1, 0], [1, 1]]}
notify:
  phone: {kind: ntfy, url: https://ntfy.sh, topic: t, token: geheim}
"""


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "site.yaml"
        self.path.write_text(SITE)
        self.in_force: list[SiteConfig] = []
        (folder / "data").mkdir()
        self.site = Site(folder / "data", ManualClock(1_700_000_000.0))
        service = SettingsService(self.path, folder, self.site.clock, self._take)
        app = create_app(
            db=self.site.db, meter=self.site.meter, root=self.site.root, config=self.site.config,
            clock=self.site.clock, settings=service,
        )  # fmt: skip
        self.http = TestClient(app, base_url="http://127.0.0.1")

    def _take(self, config: SiteConfig) -> tuple[str, ...]:
        self.in_force.append(config)
        return ("dashboard.port",) if config.dashboard.port != 8080 else ()

    @property
    def base(self) -> str:
        return str(self.http.get("/api/v1/settings").json()["digest"])

    def post(self, path: str, *changes: dict[str, Any], status: int = 200, **more: Any) -> Any:
        body = {"base": self.base, **({"changes": list(changes)} if changes else {}), **more}
        answer = self.http.post(f"/api/v1/settings{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def settings(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_the_file_is_shown_without_secrets(settings: Fixture) -> None:
    answer = settings.http.get("/api/v1/settings")
    assert answer.json()["site"]["cameras"]["gate"]["zones"] == {"yard": [[0, 0], [1, 0], [1, 1]]}
    assert answer.json()["site"]["notify"]["phone"]["token"] == "***"
    assert "hunter2" not in answer.text
    assert "geheim" not in answer.text


def test_a_change_is_checked_then_written_and_in_force(settings: Fixture) -> None:
    change = {"path": ["cameras", "gate", "zones", "door"], "value": [[0, 0], [0.5, 0], [0.5, 1]]}
    assert "+    zones: {yard:" in settings.post("/check", change)["diff"]
    assert settings.in_force == []
    report = settings.post("", change, why="the door")
    assert set(report["site"]["cameras"]["gate"]["zones"]) == {"yard", "door"}
    assert set(settings.in_force[0].cameras["gate"].zones) == {"yard", "door"}
    assert "gate:  # the road" in settings.path.read_text()
    assert settings.post("", {"path": ["dashboard"], "value": {"port": 81}})["waiting"] == ["dashboard.port"]
    removed = settings.post("", {"path": ["cameras", "gate", "zones", "door"], "remove": True})
    assert set(removed["site"]["cameras"]["gate"]["zones"]) == {"yard"}


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"path": ["cameras", "gate", "detect"], "value": {"fps": -1}}, "cameras.gate.detect.fps"),
        ({"path": ["cameras", "gate", "url"], "value": "rtsp://viewer:***@192.168.1.20/main"}, "is no value"),
        ({"path": ["cameras", "gate", "zons"], "value": {}}, "did you mean `zones`?"),
        ({"path": ["cameras"], "remove": True}, "cameras"),
        ({"path": ["cameras", "gate", "url", "x"], "value": 1}, "edit the file by hand"),
    ],
)
def test_what_would_not_be_a_right_site_file_is_refused_with_its_key(
    settings: Fixture, change: dict[str, Any], detail: str
) -> None:
    assert detail in settings.post("", change, status=422)["detail"]
    assert settings.path.read_text() == SITE
    assert settings.in_force == []


def test_a_change_for_another_text_is_refused(settings: Fixture) -> None:
    base = settings.base
    settings.path.write_text(SITE + "alerts: {merge_s: 3}\n")
    change = {"path": ["site", "name"], "value": "x"}
    answer = settings.http.post("/api/v1/settings", json={"base": base, "changes": [change]})
    assert answer.status_code == 409
    report = settings.http.get("/api/v1/settings").json()
    assert (report["edited"], "+alerts: {merge_s: 3}" in report["diff"]) == (True, True)
    assert settings.http.post("/api/v1/settings/take-edit", json={}).json()["edited"] is False
    assert settings.in_force[-1].alerts.merge_s == 3


def test_what_is_just_being_put_in_force_is_no_edit_by_hand(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    seen: list[bool] = []

    def put_in_force(config: SiteConfig) -> tuple[str, ...]:
        seen.append(service.status().edited)
        if config.site.name == "refused":
            raise UsageError("no")
        return ()

    service = SettingsService(tmp_path / "site.yaml", tmp_path, ManualClock(0.0), put_in_force)
    service.change([SiteChange(("site", "name"), "other")], service.status().digest, "anna", "")
    with pytest.raises(UsageError):
        service.change([SiteChange(("site", "name"), "refused")], service.status().digest, "anna", "")
    assert (seen, service.status().edited) == ([False, False], False)
    (tmp_path / "site.yaml").write_text(SITE.replace("depot-7", "refused"))
    assert service.status().edited


def test_versions_are_listed_shown_and_restored(settings: Fixture) -> None:
    settings.post("", {"path": ["site", "name"], "value": "other"}, why="renamed")
    listed = settings.http.get("/api/v1/settings/versions").json()["versions"]
    assert [(each["number"], each["why"]) for each in listed] == [(2, "renamed"), (1, "as the appliance was started")]
    assert "+site: {name: depot-7}" in settings.http.get("/api/v1/settings/versions/1").json()["diff"]
    settings.post("/versions/1/restore")
    assert settings.path.read_text() == SITE
    assert settings.http.get("/api/v1/settings/versions/9").status_code == 404


def test_changed_rules_are_tried_on_stored_boxes(settings: Fixture) -> None:
    site = settings.site
    t0 = site.clock.now() - 60
    site.live("gate", t0)
    site.record("gate", t0)
    rule = {"name": "all", "kind": "enter", "zone": "right"}
    gate = {"zones": {"right": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]}, "rules": [rule], "url": "rtsp://h/1"}
    change = {"path": ["cameras", "gate"], "value": gate}
    trial = settings.post("/try", change, camera="gate", hours=1)
    assert (trial["now"]["count"], trial["then"]["count"]) == (1, 1)
    assert trial["frames"] == 40
    assert trial["then"]["alerts"][0]["rules"] == ["all"]
    assert settings.in_force == []
    assert "no camera x" in settings.post("/try", change, camera="x", status=404)["detail"]


def test_without_a_site_file_there_is_nothing_to_change(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(1_700_000_000.0))
    app = create_app(db=site.db, meter=site.meter, root=site.root, config=site.config, clock=site.clock)
    answer = TestClient(app, base_url="http://127.0.0.1").get("/api/v1/settings")
    assert (answer.status_code, "without a site file" in answer.json()["detail"]) == (404, True)
