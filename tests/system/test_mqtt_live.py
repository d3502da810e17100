"""The appliance as a person runs it, with camera and broker: zones turn on and off, and a disarmed site is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.mosquitto import Listener, Mosquitto, find_mosquitto
from tests.servers.red_camera import alerts, red_appliance, red_clip
from tests.servers.rtsp import FaultyRtspServer
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto here: deploy/get-mosquitto.sh brings it"),
]
ZONE = "vedette/site/camera/gate/zone/yard/person"


def test_from_a_camera_to_home_automation_and_back(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker").start()
    home = Listener(broker)
    film = red_clip(tmp_path / "film.mp4")
    with FaultyRtspServer.in_thread({"gate": film}) as cameras:
        box = red_appliance(tmp_path, cameras.url("gate"), "nats://127.0.0.1:9")
        box.config.write_text(
            f"{box.config.read_text()}\nmqtt: {{url: '{broker.url}', local: true, pictures: true, commands: true}}\n"
        )
        with box as running:
            until(lambda: home.kept.get(ZONE) == b"ON", 60, "somebody is there")
            until(lambda: home.kept[ZONE] == b"OFF", 60, "and gone")
            until(lambda: home.kept.get("vedette/site/camera/gate/last_alert/still", b"")[:2] == b"\xff\xd8", 60)
            assert json.loads(home.kept["vedette/site/alerts"])["rules"] == ["intruder"]
            home.publish("vedette/site/armed/set", b"OFF")
            until(lambda: home.kept["vedette/site/armed"] == b"OFF", 30)
            running.kill()
            running.start()
            before = len(alerts(running))
            until(lambda: home.kept["vedette/site/status"] == b"online", 60)
            home.kept.pop(ZONE)
            until(lambda: home.kept.get(ZONE) == b"ON", 60, "zones go on while it is disarmed, also after a kill")
            until(lambda: home.kept[ZONE] == b"OFF", 60)
            assert len(alerts(running)) == before
            assert "vedette_mqtt_up 1.0" in running.page("/metrics")
            home.publish("vedette/site/armed/set", b"ON")
            until(lambda: len(alerts(running)) > before, 60, "armed")
    home.close()
    broker.kill()
