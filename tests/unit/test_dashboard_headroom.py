"""How much of the detector is in use, and what each camera was promised of it and gets: API, pages and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import SystemHealth
from appliance.store.health_events import HealthEventStore
from appliance.types import DecodeStatus, HealthEvent
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0))
    made.health = SystemHealth(ingest_running=True, detector_ms=40.0, load=0.6)
    made.live("gate", T0)
    made.meter.note("gate", DecodeStatus("active", "", 0.0, promised_fps=5.0, examined_fps=3.2))
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> TestClient:
    app = create_app(site.stored, site.config.for_dashboard(), probes=site.probes())
    return TestClient(app, base_url="http://127.0.0.1")


def test_what_is_in_use_what_is_left_and_what_if_everything_moved(client: TestClient) -> None:
    found = client.get("/api/v1/headroom").json()
    assert (found["load"], found["inference_ms"], found["room"]) == (0.6, 40.0, pytest.approx(10))
    assert found["load_all_moving"] == pytest.approx(0.4), "two cameras of 5 a second, 40 ms each"
    assert found["cameras"] == [
        {"camera": "dock", "configured": 5.0, "promised": None, "examined": None, "overloaded": False},
        {"camera": "gate", "configured": 5.0, "promised": 5.0, "examined": 3.2, "overloaded": False},
    ]
    page = client.get("/cameras").text
    assert "60 % in use" in page
    assert "Room for about 10 more inferences a second." in page


def test_a_camera_that_gets_too_little_is_named(site: Site, client: TestClient) -> None:
    event = HealthEvent(camera="gate", id="o", kind="overloaded", t=T0, t_start=T0 - 10, reason="too little")
    HealthEventStore(site.db).put(event)
    assert [each["overloaded"] for each in client.get("/api/v1/headroom").json()["cameras"]] == [False, True]
    assert "Too little for gate: lower detect.fps" in client.get("/cameras").text


def test_more_than_the_detector_can_do_if_everything_moved_is_said_before_it_happens(
    site: Site, client: TestClient
) -> None:
    site.health = SystemHealth(ingest_running=True, detector_ms=150.0, load=0.1)
    assert "150 % of the time: more than it can do" in client.get("/cameras").text


def test_what_is_not_known_yet_is_not_made_up(site: Site, client: TestClient) -> None:
    site.health = SystemHealth(ingest_running=True)
    assert client.get("/api/v1/headroom").json()["load"] is None
    assert "Not yet known" in client.get("/cameras").text


def test_the_cameras_page_and_the_metrics_say_what_came_of_what_was_due(client: TestClient) -> None:
    assert "3.2 times a second; 5.0 are due" in client.get("/cameras/gate").text
    metrics = client.get("/metrics").text
    assert 'vedette_camera_promised_fps{camera="gate"} 5.0' in metrics
    assert 'vedette_camera_examined_fps{camera="gate"} 3.2' in metrics
