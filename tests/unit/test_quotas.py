"""Each class of recording has its quota, what is deleted is counted, and evidence that is still needed is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.config import CameraConfig, StorageConfig
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.deletions import OF_ALL, OF_CAMERA, newest_deletions
from appliance.store.quotas import read_usage
from appliance.store.retention import Retention
from appliance.store.reviews import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow
from tests.support.sample_rows import T0, ended, sample_escalation, sample_verdict

HOUR = 3600.0
MB = 1_000_000


@dataclass
class Site:
    root: Path
    clock: ManualClock
    db: Database
    free: int = 10**12

    def retention(self, cameras: dict[str, Any] | None = None, **storage: Any) -> Retention:
        settings = StorageConfig.model_validate({"keep_hours": 100, "disk_free_min_mb": 0, **storage})
        made = {name: CameraConfig.model_validate({"url": "file:x", **keys}) for name, keys in (cameras or {}).items()}
        return Retention(self.db, self.root, settings, made, free_bytes=lambda root: self.free)

    def record(self, hours: float, camera: str = "yard", megabytes: int = 100) -> None:
        t_start = self.clock.now() - hours * HOUR
        row = SegmentRow(
            camera=camera, path=f"segments/{camera}/{t_start:.0f}.mp4", t_start=t_start, t_end=t_start + 4,
            bytes=megabytes * MB, frames=40, codec="h264", size=(320, 240), complete=True,
        )  # fmt: skip
        SegmentStore(self.db).put(row)
        file = self.root / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"video")

    def alert(
        self, name: str, hours: float, *, camera: str = "yard", reviewed: bool = False, sent: bool = True
    ) -> None:
        """An alert of `hours` ago with a clip of 100 MB."""
        t = self.clock.now() - hours * HOUR
        alerts, evidence = AlertStore(self.db), EvidenceStore(self.db)
        asked = sample_escalation(f"q-{name}", of=name, t=t, camera=camera)
        alerts.apply(ended(name, t=t, t_end=t + 3, camera=camera), escalation=asked, priority="high")
        path = f"evidence/{name}/clip.mp4"
        (self.root / path).parent.mkdir(parents=True)
        (self.root / path).write_bytes(b"clip")
        evidence.put(
            EvidenceRow(alert=name, kind="clip", state="ready", path=path, bytes=100 * MB, t_end=t + 3),
            *(EvidenceRow(alert=name, kind=kind, state="missing") for kind in ("still", "boxes")),
        )
        evidence.make_ready(asked, ())
        if sent:
            alerts.apply_verdict(sample_verdict(f"q-{name}", of=name), self.clock.now())
        if reviewed:
            ReviewStore(self.db).review([name], "reviewed", self.clock.now())

    def left(self, camera: str = "yard") -> list[int]:
        with self.db.read() as connection:
            rows = connection.execute("SELECT t_start FROM segment WHERE camera = ? ORDER BY t_start", (camera,))
            return [round((self.clock.now() - row["t_start"]) / HOUR) for row in rows]

    @property
    def clips(self) -> list[str]:
        return sorted(folder.name for folder in (self.root / "evidence").iterdir())

    def ledger(self) -> list[tuple[str, str, str, int, int]]:
        with self.db.read() as connection:
            rows = newest_deletions(connection, 50)
        return sorted((row.camera, row.what, row.reason, row.files, row.bytes // MB) for row in rows)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    clock = ManualClock(T0 + 1000 * HOUR)
    return Site(tmp_path, clock, Database(tmp_path / "vedette.db", clock))


def test_each_camera_is_kept_for_its_own_hours(site: Site) -> None:
    for camera in ("yard", "gate", "gone"):
        for hours in (90, 50, 5):
            site.record(hours, camera)
    site.retention({"yard": {"quota": {"continuous_hours": 10}}, "gate": {}}, keep_hours=60).run_once()
    assert (site.left(), site.left("gate"), site.left("gone")) == ([5], [50, 5], [50, 5])
    assert site.ledger() == [("gate", "continuous", "age", 1, 100), ("gone", "continuous", "age", 1, 100),
                             ("yard", "continuous", "age", 2, 200)]  # fmt: skip


def test_a_cameras_own_quota_takes_from_that_camera_alone(site: Site) -> None:
    for hours in (9, 8, 7):
        site.record(hours, "yard")
        site.record(hours + 20, "gate")
    site.retention({"yard": {"quota": {"continuous_gb": 0.2}}, "gate": {}}).run_once()
    assert (site.left(), site.left("gate")) == ([8, 7], [29, 28, 27])
    assert site.ledger() == [("yard", "continuous", "camera_quota", 1, 100)]


def test_the_quota_of_the_continuous_recording_leaves_evidence_alone(site: Site) -> None:
    site.alert("old", 95, reviewed=True)
    for hours in (9, 8, 7):
        site.record(hours)
    site.retention(quota={"continuous_gb": 0.1}).run_once()
    assert (site.left(), site.clips) == ([7], ["old"])


def test_the_quota_of_evidence_takes_the_oldest_that_was_reviewed_and_sent_and_nothing_else(site: Site) -> None:
    site.alert("unreviewed", 90)
    site.alert("unsent", 80, reviewed=True, sent=False)
    site.alert("oldest", 70, reviewed=True)
    site.alert("newer", 60, reviewed=True)
    site.alert("elsewhere", 95, camera="gate", reviewed=True)
    site.record(99)
    site.retention({"yard": {"quota": {"evidence_gb": 0.3}}, "gate": {}}).run_once()
    assert site.clips == ["elsewhere", "newer", "unreviewed", "unsent"]
    site.retention(quota={"evidence_gb": 0.01}).run_once()
    assert site.clips == ["unreviewed", "unsent"], "they are over the quota, and stay"
    assert site.left() == [99], "the continuous recording does not pay for evidence"
    assert ("yard", "evidence", "camera_quota", 1, 100) in site.ledger()
    detail = AlertStore(site.db).get("oldest")
    assert detail is not None
    clip = detail.piece("clip")
    assert clip is not None
    assert (clip.state, clip.reason) == ("missing", "removed to make room, after it was reviewed")


def test_a_full_disk_costs_recording_first_then_reviewed_evidence_and_then_nothing(site: Site) -> None:
    site.alert("unreviewed", 90)
    site.alert("unsent", 80, reviewed=True, sent=False)
    site.alert("reviewed", 70, reviewed=True)
    for hours in (50, 5):
        site.record(hours)
    retention = site.retention(disk_free_min_mb=100)
    site.free = 30 * MB  # 90 MB are lacking: one segment will do
    retention.run_once()
    assert (site.left(), len(site.clips)) == ([5], 3)
    site.free = -80 * MB  # and now 200 MB: the last segment and one clip
    report = retention.run_once()
    assert (site.left(), site.clips) == ([], ["unreviewed", "unsent"])
    assert report.short_bytes == 200 * MB  # this disk never tells of what was freed
    retention.run_once()
    assert site.clips == ["unreviewed", "unsent"]
    assert site.ledger() == [("yard", "continuous", "disk", 2, 200), ("yard", "evidence", "disk", 1, 100)]


def test_what_the_full_disk_refused_to_enter_is_entered_once(site: Site) -> None:
    for hours in (50, 5):
        site.record(hours)
    retention = site.retention(quota={"continuous_gb": 0.1})
    connection = site.db._writer
    connection.execute("CREATE TEMP TRIGGER refuse BEFORE DELETE ON segment BEGIN SELECT RAISE(ABORT, 'disk'); END")
    with pytest.raises(Exception, match="disk"):
        retention.run_once()
    assert site.ledger() == []
    connection.execute("DROP TRIGGER refuse")
    retention.run_once()
    assert site.ledger() == [("yard", "continuous", "quota", 1, 100)]
    assert site.left() == [5]


def test_the_running_sums_are_the_sums(site: Site) -> None:
    for hours in (9, 8, 7):
        site.record(hours)
        site.record(hours)  # told again
    site.alert("a", 5, reviewed=True)
    site.alert("b", 4)
    for retention in (site.retention(quota={"continuous_gb": 0.2}), site.retention(quota={"evidence_gb": 0.1})):
        retention.run_once()
        with site.db.read() as connection:
            usage = read_usage(connection)
            counted = connection.execute("SELECT count(*), total(bytes) FROM segment").fetchone()
            ready = connection.execute("SELECT count(*), total(bytes) FROM evidence WHERE state = 'ready'").fetchone()
        assert (usage.files("continuous"), usage.bytes("continuous")) == tuple(counted)
        assert (usage.files("evidence"), usage.bytes("evidence")) == tuple(ready)


def test_a_million_rows_cost_no_scan(site: Site) -> None:
    """What runs every ten seconds walks an index from its end and stops; `benchmarks storage` has the times."""
    values = {"before_t": 9e15, "written_t": 0.0, "camera": "yard"}
    for query, index in ((OF_ALL, "segment_age"), (OF_CAMERA, "segment_camera")):
        with site.db.read() as connection:
            plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        assert any(f"SEARCH segment USING INDEX {index}" in step for step in plan), plan
        assert not any("SCAN segment" in step or step == "USE TEMP B-TREE FOR ORDER BY" for step in plan), plan
        # The few held spans are found by indexes, once: not every alert of the camera, for each segment.
        assert any(step == "MATERIALIZE held" for step in plan), plan
        assert not any("INDEX alert_camera" in step for step in plan), plan
        assert not {"SCAN alert", "SCAN escalation", "SCAN evidence"} & set(plan), plan
