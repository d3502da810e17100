"""Segments on disk: copied packets, exact times, readable while they grow, and a disk that fills up."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import SourceLost
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.substream_ring import SubstreamRing, clear_substreams
from appliance.media.segment_writer import SegmentFile
from appliance.media.source import VideoPacket
from appliance.types import Gap, SegmentRow
from tests.support.numbered_footage import number
from tests.support.scripted_sources import Heard, clip

ROOT = Path(__file__).parents[2]


def record(tmp_path: Path, source: FileSource, clock: ManualClock, *, segment_s: float = 2.0) -> list[SegmentRow]:
    heard = Heard()
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", segment_s, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
    recorder.end()
    source.close()
    return heard.of(SegmentRow)


def pictures(path: Path) -> list[tuple[float, int]]:
    """(seconds, number shown) of each frame in a file, as any player sees it."""
    with av.open(str(path)) as container:
        return [(float(frame.time), number(frame.to_ndarray(format="rgb24"))) for frame in container.decode(video=0)]


def test_the_files_of_a_second_stream_go_with_their_camera(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    ring = SubstreamRing(tmp_path, "gate", 0, clock)
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 60)}", clock)
    ring.begin(source.open(), "run1")
    for packet in source.packets():
        ring.take(packet)
    ring.end()
    source.close()
    assert len(list((tmp_path / "substreams/gate").iterdir())) == 2
    ring.close()
    assert list((tmp_path / "substreams").iterdir()) == []
    (tmp_path / "substreams/gone").mkdir()
    (tmp_path / "substreams/gone/left.mp4").write_bytes(b"x")
    clear_substreams(tmp_path)
    assert list((tmp_path / "substreams").iterdir()) == [], "its inode is what the process may write to"


@pytest.mark.parametrize("b_frames", [0, 2])
def test_each_segment_begins_at_a_key_frame_and_pts_0_is_its_start(tmp_path: Path, b_frames: int) -> None:
    clock = ManualClock(1_700_000_000.25)
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 60, b_frames=b_frames)}", clock)
    done = [row for row in record(tmp_path, source, clock) if row.complete]
    assert [row.frames for row in done] == [20, 20, 20]
    for n, row in enumerate(done):
        assert row.t_start == pytest.approx(1_700_000_000.25 + 2 * n, abs=1e-5)
        assert row.t_end == pytest.approx(row.t_start + 2, abs=1e-3)
        assert row.bytes == (tmp_path / row.path).stat().st_size
        shown = pictures(tmp_path / row.path)
        assert [seconds for seconds, _ in shown] == pytest.approx([k / 10 for k in range(20)], abs=1e-4)
        assert [number for _, number in shown] == list(range(20 * n, 20 * n + 20))


def test_segments_are_named_by_camera_day_time_and_run(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.25)
    rows = record(tmp_path, FileSource("gate", str(clip(tmp_path / "c.mp4", 10)), clock), clock)
    assert rows[0].path == "segments/gate/2023-11-14/20231114T221320.250Z-run1.mp4"


def test_a_growing_segment_is_told_of_each_second_and_can_be_read_up_to_there(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 60, gop=60)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    told = 0
    for packet in source.packets():
        recorder.take(packet)
        rows = heard.of(SegmentRow)
        if len(rows) > told and rows[-1].frames:
            shown = pictures(tmp_path / rows[-1].path)
            assert len(shown) == rows[-1].frames
            assert rows[-1].t_start + shown[-1][0] == pytest.approx(rows[-1].t_end - 0.1, abs=1e-3)
        told = len(rows)
    assert [row.frames for row in heard.of(SegmentRow)] == [0, 10, 20, 30, 40, 50]
    recorder.end()
    assert heard.of(SegmentRow)[-1].complete


def test_nothing_is_recorded_before_the_first_key_frame(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 30)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in itertools.islice(source.packets(), 5, None):
        recorder.take(packet)
    recorder.end()
    row = heard.of(SegmentRow)[-1]
    assert pictures(tmp_path / row.path)[0] == (0.0, 10)


def test_a_time_jump_and_a_new_size_begin_a_new_segment(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 40)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    for n, packet in enumerate(source.packets()):
        if n == 15:
            recorder.on_session("run2", (640, 480))
        recorder.take(replace(packet, jump=n == 10))
    recorder.end()
    done = [row for row in heard.of(SegmentRow) if row.complete]
    assert [(row.frames, row.size) for row in done] == [(10, (320, 240)), (10, (320, 240)), (20, (640, 480))]
    assert done[-1].path.endswith("-run2.mp4")


@pytest.mark.parametrize(("hole_s", "kept"), [(4.5, 40), (45.0, 40), (130.0, 35)])
def test_frames_after_a_silence_and_a_jump_are_on_disk_before_the_next_key_frame(
    tmp_path: Path, hole_s: float, kept: int
) -> None:
    """Detection goes on with these frames, so their alerts need stills; a long hole is not covered by a segment."""
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 40)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    times = []
    for n, packet in enumerate(source.packets()):
        silent_s = hole_s if n >= 15 else 0.0
        for stamp in ("pts", "dts"):
            setattr(packet.packet, stamp, getattr(packet.packet, stamp) + round(silent_s * 1_000_000))
        times.append(packet.t + silent_s)
        recorder.take(replace(packet, t=packet.t + silent_s, jump=n == 15))
    recorder.end()
    done = [row for row in heard.of(SegmentRow) if row.complete]
    assert sum(row.frames for row in done) == kept
    assert recorder.lost == 40 - kept
    shown = {number: row.t_start + seconds for row in done for seconds, number in pictures(tmp_path / row.path)}
    assert len(shown) == kept
    assert all(t == pytest.approx(times[number], abs=1e-3) for number, t in shown.items())


def test_a_packet_still_decodes_after_it_was_recorded(tmp_path: Path) -> None:
    clock = ManualClock()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 10)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, Heard())
    info = source.open()
    recorder.begin(info, "run1")
    seen = []
    for packet in source.packets():
        before = (packet.packet.pts, packet.packet.dts, packet.packet.time_base)
        recorder.take(packet)
        assert (packet.packet.pts, packet.packet.dts, packet.packet.time_base) == before
        seen += [number(frame.to_ndarray(format="rgb24")) for frame in info.stream.codec_context.decode(packet.packet)]
    assert seen == list(range(10))


def test_two_stamps_on_one_tick_do_not_stop_the_recording(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 20)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    start = None
    for n, packet in enumerate(source.packets()):
        start = start or packet.packet.pts
        packet.packet.pts = packet.packet.dts = start + n
        recorder.take(packet)
    recorder.end()
    assert (recorder.lost, heard.of(SegmentRow)[-1].frames) == (0, 20)


class FullDisk:
    """Takes `room` bytes, the last of them in the middle of a fragment; then ENOSPC, until room is made."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Path) -> SegmentFile:
        disk = self

        class File(SegmentFile):
            def write(self, data: bytes) -> int:
                if self.broken or len(data) <= disk.room:
                    disk.room -= len(data)
                    return super().write(data)
                super().write(data[: disk.room])
                disk.room = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return File(path)


