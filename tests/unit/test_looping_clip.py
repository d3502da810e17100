"""Footage that no camera would send is made into H.264, once."""

from __future__ import annotations

import itertools
from collections.abc import Sized
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.base.errors import SourceRefused
from appliance.demo.looping_clip import LoopingClip, as_camera_clip


def make(path: Path, codec: str, *, size: tuple[int, int] = (160, 120), frames: int = 25, rate: int = 10) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for index in range(frames):
            image = np.full((size[1], size[0], 3), index * 8, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    return path


def test_h264_is_played_as_it_is(tmp_path: Path) -> None:
    clip = make(tmp_path / "a.mp4", "libx264")
    assert as_camera_clip(clip, tmp_path / "made", print) == clip
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("name", "codec", "size"), [("a.avi", "mpeg4", (160, 120)), ("b.avi", "mjpeg", (162, 121))])
def test_other_footage_is_converted_once(tmp_path: Path, name: str, codec: str, size: tuple[int, int]) -> None:
    clip = make(tmp_path / name, codec, size=size)
    messages: list[str] = []
    made = as_camera_clip(clip, tmp_path / "made", messages.append)
    assert as_camera_clip(clip, tmp_path / "made", messages.append) == made
    assert len(messages) == 1
    assert f"{name} is coded as {codec}" in messages[0]
    with av.open(str(made)) as container:
        images = [frame.to_ndarray(format="gray").mean() for frame in container.decode(video=0)]
    assert len(images) == 25
    assert images == sorted(images)
    converted = LoopingClip(made)
    assert (converted.fps, converted.size) == (10.0, (size[0] // 2 * 2, size[1] // 2 * 2))


def test_a_copy_is_as_fast_as_its_source_whatever_the_header_says(tmp_path: Path) -> None:
    """As browsers and screens are recorded: the rate in the header is not that of the frames, which come unevenly."""
    times = (0.0, 0.1, 0.6, 2.0, 2.001, 2.1, 4.5)
    with av.open(str(tmp_path / "a.mkv"), "w") as out:
        stream = out.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for t in times:
            frame = av.VideoFrame.from_ndarray(np.full((120, 160, 3), 90, np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(t * 1000), Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    with av.open(str(as_camera_clip(tmp_path / "a.mkv", tmp_path / "made", print))) as container:
        seen = [float(frame.time or 0.0) for frame in container.decode(video=0)]
    assert seen == pytest.approx([t for t in times if t != 2.001], abs=0.01), "one a millisecond later is left out"


def test_footage_that_changed_is_converted_anew(tmp_path: Path) -> None:
    first = as_camera_clip(make(tmp_path / "a.avi", "mpeg4"), tmp_path / "made", print)
    second = as_camera_clip(make(tmp_path / "a.avi", "mpeg4", frames=12), tmp_path / "made", print)
    assert first != second


def test_what_cannot_be_decoded_leaves_nothing_behind(tmp_path: Path) -> None:
    clip = make(tmp_path / "a.avi", "mpeg4")
    head, mark, body = clip.read_bytes().partition(b"movi")
    clip.write_bytes(head + mark + b"\xff" * len(body))
    with pytest.raises(SourceRefused, match="there is no picture in it"):
        as_camera_clip(clip, tmp_path / "made", print)
    assert not list((tmp_path / "made").iterdir())
    with pytest.raises(SourceRefused, match="no such file"):
        as_camera_clip(tmp_path / "none.avi", tmp_path, print)


def test_a_clip_loops_with_time_that_only_goes_forward(tmp_path: Path) -> None:
    clip = LoopingClip(make(tmp_path / "a.mp4", "libx264"))
    units = clip.read(60)
    clip.close()
    assert [unit.key for unit in units[:60:25]] == [True, True, True]
    steps = {round(after.dts_s - before.dts_s, 6) for before, after in itertools.pairwise(units)}
    assert steps == {0.1}
    assert units[0].dts_s == units[0].pts_s == 0.0


def test_of_the_passes_of_a_clip_nothing_is_kept(tmp_path: Path) -> None:
    clip = LoopingClip(make(tmp_path / "a.mp4", "libx264"))
    passes, sizes = [], []
    for _ in range(3):
        passes.append(clip.read(25))
        sizes.append({name: len(each) for name, each in vars(clip).items() if isinstance(each, Sized)})
    clip.close()
    assert sizes[0] == sizes[1] == sizes[2]
    assert [{unit.pass_s for unit in units} for units in passes] == [{units[0].dts_s} for units in passes]
