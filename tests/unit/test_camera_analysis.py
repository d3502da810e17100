"""One analysis for live ingest and replay: the same footage gives the same boxes both ways, session by session."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import FrozenInstanceError
from pathlib import Path

import av
import numpy as np
import pytest

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.decode_policy import DecodePolicy
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import ManualClock
from appliance.inference.inference_worker import InferenceWorker
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame
from appliance.replay.footage import ClipReader
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes, StreamHeader
from tests.support.camera_rig import detect_stream
from tests.support.numbered_footage import numbered_image
from tests.support.scripted_sources import CountingTracker, Heard, NumberReader
from tests.support.walker_footage import WalkerDetector, place


def moving(n: int, size: tuple[int, int] = (320, 240)) -> DecodedFrame:
    image = np.resize(numbered_image(n * 3000 % 65536), (size[1], size[0], 3))
    return DecodedFrame(n, n / 5, av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p"))


class AtOnce(threading.Event):
    """A frame that waits is inferred before the next one is decoded."""

    worker: InferenceWorker

    def set(self) -> None:
        assert self.worker.run_once()


def analysis(detector: NumberReader) -> CameraAnalysis:
    return CameraAnalysis("gate", detector, CountingTracker, config.DetectConfig())


def request_for(made: CameraAnalysis, frame: DecodedFrame) -> InferenceRequest:
    if made.begins_session(frame):
        made.start_session(frame)
    request = made.select(frame)
    assert request is not None
    return request


def test_an_ended_session_is_freed_at_once_and_not_by_a_full_collection() -> None:
    """Each lost connection ends one, with its planes and scalers: in a cycle, hundreds waited for the collector."""
    detector = NumberReader()
    made = analysis(detector)
    request = request_for(made, moving(0))
    made.result(request, detector.detect([made.detector_input(request)])[0])
    selector, tracks = made.probe.selector, request.tracks
    assert selector is not None
    left = [weakref.ref(selector), weakref.ref(tracks)]
    gc.disable()
    try:
        made.end_session()
        del request, selector, tracks
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("latency", ["lowest", "normal", "thrifty"])
def test_live_and_replay_give_the_same_boxes(tmp_path: Path, latency: config.LatencyMode) -> None:
    path = place(tmp_path / "visit.mp4", 20, [(9.4, 12.0)], bframes="0")
    settings, detector = config.DetectConfig(latency=latency, heartbeat_s=2), WalkerDetector()

    heard, clock, wake = Heard(), ManualClock(), AtOnce()
    stream = detect_stream("gate", detector, settings, clock, heard, new_tracker=Tracker, wake=wake)
    wake.worker = InferenceWorker(detector, [stream], clock)
    source = FileSource("gate", str(path))
    stream.begin(source.open(), "live")
    for packet in source.packets():
        stream.take(packet)
    stream.end()
    live = heard.of(FrameBoxes)

    made, replayed = CameraAnalysis("gate", detector, Tracker, settings), []
    with ClipReader(str(path)) as clip:
        for frame in clip.frames(made.decode_policy):
            if not made.has_session:
                made.start_session(frame)
            request = made.select(frame)
            if request is not None:
                replayed.append(made.result(request, detector.detect([made.detector_input(request)])[0]))

    assert any(boxes.objects for boxes in live)
    assert live == replayed
    assert [header.run for header in heard.of(StreamHeader)] == ["live"]


def test_only_of_a_cameras_first_session_is_it_unknown_what_stood_there_before(tmp_path: Path) -> None:
    path = place(tmp_path / "visit.mp4", 2, [], bframes="0")

    def sessions(**more: bool) -> list[bool]:
        heard, clock = Heard(), ManualClock()
        stream = detect_stream(
            "gate", WalkerDetector(), config.DetectConfig(), clock, heard, new_tracker=Tracker, **more
        )
        for session in ("one", "two"):
            source = FileSource("gate", str(path))
            stream.begin(source.open(), session)
            for packet in source.packets():
                stream.take(packet)
            stream.end()
        return [header.known_before for header in heard.of(StreamHeader)]

    assert sessions() == [False, True]
    assert sessions(known_before=True) == [True, True]


def test_a_frame_of_another_size_begins_a_session_and_old_requests_stay_with_their_own_tracker() -> None:
    detector = NumberReader()
    made = analysis(detector)
    old = request_for(made, moving(1))
    new = request_for(made, moving(2, (640, 480)))
    assert not made.is_current(old)
    assert made.is_current(new)
    late = made.result(old, detector.detect([made.detector_input(old)])[0])
    assert new.tracks.summary.objects == ()
    assert (late.seq, late.frame) == (0, 1)
    assert made.result(new, detector.detect([made.detector_input(new)])[0]).seq == 0


def test_the_detector_s_side_hands_over_one_immutable_value() -> None:
    detector = NumberReader()
    made = analysis(detector)
    request = request_for(made, moving(1))
    before = request.tracks.summary
    made.result(request, detector.detect([made.detector_input(request)])[0])
    after = request.tracks.summary
    assert before.objects == ()
    assert len(after.objects) == 1
    assert made.is_moving
    with pytest.raises(FrozenInstanceError):
        after.objects = ()  # type: ignore[misc]


def test_a_request_without_a_result_has_the_whole_frame_examined_next() -> None:
    made = analysis(NumberReader())
    request = request_for(made, moving(1))
    wanted = request.tracks.summary.whole_wanted
    boxes = made.result(request, None)
    assert (boxes.looked, boxes.objects) == (False, ())
    assert request.tracks.summary.whole_wanted == wanted + 1


def test_a_forced_frame_is_due_though_it_is_too_early() -> None:
    made = analysis(NumberReader())
    request_for(made, moving(1))
    early = moving(1)
    assert made.select(DecodedFrame(2, early.t + 0.01, early.av_frame)) is None
    made.force_next()
    assert made.until_needed_s(early.t) == 0.0
    assert made.select(DecodedFrame(3, early.t + 0.02, early.av_frame)) is not None


def test_without_a_session_every_frame_matters() -> None:
    """The decode policy asks the probe, never the owner of the analysis."""
    made = analysis(NumberReader())
    assert isinstance(made.decode_policy, DecodePolicy)
    assert made.probe.is_active(0.0)
    assert made.probe.is_overdue(0.0)
    request = request_for(made, moving(1))
    made.result(request, Detections.empty())
    assert not made.probe.is_active(100.0)
    made.end_session()
    assert made.probe.is_active(100.0)