def test_a_full_disk_pauses_the_recording_keeps_what_is_readable_and_resumes(tmp_path: Path) -> None:
    clock, heard, disk = ManualClock(), Heard(), FullDisk(30_000)
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 300)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard, open_file=disk.open)
    recorder.begin(source.open(), "run1")
    packets = source.packets()
    while not recorder.warning:
        recorder.take(next(packets))
    assert recorder.warning == "camera gate: recording is paused: no space left on device"
    broken = heard.of(SegmentRow)[-1]
    assert broken.complete
    assert len(pictures(tmp_path / broken.path)) == broken.frames > 0
    assert (tmp_path / broken.path).stat().st_size == broken.bytes
    for packet in itertools.islice(packets, 30):
        recorder.take(packet)
    assert recorder.lost > 20
    disk.room = 10**9
    for packet in packets:
        recorder.take(packet)
    recorder.end()
    assert recorder.warning == ""
    last = heard.of(SegmentRow)[-1]
    assert len(pictures(tmp_path / last.path)) == last.frames
    assert broken.frames + recorder.lost + last.frames == 300


@pytest.mark.parametrize("segment_s", [60, 1])
def test_a_pause_is_told_as_a_gap_from_the_last_kept_frame_to_the_next(tmp_path: Path, segment_s: float) -> None:
    clock, heard, disk = ManualClock(), Heard(), FullDisk(30_000)
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 300)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", segment_s, 0), clock, heard, open_file=disk.open)
    recorder.begin(source.open(), "run1")
    packets = source.packets()
    while not recorder.warning:
        recorder.take(next(packets))
    for packet in itertools.islice(packets, 120):
        recorder.take(packet)
    disk.room = 10**9
    for packet in packets:
        recorder.take(packet)
    recorder.end()
    told = heard.of(Gap)
    kept = [row for row in heard.of(SegmentRow) if row.complete and row.frames]
    assert {gap.t_start for gap in told} == {max(row.t_end for row in kept if row.t_start < told[0].t_start)}
    assert {gap.reason for gap in told} == {"recording is paused: no space left on device"}
    assert [gap.t_end for gap in told[:-1]] == [None] * (len(told) - 1)
    assert len(told) >= 3, "told again at each try"
    assert told[-1].t_end == min(row.t_start for row in kept if row.t_start > told[0].t_start)
    assert recorder.warning == ""


