"""A day of a camera for drawing: recording, holes with their reasons, alerts, faults and looks a minute."""

from __future__ import annotations

import gc
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.store.database import STEPS, migrate
from appliance.store.health_events import HealthEventStore
from appliance.store.retention import prune_boxes
from appliance.store.timeline import ALERTS_MAX, SPANS_MAX, TimelineStore
from appliance.types import FrameBoxes, Gap, HealthEvent, SegmentRow, TrackedObject
from tests.support.dashboard_site import RUN, Site, config_of

T0 = 1_700_000_040.0  # a full minute
PERSON = TrackedObject(track=1, label="person", score=0.9, box=(0.1, 0.1, 0.2, 0.5))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0 + 3600))
    yield made
    made.close()


def client_of(site: Site, config: SiteConfig | None = None) -> TestClient:
    app = create_app(site.stored, (config or site.config).for_dashboard(), probes=site.probes())
    return TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)


@pytest.fixture
def client(site: Site) -> TestClient:
    return client_of(site)


def file_of(t_start: float, t_end: float, camera: str = "gate") -> SegmentRow:
    return SegmentRow(
        camera=camera, path=f"segments/{camera}/{t_start}.mp4", t_start=t_start, t_end=t_end, bytes=10, frames=5,
        codec="h264", size=(320, 240), complete=True,
    )  # fmt: skip


def look(seq: int, t: float, *objects: TrackedObject, looked: bool = True) -> FrameBoxes:
    return FrameBoxes(camera="gate", seq=seq, frame=seq, t=t, looked=looked, objects=objects)


def asked(client: TestClient, t0: float = T0, t1: float = T0 + 3600, camera: str = "gate") -> dict:  # type: ignore[type-arg]
    answer = client.get(f"/api/v1/cameras/{camera}/timeline", params={"from": t0, "to": t1})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_files_that_follow_each_other_are_one_stretch(site: Site, client: TestClient) -> None:
    for t in (0.0, 4.0, 8.2, 60.0):
        site.segments.put(file_of(T0 + t, T0 + t + 4))
    site.segments.put(file_of(T0 + 1, T0 + 9, "dock"))
    found = asked(client)
    assert found["recorded"] == [
        {"t_start": T0, "t_end": T0 + 12.2},
        {"t_start": T0 + 60, "t_end": T0 + 64},
    ]
    assert (found["oldest_t"], found["newest_t"], found["codec"]) == (T0, T0 + 64, "h264")
    assert asked(client, T0 + 3, T0 + 5)["recorded"] == [{"t_start": T0, "t_end": T0 + 8}]


def test_a_day_of_files_sets_off_no_collection(site: Site) -> None:
    """A full one looks at all that the core has in memory: 85 ms, while every thread waits."""
    with site.db.transaction(durable=False) as connection:
        connection.executemany(
            "INSERT INTO segment (path, camera, t_start, t_end, bytes, frames, codec, width, height, complete) "
            "VALUES (?, 'gate', ?, ?, 10, 5, 'h264', 320, 240, 1)",
            ((f"{n}", T0 + n, T0 + n + 1) for n in range(21600)),
        )
    store = TimelineStore(site.db)
    before = gc.get_stats()[0]["collections"]
    assert len(store.read("gate", T0, T0 + 21600).recorded) == 1
    assert gc.get_stats()[0]["collections"] - before < 5


def test_a_camera_that_comes_and_goes_all_day_stays_drawable(site: Site, client: TestClient) -> None:
    with site.db.transaction(durable=False):
        for n in range(SPANS_MAX + 200):
            site.segments.put(file_of(T0 + 2.9 * n, T0 + 2.9 * n + 0.8))
    found = asked(client)
    assert len(found["recorded"]) <= SPANS_MAX
    assert found["joined_s"] > 2


