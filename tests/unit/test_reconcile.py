"""After a kill or a power cut: every second of video that is on disk is found again, and nothing else is claimed."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import av
import pytest

from appliance.base.clock import ManualClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.recording_reader import SandboxedReader
from appliance.media.segment_reader import recover_segment
from appliance.sandbox.sandbox import Sandbox, SandboxTimeout
from appliance.store import segments as segments_module
from appliance.store.database import Database
from appliance.store.quotas import read_usage
from appliance.store.segments import SegmentStore, sweep_orphans
from appliance.types import SegmentRow
from tests.support.scripted_sources import Heard, clip

ROOT = Path(__file__).parents[2]
T = 1_700_000_000.25


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return Database(tmp_path / "vedette.db", ManualClock(T + 100))


def record(tmp_path: Path, *, seconds: int = 6, b_frames: int = 0, ring: bool = False) -> list[SegmentRow]:
    """Real segments of two seconds; what was told of each at last."""
    clock, heard = ManualClock(T), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 10 * seconds, b_frames=b_frames)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2, 0, 10**6 if ring else None), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
    recorder.end()
    return [row for row in heard.of(SegmentRow) if row.complete]


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("ring", [False, True])
def test_files_whose_rows_the_power_cut_took_are_adopted(
    db: Database, tmp_path: Path, b_frames: int, ring: bool
) -> None:
    told = record(tmp_path, b_frames=b_frames, ring=ring)
    segments = SegmentStore(db)
    segments.put(told[0])
    found = segments.reconcile(tmp_path, measure=recover_segment)
    assert (found.adopted, found.rows_dropped, found.orphans_removed) == (2, 0, 0)
    assert found.adopted_s == pytest.approx(4, abs=0.01)
    rows = segments.covering("gate", T, T + 10)
    for row, was in zip(rows, told, strict=True):
        assert (row.t_start, row.t_end) == pytest.approx((was.t_start, was.t_end), abs=0.002)
        same = ("path", "camera", "bytes", "frames", "codec", "size", "complete", "kind")
        assert [getattr(row, name) for name in same] == [getattr(was, name) for name in same]
    with db.read() as connection:
        assert read_usage(connection).bytes("pre_roll" if ring else "continuous") == sum(row.bytes for row in told)


def test_files_that_are_too_many_to_be_read_are_listed_by_their_names_and_none_is_deleted(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of one camera is 21,600 files: the database was lost, or a backup of yesterday was restored."""
    monkeypatch.setattr(segments_module, "ADOPTED_MAX", 1)
    told = record(tmp_path)
    found = SegmentStore(db).reconcile(tmp_path, measure=recover_segment, orphan_age_s=-1e12)
    assert (found.adopted, found.orphans_removed) == (len(told), 0)
    rows = SegmentStore(db).covering("gate", T, T + 10)
    assert [row.path for row in rows] == [row.path for row in told]
    for row, following in zip(rows, told[1:], strict=False):
        assert row.t_end == pytest.approx(following.t_start, abs=0.002)
    same = ("codec", "size", "bytes", "complete")
    assert [[getattr(row, name) for name in same] for row in rows] == [
        [getattr(row, name) for name in same] for row in told
    ]


