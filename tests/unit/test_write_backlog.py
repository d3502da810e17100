"""While the disk takes nothing, what was decided waits in memory, in order, and none of it is lost or doubled."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.config import SiteConfig
from appliance.core.core_settings import CoreStores
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.write_backlog import RETRY_S, WriteBacklog
from appliance.types import FrameBoxes, IngestHealth, StreamHeader, TrackedObject
from tests.support.core_harness import make_core
from tests.support.sample_rows import T0


class Disk:
    """A place to write that can be full."""

    def __init__(self) -> None:
        self.full = False
        self.stored: list[str] = []

    def store(self, text: str) -> None:
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.stored.append(text)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def test_what_is_refused_waits_and_is_stored_in_order(clock: ManualClock) -> None:
    disk, backlog = Disk(), WriteBacklog(clock)
    backlog.write(lambda: disk.store("1"))
    disk.full = True
    for text in "23":
        backlog.write(lambda text=text: disk.store(text))
    assert "the disk is full (2 changes wait in memory" in backlog.warning
    disk.full = False
    backlog.write(lambda: disk.store("4"))
    assert disk.stored == ["1"], "the disk is asked once a second, and nothing overtakes"
    clock.advance(RETRY_S)
    backlog.retry()
    assert disk.stored == ["1", "2", "3", "4"]
    assert (backlog.waiting, backlog.warning) == (0, "")


def test_what_may_be_missed_is_dropped_and_counted(clock: ManualClock) -> None:
    disk, backlog = Disk(), WriteBacklog(clock)
    disk.full = True
    backlog.write(lambda: disk.store("an alert"))
    backlog.write_or_drop(lambda: disk.store("boxes"), 5)
    disk.full = False
    clock.advance(RETRY_S)
    backlog.write_or_drop(lambda: disk.store("later boxes"), 7)
    assert (disk.stored, backlog.dropped) == (["an alert", "later boxes"], 5)


def test_a_newer_report_of_the_same_takes_the_place_of_the_one_that_waits(clock: ManualClock) -> None:
    disk, backlog = Disk(), WriteBacklog(clock)
    disk.full = True
    for text in ("begins", "grows", "ends"):
        backlog.write(lambda text=text: disk.store(text), key="segment 1")
    backlog.write(lambda: disk.store("alert"))
    disk.full = False
    clock.advance(RETRY_S)
    backlog.retry()
    assert disk.stored == ["ends", "alert"]


def test_more_than_memory_may_hold_ends_the_process(clock: ManualClock) -> None:
    disk, backlog = Disk(), WriteBacklog(clock, most=2)
    disk.full = True
    for _ in range(2):
        backlog.write(lambda: disk.store("x"))
    with pytest.raises(StoreError, match="no more can be held"):
        backlog.write(lambda: disk.store("x"))


def test_what_takes_the_place_of_one_that_waits_takes_no_more_memory(clock: ManualClock) -> None:
    disk, backlog = Disk(), WriteBacklog(clock, most=1)
    disk.full = True
    for text in ("begins", "ends"):
        backlog.write(lambda text=text: disk.store(text), key="segment 1")
    assert backlog.waiting == 1


def test_a_damaged_file_is_no_matter_of_waiting(clock: ManualClock) -> None:
    def damaged() -> None:
        raise StoreError("the file is damaged")

    with pytest.raises(StoreError, match="damaged"):
        WriteBacklog(clock).write(damaged)


CONFIG = SiteConfig.model_validate(
    {
        "cameras": {
            "gate": {
                "url": "rtsp://127.0.0.1/x",
                "zones": {"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]},
                "rules": [
                    {"name": "intruder", "kind": "enter", "zone": "yard", "at_start": "report", "severity": "alert"}
                ],
            }
        },
        "uplink": {"url": "nats://127.0.0.1:4222"},
        "alerts": {"merge_s": 1},
    }
)


class Watched:
    """A core over a database whose file may be kept from growing, as on a full disk."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.db = Database(folder / "vedette.db", clock)
        stores = CoreStores.of(self.db, Meter(self.db, "r"))
        self.alerts = stores.alerts
        stores.cameras.ensure({"gate": "rtsp://127.0.0.1/x"})
        self.core = make_core(CONFIG, stores, clock)
        self.core.take(StreamHeader(camera="gate", clip="", model="m", size=(320, 240), run=secrets.token_hex(4)))
        self._seq = 0

    def limit(self, pages: int) -> None:
        with self.db.transaction() as connection:
            connection.execute(f"PRAGMA max_page_count = {pages}")

    def incident(self, track: int) -> None:
        """Somebody comes in, stays for half a second and is gone."""
        for n in range(40):
            box = TrackedObject(track=track, label="person", score=0.9, box=(0.4, 0.2, 0.5, 0.6))
            seen = (box,) if n < 5 else ()
            self._seq += 1
            self.clock.advance(0.1)
            self.core.take(
                FrameBoxes(camera="gate", seq=self._seq, frame=self._seq, t=self.clock.now(), looked=True, objects=seen)
            )

    def second(self) -> None:
        self.clock.advance(1.0)
        self.core.take(IngestHealth(t=self.clock.now(), detector_ms=1.0, queue=0, rss_bytes=1))


@pytest.fixture
def watched(tmp_path: Path, clock: ManualClock) -> Iterator[Watched]:
    made = Watched(tmp_path, clock)
    yield made
    made.db.close()


def test_alerts_of_a_full_disk_are_stored_with_their_escalations_once_there_is_room(watched: Watched) -> None:
    watched.incident(1)
    watched.limit(1)
    for track in range(2, 30):
        watched.incident(track)
    stored = watched.alerts.counts().total
    assert stored < 29
    assert "the disk is full" in watched.core._backlog.warning
    watched.limit(1_000_000)
    watched.second()
    assert watched.core._backlog.warning == ""
    rows = watched.alerts.page(limit=100)
    assert sorted(row.alert.tracks for row in rows) == [(track,) for track in range(1, 30)]
    assert {row.alert.end_reason for row in rows} == {"quiet"}
    assert {row.judged.delivery for row in rows} == {"waiting"}
    assert watched.alerts.counts().undelivered == 29


def test_what_could_not_be_stored_before_the_end_is_logged(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.limit(1)
    for track in range(1, 30):
        watched.incident(track)
    watched.clock.advance(1)
    watched.core.close()
    assert "and so lost" in caplog.text
