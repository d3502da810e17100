"""What the router learns of link, queue and appliance."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.machine import load_per_core, temperatures
from appliance.broker.nats_connection import LinkState
from appliance.router.router_maintenance import READ_EVERY_S, SystemLoadMonitor
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from tests.support.sample_rows import opened, sample_escalation


def zone(folder: Path, number: int, text: str) -> None:
    place = folder / f"thermal_zone{number}"
    place.mkdir()
    (place / "temp").write_text(text)


def test_a_sensor_that_is_asleep_is_left_out(tmp_path: Path) -> None:
    zone(tmp_path, 0, "48300\n")
    zone(tmp_path, 1, "")
    assert [each.celsius for each in temperatures(tmp_path)] == [48.3]


def test_the_load_is_a_mean_of_running_tasks_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 40.0, 50.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert load_per_core() == 0.75, "of the last minute, on four cores"
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert load_per_core() == 3.0


def test_a_system_that_does_not_tell_its_load_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[float, float, float]:
        raise OSError("load averages are not to be had")

    monkeypatch.setattr(os, "getloadavg", refuse)
    assert load_per_core() is None


def test_the_queue_is_read_now_and_then_and_the_link_each_time(tmp_path: Path) -> None:
    clock = ManualClock()
    db = Database(tmp_path / "vedette.db", clock)
    link = LinkState(up=True, since=0.0)
    monitor = SystemLoadMonitor(lambda: link, EscalationStore(db), clock)
    assert (monitor.read().link_up, monitor.read().queue_age_s) == (True, 0.0)
    escalation = sample_escalation("q", t=clock.now())
    AlertStore(db).apply(opened(t=clock.now()), escalation=escalation, priority="high")
    link = LinkState(up=False, since=0.0)
    clock.advance(READ_EVERY_S - 1)
    assert (monitor.read().link_up, monitor.read().queue_age_s) == (False, 0.0)
    clock.advance(1)
    assert monitor.read().queue_age_s == READ_EVERY_S
    db.close()


def test_without_an_uplink_the_link_is_unknown(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock())
    assert SystemLoadMonitor(None, EscalationStore(db), ManualClock()).read().link_up is None
    db.close()


@pytest.mark.parametrize("zones", [0, 1])
def test_without_a_file_descriptor_the_temperature_is_unknown(tmp_path: Path, zones: int) -> None:
    thermal = tmp_path / "thermal"
    if zones:
        thermal.mkdir()
        zone(thermal, 0, "48300\n")
    (tmp_path / "hwmon/hwmon0").mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        found = temperatures(thermal)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == []
    assert [each.celsius for each in temperatures(thermal)] == [48.3] * zones
