"""`/api/v1/settings`: shown without secrets; what is wrong is refused with its key, what is right is in force."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import UsageError
from appliance.base.local_files import DiskWriteError
from appliance.config import SiteConfig
from appliance.config.site_file import read_secrets
from appliance.dashboard.app import create_app
from appliance.settings import settings_service
from appliance.settings.settings_service import SettingsService
from appliance.settings.site_editor import FILE_KEYS, replace_text
from appliance.settings.yaml_edit import SiteChange
from appliance.store.reviews import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow
from tests.support.dashboard_site import Site

ROOT = Path(__file__).parents[2]
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
        self.service = SettingsService(self.path, folder, self.site.clock, self._take)
        app = create_app(self.site.stored, self.site.config.for_dashboard(), settings=self.service)
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


SECRET = "of-the-environment-9c1"


@pytest.mark.parametrize("written", ["${PLANTED}", "x${PLANTED}y", "${PLANTED:-none}", "${NOT_SET_AT_ALL:-none}"])
def test_a_change_brings_in_no_variable(settings: Fixture, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """Its value would go to a camera, a target or into the answer."""
    monkeypatch.setenv("PLANTED", SECRET)
    rule = [{"name": "r", "kind": "enter", "zone": written, "ask": written}]
    for at in (
        ["site", "name"], ["cameras", "gate", "url"], ["cameras", "gate", "onvif"], ["cameras", "gate", "rules"],
        ["notify", "phone", "topic"], ["notify", "phone", "token"], ["cameras", "gate", "detect_url"],
    ):  # fmt: skip
        change = {"path": at, "value": rule if at[-1] == "rules" else written}
        for path, more in (("", {}), ("/check", {}), ("/try", {"camera": "gate"})):
            detail = settings.post(path, change, status=422, **more)["detail"]
            assert ".".join(at) in detail
            assert "by hand" in detail
            assert SECRET not in detail
    assert settings.path.read_text() == SITE
    assert settings.in_force == []


def test_a_variable_stays_where_a_person_wrote_it(settings: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", SECRET)
    settings.path.write_text(SITE.replace("hunter2", "${PLANTED}"))
    settings.http.post("/api/v1/settings/take-edit", json={})
    moved = "rtsp://viewer:${PLANTED}@192.168.1.21/main"
    settings.post("", {"path": ["cameras", "gate", "url"], "value": moved})
    assert settings.in_force[-1].cameras["gate"].url == f"rtsp://viewer:{SECRET}@192.168.1.21/main"
    other = {"path": ["cameras", "gate", "detect_url"], "value": moved}
    assert "cameras.gate.detect_url: ${PLANTED}" in settings.post("", other, status=422)["detail"]
    settings.post("/versions/1/restore")


@pytest.mark.parametrize(
    ("written", "value"),
    [("${PLANTED}", SECRET), ("x-${PLANTED}", "pin7"), ("${PLANTED:-other}", "MiXeD-Case-Secret")],
)
def test_what_is_wrong_in_an_edit_by_hand_is_said_without_values(
    settings: Fixture, monkeypatch: pytest.MonkeyPatch, written: str, value: str
) -> None:
    monkeypatch.setenv("PLANTED", value)
    rule = f"    rules: [{{name: r, kind: enter, zone: '{written}'}}]\n"
    settings.path.write_text(SITE.replace("notify:", f"{rule}mqtt: {{url: '{written}'}}\nnotify:"))
    report = settings.http.get("/api/v1/settings")
    assert f"there is no zone `{written}`" in report.json()["error"]
    answer = settings.http.post("/api/v1/settings/take-edit", json={})
    for text in (report.text, answer.text, settings.http.get("/settings").text):
        assert value.lower() not in text.lower()


FILE_ONLY: list[tuple[str, Any]] = [
    ("decode.ffmpeg", "/tmp/evil"), ("detector.hailo.python", "/tmp/evil"), ("detector.labels", "/proc/self/environ"),
    ("detector.model", "/etc/doesnotexist.onnx"), ("detector.model", "other.onnx"), ("second_look.model", "/x.onnx"),
    ("storage.dir", "/tmp"), ("storage.preroll_dir", "/tmp"), ("sensors.root", "/tmp"),
    ("uplink", {"url": "nats://h:4222", "credentials": "/etc/shadow"}), ("uplink", {"url": "nats://h", "nkey": "/x"}),
    ("uplink", {"url": "tls://h", "tls_ca": "/x"}), ("uplink", {"url": "tls://h", "tls_cert": "/x"}),
    ("mqtt", {"url": "mqtts://h", "tls_ca": "/x"}), ("notify.phone.tls_ca", "/etc/passwd"),
    ("dashboard", {"certificate": "/x", "certificate_key": "/y"}), ("decode", {"ffmpeg": "/tmp/evil"}),
]  # fmt: skip


def test_programs_folders_keys_and_files_stay_in_the_site_file(settings: Fixture) -> None:
    for key, value in FILE_ONLY:
        change = {"path": key.split("."), "value": value}
        for path in ("/check", ""):
            detail = settings.post(path, change, status=422)["detail"]
            assert key in detail
            assert "by hand" in detail
    assert settings.path.read_text() == SITE
    assert settings.in_force == []


def test_keys_of_the_file_are_shown_with_the_reason(settings: Fixture) -> None:
    settings.path.write_text(SITE + "decode: {ffmpeg: /opt/ffmpeg}\nstorage: {dir: '${HOME}/v'}\n")
    report = settings.http.post("/api/v1/settings/take-edit", json={}).json()
    shown = {each["key"]: (each["value"], each["names"]) for each in report["file_keys"]}
    assert shown["decode.ffmpeg"] == ("/opt/ffmpeg", "a program that the appliance runs")
    assert shown["storage.dir"] == ("${HOME}/v", "a folder of the appliance")
    assert shown["detector.model"][0] == "auto"
    page = settings.http.get("/settings", headers={"Accept-Language": "de"}).text
    assert "<code>decode.ffmpeg: /opt/ffmpeg</code>" in page
    assert "ein Programm, das das Gerät ausführt" in page
    settings.post("", {"path": ["site", "name"], "value": "other"})
    assert settings.in_force[-1].decode.ffmpeg == Path("/opt/ffmpeg"), "what a person wrote stays in force"
    assert "decode.ffmpeg" in settings.post("/versions/1/restore", status=422)["detail"]


def test_installed_networks_can_be_chosen(settings: Fixture) -> None:
    for key, value in (("model", "vedette-nano"), ("model", "auto"), ("labels", "coco-80"), ("labels", None)):
        settings.post("", {"path": ["detector", key], "value": value})
    settings.post("", {"path": ["second_look"], "value": {"model": "vedette-nano"}})
    settings.post("", {"path": ["second_look"], "remove": True})
    assert settings.in_force[-1].detector.model == "auto"


def test_the_keys_of_the_file_are_few_and_documented() -> None:
    page = (ROOT / "docs/dashboard.md").read_text()
    listed = page.split("**Only in the site file**")[1].split("**Variables.**")[0]
    keys = [key.strip("`") for key in re.findall(r"`[*.\w]+`", listed)]
    assert len(FILE_KEYS) <= 12
    assert set(FILE_KEYS) <= set(keys)
    assert not [key for key in FILE_KEYS if key not in _paragraph("SECURITY.md", "**May not** name a program")]


def _paragraph(file: str, words: str) -> str:
    """The one of a document that holds these words."""
    (found,) = [each for each in (ROOT / file).read_text().split("\n\n") if words in each]
    return found


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


@pytest.mark.parametrize("added", ["alerts: {merge_s: 3}\n", "alerts: {merge_s: 3\n", "invented: 1\n"])
def test_a_change_does_not_bring_an_edit_by_hand_into_force(settings: Fixture, added: str) -> None:
    settings.path.write_text(SITE + added)
    change = {"path": ["site", "name"], "value": "x"}
    for path, more in (("", {}), ("/check", {}), ("/try", {"camera": "gate"})):
        assert "changed by hand" in settings.post(path, change, status=422, **more)["detail"]
    assert (settings.path.read_text(), settings.in_force) == (SITE + added, [])
    settings.post("/versions/1/restore")
    assert settings.path.read_text() == SITE


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


def test_on_a_full_disk_a_change_is_refused_whole_and_an_edited_file_still_starts(
    settings: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site file lies on another disk than the versions, or a few bytes are left for it."""

    def full(path: Path, text: str) -> None:
        if path.parent.name == settings_service.FOLDER:
            raise DiskWriteError(f"{path.name} cannot be written: No space left on device")
        replace_text(path, text)

    monkeypatch.setattr(settings_service, "replace_text", full)
    settings.post("", {"path": ["site", "name"], "value": "other"}, status=507)
    assert (settings.path.read_text(), settings.in_force) == (SITE, [])
    settings.path.write_text(SITE.replace("depot-7", "edited"))
    folder = settings.path.parent
    assert SettingsService(settings.path, folder, settings.site.clock, lambda config: ()).running.config.site.name == (
        "edited"
    )


