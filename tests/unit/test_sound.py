"""Sound of a camera that opts in: recorded from a real RTSP server, in step with the pictures, kept on the site."""

from __future__ import annotations

import io
import itertools
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import EvidenceError, SourceLost
from appliance.base.local_files import DiskWriteError
from appliance.config import CameraConfig, EscalationConfig
from appliance.evidence.escalation_evidence import EvidenceFileWriter
from appliance.evidence.privacy import Redactor
from appliance.evidence.recording_index import RecordingIndex
from appliance.ingest.file_source import describe_stream
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.clips import cut_clip
from appliance.media.fragmented_mp4 import FragmentReader
from appliance.media.recorded import RecordedSegment
from appliance.media.recording_reader import SandboxedReader
from appliance.media.rendition import make_rendition
from appliance.media.segment_reader import open_segment, recover_segment
from appliance.media.segment_writer import SoundPacket, SoundTrack
from appliance.media.source import SourceStalled, VideoPacket
from appliance.types import CameraMeter, SegmentRow
from tests.servers.rtsp import FaultyRtspServer
from tests.support import numbered_footage
from tests.support.camera_rig import CameraRig
from tests.support.dashboard_site import Site
from tests.support.numbered_footage import BEEP_S, beeping
from tests.support.scripted_sources import Heard
from tests.support.waiting import until

OFF_S_MAX = 0.12


def heard_in(mp4: Path | io.BytesIO) -> list[tuple[float, float]]:
    """When each beep begins and ends, by the file's own time."""
    loud: list[tuple[float, bool]] = []
    with av.open(str(mp4) if isinstance(mp4, Path) else mp4) as opened:
        for frame in opened.decode(audio=0):
            wave = frame.to_ndarray().reshape(-1)
            for at in range(0, len(wave), 160):
                power = float(np.sqrt(np.mean(wave[at : at + 160] ** 2)))
                loud.append((float(frame.pts * frame.time_base) + at / frame.sample_rate, power > 0.1))
    begins = [t for (_, before), (t, now) in itertools.pairwise(loud) if now and not before]
    ends = [t for (_, before), (t, now) in itertools.pairwise(loud) if before and not now]
    return list(zip(begins, [next((end for end in ends if end > begin), begin) for begin in begins], strict=True))


def seconds_shown(mp4: Path | io.BytesIO) -> list[float]:
    """When a picture whose number ends in 0 is shown, by the file's own time."""
    with av.open(str(mp4) if isinstance(mp4, Path) else mp4) as opened:
        return [
            float(frame.pts * frame.time_base)
            for frame in opened.decode(video=0)
            if numbered_footage.number(frame.to_ndarray(format="rgb24")) % 10 == 0
        ]


def are_in_step(mp4: Path | io.BytesIO, least: int) -> None:
    """Each beep begins with its picture (the first and last may be cut)."""
    if isinstance(mp4, io.BytesIO):
        beeps, shown = heard_in(io.BytesIO(mp4.getvalue())), seconds_shown(io.BytesIO(mp4.getvalue()))
    else:
        beeps, shown = heard_in(mp4), seconds_shown(mp4)
    whole = [begin for begin, end in beeps if end - begin > 0.8 * BEEP_S and begin > 0.2]
    assert len(whole) >= least, (beeps, shown)
    for begin in whole:
        assert min(abs(begin - t) for t in shown) < OFF_S_MAX, (beeps, shown)


def recorded(
    root: Path, url: str, *, seconds: float = 6.5, audio: bool = True, meters: Heard | None = None
) -> list[RecordedSegment]:
    heard = meters or Heard()
    camera = CameraConfig.model_validate({"url": url, "audio": audio})
    with CameraRig(root, {"gate": camera}, heard=heard, tick_s=0.2):
        until(lambda: (rows := newest(heard)) and rows[-1].t_end - rows[0].t_start >= seconds, 30, every_s=0.05)
    return [RecordedSegment(root / row.path, row.t_start, row.t_end) for row in newest(heard)]


def newest(heard: Heard) -> list[SegmentRow]:
    """The last row of each segment, oldest first."""
    rows = {row.path: row for row in heard.of(SegmentRow) if row.frames}
    return sorted(rows.values(), key=lambda row: row.t_start)


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> list[SegmentRow]:
    """Six seconds of a camera that sends AAC, recorded once for all tests that only read them."""
    root, heard = tmp_path_factory.getbasetemp() / "taped", Heard()
    root.mkdir()
    with FaultyRtspServer.in_thread({"gate": beeping(root / "camera.mp4")}) as server:
        recorded(root, server.url("gate"), seconds=6, meters=heard)
    return newest(heard)


