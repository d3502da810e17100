"""Trouble is told: by the disk itself, by the core while nothing can be written, and on every page with what helps."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.local_files import live_memory
from appliance.broker.nats_connection import LinkState
from appliance.config import SiteConfig, load
from appliance.core.appliance_monitor import PROBE, PROBE_EVERY_S, SLOW_PROBES, SLOW_S, DiskWatch
from appliance.core.site_faults import (
    CLOCK_EVERY_S,
    EXPIRY_EVERY_S,
    HOLD_S,
    ClockWatch,
    Neighbours,
    SiteFaults,
    UpdateWatch,
    expires_t,
)
from appliance.dashboard.health_api import HELP
from appliance.mqtt.publisher import MqttStatus
from appliance.notify.delivery import TargetStatus
from appliance.settings.settings_service import SettingsService
from appliance.types import Gap, HealthEvent
from appliance.web.tls import ServerCertificate
from tests.support.core_harness import CoreHarness, site
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
FILE = "site: {name: depot-7}\ncameras: {gate: {url: 'rtsp://a/b'}}\n"
NOT_OF_SETTINGS = {"/storage", *(page for _, page in HELP.values() if not page.startswith("/settings"))}
FULL = HealthEvent(camera="", id="f1", kind="disk", t=T0, t_start=T0, reason="the disk is nearly full")
REFUSED = HealthEvent(
    camera="dock", id="r1", kind="stalled", t=T0, t_start=T0 + 1, reason="it refused the password (401); check it"
)


def test_a_short_disk_is_told_until_there_is_room_again(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 2**62, ManualClock(T0))
    watch.run_once()
    assert watch.fault.startswith("the disk is nearly full: less than ")
    watch.configure(0)
    watch.run_once()
    assert watch.fault == ""
    assert not (tmp_path / PROBE).exists()


def test_the_button_of_a_full_disk_leads_to_the_form_that_ends_it(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(f"{FILE}storage: {{disk_free_min_mb: 1.0e+12}}\n")
    clock, config = ManualClock(T0), load(tmp_path / "site.yaml")
    served = Site(tmp_path / "data", clock, config)
    watch = DiskWatch(tmp_path, config.storage.disk_free_min_mb * 1e6, clock)

    def take(changed: SiteConfig) -> tuple[str, ...]:
        watch.configure(changed.storage.disk_free_min_mb * 1e6)
        return ()

    app = served.app(SettingsService(tmp_path / "site.yaml", served.root, clock, take))
    watch.run_once()
    served.faults.put(replace(FULL, reason=watch.fault))
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        assert (
            '<a class="button" href="/settings/storage#storage.disk_free_min_mb">Make room</a>' in client.get("/").text
        )
        assert 'data-key="storage.disk_free_min_mb"' in client.get("/settings/storage").text
        base = client.get("/api/v1/settings").json()["digest"]
        change = {"path": ["storage", "disk_free_min_mb"], "value": 0}
        client.post("/api/v1/settings", json={"base": base, "changes": [change]}).raise_for_status()
    watch.run_once()
    assert watch.fault == ""
    served.close()


def test_every_button_leads_to_a_page_that_is_there_and_none_to_settings_that_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(FILE)
    served = Site(tmp_path / "data", ManualClock(T0), load(tmp_path / "site.yaml"))
    for kind in HELP:
        served.faults.put(replace(FULL, id=kind, kind=kind))
    settings = SettingsService(tmp_path / "site.yaml", served.root, served.clock, lambda changed: ())
    for app, pages in ((served.app(settings), {page for _, page in HELP.values()}), (served.app(), NOT_OF_SETTINGS)):
        with TestClient(app, base_url="http://127.0.0.1:8080") as client:
            shown = client.get("/fragments/troubles").text
            assert set(re.findall(r'class="button" href="([^"]*)"', shown)) == pages
            assert {client.get(page).status_code for page in pages} == {200}
    served.close()


def test_a_disk_that_refuses_writes_or_was_mounted_read_only_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(T0)
    watch = DiskWatch(tmp_path, 0, clock)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _raises(errno.EIO))
        watch.run_once()
        assert watch.fault == "the disk refuses writes: input/output error"
    watch.run_once()
    assert watch.fault == "", "what is wrong is tried again each time"
    stats = os.statvfs(tmp_path)
    with monkeypatch.context() as broken:
        read_only = os.statvfs_result((*tuple(stats)[:8], stats.f_flag | os.ST_RDONLY, *tuple(stats)[9:]))
        broken.setattr(os, "statvfs", lambda path: read_only)
        watch.run_once()
        assert watch.fault.startswith("the disk is read-only")
    gone = DiskWatch(tmp_path / "gone", 0, clock)
    gone.run_once()
    assert gone.fault.startswith(("the disk refuses writes", "the storage folder cannot be reached"))


def test_a_slow_disk_is_told_after_two_slow_writes_and_while_one_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(T0)
    watch = DiskWatch(tmp_path, 0, clock)
    seen: list[str] = []

    def slow(file: int) -> None:
        clock.advance(SLOW_PROBES * SLOW_S + 1)
        seen.append(watch.fault)

    monkeypatch.setattr(os, "fsync", slow)
    watch.run_once()
    assert seen == ["the disk is slow: a small write does not return"]
    assert watch.fault == "", "one alone is a disk that spins up"
    clock.advance(PROBE_EVERY_S)
    watch.run_once()
    assert watch.fault.startswith("the disk is slow: a small write takes over")


def _raises(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_when_a_certificate_or_a_token_runs_out_is_read_from_its_file(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    certificate = tmp_path / "dashboard.crt"
    made = ServerCertificate(certificate, tmp_path / "dashboard.key", clock, ("localhost",))
    assert expires_t(certificate) == made.facts.expires_t
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1_800_000_000}).encode()).decode().rstrip("=")
    (tmp_path / "site.creds").write_text(f"-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJqd3QifQ.{claims}.x-_y\n")
    assert expires_t(tmp_path / "site.creds") == 1_800_000_000
    (tmp_path / "junk").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert (expires_t(tmp_path / "junk"), expires_t(tmp_path / "none")) == (None, None)
    for n, claims in enumerate((b'{"exp": 1' + b"0" * 400 + b"}", b'{"exp": ' + b"[" * 100_000)):
        (tmp_path / str(n)).write_text(f"eyJ0.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x")
        assert expires_t(tmp_path / str(n)) is None


def test_a_neighbour_that_is_away_is_told_after_a_minute_and_a_certificate_two_weeks_before(tmp_path: Path) -> None:
    clock, up = ManualClock(T0), [False]
    path = tmp_path / "c.creds"
    claims = base64.urlsafe_b64encode(json.dumps({"exp": T0 + 3.5 * 86400}).encode()).decode().rstrip("=")
    path.write_text(f"eyJ0.{claims}.x")
    faults = SiteFaults(
        lambda: {"disk": "", "hot": "it is hot"},
        Neighbours(
            link=lambda: LinkState(up[0], T0, error="no route"),
            mqtt=lambda: MqttStatus(connected=up[0], error="refused"),
            targets=lambda: [TargetStatus(name="phone", kind="ntfy", host="h", failing_since=T0, error="no answer")],
            expiring={"the token for the cloud link": path},
        ),
        ("hot",),
        clock,
    )
    assert faults.read() == {"certificate": "the token for the cloud link runs out in 3 days"}
    clock.advance(HOLD_S)
    found = faults.read()
    assert set(found) == {"certificate", "uplink", "mqtt", "notify"}
    assert found["uplink"].startswith("the cloud link is down: no route")
    assert found["notify"] == "phone cannot be notified: no answer"
    up[0] = True
    assert set(faults.read()) == {"certificate", "notify"}
    clock.advance(2 * 86400.0)
    assert faults.read()["certificate"] == "the token for the cloud link runs out in 1 day"


def test_what_is_away_stays_told_when_other_settings_make_the_parts_anew() -> None:
    clock, status = ManualClock(T0), [MqttStatus(connected=False, error="refused")]
    neighbours = Neighbours(link=lambda: LinkState(False, T0), mqtt=lambda: status[0], expiring={})
    before = SiteFaults(dict, neighbours, (), clock)
    before.read()
    clock.advance(HOLD_S)
    told = before.read()
    assert set(told) == {"uplink", "mqtt"}
    status[0] = MqttStatus(connected=False)  # the new part connects, and knows nothing yet
    after, moved = SiteFaults(dict, neighbours, (), clock), SiteFaults(dict, neighbours, (), clock)
    after.follow(before, {"uplink", "mqtt"})
    assert after.read() == told
    moved.follow(before, {"uplink"})
    assert set(moved.read()) == {"uplink"}, "another broker was entered: its fault begins anew"
    status[0] = MqttStatus(connected=True)
    assert set(after.read()) == {"uplink"}


def test_a_clock_in_the_past_and_an_update_that_failed_are_told(tmp_path: Path) -> None:
    clock, recorded, synchronised = ManualClock(T0), [T0 + 3600], [False]
    watch = ClockWatch(lambda: recorded[0], lambda: synchronised[0], clock)
    assert watch.fault.startswith("the clock of the appliance stands before what is recorded already")
    clock.advance(CLOCK_EVERY_S)
    synchronised[0] = True
    assert watch.fault == "", "the clock is right, and the recording was not"
    clock.advance(3000)
    synchronised[0] = False
    assert watch.fault == "", "a camera may be ahead by some minutes"
    update = UpdateWatch(tmp_path, clock)
    assert update.fault == ""
    (tmp_path / "upgrade-failed").write_text("0.2.0\n")
    clock.advance(EXPIRY_EVERY_S)
    assert update.fault == "the update to 0.2.0 did not start, so the version before is in force again"
    assert (HELP["update"][1], HELP["time"][1]) == ("/system#help", "/system#clock")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CoreHarness]:
    made = CoreHarness(tmp_path, site(), ManualClock(T0))
    yield made
    made.db.close()


def test_a_recording_that_pauses_is_an_event_of_its_camera_until_it_goes_on(house: CoreHarness) -> None:
    paused = Gap(
        camera="gate", t_start=T0, t_end=None, reason="recording is paused: the disk has less than 500 MB free"
    )
    for _ in range(2):  # it is reported at each try
        house.core.take(paused)
    (event,) = house.health.open()
    assert (event.kind, event.camera, event.t_start) == ("unrecorded", "gate", T0)
    house.core.take(Gap(camera="gate", t_start=T0, t_end=T0 + 9, reason=paused.reason))
    assert house.health.open() == []
    house.core.take(paused)
    for _ in range(40):  # the camera is gone meanwhile, so nobody says that it goes on
        house.second()
    assert house.health.open() == []
    house.core.take(Gap(camera="gate", t_start=T0, t_end=None, reason="the connection was lost"))
    assert house.health.open() == [], "no picture comes: the watchdog says so"


def test_detection_that_does_not_stay_up_is_told_and_over_when_it_does(house: CoreHarness) -> None:
    for n in range(3):
        assert house.health.open() == [], n
        house.core.lost("the ingest process ended (signal 9)")
    (event,) = house.health.open()
    assert (event.kind, event.camera) == ("model", "")
    assert "signal 9" in event.reason
    for _ in range(40):
        house.second()
    assert house.health.open() == []


def test_detection_that_is_started_anew_for_other_settings_is_no_fault(house: CoreHarness) -> None:
    for _ in range(4):
        house.core.lost("the ingest process is started anew with other settings", intended=True)
    assert house.health.open() == []
    house.core.lost("the ingest process ended (signal 9)")
    house.core.lost("the ingest process ended (signal 9)")
    assert house.health.open() == [], "two are not three"


def test_what_the_disk_does_not_take_stands_on_every_page_with_the_button_that_helps(tmp_path: Path) -> None:
    served = Site(tmp_path, ManualClock(T0 + 100))
    served.live("gate", T0)
    served.faults.note(FULL)
    served.faults.put(REFUSED)
    with served.client() as client:
        for path in ("/", "/live", "/storage", "/cameras/gate"):
            page = client.get(path).text
            part = page[page.index('id="troubles"') : page.index("<main")]
            assert "The disk is nearly full." in part, path
            assert 'href="/storage">Make room</a>' in part
            assert "Camera refuses the password" in part
        assert " open>" in client.get("/").text.partition("<main")[0]
        german = client.get("/live", headers={"Accept-Language": "de"}).text.partition("<main")[0]
        assert "Platz schaffen" in german
        served.faults.note(replace(FULL, t_end=T0 + 50))
        assert "nearly full" not in client.get("/fragments/troubles").text
    served.close()


def test_the_sentence_of_the_day_says_that_all_recorded_or_which_did_not(tmp_path: Path) -> None:
    served = Site(tmp_path, ManualClock(T0 + 100))
    served.live("dock", T0)
    served.live("gate", T0 + 90)
    with served.client() as client:
        assert "Not recorded today: dock (never)." in client.get("/").text, "the other has only just come up"
        for camera in ("gate", "dock"):
            served.record(camera, T0)
        since = datetime.fromtimestamp(T0).astimezone()
        assert f"All 2 cameras have recorded since {since:%H:%M}." in client.get("/").text, "it is a first day"
        for camera in ("gate", "dock"):
            served.record(camera, since.replace(hour=0, minute=0, second=0).timestamp() - 4)
        assert "All 2 cameras recorded all day." in client.get("/").text
        served.cameras.write_gap(Gap(camera="dock", t_start=T0 + 20, t_end=None, reason="recording is paused: no room"))
        assert "Not recorded today: dock (1 min 20 s)." in client.get("/").text
        assert "Not recorded since" in client.get("/cameras/dock").text
    served.close()


def test_the_folder_in_memory_is_ours_or_none(tmp_path: Path) -> None:
    place = live_memory(tmp_path / "data", tmp_path)
    assert place is not None
    assert place == live_memory(tmp_path / "data", tmp_path)
    assert place.stat().st_mode & 0o777 == 0o700
    place.rmdir()
    place.symlink_to(tmp_path)
    assert live_memory(tmp_path / "data", tmp_path) is None
    assert live_memory(tmp_path / "data", tmp_path / "none") is None
