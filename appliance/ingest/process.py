"""The ingest process: all cameras, one detector, and one channel to the core.

Pixels are written to the storage folder as segments, and a frame that the core asks for into memory (`FrameHandOver`);
they leave this process in no other way. The channel carries boxes, counters, file names and sentences.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.frame_selector import WorkShare
from appliance.base.clock import Clock
from appliance.base.json_lines import first_problem
from appliance.base.local_files import live_memory
from appliance.base.process_memory import TRIM_EVERY_S, MemoryTrimmer, trim_heaps
from appliance.detect.detector import ObjectDetector, VariableInput, fallback_reason, prefer_labels
from appliance.detect.detector_loader import load
from appliance.health.camera_health import ApplianceWatchdog, CameraWatchdog, DetectorActivity
from appliance.health.tamper_detector import TamperDetector
from appliance.inference.inference_worker import DetectorHung, InferenceWorker
from appliance.ingest.camera_detectors import FrameHandOver, Networks, NetworkTable
from appliance.ingest.camera_runner import CameraRunner
from appliance.ingest.core_channel import ChannelClosed, IngestChannel
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.hardware_decoders import HardwareDecoders
from appliance.ingest.ingest_policy import IngestPolicy, PolicyOutdated
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.socket_meter import SocketFinder
from appliance.ingest.substream_ring import LiveRings, StandbyRing, SubstreamRing, clear_substreams
from appliance.recheck.worker import RecheckWorker
from appliance.rules.engine import unknown_labels
from appliance.track.stationary_objects import ParkedVehiclesStore, StationaryObjects
from appliance.track.tracker import Tracker
from appliance.types import (
    RINGS,
    Command,
    ConfigureCommand,
    HealthEvent,
    HealthKind,
    IngestHealth,
    IngestMessage,
    NetworksCommand,
    RebaselineCommand,
    SampleCommand,
    ShedLoadCommand,
)

logger = logging.getLogger(__name__)

TICK_S = 1.0  # silence and health are told in seconds
STOP_S_MAX = 6.0  # below base.threads.STOP_S_MAX, in which the core waits for this process
RING_FREE_BYTES_MIN = 8_000_000  # of a folder in memory: others may lie there, too


_CAMERAS = TypeAdapter(dict[config.CameraName, config.CameraConfig])
# Changes of these keys do not restart a camera: the core applies them. A NetworksCommand brings a new network.
_DECIDED_BY_THE_CORE = {*config.NO_MATTER_OF_ALERTS, "rules", "zones", "ignore", "lines", "model"}


@dataclass(frozen=True, slots=True)
class _RunningCamera:
    """A camera with all that was made for it. settings: its section of the site file."""

    settings: config.CameraConfig
    analysis: CameraAnalysis
    runner: CameraRunner
    stream: DetectStream
    parked: ParkedVehiclesStore
    rings: tuple[SubstreamRing, ...]


class IngestProcess:
    """Owns the cameras, the thread of the InferenceWorker (`looks`) and that of the channel; `run()` is the main loop.

    Invariant: a camera that fails, or a detector that fails, disturbs no other camera and no recording; nor does one
    that is added, changed or removed while they run.
    """

    def __init__(
        self,
        settings: config.IngestConfig,
        networks: NetworkTable,
        new_tracker: Callable[[tuple[str, ...], StationaryObjects], Tracker],
        channel: IngestChannel,
        clock: Clock,
        *,
        load_recheck_detector: Callable[[], ObjectDetector] | None = None,
        hardware: HardwareDecoders | None = None,
        policy: IngestPolicy | None = None,
    ) -> None:
        """Make the cameras' parts; `run` starts them.

        networks: those that examine the cameras at first. load_recheck_detector: called with the first re-check; None:
        the shared detector re-checks when it is idle. hardware: the hardware that may decode; None: software decodes.
        policy: the policy by which this process is confined; None: it is not confined.
        """
        cameras, self._health, self._storage = settings.cameras, settings.health, settings.storage
        self._faults: dict[str, HealthEvent] = {}  # of cameras, by id, while they last
        self._networks = Networks(networks, load, self._emit)
        _prefer_labels(self._networks, cameras.values())
        self._new_tracker = new_tracker
        self._channel = channel
        self._clock = clock
        self._hardware = hardware or HardwareDecoders(config.DecodeConfig())
        self._policy = policy
        self._stop = threading.Event()
        self._wake_worker = threading.Event()
        self._finder = SocketFinder()
        self._trim_memory, self._trimmed_at = MemoryTrimmer(), clock.monotonic()
        self._shedding_asked = self._shedding_applied = ShedLoadCommand()
        clear_substreams(Path(self._storage.dir))
        self._live_memory = live_memory(Path(self._storage.dir))
        self._cameras = {name: self._make_camera(name, camera) for name, camera in cameras.items() if camera.enabled}
        self._wanted: Mapping[str, config.CameraConfig] | None = None
        self._sampler = FrameHandOver(self._live_memory, self._emit)
        streams = [camera.stream for camera in self._cameras.values()]
        worker = InferenceWorker(networks.shared, streams, clock, self._wake_worker, self._sampler.offer)
        self._worker = worker
        self._watchdog = ApplianceWatchdog(self._health, self._emit, clock)
        recheck_detector = load_recheck_detector or (lambda: worker.idle_detector)
        self._rechecks = RecheckWorker(Path(self._storage.dir), recheck_detector, self._emit, clock)

    def _make_camera(self, name: str, camera: config.CameraConfig) -> _RunningCamera:
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
            self._networks.table.of(name),
            lambda labels: self._new_tracker(labels, parked.objects),  # for each session; all know the same
            camera.detect,
            tamper=tamper,
        )
        analysis.watch_lines(camera.rule_lines)
        stream = DetectStream(
            analysis,
            camera.detect,
            clock,
            self._emit,
            wake=self._wake_worker,
            on_session=recorder.on_session if recorder is not None and camera.detect_url is None else None,
            known_before=parked.objects.knows(clock.now()),
            hardware=self._hardware.of(name, camera),
        )
        for unknown in _unknown_labels(self._networks, name, camera):
            logger.warning("%s", unknown)
        substream = standby = None
        if recorder is not None and self._live_memory is not None:
            standby = StandbyRing(self._live_memory, name, recorder, clock)
        if camera.detect_url is not None:
            free_bytes = round(self._storage.disk_free_min_mb * 1_000_000)
            substream = SubstreamRing(Path(self._storage.dir), name, free_bytes, clock)
        runner = CameraRunner(
            camera, recorder, stream, self._finder, clock, self._emit, watchdog=watchdog,
            rings=LiveRings(substream, standby),
        )  # fmt: skip
        rings = tuple(each for each in (substream, standby) if each is not None)
        return _RunningCamera(camera, analysis, runner, stream, parked, rings)

    def run(self) -> None:
        """Run until `stop()`.

        Raise DetectorHung if the detector does not come back. Raise PolicyOutdated if something that this process is
        confined to was replaced.
        """
        writer = threading.Thread(target=self._channel.run, args=(self.stop,), name="channel", daemon=True)
        worker = threading.Thread(target=self._worker.run, name="looks", daemon=True)
        writer.start()
        worker.start()
        self._rechecks.start()
        for camera in self._cameras.values():
            camera.runner.start()
        try:
            while not self._clock.sleep(TICK_S, self._stop):
                self._tick()
        finally:
            self._end(writer, worker)

    def stop(self) -> None:
        """Stop; any thread may call, but not a signal handler.

        A handler may have interrupted a thread in the event's `set` or `wait`.
        """
        self._stop.set()

    def handle_command(self, command: Command) -> None:
        """Handle a command of the core; any thread may call, and it never waits."""
        if isinstance(command, RebaselineCommand):
            self.rebaseline(command.camera, command.kind)
        elif isinstance(command, ConfigureCommand):
            self.configure(command.cameras)
        elif isinstance(command, ShedLoadCommand):
            self._shedding_asked = command
        elif isinstance(command, NetworksCommand):
            self._networks.submit(command)
        elif isinstance(command, SampleCommand):
            self._sampler.ask(command)
        else:
            self._rechecks.submit(command)

    def rebaseline(self, camera: str, kind: HealthKind) -> None:
        """Accept a camera's present view as right; any thread may call.

        A person has seen a health event and says so.
        """
        running = self._cameras.get(camera)
        if running is not None:
            running.runner.rebaseline(kind)

    def configure(self, cameras: Mapping[str, object]) -> None:
        """Run these cameras from the next second on. Any thread; a section that is wrong changes nothing."""
        try:
            self._wanted = _CAMERAS.validate_python(cameras)
        except ValidationError as error:
            logger.error("the new cameras are refused: %s", first_problem(error))

    def _apply_wanted(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        _prefer_labels(self._networks, wanted.values())
        enabled = {name: camera for name, camera in wanted.items() if camera.enabled}
        gone = {
            name: running
            for name, running in self._cameras.items()
            if name not in enabled or _ingest_settings(enabled[name]) != _ingest_settings(running.settings)
        }
        stay = {
            name: replace(running, settings=enabled[name])
            for name, running in self._cameras.items()
            if name not in gone
        }
        for name, running in stay.items():
            running.analysis.watch_lines(enabled[name].rule_lines)
        self._worker.replace_clients([running.stream for running in stay.values()])
        _stop_cameras(gone.values(), self._clock)
        self._end_faults(gone)
        new = {name: self._make_camera(name, camera) for name, camera in enabled.items() if name not in stay}
        self._cameras = {name: stay.get(name) or new[name] for name in enabled}
        self._worker.replace_clients([camera.stream for camera in self._cameras.values()])
        for running in new.values():
            running.runner.start()
        if gone or new:
            logger.info(
                "cameras as they are configured now: stopped %s, started %s", ", ".join(gone) or "none",
                ", ".join(new) or "none",
            )  # fmt: skip

    def _apply_networks(self) -> None:
        """Hand networks that were loaded meanwhile to the cameras, whose next frames they examine."""
        self._networks.note_sizes({camera.analysis.probe.size for camera in self._cameras.values()})
        if not self._networks.take_ready():
            return
        _prefer_labels(self._networks, (camera.settings for camera in self._cameras.values()))
        for name, camera in self._cameras.items():
            camera.analysis.use_detector(self._networks.table.of(name))
        self._worker.replace_detector(self._networks.table.shared)
        logger.info("in force now: %s", ", ".join(each.name for each in self._networks.table.loaded.values()))

    def _apply_shedding(self) -> None:
        """Apply load shedding each second, so that a camera which is added meanwhile does no more than the others."""
        shedding, before = self._shedding_asked, self._shedding_applied
        self._shedding_applied = shedding
        work = WorkShare(shedding.fps_share, shedding.input_share)
        for camera in self._cameras.values():
            camera.analysis.set_work(work)
            for ring in camera.rings:
                ring.pause(shedding.memory_step >= RINGS)
        if shedding.memory_step > before.memory_step:
            trim_heaps()
        if shedding != before:
            logger.info(
                "asked to do %.0f %% of the detections a second, shown at %.0f %% of the side; memory step %d",
                100 * shedding.fps_share, 100 * shedding.input_share, shedding.memory_step,
            )  # fmt: skip

    def _end_faults(self, cameras: Collection[str]) -> None:
        """End what is wrong with these cameras: who judged it is gone, and who follows tells it anew if it lasts."""
        now = self._clock.now()
        for fault in [each for each in list(self._faults.values()) if each.camera in cameras]:
            self._emit(replace(fault, t=now, t_end=max(now, fault.t_start)))

    def _tick(self) -> None:
        worker = self._worker
        names_fail = any(camera.runner.lacks_name for camera in self._cameras.values())
        if self._policy is not None and self._policy.is_outdated(names_fail=names_fail):
            raise PolicyOutdated("files or folders that this process may use were replaced")
        self._apply_wanted()
        self._apply_networks()
        self._apply_shedding()
        worker.give_up_stuck_call()
        self._watchdog.tick(worker.watchdog.busy_s(), worker.warning, fallback_reason(self._networks.table.shared))
        detector = DetectorActivity(worker.load(), self._watchdog.is_detector_stuck)
        for camera in self._cameras.values():
            camera.runner.tick(detector)
            camera.parked.tick()
        if self._clock.monotonic() - self._trimmed_at >= TRIM_EVERY_S:
            self._trimmed_at = self._clock.monotonic()
            self._trim_memory()
        self._emit(
            IngestHealth(
                t=self._clock.now(),
                detector_ms=round(worker.mean_ms, 2),
                queue=worker.cameras_waiting(),
                rss_bytes=rss_bytes(),
                warning="; ".join(self._warnings()),
                load=round(worker.load(), 3),
                age_p95_ms=round(worker.age_p95_ms(), 1),
                hardware=self._hardware.text,
            )
        )
        try:
            worker.watchdog.check()
        except DetectorHung:
            self._watchdog.record_restart()
            raise

    def _warnings(self) -> list[str]:
        dropped, shared = self._channel.dropped(), self._networks.table.shared
        has_fixed_input = not (isinstance(shared, VariableInput) and shared.shape_step)
        texts = [
            *(camera.runner.warning for camera in self._cameras.values()),
            self._worker.warning,
            *(each.warning for each in self._networks.table.loaded.values()),
        ]
        for name, running in self._cameras.items():
            texts += _unknown_labels(self._networks, name, running.settings)
        if self._shedding_applied.input_share < 1 and has_fixed_input:
            texts.append("the network takes one size alone: the appliance is hot, and the resolution stays as it is")
        if dropped:
            texts.append(f"{dropped} frames of boxes were dropped because the core did not read")
        return [text for text in texts if text]

    def _end(self, writer: threading.Thread, worker: threading.Thread) -> None:
        self._rechecks.stop()
        self._worker.stop()
        _stop_cameras(self._cameras.values(), self._clock)
        worker.join(1.0)
        self._channel.close()
        writer.join(1.0)

    def _emit(self, message: IngestMessage) -> None:
        if isinstance(message, HealthEvent) and message.camera:
            if message.t_end is None:
                self._faults |= {message.id: message}
            else:
                self._faults.pop(message.id, None)
        try:
            self._channel.put(message)
        except ChannelClosed:
            self._stop.set()


def _prefer_labels(networks: Networks, cameras: Iterable[config.CameraConfig]) -> None:
    labels = config.rule_labels(cameras)
    for network in networks.table.loaded.values():
        prefer_labels(network, labels)


def _unknown_labels(networks: Networks, name: str, camera: config.CameraConfig) -> list[str]:
    return [f"camera {name}: {each.text}" for each in unknown_labels(camera.rules, networks.table.of(name).labels)]


def _stop_cameras(cameras: Collection[_RunningCamera], clock: Clock) -> None:
    """Stop the cameras: their segments are closed and their last counters emitted."""
    for camera in cameras:
        camera.runner.stop()
    deadline = clock.monotonic() + STOP_S_MAX
    for camera in cameras:
        if not camera.runner.join(max(0.0, deadline - clock.monotonic())):
            logger.warning("a camera's thread did not end in time; its last fragment may be missing")
        camera.runner.tick()
        camera.parked.close()
        for ring in camera.rings:
            ring.close()


def _ingest_settings(camera: config.CameraConfig) -> object:
    """Return the part of a camera's section whose change makes this process restart the camera."""
    return camera.model_dump(exclude=_DECIDED_BY_THE_CORE), camera.quota.preroll_mb  # the recorder's ring


def _record_target(storage: config.StorageConfig, name: str, camera: config.CameraConfig) -> RecordTarget:
    ring = camera.record == "pre_roll"
    elsewhere = ring and storage.preroll_dir is not None
    return RecordTarget(
        root=Path(storage.dir),
        camera=name,
        segment_s=storage.segment_s,
        sound=camera.audio,
        free_min_bytes=RING_FREE_BYTES_MIN if elsewhere else round(storage.disk_free_min_mb * 1_000_000),
        ring_bytes=round((camera.quota.preroll_mb or storage.quota.preroll_mb) * 1_000_000) if ring else None,
    )


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)  # once a second: half of what open() costs
    try:
        return int(os.read(statm, 256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(statm)