@pytest.fixture
def tape(taped: list[SegmentRow], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> list[RecordedSegment]:
    """A copy of what was taped, in this test's folder."""
    shutil.copytree(tmp_path_factory.getbasetemp() / "taped" / "segments", tmp_path / "segments")
    return [RecordedSegment(tmp_path / row.path, row.t_start, row.t_end) for row in taped]


@pytest.mark.parametrize(("codec", "rate", "b_frames"), [("aac", 16_000, 2), ("pcm_mulaw", 8000, 0)])
def test_what_a_camera_sends_is_heard_with_its_pictures(tmp_path: Path, codec: str, rate: int, b_frames: int) -> None:
    clip = beeping(tmp_path / "camera.mov", codec, rate=rate, b_frames=b_frames)
    with FaultyRtspServer.in_thread({"gate": clip}) as server:
        segments = recorded(tmp_path, server.url("gate"))
    with_sound = []
    for segment in segments:
        with open_segment(segment) as opened:
            if opened.sound is not None:
                with_sound.append(segment)
                assert opened.sound.parameters[0] == "aac"
    assert segments[-1] in with_sound
    assert segments[1:] == with_sound[-len(segments) + 1 :], "all but the first, which began before any sound came"
    made = cut_clip(segments, segments[0].t_start, segments[-1].t_end, tmp_path / "clip.mp4", sound=True)
    assert made.sound
    are_in_step(tmp_path / "clip.mp4", 3)


def test_a_camera_that_did_not_opt_in_is_never_asked_for_sound(tmp_path: Path) -> None:
    with FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server:
        segments = recorded(tmp_path, server.url("gate"), seconds=3, audio=False)
    for segment in segments:
        with av.open(str(segment.path)) as opened:
            assert [stream.type for stream in opened.streams] == ["video"]
    made = cut_clip(segments, segments[0].t_start, segments[-1].t_end, tmp_path / "clip.mp4", sound=True)
    assert not made.sound


def test_a_clip_is_silent_unless_sound_is_asked_for(tape: list[RecordedSegment], tmp_path: Path) -> None:
    """So are questions to the cloud, kept scenarios, and whatever is written next."""
    made = cut_clip(tape, tape[0].t_start, tape[-1].t_end, tmp_path / "clip.mp4")
    assert not made.sound
    with av.open(str(tmp_path / "clip.mp4")) as opened:
        assert not opened.streams.audio


def test_a_clip_with_sound_that_cannot_be_made_says_why(tape: list[RecordedSegment], tmp_path: Path) -> None:
    """A disk that refuses it is waited for: the error must come through as it is."""
    begin, end = tape[0].t_start, tape[-1].t_end
    (tmp_path / "file").touch()
    with pytest.raises(DiskWriteError, match="cannot be made"):
        cut_clip(tape, begin, end, tmp_path / "file" / "clip.mp4", sound=True)
    cut_short = [replace(each, t_end=each.t_start - 1) for each in tape]
    with pytest.raises(EvidenceError, match="holds nothing of this time"):
        cut_clip(cut_short, begin - 5, end, tmp_path / "clip.mp4", sound=True)


def test_its_bytes_are_in_the_ledger(tmp_path: Path) -> None:
    received = {}
    for audio in (False, True):
        meters = Heard()
        root = tmp_path / str(audio)
        root.mkdir()
        with FaultyRtspServer.in_thread({"gate": beeping(root / "camera.mov", "pcm_mulaw", rate=8000)}) as server:
            recorded(root, server.url("gate"), seconds=4, audio=audio, meters=meters)
            (session,) = [each for each in server.sessions() if each.bytes_sent > 10_000]
        received[audio] = sum(meter.received for meter in meters.of(CameraMeter))
        assert received[audio] <= session.bytes_sent
        assert received[audio] > 0.5 * session.bytes_sent
    assert received[True] > received[False] + 20_000  # 8 kB a second


def test_a_segment_that_a_kill_left_is_recovered_with_its_sound(tape: list[RecordedSegment], tmp_path: Path) -> None:
    whole = tape[1]
    data = whole.path.read_bytes()
    torn = tmp_path / "torn.mp4"
    torn.write_bytes(data[: int(0.7 * len(data))])
    found = recover_segment(torn)
    assert found is not None
    assert 0.3 < found.seconds < 2
    cut = RecordedSegment(torn, whole.t_start, whole.t_start + found.seconds)
    made = cut_clip([cut], cut.t_start, cut.t_end, tmp_path / "clip.mp4", sound=True)
    assert made.sound
    assert made.t_end == pytest.approx(cut.t_end, abs=0.11)


def test_what_is_reported_on_disk_is_on_disk(tmp_path: Path) -> None:
    """The muxer holds a packet back beside sound: none of those that a row counts may be among them."""
    checked = 0

    def emit(row: object) -> None:
        nonlocal checked
        if isinstance(row, SegmentRow) and row.frames:
            with av.open(str(tmp_path / row.path)) as opened:
                there = sum(1 for packet in opened.demux(opened.streams.video[0]) if packet.size)
            assert there >= row.frames
            checked += 1

    clock = SystemClock()
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2.0, 0, sound=True), clock, emit)
    with FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server:
        source = RtspSource("gate", server.url("gate"), clock, SocketFinder(), hear=recorder.take_sound)
        recorder.begin(source.open(), "run1")
        for n, packet in enumerate(source.packets()):
            recorder.take(packet)
            if n > 60:
                break
        recorder.end()
        source.close()
    assert checked >= 5
    assert recorder.lost == 0


