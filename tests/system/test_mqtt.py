"""Home automation hears of a site through a real broker: entities, zones, alerts, stills, outages, privacy."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from appliance.base.backoff import Backoff
from appliance.base.clock import SystemClock, local_weekday_minute
from appliance.base.errors import StoreUnavailable
from appliance.config import MqttConfig, SiteConfig
from appliance.evidence.privacy import PrivacyRules
from appliance.mqtt import publisher as publisher_module
from appliance.mqtt.broker_session import BrokerSession, check_mqtt
from appliance.mqtt.publisher import MqttDeps, MqttPublisher
from appliance.rules.arming import Arming
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.arming import ArmingStore
from appliance.store.audit import AuditStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.erasure import SpanEraser
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.reviews import ReviewStore
from appliance.store.users import AccessLog
from appliance.types import AlertChange, CameraState, HealthEvent, StreamHeader
from tests.servers.mosquitto import Listener, Mosquitto, find_mosquitto
from tests.support.sample_rows import alert, event, opened, sample_frame
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto here: deploy/get-mosquitto.sh brings it")
CAMERA: dict[str, Any] = {
    "url": "file:x.mp4",
    "zones": {"z": [[0, 0], [0.8, 0], [0.8, 1], [0, 1]], "far corner": [[0.9, 0], [1, 0], [1, 0.1]]},
    "rules": [
        {"name": "intruder", "kind": "enter", "zone": "z", "labels": ["person", "car"]},
        {"name": "corner", "kind": "enter", "zone": "far corner"},
    ],
}
PERSON, CAR = "vedette/depot/camera/yard/zone/z/person", "vedette/depot/camera/yard/zone/z/car"
STILL = "vedette/depot/camera/yard/last_alert/still"
JPEG = b"\xff\xd8 a still \xff\xd9"


class PublishingSite:
    """A site's store, and the publisher in its thread, as the appliance runs it."""

    def __init__(self, folder: Path, mqtt: dict[str, Any], **camera: Any) -> None:
        self.root, self.clock = folder, SystemClock()
        self.db = Database(folder / "vedette.db", self.clock)
        self.alerts, self.boxes, self.cameras = AlertStore(self.db), BoxStore(self.db), CameraStore(self.db)
        self.health, self.meter = HealthEventStore(self.db), Meter(self.db, "run")
        self.config = SiteConfig.model_validate(
            {"site": {"name": "depot"}, "cameras": {"yard": {**CAMERA, **camera}}, "mqtt": mqtt,
             "dashboard": {"public_url": "https://cams.example"},
             "arming": {"profiles": {"home": {"cameras": []}}}}
        )  # fmt: skip
        self.arming = Arming(
            self.config.arming, self.config.cameras, ArmingStore(self.db), self.clock, local_weekday_minute
        )
        self.cameras.ensure({"yard": "file:x.mp4"})
        self.cameras.write_header(StreamHeader(camera="yard", clip="", model="m", size=(640, 480), run="r1"))
        self.cameras.write_state(CameraState(camera="yard", t=self.clock.now(), state="live", reason=""))
        self.failures: list[BaseException] = []
        self._seq = 0
        self._thread: threading.Thread | None = None
        assert self.config.mqtt is not None
        self.publisher = MqttPublisher(
            self.config.mqtt, self.config.site.name, self.config.cameras, self.config.dashboard.public_url, self._deps()
        )

    def start(self) -> PublishingSite:
        self._thread = threading.Thread(target=self._run, name="mqtt")
        self._thread.start()
        return self

    def close(self) -> None:
        self.publisher.stop()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
        self.db.close()
        assert not self.failures, self.failures

    def see(self, *, person: bool) -> None:
        """Examined frames of the last second."""
        for _ in range(3):
            self._seq += 1
            box = (0.25, 0.25, 0.5, 0.75) if person else None
            self.boxes.append("yard", "r1", [sample_frame(self.clock.now(), seq=self._seq, box=box)])

    def raise_alert(self, name: str) -> None:
        self.alerts.apply(opened(name, t=self.clock.now()), escalation=None, priority="")

    def still(self, name: str, image: bytes = JPEG) -> None:
        path = f"evidence/{name}/still.jpg"
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(image)
        digest = sha256(image).hexdigest()
        EvidenceStore(self.db).put(EvidenceRow(alert=name, kind="still", state="ready", path=path, sha256=digest))

    def egress(self) -> dict[str, int]:
        return {total.kind: total.amount for total in self.meter.totals("all")}

    def _deps(self) -> MqttDeps:
        return MqttDeps(
            db=self.db, root=self.root, alerts=self.alerts, boxes=self.boxes, cameras=self.cameras,
            health=self.health, privacy=PrivacyRules(self.config.site, self.config.cameras, local_weekday_minute),
            arming=self.arming, log=AccessLog(self.db), meter=self.meter, clock=self.clock,
            warning=lambda: "", detector_load=lambda: 0.25,
        )  # fmt: skip

    def _run(self) -> None:
        try:
            self.publisher.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failures.append(error)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "broker").start()
    yield made
    made.kill()


