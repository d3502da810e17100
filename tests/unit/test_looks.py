"""One detector for all cameras: who is next, and what becomes of late answers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from media import picture
from streams import CountingTracker, Heard, NumberReader, clip

from appliance import config
from appliance.clock import ManualClock
from appliance.ingest.file import FileSource
from appliance.ingest.looks import Looks
from appliance.ingest.source import VideoPacket
from appliance.ingest.watch import Watch
from appliance.types import FrameBoxes, StreamHeader


class Yard:
    """Cameras that are fed packet by packet, and the shared detector."""

    def __init__(
        self, tmp_path: Path, *names: str, detector: NumberReader | None = None, still_ones: tuple[str, ...] = ()
    ) -> None:
        self.clock, self.heard = ManualClock(), Heard()
        self.detector = detector or NumberReader()
        self.watches, self._packets, self.sources = {}, {}, {}
        for number, name in enumerate(names):
            path = tmp_path / f"{name}.mp4"
            made = still(path) if name in still_ones else clip(path, 60, first=100 * number)
            source = FileSource(name, str(made))
            watch = Watch(name, self.detector, CountingTracker, config.Detect(fps=10), self.clock, self.heard)
            watch.begin(source.open(), "run1")
            self.watches[name], self._packets[name], self.sources[name] = watch, source.packets(), source
        self.looks = Looks(self.detector, list(self.watches.values()), self.clock)

    def feed(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            packet: VideoPacket = next(self._packets[name])
            self.watches[name].take(packet)

    def boxes(self) -> list[tuple[str, int]]:
        return [(seen.camera, seen.frame) for seen in self.heard.of(FrameBoxes)]


def test_the_newest_frame_is_looked_at_and_the_ones_it_replaced_are_counted(tmp_path: Path) -> None:
    yard = Yard(tmp_path, "gate")
    yard.feed("gate", 5)
    assert yard.looks.run_once()
    assert not yard.looks.run_once()
    assert yard.boxes() == [("gate", 4)]
    assert (yard.watches["gate"].counts().examined, yard.watches["gate"].counts().unexamined) == (1, 4)


def still(path: Path) -> Path:
    """A clip in which nothing ever moves."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.options = {"bf": "0"}
        for n in range(60):
            frame = av.VideoFrame.from_ndarray(picture(0), format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def test_no_camera_waits_long_because_another_is_busy(tmp_path: Path) -> None:
    """The busy one always has a newer frame; the quiet one's place in the queue grows older until it is its turn."""
    yard = Yard(tmp_path, "quiet", "busy", still_ones=("quiet",))
    yard.feed("quiet")
    yard.looks.run_once()
    yard.feed("quiet")
    for _ in range(20):
        yard.feed("busy")
        yard.clock.advance(0.3)
        yard.looks.run_once()
    turns = [camera for camera, _ in yard.boxes()[1:]]
    assert turns.count("quiet") == 1
    assert turns[0] == "busy"
    assert turns.index("quiet") <= 8


def test_an_answer_for_an_older_run_is_not_told_but_counted(tmp_path: Path) -> None:
    yard = Yard(tmp_path, "gate")
    watch = yard.watches["gate"]
    yard.feed("gate")
    request = watch.next_request()
    assert request is not None
    watch.end()
    source = FileSource("gate", str(clip(tmp_path / "again.mp4", 10)))
    watch.begin(source.open(), "run2")
    for packet in source.packets():
        watch.take(packet)
    watch.answer(request, yard.detector.detect([request.examiner.picture(request.look)])[0])
    assert yard.boxes() == []
    assert [header.run for header in yard.heard.of(StreamHeader)] == ["run1", "run2"]
    assert watch.counts().unexamined > 0


def test_what_was_examined_before_a_reconnect_is_not_examined_again(tmp_path: Path) -> None:
    """Some servers begin with a cached group of pictures, seconds old."""
    yard = Yard(tmp_path, "gate")
    watch = yard.watches["gate"]
    yard.feed("gate", 20)
    yard.looks.run_once()
    watch.end()
    source = FileSource("gate", str(tmp_path / "gate.mp4"))
    watch.begin(source.open(), "run2")
    for packet in source.packets():
        watch.take(packet)
        yard.looks.run_once()
    times = [seen.t for seen in yard.heard.of(FrameBoxes)]
    assert times == sorted(set(times))
    assert times[0] == pytest.approx(1.9)


def test_a_detector_with_a_bug_costs_looks_not_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(NumberReader):
        def detect(self, pictures: object) -> list:  # type: ignore[type-arg]
            raise RuntimeError("CUDA error 700")

    yard = Yard(tmp_path, "gate", detector=Broken())
    yard.feed("gate")
    assert yard.looks.run_once()
    (seen,) = yard.heard.of(FrameBoxes)
    assert not seen.looked
    assert yard.looks.warning == "the detector failed: RuntimeError"
    assert "CUDA error 700" in caplog.text
