"""Counters that survive restarts, and the rows of what left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, local_day
from appliance.store.audit import AuditRow, AuditStore
from appliance.store.database import Database
from appliance.store.meter import Meter, MeterTotal, Metric, MetricName
from appliance.types import CameraMeter, DecodeStatus, DetectCounts
from tests.support.core_harness import CoreHarness, site
from tests.support.sample_rows import T0

DAY = local_day(T0)
CAMERA_BYTES, UPLINK_BYTES = Metric(MetricName.CAMERA_BYTES), Metric(MetricName.UPLINK_BYTES)
PACKETS = Metric(MetricName.PACKETS)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    yield db
    db.close()


def test_amounts_count_before_and_after_they_are_written(db: Database) -> None:
    meter = Meter(db, "run-1")
    meter.add("yard", CAMERA_BYTES, 100)
    meter.add("yard", CAMERA_BYTES, 20)
    meter.add("", UPLINK_BYTES, 7)
    expected = [MeterTotal("", UPLINK_BYTES, 7), MeterTotal("yard", CAMERA_BYTES, 120)]
    assert meter.totals("start") == expected
    meter.flush(DAY)
    assert meter.totals("start") == expected
    meter.flush(DAY)
    assert meter.totals("all") == expected


def test_the_core_counts_what_came_as_a_second_stream(tmp_path: Path) -> None:
    core = CoreHarness(tmp_path, site(), ManualClock(T0))
    told = CameraMeter(
        camera="gate",
        t=T0,
        received=100,
        exact=True,
        packets=1,
        detect_received=30,
        detect=DetectCounts(decoded=1, examined=1, unexamined=0),
        decoding=DecodeStatus("idle"),
    )
    core.core.take(told)
    found = {each.metric: each.amount for each in core.meter.totals("start")}
    assert (found[CAMERA_BYTES], found[Metric(MetricName.DETECT_BYTES)]) == (100, 30)


def test_hours_are_counted_in_whole_seconds_and_no_part_is_lost(db: Database) -> None:
    clock = db.clock
    assert isinstance(clock, ManualClock)
    meter = Meter(db, "run-1")
    for _ in range(5):
        clock.advance(1.3)
        meter.count_uptime()
    meter.flush(DAY)
    assert meter.totals_since_day(DAY) == [MeterTotal("", Metric(MetricName.UPTIME_S), 6)]
    assert meter.totals_since_day("2999-01-01") == []


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (Metric(MetricName.UNEXAMINED), "unexamined"),
        (Metric(MetricName.UNEXAMINED, "newer"), "unexamined_newer"),
        (Metric(MetricName.CAMERA_BYTES, "estimated"), "camera_bytes_estimated"),
        (Metric(MetricName.UPLINK_BYTES, "facts"), "uplink_bytes_facts"),
        (Metric(MetricName.OUTBOX_DROPPED_BYTES), "outbox_dropped_bytes"),
        (Metric(MetricName.HEALTH, "moved"), "health_moved"),
        (Metric(MetricName.RECHECK, "confirmed"), "second_look_confirmed"),
        (Metric(MetricName.FRAME_AGE_MS, "more"), "age_ms_more"),
    ],
)
def test_a_metric_stands_in_the_database_as_it_always_did(metric: Metric, kind: str) -> None:
    assert metric.kind == kind
    assert Metric.parse(kind) == metric


def test_a_metric_of_another_version_is_left_out(db: Database) -> None:
    with db.transaction() as connection:
        connection.execute("INSERT INTO meter VALUES (?, 'run-1', 'yard', 'of_tomorrow', 7)", (DAY,))
    assert Metric.parse("of_tomorrow") is None
    assert Meter(db, "run-1").totals("all") == []


def test_since_start_since_midnight_and_ever(db: Database) -> None:
    before = Meter(db, "run-0")
    before.add("yard", PACKETS, 1)
    before.flush("2000-01-01")
    before.add("yard", PACKETS, 10)
    before.flush(DAY)
    now = Meter(db, "run-1")
    now.add("yard", PACKETS, 100)
    now.flush(DAY)
    now.add("yard", PACKETS, 1000)
    totals = {since: now.totals(since)[0].amount for since in ("start", "today", "all")}  # type: ignore[arg-type]
    assert totals == {"start": 1100, "today": 1110, "all": 1111}


def test_nothing_is_counted_twice_or_not_at_all_while_others_add_and_flush(db: Database) -> None:
    meter = Meter(db, "run-1")
    seen: list[int] = []

    def add() -> None:
        for _ in range(300):
            meter.add("yard", PACKETS, 1)

    def add_inside_a_transaction() -> None:
        for _ in range(30):
            with db.transaction():
                meter.add("yard", PACKETS, 10)

    def flush() -> None:
        for _ in range(30):
            meter.flush(DAY)
            seen.append(sum(total.amount for total in meter.totals("start")))

    threads = [
        threading.Thread(target=work, daemon=True) for work in (add, add, add_inside_a_transaction, flush, flush)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert meter.totals("start") == [MeterTotal("yard", PACKETS, 900)]
    assert max(seen) <= 900


def test_who_asks_for_sums_while_the_database_is_gone_holds_up_nobody(db: Database) -> None:
    meter = Meter(db, "run-1")
    meter.add("yard", PACKETS, 1)
    db.path.rename(db.path.with_name("aside"))
    with db.exclusive():  # another thread is about to write
        asking = threading.Thread(target=meter.totals, args=("start",), daemon=True)
        asking.start()
        asking.join(0.3)
        counting = threading.Thread(target=meter.add, args=("yard", PACKETS, 1), daemon=True)
        counting.start()
        counting.join(5)
        assert not counting.is_alive(), "the core counts with every message"
    asking.join(5)
    assert not asking.is_alive()


def test_what_left_is_written_down_and_summed(db: Database) -> None:
    audit = AuditStore(db)
    for n in range(5):
        kind = "frame" if n else "facts"
        row = AuditRow(
            t=T0 + n, camera="yard", escalation="q1", kind=kind, bytes=10 * n, sha256="0", why="rule intruder"
        )
        audit.write(row)
    assert [row.t for row in audit.page(limit=2)] == [T0 + 4, T0 + 3]
    assert [row.t for row in audit.page(before_id=3)] == [T0 + 1, T0]
    assert [(total.kind, total.count, total.bytes) for total in audit.totals(T0, T0 + 3)] == [
        ("facts", 1, 0),
        ("frame", 3, 60),
    ]


def test_an_audit_row_shares_the_fate_of_its_transaction(db: Database) -> None:
    audit = AuditStore(db)
    row = AuditRow(t=T0, camera="yard", escalation="q1", kind="facts", bytes=1, sha256="0", why="")

    def fail() -> None:
        with db.transaction() as connection:
            audit.write(row, connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert audit.page() == []


def test_the_names_in_the_database_are_those_of_all_years() -> None:
    """A database of an older version holds them: another value would begin at nothing."""
    assert {each.value for each in MetricName} >= {
        "packets", "decoded", "skipped", "examined", "unexamined", "retried", "decoder_failed", "unrecorded",
        "reconnects", "camera_bytes", "detect_bytes", "uptime_s", "uplink_bytes", "outbox_dropped",
        "outbox_dropped_bytes", "notice_local_bytes", "health", "held_back", "second_look", "alerts", "energy_j",
        "energy_camera_s", "age_ms",
    }  # fmt: skip


def test_of_a_camera_of_which_only_its_state_is_known_nothing_is_late_or_promised() -> None:
    known = DecodeStatus("idle")
    assert (known.behind_s, known.promised_fps, known.examined_fps, known.decoder) == (0, None, None, "software")
