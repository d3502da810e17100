"""The ingest process: all cameras, one detector, and one channel to the core.

Pixels are written to the storage folder as segments and leave this process in no other way; the channel carries boxes,
counters, file names and sentences.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import ObjectTracker
from appliance.clock import Clock
from appliance.detect.detector import ObjectDetector
from appliance.health.tamper_detector import TamperDetector
from appliance.health.watchdog import ApplianceWatchdog, CameraWatchdog, DetectorActivity
from appliance.inference.detector_watchdog import DetectorHung
from appliance.inference.inference_worker import InferenceWorker
from appliance.ingest.camera_runner import CameraRunner
from appliance.ingest.channel import ChannelClosed, IngestChannel
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.socket_meter import SocketFinder
from appliance.recheck.worker import RecheckWorker
from appliance.track.parked_vehicle_file import ParkedVehiclesStore
from appliance.track.parked_vehicle_memory import StationaryObjects
from appliance.types import Command, HealthKind, IngestHealth, IngestMessage, RebaselineCommand

logger = logging.getLogger(__name__)

TICK_S = 1.0
STOP_S_MAX = 6.0
RING_FREE_BYTES_MIN = 8_000_000  # of a folder in memory: others may lie there, too


class IngestProcess:
    """Owns the cameras, the detector's thread (`looks`) and the writer's thread (`channel`); `run()` is the main loop.

    Invariant: a camera that fails, or a detector that fails, disturbs no other camera and no recording.
    """

    def __init__(
        self,
        cameras: Mapping[str, config.CameraConfig],
        health: config.HealthConfig,
        storage: config.StorageConfig,
        detector: ObjectDetector,
        new_tracker: Callable[[tuple[str, ...], StationaryObjects], ObjectTracker],
        channel: IngestChannel,
        clock: Clock,
        *,
        load_recheck_detector: Callable[[], ObjectDetector] | None = None,
    ) -> None:
        """load_recheck_detector: called with the first re-check; None: the shared detector does it when idle."""
        self._health = health
        self._storage = storage
        self._detector = detector
        self._new_tracker = new_tracker
        self._channel = channel
        self._clock = clock
        self._stop = threading.Event()
        self._wake_worker = threading.Event()
        self._finder = SocketFinder()
        self._cameras: list[CameraRunner] = []
        self._parked_stores: list[ParkedVehiclesStore] = []
        streams = [self._add_camera(name, camera) for name, camera in cameras.items() if camera.enabled]
        worker = InferenceWorker(detector, streams, clock, self._wake_worker)
        self._worker = worker
        self._watchdog = ApplianceWatchdog(health, self._emit, clock)
        recheck_detector = load_recheck_detector or (lambda: worker.idle_detector)
        self._rechecks = RecheckWorker(Path(storage.dir), recheck_detector, self._emit, clock)

    def _add_camera(self, name: str, camera: config.CameraConfig) -> DetectStream:
        health, clock = self._health, self._clock
        tamper = TamperDetector(name, health, camera.health_ignore, self._emit, mend=not camera.is_file)
        watchdog = CameraWatchdog(
            name,
            health,
            camera.health_ignore,
            self._emit,
            clock,
            heartbeat_s=camera.detect.heartbeat_s,
            fps=camera.detect.fps,
        )
        parked = ParkedVehiclesStore(Path(self._storage.dir), name, clock)
        target = _record_target(self._storage, name, camera)
        recorder = SegmentRecorder(target, clock, self._emit) if camera.record else None
        analysis = CameraAnalysis(
            name,
            self._detector,
            lambda labels: self._new_tracker(labels, parked.objects),  # for each session; all know the same
            camera.detect,
            tamper=tamper,
        )
        stream = DetectStream(
            name,
            analysis,
            camera.detect,
            self._detector.name,
            clock,
            self._emit,
            wake=self._wake_worker,
            on_session=recorder.on_session if recorder is not None and camera.detect_url is None else None,
        )
        self._parked_stores.append(parked)
        self._cameras.append(
            CameraRunner(name, camera, recorder, stream, self._finder, clock, self._emit, watchdog=watchdog)
        )
        return stream

    def run(self) -> None:
        """Until `stop()`. Raises DetectorHung when the detector does not come back."""
        writer = threading.Thread(target=self._channel.run, args=(self.stop,), name="channel", daemon=True)
        worker = threading.Thread(target=self._worker.run, name="looks", daemon=True)
        writer.start()
        worker.start()
        self._rechecks.start()
        for camera in self._cameras:
            camera.start()
        try:
            while not self._clock.sleep(TICK_S, self._stop):
                self._tick()
        finally:
            self._end(writer, worker)

    def stop(self) -> None:
        """May be called from any thread, and from a signal handler."""
        self._stop.set()

    def handle_command(self, command: Command) -> None:
        """A command of the core. Any thread; never waits."""
        if isinstance(command, RebaselineCommand):
            self.rebaseline(command.camera, command.kind)
        else:
            self._rechecks.submit(command)

    def rebaseline(self, camera: str, kind: HealthKind) -> None:
        """A person has seen a health event and says that what the camera shows is right as it is. Any thread."""
        for each in self._cameras:
            if each.name == camera:
                each.rebaseline(kind)

    def _tick(self) -> None:
        worker = self._worker
        worker.give_up_stuck_call()
        self._watchdog.tick(worker.watchdog.busy_s(), worker.warning)
        detector = DetectorActivity(worker.load(), self._watchdog.is_detector_stuck)
        for camera in self._cameras:
            camera.tick(detector)
        for parked in self._parked_stores:
            parked.tick()
        self._emit(
            IngestHealth(
                t=self._clock.now(),
                detector_ms=round(worker.mean_ms, 2),
                queue=worker.cameras_waiting(),
                rss_bytes=_rss_bytes(),
                warning="; ".join(self._warnings()),
                load=round(worker.load(), 3),
                age_p95_ms=round(worker.age_p95_ms(), 1),
            )
        )
        try:
            worker.watchdog.check()
        except DetectorHung:
            self._watchdog.record_restart()
            raise

    def _warnings(self) -> list[str]:
        dropped = self._channel.dropped()
        texts = [*(camera.warning for camera in self._cameras), self._worker.warning, self._detector.warning]
        if dropped:
            texts.append(f"{dropped} frames of boxes were dropped because the core did not read")
        return [text for text in texts if text]

    def _end(self, writer: threading.Thread, worker: threading.Thread) -> None:
        self._rechecks.stop()
        self._worker.stop()
        for camera in self._cameras:
            camera.stop()
        deadline = self._clock.monotonic() + STOP_S_MAX
        for camera in self._cameras:
            if not camera.join(max(0.0, deadline - self._clock.monotonic())):
                logger.warning("a camera's thread did not end in time; its last fragment may be missing")
        worker.join(max(0.0, deadline - self._clock.monotonic()))
        for camera in self._cameras:
            camera.tick()
        for parked in self._parked_stores:
            parked.close()
        self._channel.close()
        writer.join(1.0)

    def _emit(self, message: IngestMessage) -> None:
        try:
            self._channel.put(message)
        except ChannelClosed:
            self._stop.set()


def _record_target(storage: config.StorageConfig, name: str, camera: config.CameraConfig) -> RecordTarget:
    ring = camera.record == "pre_roll"
    elsewhere = ring and storage.preroll_dir is not None
    return RecordTarget(
        root=Path(storage.dir),
        camera=name,
        segment_s=storage.segment_s,
        free_min_bytes=RING_FREE_BYTES_MIN if elsewhere else round(storage.disk_free_min_mb * 1_000_000),
        ring_bytes=round((camera.quota.preroll_mb or storage.quota.preroll_mb) * 1_000_000) if ring else None,
    )


def _rss_bytes() -> int:
    statm = os.open("/proc/self/statm", os.O_RDONLY)  # once a second: half of what open() costs
    try:
        return int(os.read(statm, 256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(statm)