def test_sound_that_stops_does_not_hold_the_pictures_back(tmp_path: Path) -> None:
    """libavformat would wait ten seconds for more of it before it writes a picture."""
    heard, behind_s = Heard(), []
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 60.0, 0, sound=True), SystemClock(), heard)
    told: list[int] = []

    def hear(packet: av.Packet[av.AudioStream], us: int) -> None:
        told.append(us)
        if us < told[0] + 2_000_000:
            recorder.take_sound(packet, us)

    with FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server:
        source = RtspSource("gate", server.url("gate"), SystemClock(), SocketFinder(), hear=hear)
        recorder.begin(source.open(), "run1")
        for packet in source.packets():
            recorder.take(packet)
            if told and packet.t > told[0] / 1e6 + 4:
                behind_s.append(packet.t - newest(heard)[-1].t_end)
            if len(behind_s) == 15:
                break
        recorder.end()
        source.close()
    with av.open(str(tmp_path / newest(heard)[-1].path)) as opened:
        assert opened.streams.audio
    assert max(behind_s) < 2.0, behind_s


@pytest.mark.parametrize("late_s", [-1.8, 1.8])
def test_sound_beside_its_pictures_is_kept_and_costs_no_segments(tmp_path: Path, late_s: float) -> None:
    """Some cameras stamp it a second or two off; `RtspSource` corrects only what is further away."""
    heard, clock = Heard(), ManualClock(1_700_000_000.0)
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 3.0, 0, sound=True), clock, heard)
    with av.open(str(beeping(tmp_path / "camera.mp4", seconds=7))) as opened:
        video, sound = opened.streams.video[0], opened.streams.audio[0]
        recorder.begin(replace(describe_stream(video, "camera", "gate"), sound=sound), "run1")
        for packet in opened.demux(video, sound):
            if packet.size:
                us = round((clock.now() + float(packet.pts * packet.time_base)) * 1e6)
                if packet.stream is sound:
                    recorder.take_sound(packet, us + round(late_s * 1e6))
                else:
                    packet.pts = packet.dts = us
                    packet.time_base = Fraction(1, 1_000_000)
                    recorder.take(VideoPacket(packet, us / 1e6, packet.is_keyframe, packet.size))
        recorder.end()
    rows = {row.path: row for row in heard.of(SegmentRow)}
    lengths = [row.t_end - row.t_start for row in rows.values()]
    assert lengths == pytest.approx([3, 3, 1], abs=0.01)
    for path, row in rows.items():
        with av.open(str(tmp_path / path)) as written:
            assert next(written.demux(written.streams.video[0])).pts == 0
            assert written.streams.audio
        fragments = FragmentReader(tmp_path / path, row.t_start).read()
        live = fragments[0].init.data + b"".join(each.data for each in fragments)
        with av.open(io.BytesIO(live)) as played:
            heard_t = next(float(each.pts * each.time_base) for each in played.demux(audio=0) if each.size)
        assert heard_t - row.t_start == pytest.approx(late_s, abs=0.1), "a live view plays it when it was heard"


