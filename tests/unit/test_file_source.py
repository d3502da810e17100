"""Files that behave like cameras, and files read as fast as they go."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError, SourceRefused
from appliance.ingest.file_source import FileSource, clip_path
from appliance.media.frames import FrameConverter, upright_size
from appliance.replay.footage import ClipReader
from tests.support.numbered_footage import number
from tests.support.scripted_sources import clip


def test_a_url_may_be_absolute_relative_escaped_or_really_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "100%25.mp4").touch()
    assert clip_path("file:/a/b.mp4") == Path("/a/b.mp4")
    assert clip_path("file:///a/b.mp4") == Path("/a/b.mp4")
    assert clip_path("file://localhost/a/b.mp4") == Path("/a/b.mp4")
    assert clip_path("file:clips/b.mp4") == Path("clips/b.mp4")
    assert clip_path("file:/a/two%20words.mp4") == Path("/a/two words.mp4")
    assert clip_path("file:100%25.mp4") == Path("100%25.mp4")
    assert clip_path("clips/b.mp4") == Path("clips/b.mp4")
    with pytest.raises(SourceError, match="another computer"):
        clip_path("file://nas/share/b.mp4")


def test_a_replay_counts_from_the_first_frame_and_every_frame_is_the_right_one(tmp_path: Path) -> None:
    with ClipReader(str(clip(tmp_path / "c.mp4", 25, b_frames=2))) as footage:
        frames = list(footage.frames())
    assert [frame.index for frame in frames] == list(range(25))
    assert [frame.t for frame in frames] == pytest.approx([n / 10 for n in range(25)])
    assert [number(FrameConverter().bgr(frame.av_frame, (320, 240))) for frame in frames] == list(range(25))


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "flv", "ts", "h264"])
def test_every_container_gives_the_same_frames(tmp_path: Path, suffix: str) -> None:
    with ClipReader(str(clip(tmp_path / f"c.{suffix}", 12))) as footage:
        found = [(frame.t, number(FrameConverter().bgr(frame.av_frame, (320, 240)))) for frame in footage.frames()]
    assert [n for _, n in found] == list(range(12))
    # A raw stream has no time stamps: FFmpeg takes it to run at 25 frames a second.
    assert [t for t, _ in found] == pytest.approx([n / (25 if suffix == "h264" else 10) for n in range(12)], abs=0.002)


def test_paced_packets_come_when_they_are_due_and_carry_the_time_of_day(tmp_path: Path) -> None:
    clock = ManualClock()
    began, utc = clock.monotonic(), clock.now()
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 20)}", clock)
    source.open()
    for n, packet in enumerate(source.packets()):
        assert packet.t == pytest.approx(utc + n / 10, abs=1e-5)
        assert clock.monotonic() - began == pytest.approx(n / 10, abs=1e-3)


def test_a_clip_that_begins_again_goes_on_in_time(tmp_path: Path) -> None:
    clock = ManualClock()
    utc = clock.now()
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 10)}", clock)
    times = []
    for _ in range(3):
        source.open()
        times += [packet.t for packet in source.packets()]
    assert times == pytest.approx([utc + n / 10 for n in range(30)], abs=1e-3)


def test_a_reader_that_was_held_up_is_not_hurried(tmp_path: Path) -> None:
    clock = ManualClock()
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 30)}", clock)
    source.open()
    packets = source.packets()
    next(packets)
    clock.advance(60)
    next(packets)
    held_up = clock.monotonic()
    assert len(list(packets)) == 28
    assert clock.monotonic() - held_up == pytest.approx(2.8, abs=0.01)


def test_a_paced_clip_stops_when_told_to(tmp_path: Path) -> None:
    stop = threading.Event()
    source = FileSource("gate", f"file:{clip(tmp_path / 'c.mp4', 30)}", ManualClock(), stop)
    source.open()
    packets = source.packets()
    next(packets)
    stop.set()
    assert list(packets) == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.mkdir(), "is not a file"),
        (os.mkfifo, "is not a file"),
        (lambda path: path.write_bytes(b""), "is not a video that can be read"),
        (lambda path: path.write_text("a letter to the editor\n" * 500), "is not a video that can be read"),
        (lambda path: path.write_bytes(bytes(range(256)) * 4000), "is not a video that can be read"),
    ],
    ids=["absent", "folder", "pipe", "empty", "text", "noise"],
)
def test_what_is_not_a_video_is_refused_in_one_sentence(tmp_path: Path, make: object, reason: str) -> None:
    path = tmp_path / "clip.mp4"
    make(path)  # type: ignore[operator]
    with pytest.raises(SourceError, match=reason) as caught, ClipReader(str(path)) as footage:
        list(footage.frames())
    assert str(caught.value).count("\n") == 0


def test_a_playlist_cannot_make_the_box_call_another_one(tmp_path: Path) -> None:
    """A clip is one file: no protocol but `file` is ever opened for it."""
    path = tmp_path / "list.m3u8"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(SourceError), ClipReader(str(path)) as footage:
        list(footage.frames())


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
    with pytest.raises(SourceError, match="holds no video"), ClipReader(str(path)):
        pass


def test_a_clip_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    whole = clip(tmp_path / "c.mkv", 40).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    with ClipReader(str(tmp_path / "cut.mkv")) as footage:
        assert 10 <= len(list(footage.frames())) < 40


def test_damage_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    data = bytearray(clip(tmp_path / "c.ts", 60).read_bytes())
    middle = len(data) // 3
    data[middle : middle + 4000] = os.urandom(4000)
    (tmp_path / "damaged.ts").write_bytes(data)
    with ClipReader(str(tmp_path / "damaged.ts")) as footage:
        frames = list(footage.frames())
    assert 30 < len(frames) <= 60
    assert all(a.t < b.t for a, b in itertools.pairwise(frames))


def test_a_phone_clip_stands_upright(tmp_path: Path) -> None:
    source = av.open(str(clip(tmp_path / "c.mp4", 5, size=(320, 240))))
    template = source.streams.video[0]
    with av.open(str(tmp_path / "turned.mp4"), "w") as out:
        stream = out.add_stream_from_template(template, opaque=True)
        stream.set_display_rotation(-90)
        for packet in source.demux(template):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    with ClipReader(str(tmp_path / "turned.mp4")) as footage:
        frame = next(iter(footage.frames()))
        assert upright_size(frame.av_frame) == (240, 320)
        assert FrameConverter().bgr(frame.av_frame, (240, 320)).shape == (320, 240, 3)


def test_a_codec_that_nobody_knows_is_refused_with_a_remedy(tmp_path: Path) -> None:
    data = bytearray((Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4").read_bytes())
    at = data.index(b"avc1", data.index(b"stsd"))
    data[at : at + 4] = b"zzzz"
    (tmp_path / "odd.mp4").write_bytes(data)
    with pytest.raises(SourceRefused, match=r"camera gate: odd\.mp4: .* cannot be decoded; use H\.264"):
        FileSource("camera gate", f"file:{tmp_path / 'odd.mp4'}").open()


def test_frames_that_are_too_large_are_refused_before_any_is_decoded(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "large.mp4"), "w") as out:
        stream = out.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 8200, 5000, "yuvj420p"
        frame = av.VideoFrame(8200, 5000, "yuvj420p")
        frame.pts = 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with pytest.raises(SourceRefused, match="8200x5000 are over 40 megapixels"):
        FileSource("camera gate", f"file:{tmp_path / 'large.mp4'}").open()
