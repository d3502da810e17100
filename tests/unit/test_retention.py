"""Retention: oldest first, within the limits, and never what an alert still needs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.config import CameraConfig, StorageConfig
from appliance.store import retention
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.audit import AuditRow, AuditStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention, evidence_beyond, recording_beyond
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow, StreamHeader
from tests.support.sample_rows import T0, ended, event, opened, sample_escalation, sample_frame, sample_verdict

HOUR = 3600.0
MB = 1_000_000


@dataclass
class Site:
    root: Path
    clock: ManualClock
    db: Database
    disk: int = 10**12  # bytes on the disk; a recorded segment takes 100 MB of them

    def retention(self, **limits: float) -> Retention:
        storage = StorageConfig.model_validate({"keep_hours": 10, "disk_free_min_mb": 0, **limits})
        return Retention(self.db, self.root, storage, free_bytes=lambda root: self.disk - 100 * MB * len(self.left()))

    def record(self, hours: float, *, camera: str = "yard", megabytes: int = 100, complete: bool = True) -> Path:
        """A segment that began `hours` before now."""
        t_start = self.clock.now() - hours * HOUR
        row = SegmentRow(
            camera=camera, path=f"segments/{camera}/{t_start:.0f}.mp4", t_start=t_start, t_end=t_start + 4,
            bytes=megabytes * MB, frames=40, codec="h264", size=(320, 240), complete=complete,
        )  # fmt: skip
        SegmentStore(self.db).put(row)
        file = self.root / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"video")
        return file

    def left(self, camera: str = "yard") -> list[int]:
        """How many hours old the segments are that remain."""
        with self.db.read() as connection:
            rows = connection.execute("SELECT t_start FROM segment WHERE camera = ? ORDER BY t_start", (camera,))
            return [round((self.clock.now() - row["t_start"]) / HOUR) for row in rows]


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[[], Site]:
    def make() -> Site:
        clock = ManualClock(T0 + 100 * HOUR)
        return Site(tmp_path, clock, Database(tmp_path / "vedette.db", clock))

    return make


@pytest.fixture
def site(make_site: Callable[[], Site]) -> Site:
    return make_site()


def test_what_is_older_than_keep_hours_goes(site: Site) -> None:
    files = {hours: site.record(hours) for hours in (12, 11, 9, 1)}
    report = site.retention().run_once()
    assert (report.segments, report.segment_bytes) == (2, 200 * MB)
    assert site.left() == [9, 1]
    assert [hours for hours, file in files.items() if file.exists()] == [9, 1]


def test_the_oldest_go_until_the_size_is_right(site: Site) -> None:
    for hours in range(9, 0, -1):
        site.record(hours, camera="yard" if hours % 2 else "gate")
    site.retention(size_max_gb=0.65).run_once()
    assert sorted(site.left() + site.left("gate"), reverse=True) == [6, 5, 4, 3, 2, 1]


def test_the_oldest_go_until_the_disk_has_room_to_spare(site: Site) -> None:
    for hours in (5, 4, 3, 2, 1):
        site.record(hours)
    site.disk = 950 * MB
    report = site.retention(disk_free_min_mb=500).run_once()
    assert site.left() == [3, 2, 1]  # 500 MB and a fifth more: the recorder stops at 500
    assert report.short_bytes == 0


def test_the_segment_being_written_stays(site: Site) -> None:
    site.record(0, complete=False)
    report = site.retention(size_max_gb=0.001).run_once()
    assert site.left() == [0]
    assert report.short_bytes == 99 * MB


def test_an_open_alert_keeps_its_segments_and_so_does_waiting_evidence(site: Site) -> None:
    alerts = AlertStore(site.db)
    now = site.clock.now()
    alerts.apply(opened("open", t=now - 20 * HOUR), escalation=None, priority="")
    alerts.apply(ended("waiting", t=now - 30 * HOUR, t_end=now - 30 * HOUR + 5), escalation=None, priority="")
    alerts.apply(ended("done", t=now - 40 * HOUR, t_end=now - 40 * HOUR + 5), escalation=None, priority="")
    EvidenceStore(site.db).put(
        *(EvidenceRow(alert="done", kind=kind, state="missing") for kind in ("still", "clip", "boxes"))
    )
    for hours in (40, 35, 30, 25, 20, 15, 5):
        site.record(hours)
    site.record(30, camera="gate")
    report = site.retention(size_max_gb=0.001).run_once()
    assert site.left() == [30, 20, 15, 5]  # an open alert keeps all that came since it began
    assert site.left("gate") == []
    assert report.short_bytes == 399 * MB


def test_a_escalation_that_waits_for_its_frames_keeps_them(site: Site) -> None:
    t = site.clock.now() - 20 * HOUR
    AlertStore(site.db).apply(ended(t=t, t_end=t + 5), escalation=sample_escalation(t=t), priority="high")
    evidence = EvidenceStore(site.db)
    evidence.put(*(EvidenceRow(alert="a1", kind=kind, state="missing") for kind in ("still", "clip", "boxes")))
    site.record(20)
    site.retention().run_once()
    assert site.left() == [20]
    evidence.make_ready(sample_escalation(t=t), ())
    site.retention().run_once()
    assert site.left() == []


def test_a_row_that_points_elsewhere_is_dropped_and_the_file_left_alone(site: Site, tmp_path: Path) -> None:
    victim = tmp_path / "vedette.db"
    with site.db.transaction() as connection:
        for path in ("vedette.db", "segments/../vedette.db", str(victim)):
            values = "(?, 'yard', 1, 2, 3, 4, 'h264', 1, 1, 1, 'continuous')"
            connection.execute(f"INSERT INTO segment VALUES {values}", (path,))
    report = site.retention().run_once()
    assert (report.segments, report.refused) == (0, 3)
    assert victim.exists()
    assert site.left() == []


def test_a_stepped_clock_does_not_empty_the_disk(site: Site) -> None:
    for hours in (5, 1):
        site.record(hours)
    retention = site.retention()
    retention.run_once()
    site.clock.jump(365 * 24 * HOUR)
    retention.run_once()
    assert len(site.left()) == 2
    site.clock.jump(-365 * 24 * HOUR)
    retention.run_once()
    site.clock.advance(601)
    retention.run_once()
    assert len(site.left()) == 2
    site.clock.advance(6 * HOUR)  # true age is another matter
    retention.run_once()
    assert len(site.left()) == 1


def test_boxes_go_with_the_recording_but_not_those_of_open_alerts(site: Site) -> None:
    boxes, now = BoxStore(site.db), site.clock.now()
    site.record(5)
    boxes.append("yard", "r1", [sample_frame(now - hours * HOUR, seq=hours) for hours in (20, 9, 6, 4, 1)])
    boxes.append("unrecorded", "r1", [sample_frame(now - hours * HOUR, seq=hours) for hours in (20, 9)])
    boxes.append("gate", "r1", [sample_frame(now - hours * HOUR, seq=hours) for hours in (30, 20)])
    AlertStore(site.db).apply(opened(t=now - 20 * HOUR, camera="gate"), escalation=None, priority="")
    report = site.retention().run_once()
    assert report.boxes == 5
    assert [frame.seq for frame in boxes.span("yard", 0, now)] == [4, 1]
    assert [frame.seq for frame in boxes.span("unrecorded", 0, now)] == [9]
    assert [frame.seq for frame in boxes.span("gate", 0, now)] == [20]


def test_the_header_of_a_session_goes_with_its_last_boxes(site: Site) -> None:
    boxes, cameras = BoxStore(site.db), CameraStore(site.db)
    for run in ("r1", "r2", "r3"):
        cameras.write_header(StreamHeader(camera="yard", clip="", model="m", size=(320, 240), run=run))
        for seq in range(2):
            site.clock.advance(3 * HOUR)
            boxes.append("yard", run, [sample_frame(site.clock.now(), seq=seq)])
    retention = site.retention()
    for _ in range(2):  # what the first leaves without boxes goes in the next
        retention.run_once()
    for table in ("boxes", "stream"):
        with site.db.read() as connection:
            assert {row["run"] for row in connection.execute(f"SELECT run FROM {table}")} == {"r2", "r3"}


def test_old_evidence_goes_but_not_what_was_not_sent_and_the_verdict_stays(site: Site) -> None:
    alerts, evidence, now = AlertStore(site.db), EvidenceStore(site.db), site.clock.now()
    for name, days in (("sent", 40), ("unsent", 40), ("young", 2)):
        t = now - days * 24 * HOUR
        alerts.apply(
            ended(name, t=t, t_end=t + 3), escalation=sample_escalation(f"q-{name}", of=name, t=t), priority="high"
        )
        file = site.root / f"evidence/{name}/still.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"picture")
        evidence.put(
            EvidenceRow(alert=name, kind="still", state="ready", path=f"evidence/{name}/still.jpg", bytes=7),
            EvidenceRow(alert=name, kind="clip", state="missing"),
            EvidenceRow(alert=name, kind="boxes", state="missing"),
        )
        evidence.make_ready(sample_escalation(f"q-{name}", of=name, t=t), ())
    alerts.apply_verdict(sample_verdict("q-sent", of="sent"), now)
    AuditStore(site.db).write(
        AuditRow(t=T0, camera="yard", escalation="q-sent", kind="facts", bytes=1, sha256="", why="")
    )
    report = site.retention().run_once()
    assert (report.evidence_files, report.evidence_bytes) == (1, 7)
    assert sorted(folder.name for folder in (site.root / "evidence").iterdir()) == ["unsent", "young"]
    detail = alerts.get("sent")
    assert detail is not None
    still = detail.piece("still")
    assert still is not None
    assert (still.state, still.reason) == ("missing", "removed after 30 days")
    assert detail.verdict is not None
    assert len(AuditStore(site.db).page()) == 1


def test_all_alerts_are_looked_through_once_a_minute_unless_there_is_more_to_delete(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million alerts a look takes 0.7 s of CPU, and there is a run each ten seconds."""
    looks, finds = 0, [[7]]  # in the first look there is something

    def look(*_: object) -> list[int]:
        nonlocal looks
        looks += 1
        return finds.pop() if finds else []

    monkeypatch.setattr(retention, "delete_old_evidence", look)
    keeper = site.retention()
    for _ in range(13):  # two minutes
        keeper.run_once()
        site.clock.advance(10)
    assert looks == 1 + 2