def test_what_is_not_recorded_has_a_reason(site: Site) -> None:
    site.segments.put(file_of(T0 + 1000, T0 + 1100))
    site.segments.put(file_of(T0 + 1200, T0 + 1300))
    site.cameras.write_gap(Gap(camera="gate", t_start=T0 + 1100, t_end=T0 + 1150, reason="the camera does not answer"))
    with site.db.transaction() as connection:
        connection.execute(
            "INSERT INTO deleted VALUES ('2023-11-14', 'gate', 'continuous', 'age', 9, 90, ?, ?)", (T0 + 600, T0 + 3000)
        )
    holes = [(each["t_start"] - T0, each["kind"], each["reason"]) for each in asked(client_of(site))["missing"]]
    assert holes == [
        (0, "deleted", "deleted: its time was up"),
        (1100, "interrupted", "the camera does not answer"),
        (1150, "unknown", "nothing is recorded, and no interruption was noted"),
        (1300, "unknown", "nothing is recorded, and no interruption was noted"),
    ]
    plain = config_of().model_dump(mode="json", exclude_unset=True)
    plain["cameras"]["gate"]["record"] = "pre_roll"
    rolling = asked(client_of(site, SiteConfig.model_validate(plain)))["missing"]
    assert [each["kind"] for each in rolling] == ["deleted", "interrupted", "not_kept", "not_kept"]


def test_the_future_is_no_hole_and_a_gap_that_lasts_has_no_end(site: Site, client: TestClient) -> None:
    site.segments.put(file_of(T0, T0 + 3500))
    site.cameras.write_gap(Gap(camera="gate", t_start=T0 + 3500, t_end=None, reason="lost"))
    missing = asked(client, T0, T0 + 86400)["missing"]
    assert missing == [{"t_start": T0 + 3500, "t_end": None, "kind": "interrupted", "reason": "lost"}]


def test_what_is_just_being_written_is_no_hole(site: Site, client: TestClient) -> None:
    site.segments.put(file_of(T0, T0 + 3580))
    assert asked(client, T0, T0 + 86400)["missing"] == []
    site.clock.advance(20)
    assert [each["t_start"] - T0 for each in asked(client, T0, T0 + 86400)["missing"]] == [3580]


def test_alerts_and_faults_that_touch_the_span_are_marked(site: Site, client: TestClient) -> None:
    site.raise_alert("before", T0 - 100, seconds=20)
    site.raise_alert("into", T0 - 10, seconds=20)
    site.raise_alert("lasts", T0 + 50, seconds=None, severity="warning")
    site.raise_alert("dock", T0 + 50, camera="dock")
    for name, camera, t in (("h1", "gate", T0 + 5), ("h2", "", T0 + 6), ("h3", "dock", T0 + 7)):
        fault = HealthEvent(
            id=name, camera=camera, kind="black", t_start=t, t_end=t + 9, t=t, reason="dark", recovery="", attempts=0
        )
        HealthEventStore(site.db).put(fault)
    found = asked(client)
    assert [(each["id"], each["severity"], each["title"]) for each in found["alerts"]] == [
        ("into", "alert", "Person entered yard"),
        ("lasts", "warning", "Person entered yard"),
    ]
    assert found["alerts"][0]["page"] == "/alerts/into"
    assert found["alerts"][0]["still"] is None
    assert [each["id"] for each in found["health"]] == ["h1", "h2"]


def test_audits_and_deleted_alerts_are_not_marked(site: Site, client: TestClient) -> None:
    for name in ("audit", "deleted", "kept"):
        site.raise_alert(name, T0 + 5)
    with site.db.transaction() as connection:
        connection.execute("UPDATE alert SET audit = 1 WHERE id = 'audit'")
        connection.execute("UPDATE alert SET deleted_t = 1 WHERE id = 'deleted'")
    assert [each["id"] for each in asked(client)["alerts"]] == ["kept"]


def test_a_mark_links_the_still_of_its_alert(site: Site, client: TestClient) -> None:
    site.record("gate", T0)
    site.cut(site.raise_alert("seen", T0 + 2, seconds=2.0))
    mark = asked(client)["alerts"][0]
    assert mark["still"] == "/api/v1/alerts/seen/evidence/still.jpg"
    assert client.get(mark["still"]).status_code == 200


def test_more_alerts_than_can_be_drawn_are_counted(site: Site, client: TestClient) -> None:
    with site.db.transaction():
        for n in range(ALERTS_MAX + 3):
            site.raise_alert(f"a{n:04}", T0 + n, ask=False)
    found = asked(client)
    assert len(found["alerts"]) == ALERTS_MAX
    assert found["alerts"][0]["id"] == "a0003"
    assert found["alerts_left_out"] == 3


