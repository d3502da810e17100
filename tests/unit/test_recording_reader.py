"""The recording read directly and in a sandbox: the same frames and clips, and hostile files that cost one answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from appliance.base.errors import EvidenceError
from appliance.base.local_files import DiskWriteError
from appliance.media import recording_reader
from appliance.media.frames import FrameConverter, upright_size
from appliance.media.recorded import FrameImages, ImageOrder, RecordedSegment, Redaction
from appliance.media.recording_reader import LIMITS, READ_DIRECTLY, RecordingReader, SandboxedReader
from appliance.media.stills import GREY
from appliance.replay.footage import ClipReader
from appliance.sandbox.sandbox import SandboxUnavailable
from tests.support.numbered_footage import encoded_footage, number, pixels, record
from tests.support.sample_rows import T0

WHOLE = [ImageOrder()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


def shown(found: FrameImages) -> int:
    """The number of the frame in the first image."""
    return number(pixels(found.images[0].data))


@pytest.fixture(scope="module")
def segments(root: Path) -> list[RecordedSegment]:
    rows = [record(root, encoded_footage(40 * n, 40), T0 + 4 * n) for n in range(2)]
    return [RecordedSegment(root / row.path, row.t_start, row.t_end) for row in rows]


@pytest.fixture(scope="module")
def sandboxed(root: Path) -> Iterator[SandboxedReader]:
    reader = SandboxedReader(root)
    yield reader
    reader.close()


@pytest.fixture(params=["directly", "sandboxed"])
def reader(request: pytest.FixtureRequest, sandboxed: SandboxedReader) -> RecordingReader:
    return READ_DIRECTLY if request.param == "directly" else sandboxed


@pytest.mark.parametrize("degrees", [-90, 90, 180])
def test_stills_of_a_camera_on_its_side_are_upright_as_the_detector_sees_it(
    reader: RecordingReader, root: Path, degrees: int
) -> None:
    """Boxes and masks are meant so: on a frame that lies on its side they would hide something else."""
    path = root / f"segments/gate/turned{degrees}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        source = encoded_footage(35, 10).source
        source.seek(0)
        stream = out.add_stream_from_template(source.streams.video[0], opaque=True)
        stream.set_display_rotation(degrees)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    with ClipReader(str(path)) as clip:
        frame = next(iter(clip.frames())).av_frame
        size = upright_size(frame)
        seen = FrameConverter().bgr(frame, size)
    segment = RecordedSegment(path, T0, T0 + 1)
    for found in (reader.images([segment], [(T0, WHOLE)])[0], reader.key_frame(segment, T0, 320)):
        assert found.size == found.images[0].size == size
        assert np.abs(pixels(found.images[0].data).astype(int) - seen).mean() < 4


def test_stills_are_the_frames_that_were_asked_for(reader: RecordingReader, segments: list[RecordedSegment]) -> None:
    found = reader.images(segments, [(T0 + 6.1, WHOLE), (T0 + 0.3, WHOLE)])
    assert [shown(each) for each in found] == [61, 3]
    assert [each.t for each in found] == pytest.approx([T0 + 6.1, T0 + 0.3], abs=1e-4)
    assert found[0].size == found[0].images[0].size == (320, 240)


def test_images_come_as_they_are_ordered(reader: RecordingReader, segments: list[RecordedSegment]) -> None:
    left = Redaction("none", (((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)),), None, ())
    box = (0.4, 0.4, 0.6, 0.6)
    orders = [
        ImageOrder(side_max=160, quality=70),
        ImageOrder("crop", box, side_max=50),
        ImageOrder("region", box, 100, webp_bytes_max=4000, redaction=left),
        ImageOrder(webp_bytes_max=10),
    ]
    small, crop, region, too_large = reader.images(segments, [(T0 + 0.3, orders)])[0].images
    assert (small.size, pixels(small.data).shape, number(pixels(small.data))) == ((160, 120), (120, 160, 3), 3)
    assert (max(crop.size), crop.region, crop.data[:2]) == (50, None, b"\xff\xd8")
    assert (region.data[8:12], len(region.data) <= 4000) == (b"WEBP", True)
    assert region.region == pytest.approx((0.25, 1 / 6, 0.75, 5 / 6), abs=0.01), "two and a half times the box"
    assert abs(pixels(region.data)[:, : region.size[0] // 2 - 4].astype(int) - GREY).max() < 12, "painted over first"
    assert (too_large.data, too_large.problem) == (b"", "an image does not fit into 10 bytes")


def test_what_is_not_recorded_is_said_in_the_same_words(
    reader: RecordingReader, segments: list[RecordedSegment]
) -> None:
    with pytest.raises(EvidenceError, match="the recording does not hold the moment asked for"):
        reader.images(segments, [(T0 + 90, WHOLE)])


def test_a_clip_is_whole_where_it_was_asked_for(
    reader: RecordingReader, segments: list[RecordedSegment], root: Path
) -> None:
    path = root / "evidence" / f"{type(reader).__name__}" / "clip.mp4"
    clip = reader.clip(segments, T0 + 2, T0 + 6, path, hold_t=T0 + 3)
    assert (clip.size, clip.frames, clip.note) == ((320, 240), 41, "")
    assert clip.written.bytes == path.stat().st_size
    assert [each.name for each in path.parent.iterdir()] == ["clip.mp4"]
    assert reader.longest_step_s(RecordedSegment(path, clip.t_start, clip.t_end)) == pytest.approx(0.1, abs=0.01)


def test_both_ways_give_the_same_pixels_and_bytes(
    sandboxed: SandboxedReader, segments: list[RecordedSegment], root: Path
) -> None:
    wanted = [(T0 + 1.5, WHOLE), (T0 + 5.2, WHOLE)]
    assert READ_DIRECTLY.images(segments, wanted) == sandboxed.images(segments, wanted)
    clips = [
        each.clip(segments, T0, T0 + 4, root / "evidence" / "same" / f"{n}.mp4")
        for n, each in enumerate((READ_DIRECTLY, sandboxed))
    ]
    assert clips[0] == clips[1]


def test_an_image_on_disk_is_read(reader: RecordingReader, segments: list[RecordedSegment], root: Path) -> None:
    path = root / "evidence" / "still.jpg"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(READ_DIRECTLY.images(segments, [(T0, WHOLE)])[0].images[0].data)
    assert shown(reader.file_images(path, T0, WHOLE)) == 0
    with pytest.raises(EvidenceError, match=r"gone\.jpg cannot be read"):
        reader.file_images(root / "evidence" / "gone.jpg", T0, WHOLE)


def test_a_disk_that_takes_no_file_is_told_from_a_recording_that_cannot_be_read(
    sandboxed: SandboxedReader, segments: list[RecordedSegment], root: Path
) -> None:
    """The sandbox may not write there; that it could not is a matter of the disk, so it is tried later."""
    if sandboxed._sandbox.call("longest_step_s", [[str(segments[0].path), T0, T0 + 1]]) is None:
        pytest.fail("unreachable")
    if "landlock" not in sandboxed._sandbox.confined:
        pytest.skip("this kernel has no Landlock")
    with pytest.raises(DiskWriteError):
        sandboxed.clip(segments, T0, T0 + 2, root / "elsewhere" / "clip.mp4")
    assert not (root / "elsewhere").exists()


def test_a_frame_that_is_too_large_is_not_decoded(reader: RecordingReader, root: Path) -> None:
    path = root / "segments" / "large.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 8200, 5000, "yuvj420p"
        frame = av.VideoFrame(8200, 5000, "yuvj420p")
        frame.pts = 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with pytest.raises(EvidenceError, match="frames of 8200x5000"):
        reader.images([RecordedSegment(path, T0, T0 + 1)], [(T0, WHOLE)])


def test_a_codec_that_nobody_knows_is_an_error_and_no_bug(reader: RecordingReader, root: Path) -> None:
    data = bytearray((Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4").read_bytes())
    at = data.index(b"avc1", data.index(b"stsd"))
    data[at : at + 4] = b"zzzz"
    path = root / "segments" / "unknown.mp4"
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match="of a codec that cannot be decoded"):
        reader.images([RecordedSegment(path, T0, T0 + 1)], [(T0, WHOLE)])


def test_what_needs_too_much_memory_costs_that_answer_alone(root: Path, segments: list[RecordedSegment]) -> None:
    reader = SandboxedReader(root, replace(LIMITS, memory_bytes=24 << 20))
    rows = record(root, encoded_footage(0, 2, size=(3840, 2160)), T0, camera="large")
    large = RecordedSegment(root / rows.path, rows.t_start, rows.t_end)
    with pytest.raises(EvidenceError):
        reader.images([large], [(T0, WHOLE)])
    assert shown(reader.images(segments, [(T0 + 0.3, WHOLE)])[0]) == 3
    reader.close()


def test_it_ends_with_its_time_limit(root: Path, segments: list[RecordedSegment]) -> None:
    reader = SandboxedReader(root, replace(LIMITS, wall_s=0.0005))
    with pytest.raises(EvidenceError, match="took longer"):
        reader.images(segments, [(T0 + n / 10, WHOLE) for n in range(80)])
    reader.close()


def answered(t: object = 1.0, **said: object) -> dict[str, object]:
    """As the child answers with one image."""
    image = {"data": b"\xff\xd8\xff", "size": [4, 4], "region": None, "problem": "", **said}
    return {"t": t, "size": [4, 4], "images": [image]}


@pytest.mark.parametrize(
    "answer",
    [
        [answered(data=b"<html><script>")],
        [answered(data=b"RIFF....WEBPVP8 ")],
        [answered(size=[10**400, 1])],
        [answered(size=[0, 5])],
        [answered(region=[0.5, 0, 0.5, 1])],
        [answered(t="x")],
        [{**answered(), "images": []}],
        [answered(), answered()],
        [{"t": 1.0}], [], "text", None, [None],
    ],
)  # fmt: skip
def test_an_answer_of_a_child_that_was_taken_over_is_checked(
    monkeypatch: pytest.MonkeyPatch, root: Path, answer: Any
) -> None:
    reader = SandboxedReader(root)
    monkeypatch.setattr(reader._sandbox, "call", lambda *_, **__: answer)
    with pytest.raises(EvidenceError, match="the sandbox"):
        reader.images([], [(T0, WHOLE)])
    with pytest.raises(EvidenceError, match="the sandbox"):
        reader.clip([], T0, T0, root / "evidence" / "x.mp4")


def test_a_segment_that_a_kill_left_is_measured_in_the_sandbox(
    sandboxed: SandboxedReader, segments: list[RecordedSegment], root: Path
) -> None:
    found = sandboxed.recover_segment(segments[0].path)
    assert found is not None
    assert (found.seconds, found.frames, found.size) == (pytest.approx(4.0), 40, (320, 240))
    torn = root / "segments" / "torn.mp4"
    torn.write_bytes(os.urandom(1000))
    assert sandboxed.recover_segment(torn) is None


def test_a_sandbox_that_cannot_start_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, segments: list[RecordedSegment], root: Path
) -> None:
    monkeypatch.setattr(recording_reader, "MEDIA_FUNCTIONS", "appliance.media.no_such_module")
    with pytest.raises(SandboxUnavailable, match="does not start"):
        SandboxedReader(root).recover_segment(segments[0].path)