def test_evidence_follows_its_zone_and_the_recording_the_strictest(site: Site) -> None:
    """An alert of two zones follows the stricter one, other zones the site, a zone that is gone the strictest."""
    camera = CameraConfig.model_validate(
        {
            "url": "rtsp://a/b", "quota": {"zone_days": {"street": 1, "garden": 40}},
            "zones": {name: [[0, 0], [1, 0], [1, 1]] for name in ("street", "garden", "path")},
        }
    )  # fmt: skip
    storage = StorageConfig.model_validate({"keep_hours": 72, "evidence_days": 30, "disk_free_min_mb": 0})
    limits = StorageLimits.of(storage, {"yard": camera})
    ages = {"street": 2.0, "garden": 35.0, "both": 2.0, "path": 2.0, "renamed": 2.0, "old path": 31.0}
    zones = {"both": ("garden", "street"), "old path": ("path",), "renamed": ("pavement",)}
    for name, days in ages.items():
        t = site.clock.now() - days * 24 * HOUR
        change = opened(name, t=t)
        for zone in zones.get(name, (name,)):
            said = replace(event(t, name=f"{name}-{zone}"), zone=zone)
            AlertStore(site.db).apply(replace(change, event=said), escalation=None, priority="")
        AlertStore(site.db).apply(ended(name, t=t, t_end=t + 3), escalation=None, priority="")
        file = site.root / f"evidence/{name}/still.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"picture")
        EvidenceStore(site.db).put(
            EvidenceRow(alert=name, kind="still", state="ready", path=f"evidence/{name}/still.jpg", bytes=7),
            *(EvidenceRow(alert=name, kind=kind, state="missing") for kind in ("clip", "boxes")),
        )
    assert evidence_beyond(site.db, limits) == (4, 28)
    site.record(23.0)
    site.record(30.0)
    assert recording_beyond(site.db, "yard", limits.camera("yard").keep_s) == 100 * MB
    Retention(site.db, site.root, storage, {"yard": camera}, free_bytes=lambda root: 10**12).run_once()
    assert sorted(folder.name for folder in (site.root / "evidence").iterdir()) == ["garden", "path"]
    assert site.left() == [23]
    street = AlertStore(site.db).get("street")
    assert street is not None
    assert [each.reason for each in street.evidence if each.kind == "still"] == ["removed after 1 days"]


