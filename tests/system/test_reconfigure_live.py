"""Settings changed while the appliance runs: real ingest process, real files, nothing restarted that need not be."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import config
from appliance.base.clock import SystemClock
from appliance.base.errors import ConfigError, MissingDependency, UsageError
from appliance.base.threads import ServiceGroup
from appliance.config import DetectorConfig
from appliance.core.app import Appliance, build, recover, start
from appliance.detect.detector_loader import locate
from appliance.media.segment_reader import recover_segment
from appliance.settings.site_editor import SiteFileChanged
from appliance.settings.yaml_edit import SiteChange
from appliance.store.cameras import CameraRow
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from tests.servers.rtsp import FaultyRtspServer
from tests.support.scripted_sources import clip
from tests.support.unmeasured import UNMEASURED
from tests.support.waiting import until


class Running:
    """An appliance in this process, with its settings service."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        made = clip(folder / "c.mp4", 600, fps=10, gop=10)
        self.url = f"file:{made}"
        self.path = folder / "site.yaml"
        site: dict[str, Any] = {
            "storage": {"dir": str(folder / "data"), "segment_s": 1, "disk_free_min_mb": 0},
            "cameras": {"gate": {"url": self.url}},
            "detector": UNMEASURED,
            "dashboard": {"port": 0},
            **sections,
        }
        self.path.write_text("# our site\n" + yaml.safe_dump(site))
        loaded, clock, root = config.load(self.path), SystemClock(), folder / "data"
        root.mkdir()
        self.db = Database(root / DATABASE, clock)
        self.group = ServiceGroup()
        self.appliance: Appliance = build(loaded, root, self.db, clock, self.group, self.path)
        recover(loaded, root, self.appliance.stores, clock, recover_segment)
        start(self.appliance, self.group)
        self.settings = self.appliance.settings
        self.code = 0
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self) -> None:
        self.code = self.group.wait()

    def end(self) -> None:
        self.group.stop()
        self.thread.join(60)
        self.appliance.close(SystemClock())
        self.db.close()

    def change(self, *path: str, to: Any) -> tuple[str, ...]:
        return self.settings.change([SiteChange(path, to)], self.settings.status().digest, "anna", "a test").waiting

    def camera(self, name: str) -> CameraRow | None:
        return next((camera for camera in self.appliance.stores.cameras.all() if camera.name == name), None)

    def is_live(self, name: str) -> bool:
        camera = self.camera(name)
        return camera is not None and camera.state == "live" and camera.run != ""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.end()
    assert made.code == 0, "no service failed"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An appliance that several tests share: each leaves the settings as they were, the last one alone does not."""
    made = Running(tmp_path_factory.mktemp("lasting"))
    yield made
    made.end()
    assert made.code == 0, "no service failed"


def test_what_changes_is_in_force_within_seconds_and_what_does_not_is_not_touched(running: Running) -> None:
    until(lambda: running.is_live("gate"), 40)
    gate = running.camera("gate")
    assert gate is not None
    assert running.change("cameras", "yard", to={"url": running.url}) == ()
    until(lambda: running.is_live("yard"), 40)
    zone = {"zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]}, "url": running.url}
    running.change("cameras", "yard", to=zone | {"rules": [{"name": "r", "kind": "enter", "zone": "all"}]})
    running.change("notify", to={"phone": {"kind": "webhook", "url": "http://127.0.0.1:1/x", "enabled": True}})
    assert running.change("dashboard", "port", to=8099) == ("dashboard.port",)
    until(lambda: running.is_live("yard"), 40)
    after = running.camera("gate")
    assert after is not None
    assert (after.run, after.since_t) == (gate.run, gate.since_t), "its session goes on"
    assert "notifier" in {service.name for service in running.appliance.services}
    assert running.path.read_text().startswith("# our site\n")

    running.change("cameras", "gate", "enabled", to=False)
    assert running.camera("gate") is None
    until(lambda: running.is_live("yard"), 40)
    assert [version.who for version in running.settings.versions.all()][:2] == ["anna", "anna"]


def test_a_camera_on_a_port_of_its_own_is_reached_by_a_new_process_and_the_next_one_there_by_the_same(
    running: Running, tmp_path: Path
) -> None:
    """The ingest process may connect to its cameras' ports alone, for good."""
    until(lambda: running.is_live("gate"), 40)
    before = running.camera("gate")
    assert before is not None
    with FaultyRtspServer.in_thread({"main": tmp_path / "c.mp4"}) as server:
        running.change("cameras", "yard", to={"url": server.url("main")})
        until(lambda: running.is_live("yard") and running.is_live("gate"), 60)
        anew = running.camera("gate")
        assert anew is not None
        assert anew.run != before.run
        running.change("cameras", "dock", to={"url": server.url("main")})
        until(lambda: running.is_live("dock"), 40)
        assert running.camera("gate").run == anew.run  # type: ignore[union-attr]


