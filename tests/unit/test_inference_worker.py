"""One detector for all cameras: who is next, and what becomes of late answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.base.clock import ManualClock
from appliance.base.errors import DetectorError
from appliance.inference.camera_queue import priority_of
from appliance.inference.inference_worker import STUCK_S, InferenceWorker
from appliance.inference.scheduler import BatchPlan
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.file_source import FileSource
from appliance.media.source import VideoPacket
from appliance.types import AGE_EDGES_MS, Detections, FrameBoxes, StreamHeader
from tests.support.camera_rig import detect_stream
from tests.support.numbered_footage import numbered_image
from tests.support.scripted_sources import Heard, NumberReader, clip


class Yard:
    """Cameras that are fed packet by packet, and the shared detector."""

    def __init__(
        self,
        tmp_path: Path,
        *names: str,
        detector: NumberReader | None = None,
        still_ones: tuple[str, ...] = (),
        clock: ManualClock | None = None,
    ) -> None:
        self.clock, self.emitted = clock or ManualClock(), Heard()
        self.detector = detector or NumberReader()
        self.detect_streams, self._packets, self.sources = {}, {}, {}
        for number, name in enumerate(names):
            path = tmp_path / f"{name}.mp4"
            made = still(path) if name in still_ones else clip(path, 60, first=100 * number)
            source = FileSource(name, str(made))
            gate = detect_stream(name, self.detector, config.DetectConfig(fps=10), self.clock, self.emitted)
            gate.begin(source.open(), "run1")
            self.detect_streams[name], self._packets[name], self.sources[name] = gate, source.packets(), source
        self.worker = InferenceWorker(self.detector, list(self.detect_streams.values()), self.clock)

    def feed(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            packet: VideoPacket = next(self._packets[name])
            self.detect_streams[name].take(packet)

    def boxes(self) -> list[tuple[str, int]]:
        return [(seen.camera, seen.frame) for seen in self.emitted.of(FrameBoxes)]


def test_the_newest_frame_is_looked_at_and_the_ones_it_replaced_are_counted(tmp_path: Path) -> None:
    yard = Yard(tmp_path, "gate")
    yard.feed("gate", 5)
    assert yard.worker.run_once()
    assert not yard.worker.run_once()
    assert yard.boxes() == [("gate", 4)]
    assert (yard.detect_streams["gate"].counts().examined, yard.detect_streams["gate"].counts().unexamined) == (1, 4)


def still(path: Path) -> Path:
    """A clip in which nothing ever moves."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.options = {"bf": "0"}
        for n in range(60):
            frame = av.VideoFrame.from_ndarray(numbered_image(0), format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def test_no_camera_waits_long_because_another_is_busy(tmp_path: Path) -> None:
    """The busy one always has a newer frame; the quiet one's place in the queue grows older until it is its turn."""
    yard = Yard(tmp_path, "quiet", "busy", still_ones=("quiet",))
    yard.feed("quiet")
    yard.worker.run_once()
    yard.clock.advance(1.9)
    yard.feed("quiet")
    for _ in range(20):
        yard.feed("busy")
        yard.clock.advance(0.3)
        yard.worker.run_once()
    turns = [camera for camera, _ in yard.boxes()[1:]]
    assert turns.count("quiet") == 1
    assert turns[0] == "busy"
    assert turns.index("quiet") <= 8


def test_an_answer_for_an_older_run_is_not_told_but_counted(tmp_path: Path) -> None:
    yard = Yard(tmp_path, "gate")
    gate = yard.detect_streams["gate"]
    yard.feed("gate")
    taken = gate.queue.take()
    assert taken is not None
    request = taken.item.request
    gate.end()
    source = FileSource("gate", str(clip(tmp_path / "again.mp4", 10)))
    gate.begin(source.open(), "run2")
    for packet in source.packets():
        gate.take(packet)
    gate.complete(taken.item, yard.detector.detect([request.tracks.detector_input(request)])[0])
    assert yard.boxes() == []
    assert [header.run for header in yard.emitted.of(StreamHeader)] == ["run1", "run2"]
    assert gate.counts().unexamined > 0


def test_what_was_examined_before_a_reconnect_is_not_examined_again(tmp_path: Path) -> None:
    """Some servers begin with a cached group of pictures, seconds old."""
    yard = Yard(tmp_path, "gate")
    gate = yard.detect_streams["gate"]
    yard.feed("gate", 20)
    yard.worker.run_once()
    gate.end()
    source = FileSource("gate", str(tmp_path / "gate.mp4"))
    gate.begin(source.open(), "run2")
    for packet in source.packets():
        gate.take(packet)
        yard.worker.run_once()
    times = [seen.t for seen in yard.emitted.of(FrameBoxes)]
    assert times == sorted(set(times))
    assert times[0] == pytest.approx(1.9)


def test_a_clock_that_is_set_back_a_little_blinds_no_camera(tmp_path: Path) -> None:
    """Frames after it have the times of those before it, and are not the same frames again."""
    yard = Yard(tmp_path, "gate")
    gate = yard.detect_streams["gate"]
    gate.end()
    for run, step_s in (("run2", 0.0), ("run3", -30.0)):
        yard.clock.jump(step_s)
        source = FileSource("gate", str(clip(tmp_path / f"{run}.mp4", 20)), yard.clock)
        gate.begin(source.open(), run)
        for packet in source.packets():
            gate.take(packet)
            yard.worker.run_once()
        gate.end()
        source.close()
    times = [seen.t for seen in yard.emitted.of(FrameBoxes)]
    assert len(times) >= 39
    assert times[20] - times[19] == pytest.approx(-30.0, abs=0.3)


def test_a_detector_with_a_bug_costs_looks_not_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(NumberReader):
        def detect(self, pictures: object) -> list:  # type: ignore[type-arg]
            raise RuntimeError("CUDA error 700")

    yard = Yard(tmp_path, "gate", detector=Broken())
    yard.feed("gate")
    assert yard.worker.run_once()
    (seen,) = yard.emitted.of(FrameBoxes)
    assert not seen.looked
    assert yard.worker.warning == "the detector failed: RuntimeError"
    assert "CUDA error 700" in caplog.text


def test_a_bug_in_one_cameras_tracker_blinds_no_other_camera(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    yard = Yard(tmp_path, "gate", "door")
    complete = DetectStream.complete

    def fails_at_the_gate(stream: DetectStream, *given: Any) -> None:
        if stream.camera == "gate":
            raise IndexError("no such track")
        complete(stream, *given)

    monkeypatch.setattr(DetectStream, "complete", fails_at_the_gate)
    yard.feed("gate")
    yard.feed("door")
    assert yard.worker.run_once()
    assert yard.worker.run_once()
    assert yard.boxes() == [("door", 0)]
    assert yard.detect_streams["gate"].counts().dropped == {"failed": 1}
    assert "camera gate" in caplog.text


class FlakyDetector(NumberReader):
    """Fails as often as told, then answers; a call may take time."""

    def __init__(self, clock: ManualClock, failures: int, *, lasts_s: float = 0.01) -> None:
        super().__init__()
        self.left, self.calls, self.lasts_s = failures, 0, lasts_s
        self.meanwhile: Callable[[], object] = lambda: None
        self._clock = clock

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.calls += 1
        self._clock.advance(self.lasts_s)
        self.meanwhile()
        if self.left > 0:
            self.left -= 1
            raise DetectorError("out of memory")
        return super().detect(pictures)


def flaky_yard(tmp_path: Path, failures: int, *names: str, lasts_s: float = 0.01) -> tuple[Yard, FlakyDetector]:
    clock = ManualClock()
    flaky = FlakyDetector(clock, failures, lasts_s=lasts_s)
    return Yard(tmp_path, *(names or ("gate",)), detector=flaky, clock=clock), flaky


def test_a_call_that_fails_is_made_again_and_nobody_is_told_of_it(tmp_path: Path) -> None:
    yard, flaky = flaky_yard(tmp_path, 2)
    yard.feed("gate")
    assert yard.worker.run_once()
    (seen,) = yard.emitted.of(FrameBoxes)
    assert (seen.looked, flaky.calls, yard.worker.warning) == (True, 3, "")
    counts = yard.detect_streams["gate"].counts()
    assert (counts.examined, counts.unexamined, counts.retries) == (1, 0, 2)


def test_it_is_made_again_on_the_newest_picture(tmp_path: Path) -> None:
    yard, flaky = flaky_yard(tmp_path, 1)
    yard.feed("gate")
    flaky.meanwhile = lambda: yard.feed("gate", 3) if flaky.calls == 1 else None
    yard.worker.run_once()
    assert [(seen.frame, seen.looked) for seen in yard.emitted.of(FrameBoxes)] == [(0, False), (3, True)]
    assert yard.detect_streams["gate"].counts().dropped == {"failed": 1, "newer": 2}


def test_a_detector_that_always_fails_is_asked_once_a_look_and_forgiven_when_it_works_again(tmp_path: Path) -> None:
    yard, flaky = flaky_yard(tmp_path, 5)
    for calls in (3, 4, 5, 6):
        yard.feed("gate")
        yard.worker.run_once()
        assert flaky.calls == calls
    assert [seen.looked for seen in yard.emitted.of(FrameBoxes)] == [False, False, False, True]
    assert yard.detect_streams["gate"].counts().dropped == {"failed": 3}
    flaky.left = 1
    yard.feed("gate")
    yard.worker.run_once()
    assert yard.emitted.of(FrameBoxes)[-1].looked


def test_a_call_that_took_long_to_fail_is_not_made_again_at_once(tmp_path: Path) -> None:
    """Others wait; the next picture comes by itself."""
    yard, flaky = flaky_yard(tmp_path, 1, lasts_s=3.0)
    yard.feed("gate")
    yard.worker.run_once()
    assert flaky.calls == 1
    assert not yard.emitted.of(FrameBoxes)[-1].looked


def test_a_picture_the_detector_cannot_stand_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    class Together(NumberReader):
        batch_max = 4

        def input_size(self, width: int, height: int) -> tuple[int, int]:
            return 416, 416

        def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            clock.advance(0.01 + 0.001 * len(pictures))
            return super().detect(pictures)

    clock = ManualClock()
    yard = Yard(tmp_path, "one", "two", "three", detector=Together(fail=lambda n: n == 100), clock=clock)
    yard.worker.measure_batching()
    for name in yard.detect_streams:
        yard.feed(name)
    assert yard.worker.run_once()
    assert not yard.worker.run_once(), "all in one call"
    assert {seen.camera: seen.looked for seen in yard.emitted.of(FrameBoxes)} == {
        "one": True,
        "two": False,
        "three": True,
    }


def test_of_a_new_detector_that_could_not_be_measured_no_more_is_asked_than_single_frames(tmp_path: Path) -> None:
    class Unmeasured(NumberReader):
        batch_max = 4

        def input_size(self, width: int, height: int) -> tuple[int, int]:
            return width, height

        def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            raise DetectorError("not yet")

    yard = Yard(tmp_path, "gate")
    yard.worker._scheduler.batching = BatchPlan((1.0, 1.1, 1.2, 1.3))
    yard.worker.replace_detector(Unmeasured())
    yard.worker._take_next_detector()
    assert yard.worker._scheduler.batching == BatchPlan(), "what was measured of the other detector"


def test_frames_of_any_proportions_may_share_a_run_of_a_detector_with_one_input(tmp_path: Path) -> None:
    class OneInput(NumberReader):
        batch_max = 4

        def input_size(self, width: int, height: int) -> tuple[int, int]:
            return 128, 128

    yard = Yard(tmp_path, "gate", detector=OneInput())
    yard.feed("gate")
    waiting = yard.detect_streams["gate"].queue.pending(yard.clock.monotonic())
    assert waiting is not None
    assert waiting.size == (128, 128)


def test_a_call_that_does_not_come_back_is_told_as_no_look_and_blocks_no_camera(tmp_path: Path) -> None:
    yard, flaky = flaky_yard(tmp_path, 0, lasts_s=STUCK_S + 1)
    gate = yard.detect_streams["gate"]

    def meanwhile() -> None:
        """What the other threads do while the detector hangs."""
        assert yard.worker.watchdog.busy_s() > STUCK_S
        yard.worker.give_up_stuck_call()
        yard.worker.give_up_stuck_call()
        yard.feed("gate", 4)

    flaky.meanwhile = meanwhile
    yard.feed("gate")
    yard.worker.run_once()
    (seen,) = yard.emitted.of(FrameBoxes)
    assert (seen.frame, seen.looked) == (0, False)
    assert gate.counts().dropped == {"stuck": 4}
    flaky.meanwhile, flaky.lasts_s = (lambda: None), 0.01
    yard.worker.run_once()
    assert [(seen.frame, seen.looked) for seen in yard.emitted.of(FrameBoxes)] == [(0, False), (4, True)]
    assert gate.counts().examined == 1


def test_how_old_a_picture_is_when_the_tracker_hears_of_it(tmp_path: Path) -> None:
    yard, _ = flaky_yard(tmp_path, 0, lasts_s=0.25)
    yard.feed("gate")
    yard.clock.advance(0.5)
    yard.worker.run_once()
    counts = yard.detect_streams["gate"].counts()
    assert dict(zip(AGE_EDGES_MS, counts.ages, strict=False))[1000] == 1
    assert sum(counts.ages[:-1]) == 1
    assert counts.ages[-1] == pytest.approx(750, abs=1)
    assert yard.worker.age_p95_ms() == pytest.approx(750, abs=1)
    yard.clock.advance(60)
    assert yard.worker.age_p95_ms() == 0


def test_a_region_is_worth_more_than_a_whole_picture_and_what_is_followed_more_than_leaves() -> None:
    leaves = priority_of(0.02, active=False)
    person = priority_of(0.02, active=True)
    assert 0 < leaves < person < priority_of(0.02, active=True, area=0.25) <= 2
    assert priority_of(0.0, active=False) == 0
    assert priority_of(0.0, active=False, late=True) > leaves
    assert priority_of(1.0, active=False) < person, "rain is not worth more than somebody"