def test_a_secret_of_a_form_gets_a_name_that_no_other_key_uses(settings: Fixture) -> None:
    """A key that a person had written with the same variable got the new password, too."""
    settings.path.write_text(SITE.replace("token: geheim", 'token: "${MQTT_PASSWORD}"'))
    settings.path.with_suffix(".secrets").write_text("MQTT_PASSWORD=old\n")
    settings.post("/take-edit")
    settings.post("", {"path": ["mqtt"], "value": {"url": "mqtt://10.0.0.5:1883", "user": "box"}})
    for password in ("new", "newer"):  # the second time the name is its own
        settings.post("", {"path": ["mqtt", "password"], "value": password})
        assert read_secrets(settings.path) == {"MQTT_PASSWORD": "old", "MQTT_2_PASSWORD": password}
    assert re.findall(r"\$\{\w+\}", settings.path.read_text()) == ["${MQTT_PASSWORD}", "${MQTT_2_PASSWORD}"]


def test_a_folder_of_versions_that_cannot_be_made_refuses_a_change_and_no_start(settings: Fixture) -> None:
    folder = settings.path.parent / settings_service.FOLDER
    shutil.rmtree(folder)
    folder.write_text("stands where the folder would")
    answer = settings.post("", {"path": ["site", "name"], "value": "other"}, status=507)
    assert "site-versions cannot be made: File exists" in answer["detail"]
    assert (settings.path.read_text(), settings.in_force) == (SITE, [])
    SettingsService(settings.path, settings.path.parent, settings.site.clock, lambda config: ())


