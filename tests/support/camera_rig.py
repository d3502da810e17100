"""Cameras wired as the ingest process wires them, with one shared detector, for tests: what they emit is collected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis, NewTracker
from appliance.base.clock import Clock, SystemClock
from appliance.detect.detector import ObjectDetector
from appliance.inference.inference_worker import InferenceWorker
from appliance.ingest.camera_runner import CameraRunner
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.socket_meter import SocketFinder
from appliance.ingest.substream_ring import LiveRings, SubstreamRing
from tests.support.scripted_sources import CountingTracker, Heard, NumberReader


def detect_stream(
    camera: str,
    detector: ObjectDetector,
    settings: config.DetectConfig,
    clock: Clock,
    emit: Callable[[Any], None],
    *,
    new_tracker: NewTracker = CountingTracker,
    **more: Any,
) -> DetectStream:
    analysis = CameraAnalysis(camera, detector, new_tracker, settings)
    return DetectStream(analysis, settings, clock, emit, **more)


class CameraRig:
    """As a context manager it runs the detector's thread and the cameras, and ticks every `tick_s` seconds if given."""

    def __init__(
        self,
        root: Path,
        cameras: Mapping[str, config.CameraConfig],
        detector: ObjectDetector | None = None,
        *,
        clock: Clock | None = None,
        new_tracker: NewTracker = CountingTracker,
        tick_s: float | None = None,
        heard: Heard | None = None,
    ) -> None:
        self.root = root
        self.heard = heard or Heard()
        self.clock = clock or SystemClock()
        self.detector = detector or NumberReader()
        self.streams: dict[str, DetectStream] = {}
        self.cameras: dict[str, CameraRunner] = {}
        self.substreams: dict[str, SubstreamRing] = {}
        finder, wake = SocketFinder(), threading.Event()
        for name, camera in cameras.items():
            target = RecordTarget(root, name, 2.0, 0, sound=camera.audio)
            recorder = SegmentRecorder(target, self.clock, self.heard) if camera.record else None
            own = recorder is not None and camera.detect_url is None
            self.streams[name] = detect_stream(
                name,
                self.detector,
                camera.detect,
                self.clock,
                self.heard,
                new_tracker=new_tracker,
                wake=wake,
                on_session=recorder.on_session if recorder is not None and own else None,
            )
            ring = SubstreamRing(root, name, 0, self.clock) if camera.detect_url is not None else None
            if ring is not None:
                self.substreams[name] = ring
            self.cameras[name] = CameraRunner(
                camera, recorder, self.streams[name], finder, self.clock, self.heard, rings=LiveRings(detect=ring)
            )
        self.worker = InferenceWorker(self.detector, list(self.streams.values()), self.clock, wake)
        self._tick_s = tick_s
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self.worker.run, daemon=True)]
        if tick_s is not None:
            self._threads.append(threading.Thread(target=self._tick, daemon=True))

    def __enter__(self) -> CameraRig:
        for thread in self._threads:
            thread.start()
        for camera in self.cameras.values():
            camera.start()
        return self

    def __exit__(self, *_: object) -> None:
        for camera in self.cameras.values():
            camera.stop()
        assert all(camera.join(60) for camera in self.cameras.values())
        self.worker.stop()
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def of(self, camera: str, kind: type) -> list[Any]:
        """The messages of one camera."""
        return [message for message in self.heard.of(kind) if message.camera == camera]

    def _tick(self) -> None:
        while not self._ended.wait(self._tick_s):
            for camera in self.cameras.values():
                camera.tick()
