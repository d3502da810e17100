"""The ingest process: all cameras, one detector, and one channel to the core.

Pixels are written to the storage folder as segments and leave this process in no other way; the channel carries boxes,
counters, file names and sentences.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from appliance import config
from appliance.analysis.frame_analyzer import ObjectTracker
from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.health.tamper_detector import TamperDetector
from appliance.health.watchdog import ApplianceWatchdog, CameraWatchdog
from appliance.inference.inference_worker import InferenceWorker
from appliance.ingest.camera_runner import CameraRunner
from appliance.ingest.channel import ChannelClosed, IngestChannel
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.recorder import RecordTarget
from appliance.ingest.socket_meter import SocketFinder
from appliance.recheck.worker import RecheckWorker
from appliance.track.parked_vehicles import StationaryObjects
from appliance.track.parked_vehicles_store import ParkedVehiclesStore
from appliance.types import Command, HealthKind, IngestHealth, IngestMessage, RebaselineCommand

logger = logging.getLogger(__name__)

TICK_S = 1.0
STOP_S_MAX = 6.0
DETECTOR_HUNG_S = 30.0
RING_FREE_BYTES_MIN = 8_000_000  # of a folder in memory: others may lie there, too


class DetectorHung(Exception):
    """A call of the detector does not come back; only a new process helps."""


class IngestProcess:
    """Owns the cameras, the detector's thread (`looks`) and the writer's thread (`channel`); `run()` is the main loop.

    Invariant: a camera that fails, or a detector that fails, disturbs no other camera and no recording.
    """

    def __init__(
        self,
        site: SiteConfig,
        detector: ObjectDetector,
        new_tracker: Callable[[tuple[str, ...], StationaryObjects], ObjectTracker],
        channel: IngestChannel,
        clock: Clock,
        second: Callable[[], ObjectDetector] | None = None,
    ) -> None:
        """second: who makes second looks, loaded with the first of them; None: the detector, when it is idle."""
        self._clock = clock
        self._channel = channel
        self._stop = threading.Event()
        finder = SocketFinder()
        self._cameras: list[CameraRunner] = []
        self._parkings: list[ParkedVehiclesStore] = []
        watches: list[DetectStream] = []
        for name, plan in site.cameras.items():
            if not plan.enabled:
                continue
            sentry = TamperDetector(name, site.health, plan.health_ignore, self._emit, mend=not plan.is_file)
            vigil = CameraWatchdog(
                name, site.health, plan.health_ignore, self._emit, clock, heartbeat_s=plan.detect.heartbeat_s
            )
            parking = ParkedVehiclesStore(Path(site.storage.dir), name, clock)
            self._parkings.append(parking)
            tracker = _remembering(new_tracker, parking.places)
            watch = DetectStream(name, detector, tracker, plan.detect, clock, self._emit, sentry)
            place = _place(site, name, plan) if plan.record else None
            watches.append(watch)
            self._cameras.append(CameraRunner(name, plan, place, watch, finder, clock, self._emit, vigil=vigil))
        self._detector = detector
        self._looks = InferenceWorker(detector, watches, clock)
        self._box = ApplianceWatchdog(site.health, self._emit, clock)
        self._again = RecheckWorker(Path(site.storage.dir), second or (lambda: self._looks.aside), self._emit, clock)

    def run(self) -> None:
        """Until `stop()`. Raises DetectorHangs when the detector does not come back."""
        writer = threading.Thread(target=self._channel.run, args=(self.stop,), name="channel", daemon=True)
        looks = threading.Thread(target=self._looks.run, name="looks", daemon=True)
        writer.start()
        looks.start()
        self._again.start()
        for camera in self._cameras:
            camera.start()
        try:
            while not self._clock.sleep(TICK_S, self._stop):
                self._tick()
        finally:
            self._end(writer, looks)

    def stop(self) -> None:
        """May be called from any thread, and from a signal handler."""
        self._stop.set()

    def relearn(self, camera: str, kind: HealthKind) -> None:
        """A person has seen a health event and says that the picture is right as it is. Any thread."""
        for each in self._cameras:
            if each.name == camera:
                each.relearn(kind)

    def handle_command(self, command: Command) -> None:
        """What the core asks for. Any thread; never waits."""
        if isinstance(command, RebaselineCommand):
            self.relearn(command.camera, command.kind)
        else:
            self._again.submit(command)

    def _tick(self) -> None:
        self._looks.give_up_stuck_call()
        self._box.tick(self._looks.busy_s(), self._looks.warning)
        for camera in self._cameras:
            camera.tick(detector_stuck=self._box.is_detector_stuck)
        for parking in self._parkings:
            parking.tick()
        self._emit(
            IngestHealth(
                t=self._clock.now(),
                detector_ms=round(self._looks.mean_ms, 2),
                queue=self._looks.cameras_waiting(),
                rss_bytes=_rss_bytes(),
                warning="; ".join(self._warnings()),
                load=round(self._looks.load(), 3),
                age_p95_ms=round(self._looks.age_p95_ms(), 1),
            )
        )
        if self._looks.busy_s() > DETECTOR_HUNG_S:
            self._box.record_restart()
            raise DetectorHung(f"the detector has not answered for {DETECTOR_HUNG_S:.0f} s")

    def _warnings(self) -> list[str]:
        dropped = self._channel.dropped()
        said = [*(camera.warning for camera in self._cameras), self._looks.warning, self._detector.warning]
        if dropped:
            said.append(f"{dropped} frames of boxes were dropped because the core did not read")
        return [text for text in said if text]

    def _end(self, writer: threading.Thread, looks: threading.Thread) -> None:
        self._again.stop()
        self._looks.stop()
        for camera in self._cameras:
            camera.stop()
        deadline = self._clock.monotonic() + STOP_S_MAX
        for camera in self._cameras:
            if not camera.join(max(0.0, deadline - self._clock.monotonic())):
                logger.warning("a camera's thread did not end in time; its last fragment may be missing")
        looks.join(max(0.0, deadline - self._clock.monotonic()))
        for camera in self._cameras:
            camera.tick()
        for parking in self._parkings:
            parking.close()
        self._channel.close()
        writer.join(1.0)

    def _emit(self, message: IngestMessage) -> None:
        try:
            self._channel.put(message)
        except ChannelClosed:
            self._stop.set()


def _remembering(
    new_tracker: Callable[[tuple[str, ...], StationaryObjects], ObjectTracker], places: StationaryObjects
) -> Callable[[tuple[str, ...]], ObjectTracker]:
    """A new tracker for each run, and all of them know the same places."""
    return lambda labels: new_tracker(labels, places)


def _place(site: SiteConfig, camera: str, plan: config.CameraConfig) -> RecordTarget:
    storage = site.storage
    ring = plan.record == "pre_roll"
    elsewhere = ring and storage.preroll_dir is not None
    return RecordTarget(
        root=Path(storage.dir),
        camera=camera,
        segment_s=storage.segment_s,
        free_min_bytes=RING_FREE_BYTES_MIN if elsewhere else round(storage.disk_free_min_mb * 1_000_000),
        ring_bytes=round((plan.quota.preroll_mb or storage.quota.preroll_mb) * 1_000_000) if ring else None,
    )


def _rss_bytes() -> int:
    statm = os.open("/proc/self/statm", os.O_RDONLY)  # once a second: half of what open() costs
    try:
        return int(os.read(statm, 256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(statm)
