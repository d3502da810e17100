"""Some sixty odd files through the file source and the decoder: no crash, no hang, each outcome stated here.

The files are the reference collection beside the repository (its MANIFEST.md says where each is from and what is odd
about it). The expected numbers are what FFmpeg 8 gives; two differ from the manifest on purpose: where a damaged packet
stops a naive reader, ours skips it and goes on (`decord_corrupted`, `mp4parse_no_timescale`), and of several video
tracks the best is taken, not the first (`torchcodec_nasa_13013`).
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.analysis.motion_gate import MotionGate
from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.frames import FrameConverter, upright_size
from appliance.replay.footage import ClipReader
from appliance.types import SegmentRow

pytestmark = pytest.mark.shared

SECONDS_MAX = 240


@dataclass(frozen=True)
class Outcome:
    """What a file gives: frames, (width, height) as shown, seconds to the last frame, and what was odd on the way."""

    frames: int
    size: tuple[int, int]
    last_t: float
    damaged: int = 0
    jumps: int = 0
    hole_s: float = 0.0
    sizes: int = 1
    recorded: bool = True


REFUSED = "is not a video that can be read"
EMPTY = "no picture in it can be decoded"

STREAMS: dict[str, Outcome | str] = {
    "decord_corrupted.mp4": Outcome(49, (1280, 720), 4.9, damaged=1),
    "decord_pancake.mkv": Outcome(310, (426, 240), 10.3),
    "decord_unordered.mov": Outcome(4, (50, 50), 0.09375),
    "decord_video_0.mov": Outcome(3, (568, 320), 0.067),
    "decord_video_180.mov": Outcome(3, (568, 320), 0.067),
    "decord_video_90.mov": Outcome(3, (320, 568), 0.067),
    "kvs_bezos_vogels.mkv": Outcome(546, (1280, 720), 18.185),
    "kvs_output-get-media-non-increasing-timecode.mkv": Outcome(358, (960, 720), 11.916, jumps=1),
    "kvs_output_get_media_sparse_fragments.mkv": Outcome(180, (640, 360), 9.967, hole_s=2.033),
    "kvs_vogels_330.mkv": Outcome(909, (640, 330), 30.297),
    "media3_bbb_2500ms.ts": Outcome(58, (1920, 1080), 2.458, hole_s=0.125),
    "media3_bbb_800x640_768kbps_30fps_avc_pyramid_3b.mp4": Outcome(120, (800, 640), 3.967),
    "media3_bt601.mp4": Outcome(30, (360, 240), 0.968),
    "media3_h265_bframes.mp4": Outcome(30, (854, 480), 0.967),
    "media3_internal_emulator_transformer_output_270_rotated.mp4": Outcome(149, (720, 1280), 4.938),
    "media3_sample.avi": Outcome(96, (960, 400), 4.046, hole_s=0.125),
    "media3_sample.flv": Outcome(30, (1080, 720), 0.967),
    "media3_sample.mkv": Outcome(30, (1080, 720), 0.967),
    "media3_sample_12_5fps_720p_1s.mp4": Outcome(13, (1280, 720), 0.96),
    "media3_sample_2_byte_NAL_length.mp4": Outcome(30, (1080, 720), 0.968),
    "media3_sample_android_slow_motion.mp4": Outcome(7, (1280, 720), 0.492, hole_s=0.325),
    "media3_sample_edit_list_no_sync_frame_before_edit.mp4": Outcome(68, (1080, 1920), 2.302),
    "media3_sample_fragmented.mp4": Outcome(30, (1080, 720), 0.968),
    "media3_sample_fragmented_seekable.mp4": Outcome(30, (1080, 720), 0.968),
    "media3_sample_h264.ts": Outcome(30, (854, 480), 0.967),
    "media3_sample_h264_iframes_only.ts": Outcome(30, (854, 480), 0.967),
    "media3_sample_h264_no_access_unit_delimiters.ts": Outcome(3, (640, 426), 0.067),
    "media3_sample_h265.ts": Outcome(30, (854, 480), 0.967),
    "media3_sample_malformed_free_box.mp4": REFUSED,
    "media3_sample_mdat_too_long.mp4": Outcome(30, (1080, 720), 0.968),
    "media3_sample_partially_fragmented.mp4": Outcome(30, (1080, 720), 0.968),
    "media3_sample_portrait.mp4": Outcome(30, (720, 1080), 0.968),
    "media3_sample_rotate_and_reflect.mp4": Outcome(30, (720, 1080), 0.968),
    "media3_sample_with_htc_rotation_track_name.mkv": Outcome(30, (1080, 720), 0.967),
    "media3_sample_with_junk.ts": Outcome(3, (640, 426), 0.067),
    "media3_sample_without_stss.mp4": Outcome(30, (1080, 720), 0.968),
    "mp4parse_chunk_out_of_range.mp4": REFUSED,
    "mp4parse_no_timescale.mp4": Outcome(170, (320, 240), 6.009, damaged=12, hole_s=0.365),
    "mp4parse_test_case_1185230.mp4": EMPTY,
    "openh264_BA_MW_D_IDR_LOST.264": Outcome(70, (176, 144), 2.76),
    "openh264_Cisco_Men_whisper_640x320_CABAC_Bframe_9.264": Outcome(9, (640, 320), 0.32),
    "openh264_Error_I_P.264": Outcome(6, (352, 288), 0.2, sizes=2),
    "openh264_VID_1280x720_cabac_temporal_direct.264": Outcome(300, (1280, 720), 11.96),
    "openh264_Zhling_1280x720.264": Outcome(19, (1280, 720), 0.72),
    "torchcodec_av1_video.mkv": Outcome(125, (640, 360), 4.96),
    "torchcodec_bt709_full_range.mp4": Outcome(30, (1280, 720), 0.967),
    "torchcodec_h264_10bits.mp4": Outcome(30, (200, 200), 0.967),
    "torchcodec_h265_video.mp4": Outcome(10, (128, 128), 0.9),
    "torchcodec_nasa_13013.mp4": Outcome(390, (480, 270), 12.98),
}
FOOTAGE: dict[str, Outcome | str] = {
    "ambianic_frontdoor_720p.mkv": Outcome(60, (1280, 720), 5.907, hole_s=0.2),
    "ambianic_office_1fps.avi": Outcome(6, (640, 480), 5.0),
    "aws_building_street_vfr.mkv": Outcome(444, (640, 480), 14.985),
    "intel_one-by-one-person.mp4": Outcome(1394, (768, 432), 139.3),
    "intel_preview_classroom.gif": Outcome(45, (480, 270), 2.93, recorded=False),
    "intel_preview_face-demographics-walking.gif": Outcome(35, (480, 270), 2.83, recorded=False),
    "intel_preview_people-detection.gif": Outcome(23, (480, 270), 1.83, recorded=False),
    "intel_preview_store-aisle-detection.gif": Outcome(67, (480, 270), 4.4, recorded=False),
    "intel_preview_worker-zone-detection.gif": Outcome(71, (480, 270), 4.67, recorded=False),
    "pets09_s2l1_vtest_480x360.mp4": Outcome(795, (480, 360), 79.4),
    "pets09_s2l1_vtest_768x576.mp4": Outcome(795, (768, 576), 79.4),
}
# Nothing is odd about these but their length: once a week. Of their kinds there are shorter ones above.
ORDINARY = {
    "intel_one-by-one-person.mp4", "pets09_s2l1_vtest_480x360.mp4", "pets09_s2l1_vtest_768x576.mp4",
    "kvs_vogels_330.mkv", "kvs_bezos_vogels.mkv", "openh264_VID_1280x720_cabac_temporal_direct.264",
}  # fmt: skip
ALL = [
    pytest.param(folder, name, marks=[pytest.mark.slow] if name in ORDINARY else [])
    for folder, names in (("streams", STREAMS), ("footage", FOOTAGE))
    for name in names
]


def expected(folder: str, name: str) -> Outcome | str:
    return (STREAMS if folder == "streams" else FOOTAGE)[name]


def test_the_table_names_every_file(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "streams").iterdir()} == set(STREAMS)
    assert {path.name for path in (shared_data / "footage").iterdir()} == set(FOOTAGE)


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize(("folder", "name"), ALL, ids=[*STREAMS, *FOOTAGE])
def test_every_file_gives_exactly_this(shared_data: Path, folder: str, name: str) -> None:
    outcome = expected(folder, name)
    if isinstance(outcome, str):
        with pytest.raises(SourceError) as caught, ClipReader(f"file:{shared_data / folder / name}") as clip:
            list(clip.frames())
        assert outcome in str(caught.value)
        assert name in str(caught.value)
        return
    with ClipReader(f"file:{shared_data / folder / name}") as clip:
        times, sizes, pictures, gate = [], [], FrameConverter(), MotionGate()
        for frame in clip.frames():
            times.append(frame.t)
            sizes.append(upright_size(frame.av_frame))
            if frame.index % 50 == 0:
                check_pictures(pictures, gate, frame.av_frame, sizes[-1])
    assert (clip.decoded, clip.damaged, clip.jumps) == (outcome.frames, outcome.damaged, outcome.jumps)
    assert times[0] == 0
    assert times[-1] == pytest.approx(outcome.last_t, abs=0.002)
    assert len(times) == outcome.frames
    steps = [b - a for a, b in itertools.pairwise(times)]
    assert min(steps) > 0
    if outcome.hole_s:
        assert max(steps) == pytest.approx(outcome.hole_s, abs=0.002)
    assert (outcome.size in sizes, len(set(sizes))) == (True, outcome.sizes)


def check_pictures(pictures: FrameConverter, gate: MotionGate, frame: av.VideoFrame, size: tuple[int, int]) -> None:
    """Both pictures that are made of a frame exist and have the right shape, whatever the pixel format."""
    small = (size[0] // 2, size[1] // 2)
    bgr = pictures.bgr(frame, small)
    assert (bgr.shape, bgr.dtype, bgr.flags["C_CONTIGUOUS"]) == ((small[1], small[0], 3), np.uint8, True)
    luma = pictures.small_luma(frame)
    assert luma.shape == (90, 160)
    assert 0 <= gate.measure(luma).priority <= 1


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize(("folder", "name"), ALL, ids=[*STREAMS, *FOOTAGE])
def test_what_a_camera_like_this_leaves_on_disk_can_be_played(
    shared_data: Path, tmp_path: Path, folder: str, name: str
) -> None:
    """The same files as paced cameras into the recorder: every finished segment decodes, whatever went in."""
    outcome = expected(folder, name)
    clock, rows = ManualClock(), list[SegmentRow]()
    source = FileSource("odd", f"file:{shared_data / folder / name}", clock, threading.Event())
    recorder = SegmentRecorder(RecordTarget(tmp_path, "odd", 4.0, 0), clock, rows.append)
    if outcome == REFUSED:
        with pytest.raises(SourceError):
            source.open()
        return
    recorder.begin(source.open(), "run")
    for packet in source.packets():
        recorder.take(packet)
    recorder.end()
    source.close()
    if isinstance(outcome, str) or not outcome.recorded:
        return
    done = [row for row in rows if row.complete]
    assert recorder.lost == 0
    assert done
    for row in done:
        with av.open(str(tmp_path / row.path)) as segment:
            shown = 0
            stream = segment.streams.video[0]
            for coded in segment.demux(stream):
                try:
                    shown += len(stream.codec_context.decode(coded))
                except av.error.InvalidDataError:
                    assert outcome.damaged, "only what came in damaged may be damaged on disk"
        assert shown > 0
        assert row.t_end > row.t_start


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("cut", [0, 1, 100, 2_000, 50_000, 300_000])
def test_a_file_cut_anywhere_is_frames_or_one_sentence(shared_data: Path, tmp_path: Path, cut: int) -> None:
    for name in ("decord_pancake.mkv", "media3_sample_fragmented.mp4", "media3_sample_h264.ts", "media3_sample.avi"):
        path = tmp_path / name
        path.write_bytes((shared_data / "streams" / name).read_bytes()[:cut])
        sentence = "in one line"
        try:
            with ClipReader(str(path)) as clip:
                assert list(clip.frames())
        except SourceError as error:
            sentence = str(error)
        assert "\n" not in sentence
