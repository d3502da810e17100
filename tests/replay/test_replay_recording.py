"""What a box has recorded, replayed: as one film, with its gaps, beside the appliance that goes on recording."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, parse_moment
from appliance.base.errors import SourceError, UsageError
from appliance.config import SiteConfig
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.lab.replay_command import ReplaySelection, replay_targets
from appliance.replay.replay_plan import ReplayOptions
from appliance.replay.replay_result import RecordedLog, ReplayResult, read_log
from appliance.replay.replay_resume import open_log
from appliance.replay.replay_runner import play
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.segments import SegmentStore
from appliance.types import Event, FrameBoxes, Gap, SegmentRow, StreamHeader
from tests.support.block_footage import BrightBlock, block_clip, site

T0 = 1_795_172_400.0  # 2026-11-20T11:00:00Z
NOON = "2026-11-20T11:00:00Z"


def there_and_back(t: float) -> float | None:
    if t < 1 or t > 11:
        return None
    return 0.1 + 0.25 * min(max(t - 1, 0), 2.4) if t < 8 else 0.7 - 0.25 * min(t - 8, 2.4)


class Box:
    """A storage folder with an open database, as a running appliance has it, and a camera that records into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.db = Database(root / DATABASE, ManualClock(T0))
        self.cameras = CameraStore(self.db)
        self.cameras.ensure({"gate": "file:x.mp4", "yard": "file:x.mp4"})
        self.rows: dict[str, SegmentRow] = {}

    def record(self, clip: Path, t: float, run: str, camera: str = "gate") -> None:
        clock = ManualClock(t)
        source = FileSource(camera, f"file:{clip}", clock, threading.Event())
        recorder = SegmentRecorder(RecordTarget(self.root, camera, 2.0, 0), clock, self.note)
        recorder.begin(source.open(), run)
        for packet in source.packets():
            recorder.take(packet)
        recorder.end()
        source.close()

    def note(self, row: SegmentRow) -> None:
        self.rows[row.path] = row
        SegmentStore(self.db).put(row)

    def config(self) -> SiteConfig:
        one = site()
        cameras = {"gate": one.cameras["gate"], "yard": one.cameras["gate"]}
        return one.model_copy(update={"storage": one.storage.model_copy(update={"dir": self.root}), "cameras": cameras})


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "visit.mp4", 14, there_and_back)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "data")
    yield box
    box.db.close()


def run(
    box: Box, log: Path, t_from: str, t_to: str | None = None, cameras: tuple[str, ...] = ("gate",)
) -> tuple[tuple[ReplayResult, ...], RecordedLog]:
    config = box.config()
    (item,) = replay_targets(
        ReplaySelection(cameras=cameras, t_from=t_from, t_to=t_to), config.for_replay(), Path("site.yaml")
    )
    replay_plan = item.plan(config.for_replay(), BrightBlock())
    with open_log(log, replay_plan.header(), resume=False) as file:
        results = play(replay_plan, file.sink, ReplayOptions(ManualClock(), detections=file.detections))
        file.complete()
    return results, read_log(log)


