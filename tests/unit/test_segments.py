"""The recording's index, the boxes and the cameras: what was kept, when, and when nothing came."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError
from appliance.store.boxes import BoxStore
from appliance.store.cameras import NOT_RUNNING, CameraStore
from appliance.store.database import Database
from appliance.store.paths import evidence_folder, inside
from appliance.store.segments import SegmentStore
from appliance.types import CameraState, Gap, SegmentRow, StreamHeader
from tests.support.sample_rows import BOX, T0, sample_frame


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0 + 100)


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    db = Database(tmp_path / "vedette.db", clock)
    yield db
    db.close()


def segment(n: int, *, camera: str = "yard", complete: bool = True, t_end: float | None = None) -> SegmentRow:
    return SegmentRow(
        camera=camera,
        path=f"segments/{camera}/{n}.mp4",
        t_start=T0 + 4 * n,
        t_end=T0 + 4 * n + 4 if t_end is None else t_end,
        bytes=10,
        frames=40,
        codec="h264",
        size=(320, 240),
        complete=complete,
    )


def file_of(root: Path, row: SegmentRow, age_s: float = 0.0, now: float = T0 + 100) -> Path:
    file = root / row.path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"0123456789")
    os.utime(file, (now - age_s, now - age_s))
    return file


def test_a_segment_grows_under_one_row(db: Database) -> None:
    segments = SegmentStore(db)
    segments.put(segment(0, complete=False, t_end=T0 + 1))
    segments.put(segment(0, complete=False, t_end=T0 + 2))
    assert segments.covered_until("yard") == T0 + 2
    segments.put(segment(0))
    assert segments.latest("yard") == segment(0)
    assert segments.covered_until("gate") is None


def test_a_segment_that_came_to_nothing_leaves_no_row(db: Database) -> None:
    segments = SegmentStore(db)
    empty = SegmentRow(
        camera="yard", path="segments/yard/0.mp4", t_start=T0, t_end=T0, bytes=0, frames=0, codec="h264", size=(0, 0),
        complete=False,
    )  # fmt: skip
    segments.put(empty)
    assert segments.covering("yard", T0 - 1, T0 + 1) == []
    segments.put(SegmentRow(**{**{name: getattr(empty, name) for name in empty.__slots__}, "complete": True}))
    assert segments.latest("yard") is None


def test_covering_finds_what_holds_any_of_the_span(db: Database) -> None:
    segments = SegmentStore(db)
    for n in range(5):
        segments.put(segment(n))
    segments.put(segment(1, camera="gate"))
    starts = [row.t_start - T0 for row in segments.covering("yard", T0 + 5, T0 + 9)]
    assert starts == [4, 8]
    assert segments.covering("yard", T0 + 30, T0 + 40) == []


def test_index_and_disk_are_compared_after_a_kill(db: Database, tmp_path: Path) -> None:
    segments = SegmentStore(db)
    for n in range(3):
        segments.put(segment(n, complete=n != 1))
    file_of(tmp_path, segment(0))
    file_of(tmp_path, segment(1)).write_bytes(b"half a segment")
    fresh = file_of(tmp_path, segment(8), age_s=60)
    old = file_of(tmp_path, segment(9), age_s=4000)
    found = segments.reconcile(tmp_path)
    assert (found.rows_dropped, found.rows_closed) == (1, 1)
    assert (found.orphans_kept, found.orphans_removed, found.orphan_bytes_removed) == (1, 1, 10)
    assert fresh.exists()
    assert not old.exists()
    rows = segments.covering("yard", T0, T0 + 99)
    assert [(row.path, row.complete, row.bytes) for row in rows] == [
        ("segments/yard/0.mp4", True, 10),
        ("segments/yard/1.mp4", True, 14),
    ]


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "segments/../../x", "", ".", "segments", "segments/link/x", "a\0b"]
)
def test_no_stored_path_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    (root / "segments").mkdir(parents=True)
    (root / "segments" / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="leads out"):
        inside(root, path, "segments")
    assert inside(root, "segments/a/b.mp4", "segments") == (root / "segments/a/b.mp4").resolve()


def test_an_alert_id_never_becomes_a_path() -> None:
    assert evidence_folder("0123abc") == "evidence/0123abc"
    assert ".." not in evidence_folder("../../etc")


def test_boxes_come_back_as_they_went_in(db: Database) -> None:
    boxes = BoxStore(db)
    frames = [sample_frame(T0 + n / 5, seq=n, box=BOX if n % 2 else None) for n in range(10)]
    boxes.append("yard", "r1", frames)
    boxes.append("yard", "r1", frames[:3])
    boxes.append("yard", "r2", [sample_frame(T0 + 0.5, seq=0)])
    assert boxes.span("yard", T0, T0 + 10, run="r1") == frames
    assert len(boxes.span("yard", T0, T0 + 10)) == 11
    assert boxes.span("yard", T0 + 1, T0 + 10, 2) == frames[5:7]
    assert boxes.latest("yard") == frames[-1]
    assert boxes.latest("gate") is None


def test_cameras_are_those_of_the_site_file_without_their_passwords(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "rtsp://u:secret@h/1", "old": "file:x"})
    cameras.ensure({"yard": "rtsp://u:secret@h/1", "gate": "file:y"})
    assert [(row.name, row.state, row.source) for row in cameras.all()] == [
        ("gate", "connecting", "file:y"),
        ("yard", "connecting", "rtsp://h/…"),
    ]


def test_a_camera_tells_its_state_and_its_stream(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "file:x"})
    cameras.write_header(StreamHeader(camera="yard", clip="x", model="nano", size=(320, 240), run="r7"))
    cameras.write_state(CameraState(camera="yard", state="live", t=T0 + 1))
    cameras.write_state(CameraState(camera="yard", state="live", t=T0 + 2, reason="still rtsp://u:secret@h"))
    row = cameras.get("yard")
    assert row is not None
    assert (row.run, row.model, row.size, row.since_t) == ("r7", "nano", (320, 240), T0 + 1)
    assert "secret" not in row.reason


def test_a_gap_lasts_until_the_camera_is_live_again(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "file:x"})
    cameras.write_gap(Gap(camera="yard", t_start=T0, t_end=None, reason="cut"))
    cameras.write_gap(Gap(camera="yard", t_start=T0, t_end=None, reason="cut"))
    assert [(gap.t_start, gap.t_end) for gap in cameras.gaps("yard")] == [(T0, None)]
    cameras.write_state(CameraState(camera="yard", state="live", t=T0 + 30))
    cameras.write_gap(Gap(camera="yard", t_start=T0, t_end=T0 + 30.2, reason="cut"))  # told by the camera as well
    assert [(gap.t_start, gap.t_end, gap.reason) for gap in cameras.gaps("yard")] == [(T0, T0 + 30.2, "cut")]
    cameras.write_gap(Gap(camera="yard", t_start=T0 + 60, t_end=T0 + 61, reason="jump"))
    assert [gap.t_start for gap in cameras.gaps("yard")] == [T0 + 60, T0]


def test_a_camera_that_dies_as_it_returns_opens_its_gap_again(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "file:x"})
    cameras.write_gap(Gap(camera="yard", t_start=T0, t_end=None, reason="cut"))
    cameras.write_state(CameraState(camera="yard", state="live", t=T0 + 30))
    cameras.write_gap(Gap(camera="yard", t_start=T0 + 30, t_end=None, reason="cut"))
    assert [(gap.t_start, gap.t_end) for gap in cameras.gaps("yard")] == [(T0, None)]


def test_when_ingest_dies_every_camera_has_a_gap(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "file:x", "gate": "file:y", "clip": "file:z"})
    cameras.write_gap(Gap(camera="gate", t_start=T0 - 9, t_end=None, reason="cut before"))
    cameras.write_state(CameraState(camera="clip", state="ended", t=T0))
    cameras.mark_all_lost(T0 + 5, "the ingest process ended (signal 9)")
    assert {row.name: row.state for row in cameras.all()} == {"yard": "lost", "gate": "lost", "clip": "ended"}
    assert [gap.t_start for gap in cameras.gaps("yard")] == [T0 + 5]
    assert [gap.t_start for gap in cameras.gaps("gate")] == [T0 - 9]
    assert cameras.gaps("clip") == []


def test_the_time_in_which_the_appliance_was_off_is_a_gap(db: Database) -> None:
    cameras = CameraStore(db)
    cameras.ensure({"yard": "file:x", "new": "file:y"})
    assert cameras.gaps("yard") == []
    SegmentStore(db).put(segment(2))
    cameras.ensure({"yard": "file:x", "new": "file:y"})
    cameras.ensure({"yard": "file:x", "new": "file:y"})
    assert [(gap.t_start, gap.t_end, gap.reason) for gap in cameras.gaps("yard")] == [(T0 + 12, None, NOT_RUNNING)]
    cameras.write_state(CameraState(camera="yard", state="live", t=T0 + 200))
    assert [(gap.t_start, gap.t_end) for gap in cameras.gaps("yard")] == [(T0 + 12, T0 + 200)]
    assert cameras.gaps("new") == []


def test_after_the_clock_was_set_back_the_recording_reported_last_counts(db: Database, clock: ManualClock) -> None:
    segments = SegmentStore(db)
    for n in range(20):
        segments.put(segment(n))
    for n in range(5, 8):  # the same times once more, as the clock was set back by a minute; 2 s apart
        again = segment(n)
        segments.put(
            replace(again, path=f"segments/yard/again-{n}.mp4", t_start=again.t_start - 2, t_end=again.t_end - 2)
        )
    assert segments.covered_until("yard") == T0 + 30, "not what was recorded before the clock was set back"
    found = [(row.path.rsplit("/")[-1], row.t_start - T0) for row in segments.covering("yard", T0 + 19, T0 + 29)]
    assert found == [("4.mp4", 16), ("again-5.mp4", 18), ("again-6.mp4", 22), ("again-7.mp4", 26), ("7.mp4", 28)]


def test_boxes_left_in_the_future_by_a_clock_set_back_are_not_the_newest(db: Database, clock: ManualClock) -> None:
    cameras, boxes = CameraStore(db), BoxStore(db)
    cameras.ensure({"yard": "rtsp://x"})
    boxes.append("yard", "r1", [sample_frame(T0 + 100 + n, seq=n) for n in range(3600)])
    cameras.write_header(StreamHeader(camera="yard", clip="", model="m", size=(320, 240), run="r2"))
    assert boxes.latest("yard") is None
    boxes.append("yard", "r2", [sample_frame(T0 + 101, seq=0)])
    newest = boxes.latest("yard")
    assert newest is not None
    assert newest.t == T0 + 101
