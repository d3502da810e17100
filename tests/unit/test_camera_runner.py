"""A camera's life: connecting, live, stalled, lost, back again; and what it says about itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.backoff import Backoff
from appliance.base.clock import ManualClock
from appliance.base.errors import SourceLost, SourceRefused
from appliance.inference.inference_worker import STUCK_S
from appliance.ingest.reconnecting_reader import REFUSED_WAIT_S, RETRY_S_MAX, ReconnectingReader
from appliance.media.decoder import DecodedFrame
from appliance.media.source import ReceivedBytes, SourceStalled, StreamInfo, VideoPacket
from appliance.types import CameraMeter, CameraState, Detections, FrameBoxes, Gap, SegmentRow, StreamHeader
from tests.support.camera_rig import CameraRig
from tests.support.scripted_sources import NumberReader, ScriptedSource, clip
from tests.support.waiting import until

CUT = SourceLost("camera gate: 10.0.0.9 ended the stream")
REFUSED = SourceRefused("camera gate: rtsp://10.0.0.9/main refused the password (401)")


class Listener:
    """Writes down what a feed says, and the feed's clock when it says it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.states: list[str] = []
        self.at: list[float] = []
        self.gaps: list[tuple[float, float | None, str]] = []

    def state(self, reader: str, state: str, reason: str) -> None:
        self.states.append(state)
        self.at.append(self.clock.monotonic())

    def gap(self, reader: str, t_start: float, t_end: float | None, reason: str) -> None:
        self.gaps.append((t_start, t_end, reason))


