"""Health events on disk: one open a camera and kind, seen by a person, ended with the process that told of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.store.database import Database
from appliance.store.health_events import ROWS_MAX, HealthEventStore
from appliance.types import HealthEvent, TrackedObject
from tests.support.core_harness import CoreHarness, site

BEGAN = HealthEvent(camera="gate", id="e1", kind="frozen", t=107.0, t_start=100.0, reason="it stands still")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "vedette.db", ManualClock(200.0))
    yield opened
    opened.close()


def test_an_event_begins_changes_and_ends_in_one_row(db: Database) -> None:
    events = HealthEventStore(db)
    assert events.put(BEGAN)
    assert not events.put(replace(BEGAN, t=108.0, recovery="connecting again", attempts=1))
    (row,) = events.open()
    assert (row.told_t, row.attempts, row.recovery, row.t_end) == (107.0, 1, "connecting again", None)
    assert not events.put(replace(BEGAN, t=130.0, t_end=125.0))
    assert events.open() == []
    assert events.page()[0].t_end == 125.0


def test_an_end_that_was_lost_does_not_leave_two_open(db: Database) -> None:
    events = HealthEventStore(db)
    events.put(BEGAN)
    events.put(replace(BEGAN, id="e2", t_start=150.0))
    assert [row.id for row in events.open()] == ["e2"]
    first = events.get("e1")
    assert first is not None
    assert (first.t_end, first.ended_by) == (150.0, "told anew")


def test_what_came_back_is_to_be_seen_again(db: Database) -> None:
    events = HealthEventStore(db)
    events.put(BEGAN)
    seen = events.mark_seen("e1", 110.0)
    assert seen is not None
    assert seen.seen_t == 110.0
    events.put(replace(BEGAN, t_end=120.0))
    assert events.page()[0].seen_t == 110.0
    assert events.put(replace(BEGAN, times=2))
    assert events.page()[0].seen_t is None
    assert events.mark_seen("nothing", 1.0) is None


def test_pages_go_back_in_time_and_a_cameras_page_holds_the_boxs_events(db: Database) -> None:
    events = HealthEventStore(db)
    for n in range(5):
        camera = ("gate", "dock", "")[n % 3]
        events.put(replace(BEGAN, id=f"e{n}", camera=camera, t_start=100.0 + n, t_end=100.5 + n))
    assert [row.id for row in events.page(limit=2)] == ["e4", "e3"]
    assert [row.id for row in events.page(before=(103.0, "e3"), limit=9)] == ["e2", "e1", "e0"]
    assert [row.camera for row in events.page(camera="gate")] == ["gate", "", "gate"]
    assert events.page(kind="moved") == []


def test_the_table_is_bounded_and_what_lasts_stays(db: Database) -> None:
    events = HealthEventStore(db)
    with db.transaction():
        events.put(replace(BEGAN, id="old", t_start=1.0))
        for n in range(ROWS_MAX + 50):
            events.put(replace(BEGAN, camera="dock", id=f"e{n}", t_start=10.0 + n, t_end=10.5 + n))
    with db.read() as connection:
        assert (
            connection.execute("SELECT count(*) FROM health_event").fetchone()[0] <= ROWS_MAX + 2
        )  # trimmed before the newest; what lasts is extra
    assert [row.id for row in events.open()] == ["old"]


def test_a_database_that_went_away_is_told_at_once_and_what_came_is_kept(tmp_path: Path) -> None:
    core = CoreHarness(tmp_path, site(), ManualClock(1000.0))
    aside = core.path.with_name("aside")
    core.path.rename(aside)
    core.second()
    for n in range(16):
        box = (0.1 + 0.05 * n, 0.2, 0.2 + 0.05 * n, 0.6)
        core.examine((TrackedObject(track=1, label="person", score=0.85, box=box),) if n < 8 else ())
    assert "was moved, deleted or replaced" in core.core._backlog.warning
    aside.rename(core.path)
    core.second()
    core.second()
    assert core.core._backlog.warning == ""
    [event] = core.health.page()
    assert (event.kind, event.camera, event.t_end is not None) == ("database", "", True)
    assert "put it back" in event.reason
    assert core.newest.rules == ("intruder",), "the alert of that time waited in memory"


def test_the_core_writes_counts_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "appliance")
    box = CoreHarness(tmp_path, site(), ManualClock())
    box.core.take(BEGAN)
    box.core.take(replace(BEGAN, t=108.0, recovery="connecting to the camera again", attempts=1))
    box.core.take(replace(BEGAN, t=130.0, t_end=125.0))
    box.core.take(replace(BEGAN, camera="", id="e2", kind="detector", reason="it hangs"))
    assert {(each.camera, each.kind, each.amount) for each in box.meter.totals("start") if "health" in each.kind} == {
        ("gate", "health_frozen", 1),
        ("", "health_detector", 1),
    }
    for text in (
        "camera gate is ill (frozen): it stands still",
        "tried: connecting to the camera again (1)",
        "camera gate is well again: frozen ended after 25 s",
        "the appliance is ill (detector): it hangs",
    ):
        assert text in caplog.text
    assert [row.id for row in box.health.open()] == ["e2"]
    box.core.lost("the ingest process ended")
    assert box.health.open() == []
    assert box.health.page()[0].ended_by == "the ingest process ended"