def test_sound_that_goes_on_does_not_hide_that_the_pictures_stopped(tmp_path: Path) -> None:
    with FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server:
        heard = threading.Event()
        source = RtspSource(
            "gate", server.url("gate"), SystemClock(), SocketFinder(), stall_s=0.5, hear=lambda packet, us: heard.set()
        )
        source.open()
        packets = source.packets()
        while not heard.is_set():
            next(packets)
        source._frame_at -= 10
        with pytest.raises((SourceStalled, SourceLost), match="only sound"):
            source._take_sound(next(iter_sound(tmp_path / "camera.mp4")))
        source.close()


def iter_sound(path: Path) -> Iterator[av.Packet[av.AudioStream]]:
    with av.open(str(path)) as opened:
        yield from opened.demux(opened.streams.audio[0])


def test_sound_that_is_not_kept_is_refused_in_words(tmp_path: Path) -> None:
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2.0, 0, sound=True), ManualClock(0), Heard())
    with FaultyRtspServer.in_thread({"gate": media_without_sound(tmp_path)}) as server:
        source = RtspSource("gate", server.url("gate"), SystemClock(), SocketFinder(), hear=recorder.take_sound)
        recorder.begin(source.open(), "run1")
        source.close()
    assert "sends no sound" in recorder.warning


def media_without_sound(tmp_path: Path) -> Path:
    row = numbered_footage.record(tmp_path, numbered_footage.encoded_footage(0, 40), 0.0)
    return tmp_path / row.path


def test_sound_that_cannot_be_encoded_costs_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[SoundPacket]:
        raise av.error.ArgumentError(22, "Invalid argument")

    monkeypatch.setattr(SoundTrack, "frames", fail)
    heard = Heard()
    recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 2.0, 0, sound=True), SystemClock(), heard)
    with FaultyRtspServer.in_thread({"gate": beeping(tmp_path / "camera.mp4")}) as server:
        source = RtspSource("gate", server.url("gate"), SystemClock(), SocketFinder(), hear=recorder.take_sound)
        recorder.begin(source.open(), "run1")
        for n, packet in enumerate(source.packets()):
            recorder.take(packet)
            if n >= 24:
                break
        recorder.end()
        source.close()
    assert sum(row.frames for row in newest(heard)) == 25
    assert recorder.lost == 0
    assert "sound is not recorded" in recorder.warning


def test_the_dashboard_plays_it_and_a_copy_keeps_it(
    taped: list[SegmentRow], tape: list[RecordedSegment], tmp_path: Path
) -> None:
    site = Site(tmp_path, SystemClock())
    for row in taped:
        site.segments.put(row)
    with site.client() as client:
        told = client.get(f"/api/v1/cameras/gate/recording?from={tape[1].t_start}&to={tape[-1].t_end}").json()
        assert told["sound"] is True
        made = client.get(told["url"]).content
        are_in_step(io.BytesIO(made), 2)
        of_dock = site.record("dock", tape[0].t_start)
        silent = client.get(f"/api/v1/cameras/dock/recording?from={of_dock.t_start}&to={of_dock.t_end}").json()
        assert silent["sound"] is False
    (tmp_path / "cut.mp4").write_bytes(made)
    make_rendition(tmp_path / "cut.mp4", tmp_path / "copy.mp4")
    are_in_step(tmp_path / "copy.mp4", 2)
    site.close()


def no_redactor(camera: str) -> Redactor:
    raise AssertionError("a clip is not redacted")


def test_of_what_the_cloud_is_sent_nothing_is_heard(
    taped: list[SegmentRow], tape: list[RecordedSegment], tmp_path: Path
) -> None:
    """The alert's own clip has sound, since the camera opted in; what an escalation is given has none."""
    site = Site(tmp_path, SystemClock())
    for row in taped:
        site.segments.put(row)
    alert = site.raise_alert("walker", tape[1].t_start + 1, seconds=1.0)
    detail = site.alerts.get("walker")
    assert detail is not None
    reader = SandboxedReader(tmp_path)
    try:
        index = RecordingIndex(site.db, tmp_path, {}, reader)
        writer = EvidenceFileWriter(tmp_path, EscalationConfig(), index, no_redactor, site.boxes)
        (sent,) = writer.clip(detail, alert.t_start - 1, alert.t_start, alert.t_start + 2)
        own = reader.clip(tape, tape[1].t_start, tape[-1].t_end, tmp_path / "evidence/clip.mp4", sound=True)
    finally:
        reader.close()
    site.close()
    assert own.sound
    with av.open(str(tmp_path / sent.row.path)) as opened:
        assert [stream.type for stream in opened.streams] == ["video"]