@pytest.fixture
def home(broker: Mosquitto) -> Iterator[Listener]:
    made = Listener(broker)
    yield made
    made.close()


@pytest.fixture
def site(tmp_path: Path, broker: Mosquitto) -> Iterator[Callable[..., PublishingSite]]:
    made: list[PublishingSite] = []

    def make(*, camera: dict[str, Any] | None = None, **mqtt: Any) -> PublishingSite:
        folder = tmp_path / f"site{len(made)}"
        folder.mkdir()
        made.append(PublishingSite(folder, {"url": broker.url, "local": True, **mqtt}, **(camera or {})).start())
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_site_is_found_by_home_assistant(site: Callable[..., PublishingSite], home: Listener) -> None:
    site()
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    configs = {topic: json.loads(body) for topic, body in home.kept.items() if topic.startswith("homeassistant/")}
    found = {
        topic.split("/")[1] + " " + body["device"]["name"] + ": " + body["name"] for topic, body in configs.items()
    }
    assert found == {
        "binary_sensor yard: z person", "binary_sensor yard: z car", "binary_sensor yard: far corner person",
        "binary_sensor yard: Problem", "sensor yard: Last alert", "sensor Vedette depot: Alerts to review",
        "sensor Vedette depot: Cameras live", "sensor Vedette depot: Detector load",
        "binary_sensor Vedette depot: Problem",
    }  # fmt: skip
    assert len({body["unique_id"] for body in configs.values()}) == len(configs)
    assert {body["availability_topic"] for body in configs.values()} == {"vedette/depot/status"}
    states = {body["state_topic"] for body in configs.values() if body["name"] != "Last alert"}
    until(lambda: states <= set(home.kept), what="every entity has a state, but for an alert that never was")
    assert json.loads(home.kept["vedette/depot/system"]) == {
        "alerts_to_review": 0, "cameras": 1, "cameras_live": 1, "detector_load": 25, "problem": "OFF", "reasons": [],
    }  # fmt: skip