def test_looks_are_counted_by_the_minute_and_a_frame_twice_is_one(site: Site, client: TestClient) -> None:
    site.boxes.append("gate", RUN, [look(1, T0 + 1), look(2, T0 + 2, PERSON), look(3, T0 + 3, PERSON, looked=False)])
    site.boxes.append("gate", RUN, [look(2, T0 + 2, PERSON), look(4, T0 + 59.9, PERSON), look(5, T0 + 60, PERSON)])
    site.boxes.append("gate", RUN, [look(6, T0 + 181)])
    assert asked(client)["activity"] == {"t": T0, "looks": [3, 1, 0, 1], "seen": [2, 1, 0, 0]}


def test_the_counts_go_with_the_boxes(site: Site) -> None:
    frames = [look(n, T0 + 20 * n) for n in range(30)]
    site.boxes.append("gate", RUN, frames)
    prune_boxes(site.db, 3600 - 300, "WITH held (camera, t0, t1) AS (SELECT '', 0, 0 WHERE 0)")
    kept = TimelineStore(site.db).read("gate", T0, T0 + 3600).activity
    assert [each.t - T0 for each in kept] == [300, 360, 420, 480, 540]


def test_an_older_file_gets_the_counts_of_its_last_two_days() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, STEPS[:10])
    connection.execute("INSERT INTO camera (name, since_t) VALUES ('gate', 0)")
    connection.execute(
        "INSERT INTO segment VALUES ('p', 'gate', ?, ?, 1, 1, 'h264', 1, 1, 1, 'continuous')", (T0, T0 + 4)
    )
    for t, looked, objects in ((T0 - 200_000, 1, "[]"), (T0, 1, "[]"), (T0 + 1, 1, "[{}]"), (T0 + 2, 0, "[]")):
        connection.execute("INSERT INTO boxes VALUES ('gate', ?, 'r', 0, 0, ?, ?)", (t, looked, objects))
    migrate(connection)
    assert connection.execute("SELECT * FROM activity").fetchall() == [("gate", int(T0 // 60), 2, 1)]


@pytest.mark.parametrize(
    "query", ["", "from=1", "from=9&to=9", "from=9&to=1", "from=0&to=200000", "from=nan&to=1", "from=0&to=1e300"]
)
def test_spans_that_make_no_sense_are_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/api/v1/cameras/gate/timeline?{query}").status_code == 422
    assert client.get("/api/v1/cameras/nobody/timeline?from=0&to=10").status_code == 404


def test_a_day_is_read_over_indexes_alone(site: Site) -> None:
    """At 30 days of 16 cameras whatever scans a table would miss its time."""
    statements: list[str] = []
    with site.db.read() as connection:
        connection.set_trace_callback(statements.append)  # the only idle reader, which the store takes next
    TimelineStore(site.db).read("gate", T0, T0 + 86400)
    connection.set_trace_callback(None)
    asked_for = [each for each in statements if each.lstrip().upper().startswith("SELECT")]
    assert len(asked_for) >= 8
    plans = [row[3] for each in asked_for for row in connection.execute(f"EXPLAIN QUERY PLAN {each}")]
    assert any("segment_camera" in plan for plan in plans)
    assert any("alert_camera" in plan for plan in plans)
    scans = [plan for plan in plans if plan.startswith("SCAN") and "health_event" not in plan]
    assert scans == []


def test_a_day_of_one_camera_among_many_is_quick(site: Site) -> None:
    with site.db.transaction(durable=False) as connection:
        connection.executemany(
            "INSERT INTO segment VALUES (?, ?, ?, ?, 1, 5, 'h264', 1, 1, 1, 'continuous')",
            [(f"s{c}-{n}", c, T0 + 4 * n, T0 + 4 * n + 4) for c in ("gate", "dock") for n in range(21_600)],
        )
        connection.executemany(
            "INSERT INTO activity VALUES ('gate', ?, 15, 1)", [(int(T0 // 60) + n,) for n in range(1440)]
        )
    client = client_of(site)
    asked(client, T0, T0 + 86400)
    took = []
    for _ in range(5):
        began = time.thread_time()
        TimelineStore(site.db).read("gate", T0, T0 + 86400)
        took.append(time.thread_time() - began)
    assert min(took) < 0.1