def test_an_alert_that_is_asked_about_while_others_are_removed_keeps_its_evidence(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, evidence, t = AlertStore(site.db), EvidenceStore(site.db), site.clock.now() - 40 * 24 * HOUR
    files = {}
    for name in ("first", "second"):
        alerts.apply(ended(name, t=t, t_end=t + 3), escalation=None, priority="")
        files[name] = site.root / f"evidence/{name}/still.jpg"
        files[name].parent.mkdir(parents=True)
        files[name].write_bytes(b"picture")
        evidence.put(EvidenceRow(alert=name, kind="still", state="ready", path=f"evidence/{name}/still.jpg", bytes=7))
        t += 60
    unlink = Path.unlink

    def ask_meanwhile(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path == files["first"]:
            question = sample_escalation("q", of="second", t=t)
            alerts.apply(ended("second", t=t, t_end=t + 3), escalation=question, priority="high")

    monkeypatch.setattr(Path, "unlink", ask_meanwhile)
    assert site.retention().run_once().evidence_files == 1
    assert (files["first"].exists(), files["second"].exists()) == (False, True)


def test_evidence_that_the_disk_does_not_give_up_keeps_its_row_until_it_does(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, t = AlertStore(site.db), site.clock.now() - 40 * 24 * HOUR
    alerts.apply(ended("a", t=t, t_end=t + 3), escalation=None, priority="")
    for kind in ("still", "clip", "boxes"):
        file = site.root / f"evidence/a/{kind}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"picture")
        EvidenceStore(site.db).put(EvidenceRow(alert="a", kind=kind, state="ready", path=f"evidence/a/{kind}", bytes=7))
    (site.root / "evidence/a/clip").unlink()
    unlink = Path.unlink

    def stuck(path: Path, missing_ok: bool = False) -> None:
        if path.name == "still":
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, missing_ok)

    def states() -> dict[str, tuple[str, str]]:
        found = alerts.get("a")
        assert found is not None
        return {each.kind: (each.state, each.path) for each in found.evidence}

    monkeypatch.setattr(Path, "unlink", stuck)
    assert site.retention().run_once().evidence_files == 1
    gone = ("missing", "")
    assert states() == {"still": ("ready", "evidence/a/still"), "clip": gone, "boxes": gone}
    monkeypatch.undo()
    assert site.retention().run_once().evidence_files == 1
    assert states()["still"] == gone
    assert not (site.root / "evidence/a").exists()


def test_what_waits_to_be_indexed_is_no_orphan(site: Site) -> None:
    """The database was locked, or moved away, for an hour; the recording went on, its rows wait in memory."""
    file = site.record(2)
    with site.db.transaction() as connection:
        connection.execute("DELETE FROM segment")
    os.utime(file, (site.clock.now() - 2 * HOUR, site.clock.now() - 2 * HOUR))
    waiting = [True]
    storage = StorageConfig.model_validate({"keep_hours": 10, "disk_free_min_mb": 0})
    retention = Retention(
        site.db, site.root, storage, free_bytes=lambda root: site.disk, rows_wait=lambda: bool(waiting)
    )
    site.clock.advance(HOUR)
    retention.run_once()
    assert file.exists()
    waiting.clear()
    retention.run_once()
    assert not file.exists(), "nobody names it"


def test_held_back_events_are_forgotten_in_time(site: Site) -> None:
    alerts, now = AlertStore(site.db), site.clock.now()
    alerts.add_suppressed([event(now - 40 * 24 * HOUR), event(now - HOUR)], run="r1")
    site.retention().run_once()
    with site.db.read() as connection:
        assert connection.execute("SELECT count(*) FROM event").fetchone()[0] == 1
