"""The storage page and its numbers: what is taken, how long it lasts, what was deleted; also `vedette check`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.cli.site_check import _forecast, _preroll
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention
from appliance.store.storage_report import Disk, StorageReportCache, evidence_kept_s, read_storage
from appliance.types import Event, SegmentRow
from tests.support.dashboard_site import Site
from tests.support.prometheus_text import samples
from tests.support.sample_rows import T0

HOUR = 3600.0
GB = 1_000_000_000
NOW = T0 + 1000 * HOUR


def config_of(**storage: Any) -> SiteConfig:
    cameras = {
        "gate": {"url": "rtsp://h/1"},
        "dock": {"url": "rtsp://h/2", "quota": {"continuous_gb": 5}},
        "shed": {"url": "rtsp://h/3", "record": "pre_roll"},
        "hall": {"url": "rtsp://h/4", "record": False},
    }
    return SiteConfig.model_validate({"cameras": cameras, "storage": {"keep_hours": 48, **storage}})


def record(site: Site, camera: str, hours: int, gb_an_hour: float, *, kind: Any = "continuous") -> None:
    """Ten segments an hour, of six minutes each."""
    for n in range(hours * 10):
        t = NOW - hours * HOUR + n * 360
        site.segments.put(
            SegmentRow(
                camera=camera, path=f"segments/{camera}/{t:.0f}.mp4", t_start=t, t_end=t + 360, complete=True,
                kind=kind, bytes=round(gb_an_hour * GB / 10), frames=3600, codec="h264", size=(320, 240),
            )
        )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, ManualClock(NOW), config_of(dir=str(tmp_path)))


def test_evidence_is_forecast_by_the_days_of_the_zones_that_it_is_of(tmp_path: Path) -> None:
    """Two of three alerts are of the street, which is kept three days: in the mean (3 + 3 + 30) / 3 days."""
    days = {"street": 3.0}
    corners = [[0, 0], [1, 0], [1, 1]]
    gate = {"url": "rtsp://h/1", "zones": {"street": corners, "yard": corners}, "quota": {"zone_days": days}}
    config = SiteConfig.model_validate({"cameras": {"gate": gate}, "storage": {"dir": str(tmp_path)}})
    site = Site(tmp_path, ManualClock(NOW), config)
    limits = StorageLimits.of(config.storage, config.cameras)
    with site.db.read() as connection:
        assert evidence_kept_s(connection, limits, NOW) == {"gate": (3 + 30) / 2 * 86400}, "no alert: zones count alike"
    for n, zones in enumerate((["street"], ["yard", "street"], ["yard"])):
        t = NOW - 600 + 60 * n
        events = [event_in(zone, t + k) for k, zone in enumerate(zones)]
        site.raise_alert(f"a{n}", t, ask=False, events=events)
    with site.db.read() as connection:
        assert evidence_kept_s(connection, limits, NOW)["gate"] == 12 * 86400
    site.close()


def event_in(zone: str, t: float) -> Event:
    return Event(
        camera="gate", rule="intruder", kind="enter", track=1, label="person", t=t, score=0.9,
        box=(0.3, 0.4, 0.4, 0.8), zone=zone, severity="alert",
    )  # fmt: skip


def client(site: Site) -> TestClient:
    app = create_app(
        site.stored,
        site.config.for_dashboard(),
        probes=CoreProbes(health=lambda: site.health),
    )
    return TestClient(app, base_url="http://127.0.0.1")


def limits_of(site: Site) -> StorageLimits:
    return StorageLimits.of(site.config.storage, site.config.cameras)


def test_a_young_appliance_says_that_it_does_not_know_yet(site: Site) -> None:
    site.segments.put(
        SegmentRow(camera="gate", path="segments/gate/1.mp4", t_start=NOW - 600, t_end=NOW, bytes=GB, frames=1,
                   codec="h264", size=(1, 1), complete=True)
    )  # fmt: skip
    told = client(site).get("/api/v1/storage").json()
    assert told["forecast"]["outlook"] == "unknown"
    assert told["cameras"][1]["bytes_a_day"] is None
    page = client(site).get("/storage").text
    assert "Not yet known" in page
    assert "it takes an hour of recorded video" in page
    (said,) = _forecast(site.config, site.clock)
    assert "days left: not yet known" in said.text


def test_a_scenario_that_is_deleted_while_its_bytes_are_counted_is_passed_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "kept"):
        (site.root / "scenarios" / name).mkdir(parents=True)
        (site.root / "scenarios" / name / "clip.mp4").write_bytes(b"x" * 7)
    scan = os.scandir

    def deleting(path: Path | str | int) -> object:
        if str(path).endswith("gone"):
            shutil.rmtree(path)
        return scan(path)

    with monkeypatch.context() as busy:
        busy.setattr(os, "scandir", deleting)
        found = read_storage(site.db, site.root, limits_of(site))
    assert found.scenarios == 7


def test_days_left_by_camera_and_in_all_from_what_was_measured(site: Site) -> None:
    record(site, "gate", 12, 0.5)
    record(site, "dock", 12, 0.25)
    record(site, "shed", 2, 0.1, kind="pre_roll")
    (site.root / "scenarios/kept").mkdir(parents=True)
    (site.root / "scenarios/kept/clip.mp4").write_bytes(b"x" * 1234)
    told = client(site).get("/api/v1/storage").json()
    cameras = {each["camera"]: each for each in told["cameras"]}
    assert cameras["gate"]["bytes_a_day"] == pytest.approx(12 * GB, rel=0.01)
    assert cameras["gate"]["taken"]["continuous"] == 6 * GB
    assert told["scenarios_bytes"] == 1234
    # 9 GB of 50 are taken and dock stops at 5 GB: 12 GB a day into 39 GB, if the disk here is as large
    plenty = read_storage(site.db, site.root, limits_of(site), disk=lambda root: Disk(10**13, 10**13))
    assert plenty.forecast.outlook == "age", "two days of 12 GB and 5 GB are less than 50 GB"
    tight = read_storage(site.db, site.root, limits_of(site), disk=lambda root: Disk(10**13, 13 * GB + 600_000_000))
    assert (tight.forecast.limit, tight.forecast.days_left) == ("disk", pytest.approx(11 / 12, rel=0.01))
    of = {each.camera: each.forecast for each in tight.cameras}
    assert (of["dock"].limit, of["dock"].days_left) == ("camera_quota", pytest.approx(2 / 6, rel=0.01))
    assert of["gate"].keeps_s == pytest.approx(17 / 12 * 86400, rel=0.02)
    assert (of["shed"].outlook, of["hall"].outlook) == ("off", "off")
    rings = {each.camera: each.preroll_s for each in tight.cameras}
    assert rings["shed"] == pytest.approx(64e6 / (0.1e9 / 3600), rel=0.01)


def test_what_was_deleted_is_on_the_page_in_the_api_and_in_the_metrics(site: Site) -> None:
    record(site, "gate", 60, 0.01)

    for n in range(600):
        file = site.root / f"segments/gate/{NOW - 60 * HOUR + n * 360:.0f}.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    Retention(site.db, site.root, site.config.storage, site.config.cameras, free_bytes=lambda root: 10**13).run_once()
    here = client(site)
    (entry,) = here.get("/api/v1/storage").json()["deleted"]
    assert (entry["camera"], entry["what"], entry["reason"]) == ("gate", "continuous", "age")
    assert (entry["files"], entry["bytes"]) == (119, 119_000_000)
    assert "its time was up" in here.get("/storage").text
    expected = """
        vedette_storage_deleted_files_total{class="continuous",reason="age"} 119
        vedette_storage_deleted_bytes_total{class="continuous",reason="age"} 119000000
        vedette_storage_bytes{camera="gate",class="continuous"} 481000000
    """
    assert samples(expected) <= samples(here.get("/metrics").text)


def test_many_who_ask_share_one_reckoning(site: Site) -> None:
    asked = []
    book = StorageReportCache(site.db, site.root, limits_of(site), disk=lambda root: asked.append(1) or Disk(1, 1))  # type: ignore[func-returns-value]
    for _ in range(5):
        book.read()
    site.clock.sleep(11)
    book.read()
    assert len(asked) == 2


def test_check_says_whether_the_rings_fit_and_how_long_the_disk_lasts(site: Site, tmp_path: Path) -> None:
    record(site, "gate", 12, 0.5)
    site.db.close()
    said = {each.about: each for each in _forecast(site.config, site.clock)}
    assert said["cameras.gate"].text.startswith("12.0 GB a day, will reach ")
    assert said["storage"].text.startswith("6.0 of 50 GB taken; ")
    (ring,) = _preroll(site.config)
    assert (ring.level, ring.about) == ("ok", "storage.preroll_dir")
    (tmp_path / "preroll" / "shed").mkdir(parents=True)
    (tmp_path / "preroll" / "shed" / "gone.mp4").symlink_to("/nowhere")  # as one that the appliance has just replaced
    huge = config_of(dir=str(tmp_path), preroll_dir="/dev/shm/vedette-test-never-made", quota={"preroll_mb": 4096})
    shed = huge.cameras["shed"]
    many = huge.model_copy(update={"cameras": {f"c{n}": shed for n in range(4000)}})
    (ring,) = _preroll(many)
    assert ring.level == "wrong"
    assert "lower quota.preroll_mb" in ring.text
