"""Fragments of a growing segment as a browser takes them: whole, in camera time, and nothing from a damaged file."""

from __future__ import annotations

import io
import random
from pathlib import Path

import av
import pytest

from appliance.base.clock import ManualClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.fragmented_mp4 import Fragment, FragmentError, FragmentReader
from appliance.types import SegmentRow
from tests.support.numbered_footage import number
from tests.support.scripted_sources import Heard, clip

T0 = 1_700_000_000.25


def growing(tmp_path: Path, *, b_frames: int = 0, codec: str = "libx264", count: int = 40, segment_s: float = 60):
    """Records a clip, and yields the row of the newest segment after each packet."""
    clock, heard = ManualClock(T0), Heard()
    path = clip(tmp_path / "c.mp4", count, gop=20, b_frames=b_frames, codec=codec)
    source = FileSource("gate", str(path), clock)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", segment_s, 0), clock, heard)
    recorder.begin(source.open(), "run1")
    for packet in source.packets():
        recorder.take(packet)
        yield heard.of(SegmentRow)[-1]
    recorder.end()
    yield heard.of(SegmentRow)[-1]


def shown(fragments: list[Fragment]) -> list[tuple[float, int]]:
    """(camera time, number in the picture) of what a player shows of these fragments."""
    data = fragments[0].init.data + b"".join(each.data for each in fragments)
    with av.open(io.BytesIO(data), format="mp4") as container:
        return [
            (float(frame.pts * frame.time_base), number(frame.to_ndarray(format="rgb24")))
            for frame in container.decode(video=0)
        ]


@pytest.mark.parametrize(("codec", "b_frames"), [("libx264", 0), ("libx264", 2), ("libx265", 2)])
def test_a_growing_segment_is_played_in_camera_time(tmp_path: Path, codec: str, b_frames: int) -> None:
    reader, fragments, behind = None, [], []
    for n, row in enumerate(growing(tmp_path, codec=codec, b_frames=b_frames)):
        reader = reader or FragmentReader(tmp_path / row.path, row.t_start)
        if reader.has_grown:
            fragments += reader.read()
        if fragments and n < 40:
            behind.append(n - sum(each.data.count(b"mdat") for each in fragments) * 5)
    found = shown(fragments)
    assert [n for _, n in found] == list(range(40))
    assert [t for t, _ in found] == pytest.approx([T0 + n / 10 for n in range(40)], abs=1e-4)
    assert max(behind) <= 6, "half a second of pictures, and the one that ended it"
    assert [each.keyframe for each in fragments].count(True) == 2
    assert fragments[0].t == pytest.approx(T0, abs=1e-4)
    kind = {"libx264": 'video/mp4; codecs="avc1.', "libx265": 'video/mp4; codecs="hvc1.1.6.L'}[codec]
    assert fragments[0].init.media_type.startswith(kind)


def test_who_begins_late_gets_the_last_key_frame_and_what_follows(tmp_path: Path) -> None:
    rows = list(growing(tmp_path))
    reader = FragmentReader(tmp_path / rows[-1].path, rows[-1].t_start)
    newest = reader.newest()
    assert newest[0].keyframe
    assert [n for _, n in shown(newest)] == list(range(20, 40))
    assert reader.read() == []
    reader.close()


def test_a_half_written_fragment_is_waited_for(tmp_path: Path) -> None:
    rows = list(growing(tmp_path))
    whole = (tmp_path / rows[-1].path).read_bytes()
    file = tmp_path / "part.mp4"
    file.write_bytes(b"")
    reader, counts = FragmentReader(file, T0), []
    for end in range(0, len(whole), 997):
        file.write_bytes(whole[:end])
        counts.append(len(reader.read()))
    file.write_bytes(whole)
    counts.append(len(reader.read()))
    assert sum(counts) == 8
    assert max(counts) == 1


def test_a_damaged_file_is_refused_and_never_more(tmp_path: Path) -> None:
    rows = list(growing(tmp_path, count=20))
    whole = (tmp_path / rows[-1].path).read_bytes()
    heads = whole.find(b"mdat") + 200
    chance, refused, file = random.Random(7), 0, tmp_path / "bad.mp4"
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(heads)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        file.write_bytes(data)
        reader = FragmentReader(file, T0)
        try:
            for each in reader.newest() if chance.random() < 0.5 else reader.read():
                assert len(each.data) < len(whole)
        except FragmentError:
            refused += 1
        finally:
            reader.close()
    assert refused > 150


def test_what_is_no_segment_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(FragmentError, match=r"gone\.mp4 cannot be read"):
        FragmentReader(tmp_path / "gone.mp4", T0)
    (tmp_path / "text.mp4").write_bytes(b"<html>" * 100)
    with pytest.raises(FragmentError, match="at byte 0 stands no box"):
        FragmentReader(tmp_path / "text.mp4", T0).read()