def test_a_zone_is_occupied_while_a_person_is_in_it(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard = site()
    until(lambda: home.kept.get(PERSON) == b"None", what="unknown before the first frame")
    yard.see(person=False)
    until(lambda: home.kept[PERSON] == b"OFF", what="looked, and nobody there")
    until(lambda: bool(yard.see(person=True)) or home.kept[PERSON] == b"ON", every_s=0.3)
    assert home.kept[CAR] == b"OFF"
    until(lambda: bool(yard.see(person=False)) or home.kept[PERSON] == b"OFF", every_s=0.3)
    yard.cameras.write_state(CameraState(camera="yard", t=yard.clock.now(), state="lost", reason="no answer"))
    until(lambda: home.kept[PERSON] == b"None", what="nobody looks any more")


def test_a_fault_of_a_camera_is_told_with_its_reason(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard, topic = site(), "vedette/depot/camera/yard/problem"
    until(lambda: topic in home.kept and json.loads(home.kept[topic])["state"] == "OFF")
    now = yard.clock.now()
    yard.health.put(HealthEvent(camera="yard", id="h1", kind="moved", t=now, t_start=now, reason="it was turned"))
    until(lambda: json.loads(home.kept[topic])["state"] == "ON")
    assert json.loads(home.kept[topic])["reasons"] == ["it was turned"]


def test_alerts_are_events_and_the_last_one_stays(
    site: Callable[..., PublishingSite], broker: Mosquitto, home: Listener
) -> None:
    yard = site(pictures=True)
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    yard.raise_alert("a1")
    until(lambda: "vedette/depot/alerts" in home.kept)
    told = json.loads(home.kept["vedette/depot/alerts"])
    assert told["alert"] == "a1"
    assert told["update"] is False
    assert told["summary"] == "person: intruder"
    assert told["zones"] == ["z"]
    assert told["link"] == "https://cams.example/alerts/a1"
    yard.still("a1")
    until(lambda: home.kept.get(STILL) == JPEG)
    yard.still("a1", JPEG + b" of a better view")
    until(lambda: home.kept.get(STILL) == JPEG + b" of a better view")
    ReviewStore(yard.db).review(["a1"], "false_alarm", yard.clock.now())
    until(lambda: json.loads(home.kept["vedette/depot/alerts"])["update"] is True)
    late = Listener(broker)  # who comes later hears of the last alert, and of no old event
    until(lambda: STILL in late.kept and "vedette/depot/camera/yard/last_alert" in late.kept)
    assert json.loads(late.kept["vedette/depot/camera/yard/last_alert"])["review"] == "false_alarm"
    assert "vedette/depot/alerts" not in late.kept
    late.close()


def test_an_alert_raised_before_the_first_look_is_told(tmp_path: Path, broker: Mosquitto, home: Listener) -> None:
    yard = PublishingSite(tmp_path, {"url": broker.url, "local": True})
    yard.raise_alert("a1")  # the publisher's thread has not run yet
    yard.start()
    until(lambda: [topic for topic, _, _ in home.heard if topic.endswith("/alerts")])
    assert [json.loads(body)["update"] for topic, body, _ in home.heard if topic.endswith("/alerts")] == [False]
    yard.close()


@pytest.mark.parametrize("age_s", [30 * 86400, 0])
def test_a_change_of_an_alert_of_before_is_no_new_alert(
    tmp_path: Path, broker: Mosquitto, home: Listener, age_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its evidence goes by its age, or a person reviews it: automations must not take it for an intruder."""
    with contextlib.closing(PublishingSite(tmp_path, {"url": broker.url, "local": True})) as yard:
        for name in ("a1", "a2"):
            yard.raise_alert(name)
        yard.db.execute("UPDATE alert SET created_t = created_t - ?", (age_s,))
        if age_s:
            monkeypatch.setattr(publisher_module, "KNOWN_AT_START", 1)  # of more than are remembered
        yard.publisher._alerts_rev = yard.db.rev()  # the appliance has started again since
        yard.start()
        until(lambda: home.kept.get("vedette/depot/status") == b"online")
        ReviewStore(yard.db).review(["a1"], "reviewed", yard.clock.now())
        until(lambda: "vedette/depot/alerts" in home.kept)
        told = json.loads(home.kept["vedette/depot/alerts"])
        assert (told["alert"], told["review"], told["update"]) == ("a1", "reviewed", True)


def test_a_broker_that_was_away_is_told_all_anew(
    site: Callable[..., PublishingSite], broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "ALERTS_QUEUED_MAX", 3)
    broker.kill()
    yard = site()
    for n in range(5):
        yard.raise_alert(f"a{n}")
    until(lambda: yard.publisher.status.dropped == 2, what="the oldest are dropped, and counted")
    assert "refused" in yard.publisher.status.error
    broker.start()
    home = Listener(broker)
    until(lambda: [json.loads(body)["alert"] for topic, body, _ in home.heard if topic.endswith("/alerts")]
          == ["a2", "a3", "a4"])  # fmt: skip
    home.close()
    broker.kill()
    until(lambda: not yard.publisher.status.connected)
    broker.start()  # it kept nothing
    home = Listener(broker)
    until(lambda: home.kept.get("vedette/depot/status") == b"online" and PERSON in home.kept)
    home.close()


def test_who_vanishes_or_stops_is_offline(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard = site()
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    connection = yard.publisher._session._client.socket()
    assert connection is not None
    connection.shutdown(2)  # as a cut: the broker speaks for us
    until(lambda: (b"offline") in [body for topic, body, _ in home.heard if topic == "vedette/depot/status"])
    until(lambda: home.kept["vedette/depot/status"] == b"online", what="and back")
    yard.publisher.stop()
    until(lambda: home.kept["vedette/depot/status"] == b"offline")


def test_what_was_kept_of_an_entity_that_is_no_more_is_cleared(
    site: Callable[..., PublishingSite], home: Listener
) -> None:
    gone = "homeassistant/binary_sensor/vedette_depot/old-zone/config"
    others = "homeassistant/binary_sensor/vedette_elsewhere/x/config"
    old = "vedette/depot/camera/removed/last_alert"
    for topic in (gone, others, old, f"{old}/still", STILL):
        home.publish(topic, b"{}" if "still" not in topic else b"x" * 100_000, retain=True)
    site()
    until(lambda: [home.kept[each] for each in (gone, old, f"{old}/still", STILL)] == [b""] * 4)
    assert home.kept[others] == b"{}"


def test_a_still_outlives_the_connection(site: Callable[..., PublishingSite], home: Listener) -> None:
    """A short one comes back to us with all that the broker kept; it is no more stale than a long one."""
    yard = site(pictures=True)
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    yard.raise_alert("a1")
    yard.still("a1")
    until(lambda: home.kept.get(STILL) == JPEG)
    connection = yard.publisher._session._client.socket()
    assert connection is not None
    connection.shutdown(2)
    until(lambda: [body for topic, body, _ in home.heard if topic == STILL][1:], what="the still is sent anew")
    yard.raise_alert("a2")  # published after whatever the connection brought
    until(lambda: "a2" in [json.loads(body)["alert"] for topic, body, _ in home.heard if topic.endswith("/alerts")])
    assert home.kept[STILL] == JPEG


def test_of_an_erased_alert_nothing_is_kept_at_the_broker(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard, last = site(pictures=True, local=False), "vedette/depot/camera/yard/last_alert"
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    yard.raise_alert("a1")
    yard.still("a1")
    until(lambda: home.kept.get(STILL) == JPEG and bool(home.kept.get(last)))
    now = yard.clock.now()
    yard.alerts.apply(AlertChange("ended", alert("a1", t=now, t_end=now)), escalation=None, priority="")
    yard.db.execute("UPDATE evidence SET state = 'missing' WHERE state = 'waiting'")
    receipt = SpanEraser(yard.db, yard.root).erase("yard", now - 60, now + 60, "anna", ())
    assert receipt.alerts == ("a1",)
    until(lambda: (home.kept[STILL], home.kept[last]) == (b"", b""))
    yard.raise_alert("a2")
    yard.still("a2")
    until(lambda: home.kept[STILL] == JPEG and bool(home.kept[last]), what="the next one is kept again")
    assert [body for topic, body, _ in home.heard if topic == STILL] == [JPEG, b"", JPEG]
    assert yard.publisher.status.dropped == 0


def test_a_still_that_is_gone_is_dropped_once(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard = site(pictures=True)
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    yard.raise_alert("a1")
    yard.still("a1")
    until(lambda: home.kept.get(STILL) == JPEG)
    (yard.root / "evidence/a1/still.jpg").unlink()
    for _ in range(2):
        connection, before = yard.publisher._session._client.socket(), len(home.heard)
        assert connection is not None
        connection.shutdown(2)
        until(lambda before=before: PERSON in [topic for topic, _, _ in home.heard[before:]], what="all is sent anew")
        until(lambda: yard.publisher.status.dropped >= 1 and home.kept[STILL] == b"")
    assert yard.publisher.status.dropped == 1


def test_a_broker_off_the_site_hears_nothing_that_privacy_forbids(
    site: Callable[..., PublishingSite], home: Listener
) -> None:
    yard = site(local=False, pictures=True, camera={"privacy": {"never": [{"zones": ["z"]}]}})
    until(lambda: home.kept.get(PERSON) == b"None")
    yard.see(person=True)
    yard.see(person=True)
    yard.raise_alert("a1")
    yard.still("a1")
    corner = replace(event(yard.clock.now(), rule="corner", name="e2"), zone="far corner", box=(0.9, 0.0, 1.0, 0.05))
    change = AlertChange("opened", alert("a2", t=yard.clock.now()), corner)
    yard.alerts.apply(change, escalation=None, priority="")
    until(lambda: "vedette/depot/alerts" in home.kept, what="of what stands elsewhere it hears")
    told = [json.loads(body)["alert"] for topic, body, _ in home.heard if topic == "vedette/depot/alerts"]
    assert told == ["a2"]
    assert home.kept[PERSON] == b"None"
    assert not home.kept.get(STILL)


@pytest.mark.parametrize(("local", "counted"), [(False, 1), (True, 2)])
def test_a_broker_off_the_site_counts_only_alerts_of_cameras_it_knows(
    site: Callable[..., PublishingSite], home: Listener, monkeypatch: pytest.MonkeyPatch, local: bool, counted: int
) -> None:
    monkeypatch.setattr(publisher_module, "SYSTEM_EVERY_S", 0.0)
    yard = site(local=local)
    yard.raise_alert("a1")
    t = yard.clock.now()
    hidden = AlertChange("opened", alert("a2", t=t, camera="cellar"), event(t, name="e2", camera="cellar"))
    yard.alerts.apply(hidden, escalation=None, priority="")
    yard.raise_alert("a3")
    until(lambda: "a3" in [json.loads(body)["alert"] for topic, body, _ in home.heard if topic.endswith("/alerts")])
    until(lambda: json.loads(home.kept["vedette/depot/system"])["alerts_to_review"] == counted + 1)


@pytest.mark.parametrize("forbids", [{"image_free": True}, {"privacy": {"blur": "people"}}], ids=["image free", "blur"])
def test_a_still_leaves_only_where_whole_images_may(
    site: Callable[..., PublishingSite], home: Listener, forbids: dict[str, Any]
) -> None:
    yard = site(local=False, pictures=True, camera=forbids)
    yard.raise_alert("a1")
    yard.still("a1")
    until(lambda: "vedette/depot/camera/yard/last_alert" in home.kept)
    until(lambda: json.loads(home.kept["vedette/depot/camera/yard/last_alert"])["alert"] == "a1")
    assert not home.kept.get(STILL)
    assert not [topic for topic in home.kept if topic.startswith("homeassistant/image/")]


def test_what_leaves_is_counted_and_audited(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard = site(local=False, pictures=True)
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    yard.raise_alert("a1")
    yard.still("a1")
    until(lambda: home.kept.get(STILL) == JPEG)
    yard.publisher.stop()
    until(lambda: home.kept["vedette/depot/status"] == b"offline")
    until(lambda: len([row for row in AuditStore(yard.db).page() if row.camera == "yard"]) >= 3)
    rows = AuditStore(yard.db).page()
    assert {row.bytes for row in rows if row.kind == "frame"} == {len(JPEG)}
    assert [row.why.split("; ")[1] for row in rows if "alert a1" in row.why]
    payload = sum(len(body) for topic, body, _ in home.heard)
    assert yard.egress()["uplink_bytes_mqtt"] == yard.egress()["uplink_bytes"] > payload
    assert "notice_local_bytes" not in yard.egress()


def test_a_local_broker_is_no_egress(site: Callable[..., PublishingSite], home: Listener) -> None:
    yard = site()
    yard.raise_alert("a1")
    until(lambda: "vedette/depot/alerts" in home.kept or "vedette/depot/camera/yard/last_alert" in home.kept)
    yard.publisher.stop()
    until(lambda: home.kept["vedette/depot/status"] == b"offline")
    assert AuditStore(yard.db).page() == []
    assert "uplink_bytes" not in yard.egress()
    assert yard.egress()["notice_local_bytes"] > 500


def test_a_wrong_password_is_told_in_words(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker", users={"vedette": "sesame-1"}).start()
    for password, connected in (("wrong", False), ("sesame-1", True)):
        folder = tmp_path / password
        folder.mkdir()
        mqtt = {"url": broker.url, "user": "vedette", "password": password, "local": True}
        yard = PublishingSite(folder, mqtt).start()
        until(lambda yard=yard: yard.publisher.status.connected or yard.publisher.status.error)
        assert yard.publisher.status.connected is connected
        assert connected or "check `user`, `password`" in yard.publisher.status.error
        assert "sesame" not in repr(yard.config.mqtt)
        yard.close()
    broker.kill()


def test_home_automation_arms_the_site_only_where_it_may(site: Callable[..., PublishingSite], home: Listener) -> None:
    switch, command = "vedette/depot/armed", "vedette/depot/armed/set"
    yard = site(commands=True)
    until(lambda: home.kept.get(switch) == b"ON")
    assert json.loads(home.kept["homeassistant/switch/vedette_depot/armed/config"])["command_topic"] == command
    home.publish(json.loads(home.kept["homeassistant/switch/vedette_depot/armed/config"])["command_topic"], b"OFF")
    until(lambda: home.kept[switch] == b"OFF", what="the switch says what is so")
    assert [row.profile for row in ArmingStore(yard.db).rows] == ["disarmed"], "a restart does not arm it"
    home.publish(command, b"off, please")
    home.publish(command, b"x" * 100_000)
    until(lambda: yard.publisher.status.dropped >= 1, what="what is no command is refused, and counted")
    home.publish(command, b"ON")
    until(lambda: home.kept[switch] == b"ON")
    home.publish(command, b"OFF", retain=True)
    yard.publisher.stop()
    until(lambda: home.kept["vedette/depot/status"] == b"offline")


def test_home_automation_chooses_a_profile_and_pauses_a_camera(
    site: Callable[..., PublishingSite], home: Listener
) -> None:
    topic, camera = "vedette/depot/profile", "vedette/depot/camera/yard/reports"
    yard = site(commands=True)
    until(lambda: topic in home.kept and json.loads(home.kept[topic])["profile"] == "armed")
    select = json.loads(home.kept["homeassistant/select/vedette_depot/profile/config"])
    assert (select["options"], select["command_topic"]) == (["armed", "home", "disarmed"], f"{topic}/set")
    home.publish(select["command_topic"], b"home")
    until(lambda: json.loads(home.kept[topic])["profile"] == "home")
    assert home.kept["vedette/depot/armed"] == b"OFF", "no camera reports at home"
    home.publish(f"{topic}/set", b"party")
    until(lambda: yard.publisher.status.dropped == 1, what="a profile that is none is refused")
    reports = json.loads(home.kept["homeassistant/switch/vedette_depot/yard-reports/config"])
    assert reports["state_topic"] == camera
    home.publish(reports["command_topic"], b"OFF")
    until(lambda: json.loads(home.kept[camera])["state"] == "OFF", what="the switch that was announced pauses it")
    assert yard.arming.off_rules("yard") == {"intruder", "corner"}
    (row,) = yard.arming.pauses.paused()
    assert row.until_t is not None
    assert 3500 < row.until_t - yard.clock.now() <= 3600
    home.publish(f"{camera}/set", b"ON")
    until(lambda: json.loads(home.kept[camera])["state"] == "ON")
    assert [(row.who, row.what) for row in AccessLog(yard.db).newest()] == [
        ("MQTT", "ended the pause of yard"), ("MQTT", "paused yard"), ("MQTT", "chose the profile home"),
    ]  # fmt: skip


def test_a_command_that_the_log_refuses_is_logged_later_and_the_next_one_is_obeyed(
    site: Callable[..., PublishingSite], home: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write, refuses = [], AccessLog.write, [True]

    def refused(log: AccessLog, who: str, address: str, what: str) -> None:
        if refuses:
            raise StoreUnavailable("the disk is full")
        written.append(what)
        write(log, who, address, what)

    monkeypatch.setattr(AccessLog, "write", refused)
    yard = site(commands=True)
    until(lambda: home.kept.get("vedette/depot/armed") == b"ON")
    for body, profile in ((b"OFF", "disarmed"), (b"ON", "armed")):
        home.publish("vedette/depot/armed/set", body)
        until(lambda profile=profile: yard.arming.profile == profile)
    refuses.clear()
    until(lambda: len(written) == 2)
    assert written == ["disarmed the site", "armed the site"]


@pytest.mark.parametrize("commands", [True, False])
def test_neither_an_old_command_nor_an_unwanted_one_is_obeyed(
    site: Callable[..., PublishingSite], home: Listener, commands: bool
) -> None:
    command = "vedette/depot/armed/set"
    home.publish(command, b"OFF", retain=True)
    yard = site(commands=commands)
    until(lambda: home.kept.get("vedette/depot/armed") == b"ON")
    if not commands:
        home.publish(command, b"OFF")
        home.publish("vedette/depot/profile/set", b"home")
        home.publish("vedette/depot/camera/yard/reports/set", b"OFF")
    yard.raise_alert("a1")
    until(lambda: "vedette/depot/camera/yard/last_alert" in home.kept, what="a pass later")
    assert yard.arming.profile == "armed"
    assert yard.arming.pauses.paused() == ()
    assert ("homeassistant/switch/vedette_depot/armed/config" in home.kept) is commands


def test_a_broker_that_sends_nonsense_harms_nothing(tmp_path: Path) -> None:
    """Whatever its answer is: the publisher says so, and tries again later."""
    answers = [b"\x00" * 64, b"\x20\xff\xff\xff\xff\x7f", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x03\x00\x00\x09",
               b"\x20\x03\x00\x00\x00\x30\x02\xff\xff", b"\x20\x02\x00\x84", b"",
               b"\x20\x03\x00\x00\x00\x30\x05\x00\x02\xff\xfe\x00"]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        mqtt = {"url": f"mqtt://127.0.0.1:{server.getsockname()[1]}", "local": True}
        yard = PublishingSite(tmp_path, mqtt)
        yard.publisher._session._backoff = Backoff(0.01, 0.02)
        yard.start()
        for answer in answers:
            server.settimeout(60)
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)
                connection.settimeout(0.3)
                with contextlib.suppress(OSError):
                    while connection.recv(1000):
                        pass
        until(lambda: yard.publisher.status.error)
        assert not yard.failures
        yard.close()


def test_check_says_whether_the_broker_lets_us_in(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    mqtt = MqttConfig(url=broker.url, user="x", password="y")
    found = {each.about: (each.level, each.text) for each in check_mqtt(mqtt, contact=True)}
    assert found["mqtt"] == ("ok", f"127.0.0.1:{broker.port} lets us in")
    assert found["mqtt.url"][0] == "warning"
    broker.kill()
    (gone,) = check_mqtt(MqttConfig(url=broker.url, local=True), contact=True)
    assert (gone.level, "refused" in gone.text) == ("unreachable", True)
    found = {
        each.about: each.level
        for each in check_mqtt(MqttConfig(url=broker.url, local=True, commands=True), contact=False)
    }
    assert found == {"mqtt.commands": "warning"}
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    (lacking,) = check_mqtt(mqtt.model_copy(update={"local": True}), contact=True)
    assert lacking.level == "wrong"
    assert "pip install 'vedette[mqtt]'" in lacking.text


def make_certificate(folder: Path) -> None:
    """Write key.pem and cert.pem, for 127.0.0.1."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not there")
def test_a_certificate_that_is_gone_by_now_ends_nothing(tmp_path: Path) -> None:
    """A broker that speaks no MQTT makes the session begin anew; as wrong use that ended the core for good."""
    make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            with context.wrap_socket(listening.accept()[0], server_side=True) as one:
                one.recv(1000)
                one.sendall(b"\x20\xff\xff\xff\x7f" + b"x" * 1000)
                one.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        config = MqttConfig(url=f"mqtts://127.0.0.1:{port}", tls_ca=tmp_path / "cert.pem")
        session = BrokerSession(config, "t", None, SystemClock(), lambda message: None, lambda amount: None)
        (tmp_path / "cert.pem").unlink()
        until(lambda: session.run_once(0.05) and "not MQTT" in session.error)
        session.close()
        thread.join(20)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not there")
def test_over_tls_only_a_broker_that_is_vouched_for_is_believed(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    broker = Mosquitto(tmp_path / "broker", extra=f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem").start()
    url = broker.url.replace("mqtt:", "mqtts:")
    (stranger,) = check_mqtt(MqttConfig(url=url), contact=True)
    assert (stranger.level, "set `tls_ca`" in stranger.text) == ("unreachable", True)
    (folder := tmp_path / "site").mkdir()
    yard = PublishingSite(folder, {"url": url, "tls_ca": str(tmp_path / "cert.pem")}).start()
    home = Listener(broker, tls_ca=tmp_path / "cert.pem")
    until(lambda: home.kept.get("vedette/depot/status") == b"online")
    until(lambda: yard.egress().get("uplink_bytes", 0) > 1000, what="counted under TLS as well")
    home.close()
    yard.close()
    broker.kill()
    key = MqttConfig(url=url, tls_ca=tmp_path / "key.pem")
    (no_certificate,) = check_mqtt(key, contact=True)
    assert (no_certificate.level, "mqtt.tls_ca" in no_certificate.text) == ("wrong", True)