def test_a_refused_change_leaves_no_version_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)

    def refuse(config: SiteConfig) -> tuple[str, ...]:
        raise UsageError("the model cannot be loaded")

    service = SettingsService(tmp_path / "site.yaml", tmp_path, ManualClock(0.0), refuse)
    with pytest.raises(UsageError):
        service.change(
            [SiteChange(("cameras", "gate", "url"), "rtsp://a:${CAMERA}@10.0.0.1/")],
            service.status().digest, "anna", "", {"CAMERA": "new"},
        )  # fmt: skip
    assert len(service.versions.all()) == 1
    assert read_secrets(tmp_path / "site.yaml") == {}


def test_secrets_of_a_version_whose_file_has_another_name_are_known_too(settings: Fixture) -> None:
    (kept,) = (settings.path.parent / settings_service.FOLDER).iterdir()
    kept.rename(kept.with_name("a copy.json"))
    assert "hunter2" not in settings.service.scrubber().scrub("the password is hunter2")


def test_versions_are_listed_shown_and_restored(settings: Fixture) -> None:
    settings.post("", {"path": ["site", "name"], "value": "other"}, why="renamed")
    listed = settings.http.get("/api/v1/settings/versions").json()["versions"]
    assert [(each["number"], each["why"]) for each in listed] == [(2, "renamed"), (1, "as the appliance was started")]
    assert "+site: {name: depot-7}" in settings.http.get("/api/v1/settings/versions/1").json()["diff"]
    compared = settings.http.get("/api/v1/settings/versions/2?against=1").json()["diff"]
    assert "-site: {name: depot-7}" in compared
    settings.post("/versions/1/restore")
    assert settings.path.read_text() == SITE
    for path in ("9", "1?against=9"):
        assert settings.http.get(f"/api/v1/settings/versions/{path}").status_code == 404


