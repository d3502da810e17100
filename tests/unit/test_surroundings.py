"""What the router is told of link, queue and box."""

from __future__ import annotations

from pathlib import Path

from shelf import opened, question

from appliance.broker import LinkState
from appliance.clock import ManualClock
from appliance.router.system_load import READ_EVERY_S, SystemLoadMonitor, load_per_core, temperature_c
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.decisions import DecisionStore


def zone(folder: Path, number: int, said: str) -> None:
    place = folder / f"thermal_zone{number}"
    place.mkdir()
    (place / "temp").write_text(said)


def test_the_hottest_sensor_counts_and_one_that_is_asleep_does_not(tmp_path: Path) -> None:
    assert temperature_c(tmp_path) is None
    zone(tmp_path, 0, "48300\n")
    zone(tmp_path, 1, "61000\n")
    zone(tmp_path, 2, "")
    assert temperature_c(tmp_path) == 61.0


def test_this_machine_says_its_load() -> None:
    assert load_per_core() is None or load_per_core() >= 0  # type: ignore[operator]


def test_the_queue_is_read_now_and_then_and_the_link_each_time(tmp_path: Path) -> None:
    clock = ManualClock()
    db = Database(tmp_path / "vedette.db", clock)
    link = LinkState(up=True, since=0.0)
    watch = SystemLoadMonitor(lambda: link, DecisionStore(db), clock, tmp_path)
    assert (watch.read().link_up, watch.read().queue_age_s) == (True, 0.0)
    asked = question("q", t=clock.now())
    AlertStore(db).apply(opened(t=clock.now()), escalation=asked, priority="high")
    link = LinkState(up=False, since=0.0)
    clock.advance(READ_EVERY_S - 1)
    assert (watch.read().link_up, watch.read().queue_age_s) == (False, 0.0)
    clock.advance(1)
    assert watch.read().queue_age_s == READ_EVERY_S
    db.close()


def test_without_an_uplink_the_link_is_unknown(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock())
    assert SystemLoadMonitor(None, DecisionStore(db), ManualClock(), tmp_path).read().link_up is None
    db.close()
