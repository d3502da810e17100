"""What the recorder writes, the evidence reads: the same frames at the same times, also while the file grows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest

from appliance.base.clock import ManualClock
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.clips import cut_clip
from appliance.media.recorded import RecordedSegment
from appliance.media.source import StreamInfo, VideoPacket
from appliance.media.stills import cut_still
from appliance.types import SegmentRow
from tests.support.numbered_footage import encoded_footage, number
from tests.support.sample_rows import T0

FPS = 12.5


@pytest.mark.parametrize("b_frames", [0, 2])
def test_every_frame_is_found_where_it_was_recorded(tmp_path: Path, b_frames: int) -> None:
    made = encoded_footage(0, 150, fps=FPS, gop=25, b_frames=b_frames)
    stream = made.source.streams.video[0]
    rows: dict[str, SegmentRow] = {}
    latest: list[SegmentRow] = []

    def take(row: SegmentRow) -> None:
        rows[row.path] = row
        latest[:] = [row]

    recorder = SegmentRecorder(RecordTarget(tmp_path, "yard", 4.0, 0), ManualClock(), take)
    recorder.begin(StreamInfo("h264", made.size, stream, "film", 1 / FPS), "r1")
    read_while_growing = 0
    for data, pts, dts, key in made.packets:
        packet = av.Packet(data)
        packet.stream = stream
        packet.time_base = Fraction(1, 1_000_000)
        packet.pts, packet.dts = round((T0 + pts / FPS) * 1e6), round((T0 + dts / FPS) * 1e6)
        packet.is_keyframe = key
        recorder.take(VideoPacket(packet, T0 + pts / FPS, key, len(data)))
        if latest and latest[0].frames and not latest[0].complete:
            last_t = latest[0].t_end - 1 / FPS
            assert number(cut_still([on_disk(tmp_path, latest[0])], last_t).image) == round((last_t - T0) * FPS)
            read_while_growing += 1
            latest.clear()
    recorder.end()
    assert read_while_growing >= 6

    segments = [on_disk(tmp_path, row) for row in sorted(rows.values(), key=lambda row: row.t_start)]
    assert [round(each.t_start - T0, 3) for each in segments] == [0, 4, 8]
    for n in range(0, 150, 7):
        assert number(cut_still(segments, T0 + n / FPS).image) == n
    clip = cut_clip(segments, T0 + 3.3, T0 + 11, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as opened:
        for frame in opened.decode(video=0):
            n = number(frame.to_ndarray(format="bgr24"))
            assert clip.t_start + frame.time == pytest.approx(T0 + n / FPS, abs=1e-3)


def on_disk(root: Path, row: SegmentRow) -> RecordedSegment:
    return RecordedSegment(root / row.path, row.t_start, row.t_end)
