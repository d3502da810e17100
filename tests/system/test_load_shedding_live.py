"""A real appliance whose sensors are files gets hot: fewer detections a second, told, and all of it again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import yaml

from appliance.base.clock import SystemClock
from appliance.base.threads import ServiceGroup
from appliance.config import SiteConfig
from appliance.core import app
from appliance.core.app import build, recover, start
from appliance.media.segment_reader import recover_segment
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from tests.support.scripted_sources import clip
from tests.support.sensor_files import heat
from tests.support.waiting import until


@pytest.mark.slow  # rates are of five seconds, three times
def test_a_hot_box_does_less_says_so_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "READ_EVERY_S", 0.2)
    root, host, clock = tmp_path / "data", tmp_path / "host", SystemClock()
    root.mkdir()
    heat(host, 50)
    made = clip(tmp_path / "c.mp4", 100)  # each frame shows another number, so something always moves
    site = SiteConfig.model_validate(
        {
            "storage": {"dir": str(root)},
            "cameras": {"gate": {"url": f"file:{made}", "record": False, "detect": {"fps": 5}}},
            "dashboard": {"enabled": False},
            "sensors": {"root": str(host)},
            "load_shedding": {"hold_s": 0.4, "step_s": 600, "clear_s": 1, "fps_share": 0.2},
        }
    )
    db, group = Database(root / DATABASE, clock), ServiceGroup()
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(site.model_dump(mode="json", exclude_unset=True)))
    appliance = build(site, root, db, clock, group, path)
    recover(site, root, appliance.stores, clock, recover_segment)
    start(appliance, group)
    waiting = threading.Thread(target=group.wait)
    waiting.start()

    def detections_s() -> float:
        now = appliance.stores.meter.decoding().get("gate")
        return (now.examined_fps if now else None) or 0.0

    def open_faults() -> list[tuple[str, str]]:
        return [(each.kind, each.reason) for each in appliance.stores.health.open()]

    try:
        until(lambda: detections_s() > 4, 60)
        assert open_faults() == []
        heat(host, 91)
        until(lambda: 0 < detections_s() < 1.5, 60)
        assert open_faults() == [
            ("hot", "the appliance is hot or throttled (91 °C at cpu-thermal): fewer detections a second")
        ], "and it is not called overloaded"
        heat(host, 60)
        until(lambda: detections_s() > 4, 60)
        until(lambda: open_faults() == [])
    finally:
        group.stop()
        waiting.join(60)
        appliance.close(clock)
        db.close()