def test_a_ring_that_nobody_clears_stops_at_twice_its_size(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 300)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2, 0, ring_bytes=20_000), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
        taken = sum(file.stat().st_size for file in (tmp_path / "preroll/gate").glob("*"))
        assert taken < 2 * 20_000 + 15_000, "and the segment in which it noticed"
    assert "the pre-roll ring is full" in recorder.warning
    assert {row.kind for row in heard.of(SegmentRow)} == {"pre_roll"}
    assert not (tmp_path / "segments").exists()


def test_a_ring_is_bounded_without_key_frames_too(tmp_path: Path) -> None:
    """A segment ends only at a key frame; some encoders send none after the first."""
    clock = ManualClock()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 300, gop=1000)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2, 0, ring_bytes=20_000), clock, Heard())
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
        taken = sum(file.stat().st_size for file in (tmp_path / "preroll/gate").glob("*"))
        assert taken < 2 * 20_000 + 15_000, "and the second in which it noticed"
    assert "the pre-roll ring is full" in recorder.warning


def test_a_stream_without_key_frames_is_connected_anew(tmp_path: Path) -> None:
    """A new connection begins with one, so the segment ends, and retention can delete it one day."""
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 400, fps=1, gop=1000)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    packets = list(source.packets())
    for packet in packets[:301]:
        recorder.take(packet)
    with pytest.raises(SourceLost, match="no key frame came for 300 s"):
        recorder.take(packets[301])
    recorder.end()
    assert heard.of(SegmentRow)[-1].complete
    assert heard.of(SegmentRow)[-1].frames == 301
    assert recorder.lost == 0


def test_too_little_free_space_is_a_full_disk_before_it_is_one(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 10)), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 2**62), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
    assert "the disk has less than" in recorder.warning
    (gap,) = heard.messages
    assert (gap.t_start, gap.t_end) == (1_700_000_000.0, None)
    assert gap.reason == f"recording is paused: the disk has less than {2**62 / 1e6:g} MB free"


def test_what_mp4_cannot_hold_goes_into_matroska(tmp_path: Path) -> None:
    path = tmp_path / "c.webm"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for n in range(20):
            frame = av.VideoFrame(320, 240, "yuv420p")
            frame.pts, frame.time_base = n, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    clock = ManualClock()
    row = record(tmp_path, FileSource("gate", str(path), clock), clock)[-1]
    assert row.path.endswith(".mkv")
    with av.open(str(tmp_path / row.path)) as container:
        times = [float(frame.time) for frame in container.decode(video=0)]
    assert times == pytest.approx([n / 10 for n in range(20)], abs=0.002)


def test_what_cannot_be_recorded_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "c.gif"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("gif", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "rgb8"
        for n in range(3):
            frame = av.VideoFrame(32, 24, "rgb8")
            frame.pts, frame.time_base = n, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    clock, heard = ManualClock(), Heard()
    source = FileSource("gate", str(path), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
    recorder.end()
    assert "gif video cannot be recorded" in recorder.warning
    assert heard.messages == []


KILLED = """
import itertools, os, signal, sys
from appliance.base.clock import ManualClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from pathlib import Path
clock = ManualClock()
source = FileSource("gate", sys.argv[1], clock)
recorder = SegmentRecorder(RecordTarget(Path(sys.argv[2]), "gate", 60, 0), clock, lambda row: None)
recorder.begin(source.open(), "run1")
for packet in itertools.islice(source.packets(), 35):
    recorder.take(packet)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_the_segment_can_be_read_but_for_the_last_second(tmp_path: Path) -> None:
    made = clip(tmp_path / "c.mp4", 60, gop=60)
    subprocess.run([sys.executable, "-c", KILLED, str(made), str(tmp_path)], cwd=ROOT, check=False, timeout=60)
    (path,) = tmp_path.glob("segments/gate/*/*.mp4")
    assert [number for _, number in pictures(path)] == list(range(30))


def test_a_packet_has_everything_the_recorder_needs() -> None:
    assert {"packet", "t", "keyframe", "size", "jump", "lag_s"} == set(VideoPacket.__slots__)