def test_the_segments_of_a_visit_are_one_source(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    assert len(box.rows) > 1
    (result,), log = run(box, tmp_path / "x.jsonl", NOON)
    assert [(event.rule, event.t) for event in result.events] == [
        *(("intruder", 2.8), ("in", 2.8), ("loiterer", 4.8)),
        *(("leaver", 9.4), ("out", 9.4)),
    ]
    assert (result.end.frames, result.gaps, result.end.error, result.clip) == (140, (), None, "recording of gate")
    looked = [line.frame for line in log.lines if isinstance(line, FrameBoxes)]
    assert looked == [0, *range(10, 138, 2)], "nothing moves before"
    (replayed,) = log.header.replayed
    assert (replayed.kind, replayed.t_from, replayed.files) == ("recording", T0, len(box.rows))
    assert result.end.footage_bytes == sum(row.bytes for row in box.rows.values())


def test_twice_the_same_bytes_beside_the_running_appliance(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    before = sorted(path.name for path in box.root.iterdir())
    for name in ("a", "b"):
        run(box, tmp_path / f"{name}.jsonl", NOON)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a.jsonl").read_bytes()
    assert sorted(path.name for path in box.root.iterdir()) == before


def test_after_the_appliance_has_stopped_too(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    box.db.close()
    (result,), _ = run(box, tmp_path / "x.jsonl", NOON)
    assert result.end.frames == 140


def test_only_the_time_that_was_asked_for(box: Box, clip: Path, tmp_path: Path) -> None:
    """Somebody stands in the yard at its beginning: that is no entry until they move off, a second later."""
    box.record(clip, T0, "r1")
    (result,), _ = run(box, tmp_path / "x.jsonl", "2026-11-20T11:00:07Z", "2026-11-20T11:00:10Z")
    assert (result.end.frames, result.end.t) == (31, 3.0)
    assert [(event.rule, event.t) for event in result.events] == [
        ("intruder", 1.4),
        ("loiterer", 2.2),
        ("leaver", 2.4),
        ("out", 2.4),
    ]


def test_a_gap_is_reported_with_its_reason_and_what_was_open_is_over(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    box.record(clip, T0 + 40, "r2")
    box.cameras.write_gap(Gap(camera="gate", t_start=T0 + 14, t_end=T0 + 40, reason="the camera did not answer"))
    (result,), log = run(box, tmp_path / "x.jsonl", NOON)
    (gap,) = result.gaps
    assert (gap.t_start, gap.t_end, gap.reason) == (13.9, 40.0, "the camera did not answer")
    assert [alert.end_reason for alert in result.alerts] == ["quiet", "end of clip"]
    assert [event.t for event in result.events if event.rule == "intruder"] == [2.8, 42.8]
    headers = [line for line in log.lines if isinstance(line, StreamHeader)]
    assert [header.run == log.header.run for header in headers] == [False], "a new connection is a new run"
    kinds = [type(line) for line in log.lines]
    assert kinds.index(Gap) < kinds.index(StreamHeader)


def test_a_hole_in_one_connection_is_a_gap_and_no_new_run(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    middle = sorted(box.rows)[1]
    box.note(replace(box.rows[middle], frames=0, complete=True))
    (result,), log = run(box, tmp_path / "x.jsonl", NOON)
    assert [gap.reason for gap in result.gaps] == ["nothing is recorded"]
    assert result.gaps[0].t_end == pytest.approx(sorted(row.t_start for row in box.rows.values())[2] - T0, abs=0.001)
    assert not [line for line in log.lines if isinstance(line, StreamHeader)]


def test_a_segment_that_is_gone_is_named_and_the_rest_is_played(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    gone = box.root / sorted(box.rows)[1]
    gone.unlink()
    (result,), _ = run(box, tmp_path / "x.jsonl", NOON)
    assert f"1 of {len(box.rows)} segments could not be read" in (result.end.error or "")
    assert gone.name in (result.end.error or "")
    assert len(result.gaps) == 1
    assert 0 < result.end.frames < 140


def test_what_is_still_being_written_counts_to_where_it_is_whole(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    last = box.rows[sorted(box.rows)[-1]]
    box.note(replace(last, t_end=last.t_start + 0.45, complete=False))
    (result,), _ = run(box, tmp_path / "x.jsonl", NOON, "2026-11-20T11:00:14Z")
    assert result.end.t == pytest.approx(last.t_start + 0.4 - T0, abs=0.11)


def test_two_cameras_share_one_time(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    box.record(clip, T0 + 3, "r2", camera="yard")
    results, log = run(box, tmp_path / "x.jsonl", NOON, cameras=("gate", "yard"))
    entered = {event.camera: event.t for event in log.lines if isinstance(event, Event) and event.rule == "intruder"}
    assert entered == {"gate": 2.8, "yard": pytest.approx(5.8)}
    assert [gap.t_end for gap in results[1].gaps] == [pytest.approx(3.0, abs=0.001)]


def test_times_without_a_recording_report_what_there_is(box: Box, clip: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing is recorded of gate"):
        run(box, tmp_path / "x.jsonl", NOON)
    box.record(clip, T0, "r1")
    with pytest.raises(SourceError, match=r"holds 2026-11-20T11:00:00\.000Z to 2026-11-20T11:00:14"):
        run(box, tmp_path / "x.jsonl", "2026-11-21T11:00Z")
    with pytest.raises(UsageError, match="--to must be later"):
        run(box, tmp_path / "x.jsonl", NOON, "2026-11-20T10:00Z")


def test_schedules_go_by_the_time_of_the_recording(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0, "r1")
    config = box.config()
    (item,) = replay_targets(ReplaySelection(cameras=("gate",), t_from=NOON), config.for_replay(), Path("site.yaml"))
    replay_plan = item.plan(config.for_replay(), BrightBlock())
    assert replay_plan.local_time is not None
    assert replay_plan.local_time(3600.0) != replay_plan.local_time(0.0)
    assert replay_plan.header().settings.scheduled


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-11-20T11:00Z", T0), ("2026-11-20T12:00:00+01:00", T0), ("2026-11-20 11:00:00.500Z", T0 + 0.5)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_moment(text) == seconds


def test_a_time_without_a_zone_is_this_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert parse_moment("2026-11-20T12:00") == T0
    finally:
        monkeypatch.undo()
        time.tzset()
    with pytest.raises(UsageError, match="`noon` is no time"):
        parse_moment("noon")


def test_json_of_the_log_reports_the_gap_as_a_line(box: Box, clip: Path, tmp_path: Path) -> None:
    box.record(clip, T0 + 5, "r1")
    run(box, tmp_path / "x.jsonl", NOON)
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_bytes().splitlines()]
    assert [line["type"] for line in lines[:2]] == ["header", "gap"]
    assert (lines[1]["t_start"], lines[1]["t_end"]) == (0.0, pytest.approx(5.0, abs=0.001))