def test_a_file_that_lost_its_end_counts_as_far_as_it_can_be_read(db: Database, tmp_path: Path) -> None:
    told = record(tmp_path)
    segments = SegmentStore(db)
    for row in told:
        segments.put(row)
    with (tmp_path / told[1].path).open("r+b") as file:
        file.truncate(told[1].bytes * 6 // 10)
    with (tmp_path / told[2].path).open("r+b") as file:
        file.truncate(100)
    found = segments.reconcile(tmp_path, measure=recover_segment)
    assert (found.rows_closed, found.rows_dropped, found.orphans_removed) == (1, 1, 1)
    first, cut = segments.covering("gate", T, T + 10)
    assert first == told[0]
    assert told[1].t_start < cut.t_end < told[1].t_end
    with av.open(str(tmp_path / cut.path)) as container:
        readable = [packet for packet in container.demux(video=0) if packet.size and not packet.is_corrupt]
    assert len(readable) == cut.frames
    assert not (tmp_path / told[2].path).exists()


@pytest.mark.parametrize("share", [0.5, 0.6, 0.62, 0.8])  # a frame, a header, its inside, a frame
@pytest.mark.parametrize("tail", [b"\0", b"\xff", b"moof"], ids=["zeros", "ones", "old blocks"])
def test_a_file_whose_end_the_power_cut_filled_with_what_was_not_written_counts_up_to_there(
    db: Database, tmp_path: Path, tail: bytes, share: float
) -> None:
    """File systems keep a length and lose the blocks: the file is as long as its row says, and its end is nonsense."""
    told = record(tmp_path)[0]
    SegmentStore(db).put(replace(told, complete=False))
    kept = int(told.bytes * share)
    with (tmp_path / told.path).open("r+b") as file:
        file.seek(kept)
        file.write((tail * told.bytes)[: told.bytes - kept])
    SegmentStore(db).reconcile(tmp_path, measure=recover_segment)
    (row,) = [each for each in SegmentStore(db).covering("gate", T, T + 10) if each.path == told.path]
    assert row.complete
    assert (8 if share < 0.59 else 10) <= row.frames < told.frames
    assert row.t_end - row.t_start == pytest.approx(row.frames / 10, abs=0.15)
    assert row.bytes == (tmp_path / row.path).stat().st_size
    with av.open(str(tmp_path / row.path)) as container:
        readable = [packet for packet in itertools.islice(container.demux(video=0), row.frames) if packet.size]
    assert len(readable) == row.frames


def test_a_segment_that_was_left_open_gets_the_seconds_that_were_never_reported(db: Database, tmp_path: Path) -> None:
    told = record(tmp_path)
    SegmentStore(db).put(
        replace(told[0], complete=False, t_end=told[0].t_start + 1, frames=10, bytes=told[0].bytes // 2)
    )
    SegmentStore(db).reconcile(tmp_path, measure=recover_segment)
    row = SegmentStore(db).covering("gate", T, T + 1)[0]
    assert (row.complete, row.frames, row.bytes) == (True, 20, told[0].bytes)
    assert row.t_end == pytest.approx(told[0].t_end, abs=0.002)


def test_a_box_too_busy_to_read_a_segment_does_not_delete_it(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, segments = record(tmp_path), SegmentStore(db)
    segments.put(replace(told[0], complete=False, frames=told[0].frames - 5))
    reader = SandboxedReader(tmp_path)

    def slow(*_: object, **__: object) -> None:
        raise SandboxTimeout("recover took longer than 20 s")

    monkeypatch.setattr(Sandbox, "call", slow)
    found = segments.reconcile(tmp_path, measure=reader.recover_segment, orphan_age_s=-1e12)
    assert (found.rows_closed, found.rows_dropped, found.adopted, found.orphans_removed) == (1, 0, 2, 0)
    assert sweep_orphans(db, tmp_path, orphan_age_s=-1e12).orphans_removed == 0
    assert all((tmp_path / row.path).exists() for row in told)
    row, *others = segments.covering("gate", T, T + 10)
    assert (row.complete, row.frames) == (True, told[0].frames - 5)
    assert [(each.path, each.bytes) for each in others] == [(each.path, each.bytes) for each in told[1:]]
    assert [each.t_start for each in others] == pytest.approx([each.t_start for each in told[1:]], abs=0.002)


def test_a_segment_is_not_cut_back_because_the_process_lacks_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / record(tmp_path)[0].path
    before = path.read_bytes()
    lacking = OSError(errno.EMFILE, "Too many open files")
    with monkeypatch.context() as short:
        short.setattr(av, "open", lambda *_, **__: (_ for _ in ()).throw(lacking))
        with pytest.raises(OSError, match="Too many open files"):
            recover_segment(path)
    assert path.read_bytes() == before


def test_what_is_not_ours_is_counted_and_left_for_an_hour(db: Database, tmp_path: Path) -> None:
    folder = tmp_path / "segments/gate/2023-11-14"
    folder.mkdir(parents=True)
    for name in ("notes.txt", "20231114T221320.250Z-run1.mp4"):
        (folder / name).write_bytes(b"no video")
    found = SegmentStore(db).reconcile(tmp_path, measure=recover_segment, orphan_age_s=1e12)
    assert (found.adopted, found.orphans_kept) == (0, 2)
    assert sweep_orphans(db, tmp_path, orphan_age_s=-1e12).orphans_removed == 2


def test_rows_of_a_folder_that_is_gone_are_dropped(db: Database, tmp_path: Path) -> None:
    told = record(tmp_path)
    for day in ("2023-11-14", "2023-11-15"):
        for camera in ("gate", "gate2"):
            SegmentStore(db).put(replace(told[0], camera=camera, path=f"segments/{camera}/{day}/gone.mp4"))
    found = SegmentStore(db).reconcile(tmp_path, measure=recover_segment)
    assert (found.rows_dropped, found.adopted) == (4, 3)


KILLED = """
import os, signal, sys
from pathlib import Path
from appliance.base.clock import ManualClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.store import segments as segments_module
from appliance.store.database import Database
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow
root, clock = Path(sys.argv[2]), ManualClock(1_700_000_000.25)
segments, left = SegmentStore(Database(root / "vedette.db", clock)), int(sys.argv[3])
source = FileSource("gate", sys.argv[1], clock)
recorder = SegmentRecorder(RecordTarget(root, "gate", 2, 0), clock, segments.put)
recorder.begin(source.open(), "run1")
for packet in source.packets():
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    recorder.take(packet)
"""


@pytest.mark.parametrize("packets", [2, 13, 21, 38])
def test_killed_at_any_packet_all_but_the_last_second_is_found(tmp_path: Path, packets: int) -> None:
    made = clip(tmp_path / "c.mp4", 60)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(made), str(tmp_path), str(packets)], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == -9
    db = Database(tmp_path / "vedette.db", ManualClock(T + 100))
    segments = SegmentStore(db)
    found = segments.reconcile(tmp_path, measure=recover_segment)
    rows = segments.covering("gate", T, T + 100)
    assert all(row.complete for row in rows)
    assert sum(row.frames for row in rows) >= packets - 1 - 10
    assert found.rows_dropped + len(rows) >= 1
    assert {file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("segments/**/*.mp4")} == {
        row.path for row in rows
    }
    db.close()