def test_what_cannot_be_put_in_force_changes_nothing(lasting: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running = lasting
    text = running.path.read_text()
    with pytest.raises(ConfigError, match="must begin with rtsp"):
        running.change("cameras", "gate", "url", to="http://x")

    def refuse(*_: Any) -> None:
        raise MissingDependency("apprise is not installed")

    monkeypatch.setattr("appliance.core.background_services.BackgroundServices._build_notifier", refuse)
    with pytest.raises(MissingDependency):
        running.change("alerts", to={"merge_s": 3})
    assert running.path.read_text() == text
    assert running.appliance.config.alerts.merge_s == 8


def test_a_network_that_does_not_load_is_refused_and_recording_goes_on(running: Running, tmp_path: Path) -> None:
    until(lambda: running.is_live("gate"), 40)
    text = running.path.read_text()
    (tmp_path / "broken.onnx").write_bytes(b"no network at all")
    (tmp_path / "labels.txt").write_text("one-name-of-eighty\n")
    for section, said in (
        (f"detector: {{model: {tmp_path}/broken.onnx}}", "broken.onnx"),
        (f"detector: {{labels: {tmp_path}/labels.txt}}", "name 1 classes"),
    ):
        running.path.write_text(re.sub(r"detector:\n(  .*\n)+", f"{section}\n", text))
        with pytest.raises(UsageError, match=said):
            running.settings.take_edit("anna")
        assert running.settings.running.text == text, "what was in force still is"
    assert running.appliance._lasting.supervisor.starts == 1, "what records was not touched"
    assert running.is_live("gate")


def test_a_network_that_is_lost_later_leaves_the_cameras_recorded(tmp_path: Path) -> None:
    """The detection process is started again, and its network is gone: nothing counts as examined, and it says so."""
    network = tmp_path / "own.onnx"
    shutil.copy(locate(DetectorConfig()).path, network)  # type: ignore[union-attr]
    running = Running(tmp_path, detector={"model": str(network)})
    until(lambda: running.is_live("gate"), 40)
    before = running.camera("gate")
    network.unlink()
    os.kill(running.appliance._lasting.supervisor.status.pid, signal.SIGKILL)
    until(lambda: running.is_live("gate") and running.camera("gate").run != before.run, 60)  # type: ignore[union-attr]
    recorded = len(list((tmp_path / "data" / "segments").rglob("*.mp4")))
    until(lambda: len(list((tmp_path / "data" / "segments").rglob("*.mp4"))) > recorded + 2, 40)
    events = running.appliance.stores.health
    until(lambda: [each for each in events.open() if each.kind == "fallback" and "own.onnx" in each.reason], 20)
    running.end()
    assert running.code == 0


def test_an_edit_by_hand_is_noticed_and_offered_and_can_be_undone(lasting: Running) -> None:
    running = lasting
    text = running.path.read_text()
    assert not running.settings.status().edited
    running.path.write_text(text.replace("port: 0", "port: 0\nalerts: {merge_s: 2}"))
    status = running.settings.status()
    assert status.edited
    assert "+alerts: {merge_s: 2}" in status.diff
    assert running.appliance.config.alerts.merge_s == 8, "it is not taken by itself"
    with pytest.raises(SiteFileChanged):
        running.settings.change([SiteChange(("alerts", "merge_s"), 4)], running.settings.running.digest, "anna", "")
    running.settings.take_edit("anna")
    assert running.appliance.config.alerts.merge_s == 2
    running.path.write_text("cameras: [")
    assert "not valid YAML" in running.settings.status().error
    with pytest.raises(ConfigError):
        running.settings.take_edit("anna")
    running.path.write_text(running.settings.running.text)
    first = running.settings.versions.all()[-1]
    running.settings.restore(first.number, running.settings.status().digest, "anna")
    assert running.path.read_text() == text
    assert running.appliance.config.alerts.merge_s == 8


def test_the_detection_process_is_started_anew_for_other_detector_settings(lasting: Running) -> None:
    running = lasting
    until(lambda: running.is_live("gate"), 40)
    before = running.camera("gate")
    assert before is not None
    running.change("detector", to={**UNMEASURED, "score_min": 0.2})
    until(lambda: running.is_live("gate") and running.camera("gate").run != before.run, 60)  # type: ignore[union-attr]
