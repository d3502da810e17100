"""Pre-roll rings: short, in memory if wished, and what an alert needs is on disk before it goes round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import MissingDependency
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.deletions import newest_deletions
from appliance.store.outbox import Outbox
from appliance.store.paths import SEGMENTS, inside
from appliance.store.preroll_ring import PrerollRing, prepare_ring_folder
from appliance.store.quotas import read_usage
from appliance.store.segments import SegmentStore
from appliance.types import Route, SegmentRow
from tests.support.sample_rows import T0, ended, opened, sample_escalation, sample_verdict

SIZE = 1000


@dataclass
class Box:
    root: Path
    db: Database

    def __post_init__(self) -> None:
        self.segments = SegmentStore(self.db)
        self.ring = PrerollRing(self.db, self.root, {"yard": 5 * SIZE}, before_s=4, after_s=4)

    def record(self, *numbers: int, camera: str = "yard") -> None:
        """Segments of 4 s, `SIZE` bytes each, into the ring."""
        for n in numbers:
            row = SegmentRow(
                camera=camera, path=f"preroll/{camera}/{n:03}.mp4", t_start=T0 + 4 * n, t_end=T0 + 4 * n + 4,
                bytes=SIZE, frames=40, codec="h264", size=(320, 240), complete=True, kind="pre_roll",
            )  # fmt: skip
            file = self.root / row.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes([n % 256]) * SIZE)
            self.segments.put(row)

    def files(self, folder: str) -> list[int]:
        return sorted(int(file.stem) for file in (self.root / folder).glob("**/*.mp4"))

    def found(self, first: int, last: int) -> list[bytes]:
        """The first byte of each segment that evidence would be cut from."""
        rows = self.segments.covering("yard", T0 + 4 * first + 0.1, T0 + 4 * last + 3.9)
        return [inside(self.root, row.path, SEGMENTS).read_bytes()[:1] for row in rows]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    root = tmp_path / "data"
    root.mkdir()
    prepare_ring_folder(root, tmp_path / "memory")
    return Box(root, Database(root / "vedette.db", ManualClock(T0)))


def test_the_ring_goes_round_within_its_bytes_and_nothing_reaches_the_disk(box: Box, tmp_path: Path) -> None:
    for n in range(12):
        box.record(n)
        box.ring.run_once()
    assert box.files("preroll") == [7, 8, 9, 10, 11]
    assert len(list((tmp_path / "memory").glob("*/yard/*.mp4"))) == 5
    assert box.files("segments") == []
    with box.db.read() as connection:
        assert read_usage(connection).bytes("pre_roll") == 5 * SIZE
        (entry,) = connection.execute("SELECT class, reason, files FROM deleted").fetchall()
        assert tuple(entry) == ("pre_roll", "ring", 7)
        assert newest_deletions(connection, 9) == []


def test_a_box_short_of_memory_keeps_a_part_of_the_ring(box: Box) -> None:
    box.record(*range(5))
    box.ring.shrink(0.5)
    box.ring.run_once()
    assert box.files("preroll") == [3, 4]


def test_an_alert_takes_its_part_out_of_the_ring_and_evidence_finds_it_all_along(box: Box) -> None:
    box.record(*range(5))
    AlertStore(box.db).apply(opened(t=T0 + 18), escalation=None, priority="")
    for n in range(5, 12):
        box.record(n)
        box.ring.run_once()
    assert box.files("segments") == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "all since 9 s before it began"
    assert box.files("preroll") == [0, 1]
    assert box.found(2, 11) == [bytes([n]) for n in range(2, 12)]
    AlertStore(box.db).apply(ended(t=T0 + 18, t_end=T0 + 30), escalation=None, priority="")
    for n in range(12, 20):
        box.record(n)
        box.ring.run_once()
    assert box.files("segments") == list(range(2, 10)), "its clip is not cut yet"
    assert box.files("preroll") == list(range(15, 20))


def test_what_was_taken_out_goes_when_the_alert_is_finished_and_answered(box: Box) -> None:
    box.record(*range(5))
    alerts, evidence = AlertStore(box.db), EvidenceStore(box.db)
    alerts.apply(ended(t=T0 + 10, t_end=T0 + 12), escalation=sample_escalation(t=T0 + 10), priority="high")
    box.ring.run_once()
    evidence.put(*(EvidenceRow(alert="a1", kind=kind, state="missing") for kind in ("still", "clip", "boxes")))
    evidence.make_ready(sample_escalation(t=T0 + 10), ())
    box.ring.run_once()
    assert box.files("segments") == [0, 1, 2, 3, 4], "the cloud may ask for more of it"
    alerts.apply_verdict(sample_verdict(), T0 + 20)
    box.ring.run_once()
    assert box.files("segments") == []
    with box.db.read() as connection:
        assert [(row.what, row.reason, row.files) for row in newest_deletions(connection, 9)] == [("alert", "done", 5)]


@pytest.mark.parametrize("answered", [True, False])
def test_what_was_taken_out_goes_when_this_appliance_ends_a_postponed_escalation(box: Box, answered: bool) -> None:
    box.record(*range(5))
    alerts, evidence, outbox = AlertStore(box.db), EvidenceStore(box.db), Outbox(box.db, 3600.0)
    asked = sample_escalation(t=T0 + 10)
    later = Route(camera="yard", alert="a1", event="e", t=T0 + 10, ask=True, when="later", wait="off_peak")
    alerts.apply(ended(t=T0 + 10, t_end=T0 + 12), escalation=asked, priority="low", route=later)
    box.ring.run_once()
    evidence.put(*(EvidenceRow(alert="a1", kind=kind, state="missing") for kind in ("still", "clip", "boxes")))
    evidence.make_ready(asked, ())
    (row,) = alerts.escalations.postponed(9)
    box.ring.run_once()
    assert box.files("segments") == [0, 1, 2, 3, 4]
    if answered:
        assert alerts.apply_verdict(sample_verdict(), T0 + 20)
    else:
        outbox.give_up(row, "the local judge could not answer")
    box.ring.run_once()
    assert box.files("segments") == []


def test_with_no_room_on_the_disk_the_ring_keeps_what_an_alert_needs(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.record(*range(3))
    AlertStore(box.db).apply(opened(t=T0 + 5), escalation=None, priority="")
    (box.root / "segments").mkdir()
    (box.root / "segments" / "yard").write_bytes(b"in the way")  # a folder that cannot be made
    for n in range(3, 9):
        box.record(n)
        box.ring.run_once()
    assert box.files("preroll") == list(range(9))
    (box.root / "segments" / "yard").unlink()
    box.ring.run_once()
    assert (box.files("preroll"), box.files("segments")) == ([], list(range(9)))


def test_a_kill_between_the_copy_and_its_row_is_made_good(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.record(*range(5))
    AlertStore(box.db).apply(opened(t=T0 + 8), escalation=None, priority="")
    with monkeypatch.context() as killed:
        killed.setattr(box.db, "transaction", lambda **_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            box.ring.run_once()
    copy = next((box.root / "segments").rglob("*.mp4"))
    number = int(copy.stem)
    adopted = SegmentRow(  # as the next start takes the file in
        camera="yard", path=str(copy.relative_to(box.root)), t_start=T0 + 4 * number, t_end=T0 + 4 * number + 4,
        bytes=SIZE, frames=40, codec="h264", size=(320, 240), complete=True, kind="continuous",
    )  # fmt: skip
    box.segments.put(adopted)
    box.ring.run_once()
    assert (box.files("preroll"), box.files("segments")) == ([], list(range(5))), "all that the alert needs is safe"
    assert box.found(0, 4) == [bytes([n]) for n in range(5)]


def test_a_power_cut_costs_what_is_in_memory_and_nothing_else(box: Box, tmp_path: Path) -> None:
    box.record(*range(5))
    AlertStore(box.db).apply(ended(t=T0 + 10, t_end=T0 + 11), escalation=None, priority="")
    box.ring.run_once()
    box.record(*range(5, 8))
    for file in (tmp_path / "memory").glob("*/yard/*.mp4"):
        file.unlink()
    prepare_ring_folder(box.root, tmp_path / "memory")
    found = box.segments.reconcile(box.root)
    assert found.rows_dropped == 3
    assert box.found(0, 7) == [bytes([n]) for n in range(5)]


def test_two_boxes_may_share_a_folder_in_memory_and_the_key_may_be_taken_back(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        prepare_ring_folder(tmp_path / name, tmp_path / "memory")
        (tmp_path / name / "preroll" / "x").write_bytes(name.encode())
    assert (tmp_path / "a/preroll/x").read_bytes() == b"a"
    prepare_ring_folder(tmp_path / "a", None)
    assert not (tmp_path / "a/preroll").is_symlink()
    prepare_ring_folder(tmp_path / "a", tmp_path / "memory")
    assert (tmp_path / "a/preroll/x").read_bytes() == b"a"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MissingDependency, match=r"storage\.preroll_dir .*file/deeper cannot be used"):
        prepare_ring_folder(tmp_path / "a", tmp_path / "file/deeper")


def test_a_row_of_the_ring_leads_nowhere_else(box: Box, tmp_path: Path) -> None:
    victim = tmp_path / "memory" / "other" / "x"
    victim.parent.mkdir()
    victim.write_bytes(b"of another box")
    with pytest.raises(Exception, match="leads out"):
        inside(box.root, "preroll/../vedette.db", SEGMENTS)
    with pytest.raises(Exception, match="leads out"):
        inside(box.root, f"preroll/yard/../../../{victim.parent.name}/x", SEGMENTS)