def test_a_change_says_what_it_deletes_and_takes_before_it_is_made(settings: Fixture) -> None:
    site, now = settings.site, settings.site.clock.now()
    for hours in (2, 20):
        row = SegmentRow(
            camera="gate", path=f"segments/gate/{hours}.mp4", t_start=now - hours * 3600,
            t_end=now - (hours - 1) * 3600,
            bytes=10**9, frames=1, codec="h264", size=(320, 240), complete=True,
        )  # fmt: skip
        SegmentStore(site.db).put(row)
    change = {"path": ["storage", "keep_hours"], "value": 10}
    cost = settings.post("/check", change)["cost"]
    assert cost[0] == "1.00 GB of recording is then too old and is deleted at once."
    assert (
        cost[1] == "At today's rate the recording then takes 10.0 GB instead of 24.0 GB; all together may take 50.0 GB."
    )
    more = settings.post("/check", {"path": ["storage", "keep_hours"], "value": 72})["cost"]
    assert more[-1] == "That is more than there may be: the oldest recording goes before its time."
    assert settings.post("/check", {"path": ["site", "name"], "value": "x"})["cost"] == []
    faster = settings.post("/check", {"path": ["cameras", "gate", "detect", "fps"], "value": 10})["cost"]
    assert faster == ["While something moves everywhere, the detector looks 10 times a second instead of 5 times."]


def test_a_recording_that_begins_or_ends_says_what_room_it_takes(settings: Fixture) -> None:
    """The hours for which it is kept stay the same; what is recorded does not."""
    site, now = settings.site, settings.site.clock.now()
    mode = ["cameras", "gate", "record"]
    settings.post("", {"path": mode, "value": "pre_roll"})
    unknown = "How much room the recording then takes is not yet known: that needs an hour of video."
    assert settings.post("/check", {"path": mode, "value": "continuous"})["cost"] == [unknown]
    row = SegmentRow(
        camera="gate", path="segments/gate/2.mp4", t_start=now - 7200, t_end=now - 3600,
        bytes=10**9, frames=1, codec="h264", size=(320, 240), complete=True,
    )  # fmt: skip
    SegmentStore(site.db).put(row)
    text = "At today's rate the recording then takes {} instead of {}; all together may take 50.0 GB."
    cost = settings.post("/check", {"path": mode, "value": "continuous"})["cost"]
    assert cost == [text.format("24.0 GB", "0 B")]
    back = settings.http.get("/api/v1/settings/versions/1").json()["cost"]
    assert back == [text.format("24.0 GB", "0 B")], "the first version records continuously"
    settings.post("", {"path": mode, "value": "continuous"})
    assert settings.post("/check", {"path": mode, "value": "pre_roll"})["cost"] == [text.format("0 B", "24.0 GB")]


def test_the_consent_of_a_camera_says_how_many_pictures_it_is_about(settings: Fixture) -> None:
    site, t = settings.site, settings.site.clock.now() - 600
    for number in range(4):
        site.raise_alert(f"alert-{number}", t + 60 * number, seconds=None if number == 3 else 3.0)
        ReviewStore(site.db).review([f"alert-{number}"], "reviewed" if number else "false_alarm", site.clock.now())
    ReviewStore(site.db).review(["alert-1"], None, site.clock.now())
    change = {"path": ["cameras", "gate", "training"], "value": True}
    (said,) = settings.post("/check", change)["cost"]
    assert said == "2 answered alerts of gate, with up to 12 pictures, may then train a network."


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
    app = create_app(site.stored, site.config.for_dashboard())
    answer = TestClient(app, base_url="http://127.0.0.1").get("/api/v1/settings")
    assert (answer.status_code, "without a site file" in answer.json()["detail"]) == (404, True)
