"""What rules hold back or forget on a running appliance is counted and shown."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.rules.zones_and_lines import TUNING
from appliance.types import TrackedObject
from tests.support.core_harness import STEP_S, CoreHarness, site


def test_what_a_cooldown_holds_back_is_counted_and_shown(tmp_path: Path) -> None:
    plain = site().model_dump(mode="json", exclude_none=True)
    plain["cameras"]["gate"]["rules"][0]["cooldown_s"] = 600
    config = SiteConfig.model_validate(plain)
    box = CoreHarness(tmp_path, config, ManualClock())
    first = box.walk()
    assert box.walk() == box.walk() == first, "the cooldown lasts"
    app = create_app(StoredSite(box.db, box.meter, tmp_path, box.clock), config.for_dashboard())
    client = TestClient(app, base_url="http://127.0.0.1")
    assert client.get("/api/v1/cameras/gate").json()["held_back_today"] == {"intruder": 2}
    assert "2 held back today by its cooldown" in client.get("/cameras/gate").text
    assert 'vedette_events_held_back_total{camera="gate",rule="intruder"} 2.0' in client.get("/metrics").text
    box.db.close()


def test_the_tracks_that_had_to_make_room_are_counted_and_shown(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, site(), ManualClock())
    for track in range(TUNING.tracks_max + 3):
        box.examine((TrackedObject(track=track, label="cat", score=0.9, box=(0.1, 0.1, 0.2, 0.2)),))
        if track % 4:  # within TUNING.forget_s
            box.clock.advance(-STEP_S)
    app = create_app(StoredSite(box.db, box.meter, tmp_path, box.clock), site().for_dashboard())
    text = TestClient(app, base_url="http://127.0.0.1").get("/metrics").text
    assert 'vedette_tracks_evicted_total{camera="gate"} 3.0' in text
    box.db.close()