class Sink:
    """Counts; may stop the feed after so many packets, or fail."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.ends = 0
        self.packets = 0
        self.reader: ReconnectingReader | None = None
        self.stop_after = 0
        self.fail_at = 0
        self.on_packet = lambda: None

    def begin(self, info: StreamInfo, run: str) -> None:
        self.runs.append(run)

    def take(self, packet: VideoPacket) -> None:
        self.packets += 1
        self.on_packet()
        if self.packets == self.fail_at:
            raise ZeroDivisionError("a bug")
        if self.packets == self.stop_after and self.reader is not None:
            self.reader.stop()

    def end(self) -> None:
        self.ends += 1


def a_reader(
    source: ScriptedSource, clock: ManualClock | None = None
) -> tuple[ReconnectingReader, Sink, Listener, ManualClock]:
    clock = clock or ManualClock()
    sink, listener = Sink(), Listener(clock)
    reader = ReconnectingReader(
        "camera gate",
        source,
        (sink,),
        listener,
        clock,
        threading.Event(),
        backoff=Backoff(0.5, RETRY_S_MAX, jitter=0.0),
    )
    sink.reader = reader
    return reader, sink, listener, clock


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    return clip(tmp_path / "ten.mp4", 10)


def test_a_camera_that_is_cut_comes_back_and_the_gap_is_told_twice(ten: Path) -> None:
    reader, sink, listener, _ = a_reader(ScriptedSource(ten, CUT, ten, end=CUT))
    sink.stop_after = 11
    reader.run()
    assert listener.states == ["connecting", "live", "lost", "lost", "live"]
    assert listener.gaps == [(0.9, None, str(CUT)), (0.9, 0.9, str(CUT))]
    assert len(set(sink.runs)) == 2
    assert reader.counts().reconnects == 1


def test_backs_off_and_forgives(ten: Path) -> None:
    reader, sink, listener, clock = a_reader(ScriptedSource(*[CUT] * 6, ten, CUT, ten, end=CUT))
    sink.on_packet = lambda: clock.advance(4)
    sink.stop_after = 11
    reader.run()
    waits = [b - a for a, b in itertools.pairwise(listener.at[1:7])]
    assert waits == pytest.approx([0.5, 1, 2, 4, 4])
    # Ten packets, 40 s of being live: forgiven, so the first wait is short again.
    lost_again = listener.states.index("lost", listener.states.index("live"))
    assert listener.at[lost_again + 1] - listener.at[lost_again] == pytest.approx(0.5)


def test_a_refusal_is_not_hammered(ten: Path) -> None:
    reader, sink, listener, clock = a_reader(ScriptedSource(REFUSED, ten, end=CUT))
    sink.stop_after = 1
    began = clock.monotonic()
    reader.run()
    assert listener.states == ["connecting", "lost", "live"]
    assert clock.monotonic() - began >= REFUSED_WAIT_S


def test_a_stall_is_a_stall_until_coming_back_fails_too(ten: Path) -> None:
    stalled = SourceStalled("camera gate: 10.0.0.9 sent nothing for 5 s")
    reader, sink, listener, _ = a_reader(ScriptedSource(ten, CUT, ten, end=stalled))
    sink.stop_after = 11
    reader.run()
    assert listener.states == ["connecting", "live", "stalled", "lost", "live"]


def test_silence_is_noticed_before_the_time_out_and_ends_with_the_next_packet(ten: Path) -> None:
    reader, sink, listener, clock = a_reader(ScriptedSource(ten, end=CUT))

    def quiet_after_five() -> None:
        if sink.packets == 5:
            clock.advance(2)
            reader.check_silence()
            reader.check_silence()

    sink.on_packet = quiet_after_five
    sink.stop_after = 8
    reader.run()
    assert listener.states == ["connecting", "live", "stalled", "live"]


class Backlogged(ScriptedSource):
    """Everything it will ever send has come before the first packet is read."""

    def received(self) -> ReceivedBytes:
        return ReceivedBytes(1_000_000, exact=True)


class Unread(ScriptedSource):
    """A camera that goes on sending what a busy machine does not come to read."""

    unread, sent = 200_000, 0

    def unread_bytes(self) -> int | None:
        return self.unread

    def received(self) -> ReceivedBytes:
        self.sent += 50_000
        return ReceivedBytes(self.sent, exact=True)


@pytest.mark.parametrize(("unread", "seen"), [(200_000, ["live"]), (500, ["live", "stalled"])])
def test_a_camera_that_sends_on_while_the_machine_is_too_busy_to_read_is_not_stalled(
    ten: Path, unread: int, seen: list[str]
) -> None:
    source = Unread(ten, end=CUT)
    source.unread = unread
    reader, sink, listener, clock = a_reader(source)

    def starved() -> None:
        if sink.packets == 8:
            for _ in range(6):
                clock.advance(1)
                reader.check_silence()
            assert reader.counts().waiting is (unread > 1000)

    sink.on_packet = starved
    sink.stop_after = 8
    reader.run()
    assert listener.states == ["connecting", *seen]


def test_a_camera_is_stalled_by_what_arrives_and_not_by_what_is_still_read(ten: Path) -> None:
    reader, sink, listener, clock = a_reader(Backlogged(ten, end=CUT))

    def slowly() -> None:
        clock.advance(1)
        reader.check_silence()

    sink.on_packet = slowly
    sink.stop_after = 8
    reader.run()
    assert listener.states == ["connecting", "live", "stalled"], "and not live again with each packet that waited"


class Pausing(ScriptedSource):
    """From the sixth packet on everything is `pause_s` later."""

    def __init__(self, step: Path, pause_s: float) -> None:
        super().__init__(step)
        self._pause_s = pause_s

    def packets(self) -> Iterator[VideoPacket]:
        for n, packet in enumerate(super().packets()):
            yield replace(packet, t=packet.t + self._pause_s * (n > 5))


@pytest.mark.parametrize(("pause_s", "gaps"), [(5.0, 1), (1.0, 0)])
def test_a_pause_of_a_connection_that_held_is_a_gap(ten: Path, pause_s: float, gaps: int) -> None:
    reader, _, listener, _ = a_reader(Pausing(ten, pause_s))
    reader.run()
    assert len(listener.gaps) == gaps
    for begin, end, reason in listener.gaps:
        assert end is not None
        assert end - begin == pytest.approx(pause_s + 0.1, abs=0.01)
        assert reason == "connected, but no picture came"


def test_a_camera_that_sends_a_picture_in_two_seconds_is_not_stalled_between_them(tmp_path: Path) -> None:
    """It announces 25 a second, or nothing, and sends fewer by night."""
    clock, told = ManualClock(), [0]

    class Seldom(ScriptedSource):
        def packets(self) -> Iterator[VideoPacket]:
            for packet in super().packets():
                for _ in range(4):
                    clock.advance(0.5)
                    reader.check_silence()
                told.append(len(listener.states))
                yield replace(packet, t=clock.now())

    reader, _, listener, _ = a_reader(Seldom(clip(tmp_path / "c.mp4", 40)), clock)
    reader.run()
    assert told[10] == told[-1], "once it is known"


def test_a_clip_that_does_not_loop_ends_without_a_gap(ten: Path) -> None:
    reader, sink, listener, _ = a_reader(ScriptedSource(ten))
    reader.run()
    assert (listener.states, listener.gaps, sink.packets) == (["connecting", "live", "ended"], [], 10)


class StoppedBeforeAPicture(ScriptedSource):
    """Is asked to stop once it is open, and ends as it was asked to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, loops=True)
        self.stop = lambda: None

    def packets(self) -> Iterator[VideoPacket]:
        self.stop()
        yield from ()


def test_a_healthy_camera_that_is_stopped_before_its_next_picture_is_not_lost(ten: Path) -> None:
    source = StoppedBeforeAPicture(ten)
    reader, _, listener, _ = a_reader(source)
    source.stop = reader.stop
    reader.run()
    assert (listener.states, listener.gaps) == (["connecting"], [])


def test_a_clip_that_loops_is_a_new_run_each_time_and_no_loss(ten: Path) -> None:
    reader, sink, listener, _ = a_reader(ScriptedSource(ten, loops=True))
    sink.stop_after = 25
    reader.run()
    assert (listener.states, listener.gaps) == (["connecting", "live"], [])
    assert len(set(sink.runs)) == 3


def test_a_bug_in_one_camera_is_logged_and_the_camera_starts_again(ten: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader, sink, listener, _ = a_reader(ScriptedSource(ten, ten, end=CUT))
    sink.fail_at, sink.stop_after = 4, 8
    reader.run()
    assert listener.states == ["connecting", "live", "lost", "live"]
    assert "ZeroDivisionError" in caplog.text
    assert sink.ends == 2


def test_when_the_clock_of_the_box_is_set_time_is_anchored_anew(ten: Path) -> None:
    reader, sink, listener, clock = a_reader(ScriptedSource(ten, ten, end=CUT))
    sink.on_packet = lambda: clock.jump(-3600) if sink.packets == 3 else None
    sink.stop_after = 8
    reader.run()
    assert listener.states == ["connecting", "live", "lost", "live"]
    assert "clock of this appliance was set by -3600 s" in listener.gaps[0][2]


class OnTheClock(ScriptedSource):
    """A camera whose packets have the time of the appliance's clock."""

    def __init__(self, clock: ManualClock, *steps: Path | SourceLost) -> None:
        super().__init__(*steps, end=CUT)
        self._clock = clock

    def packets(self) -> Iterator[VideoPacket]:
        for packet in super().packets():
            self._clock.advance(0.1)
            yield replace(packet, t=self._clock.now())


def test_after_the_clock_was_set_back_a_gap_is_told_when_it_is(ten: Path) -> None:
    """A machine whose hardware clock runs in local time is set back by hours soon after its start."""
    clock = ManualClock()
    reader, sink, listener, _ = a_reader(OnTheClock(clock, ten, ten, CUT, ten), clock)
    sink.on_packet = lambda: clock.jump(-7200) if sink.packets == 3 else None
    sink.stop_after = 14
    began = clock.now()
    reader.run()
    assert listener.states == ["connecting", "live", "lost", "live", "lost", "lost", "live"]
    told = [each for gap in listener.gaps for each in gap[:2] if each is not None]
    assert all(began - 7200 <= each <= began - 7190 for each in told), "not in two hours"
    begin, end, _ = listener.gaps[-1]
    assert end is not None
    assert end - begin > 0.5


def test_a_source_is_always_closed_and_its_sinks_ended(ten: Path) -> None:
    source = ScriptedSource(ten, CUT, ten, end=CUT)
    reader, sink, _, _ = a_reader(source)
    sink.stop_after = 15
    reader.run()
    assert sink.ends == len(sink.runs) == 2
    assert source.closed >= source.opened - 1


class House:
    """One camera with everything it needs, on a clock that does not wait."""

    def __init__(self, root: Path, camera: config.CameraConfig, detector: NumberReader | None = None) -> None:
        self.clock = ManualClock()
        rig = CameraRig(root, {"gate": camera}, detector, clock=self.clock)
        self.heard, self.camera, self.stream, self.worker = (
            rig.heard,
            rig.cameras["gate"],
            rig.streams["gate"],
            rig.worker,
        )

    def watch_to_the_end(self) -> None:
        worker = threading.Thread(target=self.worker.run)
        worker.start()
        self.camera.start()
        until(lambda: any(state.state == "ended" for state in self.heard.of(CameraState)))
        assert self.camera.join(60)
        until(lambda: self.worker.cameras_waiting() == 0 and self.worker.watchdog.busy_s() == 0)
        self.worker.stop()
        worker.join(60)
        self.camera.tick()


def test_boxes_have_the_time_of_the_recording(tmp_path: Path) -> None:
    """The promise that matters: at a box's time, the recording shows the very picture that was examined."""
    made = clip(tmp_path / "c.mp4", 60, b_frames=2)
    house = House(tmp_path, config.CameraConfig(url=f"file:{made}", loop=False))
    house.watch_to_the_end()
    (header,) = house.heard.of(StreamHeader)
    assert (header.size, header.model) == ((320, 240), "number-reader")
    segments = [row for row in house.heard.of(SegmentRow) if row.complete]
    boxes = house.heard.of(FrameBoxes)
    assert boxes
    for seen in boxes:
        assert house.heard.messages.index(header) < house.heard.messages.index(seen)
        shown = seen.objects[0].box[0] * 1000
        assert shown == pytest.approx(seen.frame, abs=0.1)
        (segment,) = [row for row in segments if row.t_start <= seen.t < row.t_end - 0.01]
        assert number_at(tmp_path / segment.path, seen.t - segment.t_start) == seen.frame


def number_at(path: Path, seconds: float) -> int:
    import av

    from tests.support.numbered_footage import number

    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if abs(float(frame.time) - seconds) < 0.001:
                return number(frame.to_ndarray(format="rgb24"))
    raise AssertionError(f"no frame at {seconds} in {path.name}")


def test_a_camera_with_a_second_stream_records_one_and_examines_the_other(tmp_path: Path) -> None:
    main = clip(tmp_path / "main.mp4", 30, size=(640, 480))
    sub = clip(tmp_path / "sub.mp4", 30, size=(320, 240))
    house = House(tmp_path, config.CameraConfig(url=f"file:{main}", detect_url=f"file:{sub}", loop=False))
    house.watch_to_the_end()
    until(lambda: house.camera.join(1))
    assert {row.size for row in house.heard.of(SegmentRow)} == {(640, 480)}
    assert {header.size for header in house.heard.of(StreamHeader)} == {(320, 240)}
    meters = house.heard.of(CameraMeter)
    second, both = (sum(each) for each in ([m.detect_received for m in meters], [m.received for m in meters]))
    assert 0 < second < both, "of what was received, a part came as a second stream"


def test_a_second_stream_whose_main_stream_is_not_opened_is_the_only_one(tmp_path: Path) -> None:
    sub = clip(tmp_path / "sub.mp4", 30, size=(320, 240))
    settings = config.CameraConfig(url="rtsp://127.0.0.1:1/none", detect_url=f"file:{sub}", loop=False, record=False)
    house = House(tmp_path, settings)
    house.watch_to_the_end()
    meters = house.heard.of(CameraMeter)
    assert sum(meter.received for meter in meters) > 0
    assert sum(meter.detect_received for meter in meters) == 0


def test_what_a_camera_did_adds_up(tmp_path: Path) -> None:
    made = clip(tmp_path / "c.mp4", 60)
    house = House(
        tmp_path, config.CameraConfig(url=f"file:{made}", loop=False), NumberReader(fail=lambda n: n % 4 == 0)
    )
    house.watch_to_the_end()
    meters = house.heard.of(CameraMeter)
    assert sum(meter.packets for meter in meters) == sum(meter.detect.decoded for meter in meters) == 60
    looked = house.heard.of(FrameBoxes)
    assert sum(meter.detect.examined for meter in meters) == sum(boxes.looked for boxes in looked)
    assert sum(meter.detect.unexamined for meter in meters) >= sum(not boxes.looked for boxes in looked)
    assert not any(meter.exact for meter in meters)


def test_a_failing_detector_is_never_an_empty_yard(tmp_path: Path) -> None:
    made = clip(tmp_path / "c.mp4", 20)
    house = House(tmp_path, config.CameraConfig(url=f"file:{made}", loop=False), NumberReader(fail=lambda n: True))
    house.watch_to_the_end()
    boxes = house.heard.of(FrameBoxes)
    assert boxes
    assert not any(seen.looked for seen in boxes)
    assert "too much for me" in house.worker.warning
    assert [row for row in house.heard.of(SegmentRow) if row.complete], "recording goes on"


def test_a_detector_that_hangs_holds_up_neither_camera_nor_recording(tmp_path: Path) -> None:
    made, answers = clip(tmp_path / "c.mp4", 40), threading.Event()

    class Hangs(NumberReader):
        def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            answers.wait(200)
            return super().detect(pictures)

    house = House(tmp_path, config.CameraConfig(url=f"file:{made}", loop=False), Hangs())
    looks = threading.Thread(target=house.worker.run, daemon=True)
    looks.start()
    house.camera.start()
    until(lambda: any(state.state == "ended" for state in house.heard.of(CameraState)))
    assert house.camera.join(60)
    assert sum(row.frames for row in house.heard.of(SegmentRow) if row.complete) == 40
    house.clock.advance(STUCK_S + 1)
    house.worker.give_up_stuck_call()
    (untaken,) = house.heard.of(FrameBoxes)
    assert not untaken.looked
    answers.set()
    until(lambda: house.worker.cameras_waiting() == 0 and house.worker.watchdog.busy_s() == 0)
    house.worker.stop()
    looks.join(60)
    first, *others = house.heard.of(FrameBoxes)
    assert first == untaken, "the answer of then is not used"
    assert others
    assert all(seen.looked for seen in others)
    counts = house.stream.counts()
    assert counts.dropped["stuck"] == 1
    assert counts.decoded == 40


def test_a_bug_in_the_analysis_costs_no_recording_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One stream, recorded and examined: what the motion gate cannot stand must not keep it from the disk."""
    made = clip(tmp_path / "c.mp4", 80, b_frames=2)
    house = House(tmp_path, config.CameraConfig(url=f"file:{made}", loop=False))
    began, select = house.clock.now(), CameraAnalysis.select

    def fails_at_first(analysis: CameraAnalysis, frame: DecodedFrame) -> InferenceRequest | None:
        if frame.t < began + 1.5:
            raise ZeroDivisionError("a frame of no height")
        return select(analysis, frame)

    monkeypatch.setattr(CameraAnalysis, "select", fails_at_first)
    house.watch_to_the_end()
    assert [state.state for state in house.heard.of(CameraState)] == ["connecting", "live", "ended"]
    assert house.heard.of(Gap) == []
    rows = {row.path: row for row in house.heard.of(SegmentRow)}
    assert sum(row.frames for row in rows.values()) == 80
    assert "ZeroDivisionError" in caplog.text
    boxes = house.heard.of(FrameBoxes)
    assert boxes
    assert all(seen.objects[0].box[0] * 1000 == pytest.approx(10 * (seen.t - began), abs=0.2) for seen in boxes)


def test_a_camera_whose_clip_is_gone_says_so(tmp_path: Path) -> None:
    house = House(tmp_path, config.CameraConfig(url="file:/nowhere/clip.mp4", loop=False))
    house.camera.start()
    until(lambda: house.heard.of(Gap))
    house.camera.stop()
    assert house.camera.join(60)
    assert house.heard.of(CameraState)[-1].reason == "camera gate: there is no file /nowhere/clip.mp4"
