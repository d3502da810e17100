"""Reads the state of the appliance for services and pages: sensors, energy, load shedding, disk, link, warnings."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.config_model import HailoConfig
from appliance.base.machine import load_per_core
from appliance.base.process_memory import trim_heaps
from appliance.broker.nats_connection import LinkState
from appliance.config import LoadSheddingConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.dashboard.deps import SystemHealth
from appliance.detect.accelerators import python_with_bindings, start_helper
from appliance.health.load_shedding import NOTHING_SHED, LoadShedder, LoadShedding
from appliance.recheck.recheck_policy import ApplianceStatus, CloudStatus
from appliance.rules.arming import Arming
from appliance.sensors.appliance_sensors import ApplianceSensors, SensorStatus
from appliance.sensors.linux_sensors import NOTHING, EnergyMeter, EnergyUse, MemorySensor
from appliance.store.database import Database
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.write_backlog import WriteBacklog
from appliance.types import HealthKind, ShedLoadCommand
from appliance.uplink.uplink_service import UplinkService

READ_EVERY_S = 5.0  # heat moves slowly, and a reading may take 2 s of it (SensorReader)
PROBE = ".disk-probe"
PROBE_BYTES = 4096  # one block: less would be written back with others, more wears an SD card
PROBE_EVERY_S = 30.0  # a person is told within a minute, and a day's probes write 12 MB
SLOW_S = 2.0  # a segment's fragment is on disk within a second; slower, and recording falls behind
SLOW_PROBES = 2  # one after the other: a single slow write is what a disk that spins up does


class ApplianceMonitor:
    """Owner of the sensors: one named thread that calls `run_once()` every READ_EVERY_S.

    State: the last status and what is shed, which any thread may read; what was sent to the ingest process; parts of a
    joule that are not yet counted. Invariants: each joule is counted once, under the place where it was measured, with
    the camera-seconds that it bought; an ingest process that was started anew is sent what is shed.
    """

    def __init__(
        self,
        root: Path,
        meter: Meter,
        clock: Clock,
        cameras: Callable[[], int],
        ingest: IngestSupervisor,
        hailo: HailoConfig | None = None,
    ) -> None:
        """root: see `ApplianceSensors.found`. cameras: how many run now. hailo: of the detector."""
        self._meter = meter
        self._clock = clock
        self._cameras = cameras
        self._ingest = ingest
        self._sensors, self._memory = (
            ApplianceSensors.found(root, partial(_hailo_helper, hailo or HailoConfig())),
            MemorySensor(root),
        )
        self._energy = EnergyMeter()
        self._left: defaultdict[Metric, float] = defaultdict(float)
        self._settings = LoadSheddingConfig()
        self._ignored: Collection[HealthKind] = ()
        self._shedder = LoadShedder(self._settings)
        self._shed_memory: Callable[[LoadShedding], None] = lambda shed: None
        self._sent, self._sent_start = ShedLoadCommand(), 0
        self.status = SensorStatus(NOTHING, self._memory.read(), None)
        self.shed = NOTHING_SHED

    def configure(
        self, settings: LoadSheddingConfig, ignored: Collection[HealthKind], shed_memory: Callable[[LoadShedding], None]
    ) -> None:
        """Use these settings from the next reading on; shedding by equal settings goes on. Any thread.

        ignored: kinds that are not reported. shed_memory: called by the monitor's thread when the step of memory
        changes.
        """
        self._ignored, self._shed_memory = ignored, shed_memory
        if settings != self._settings:
            self._settings, self._shedder = settings, LoadShedder(settings)

    @property
    def hot_c(self) -> float:
        """From how many degrees on load is shed."""
        return self._settings.temperature_max_c

    def faults(self) -> Mapping[HealthKind, str]:
        """Return what is shed and why, without the kinds that are ignored. Any thread."""
        return {kind: reason for kind, reason in self.shed.faults.items() if kind not in self._ignored}

    def run_once(self) -> None:
        reading, at = self._sensors.read(), self._clock.monotonic()
        used = self._energy.add(reading.energy, at)
        self.status = SensorStatus(reading, self._memory.read(), used.watts if used is not None else None)
        before, self.shed = self.shed, self._shedder.update(at, self.status)
        self._send_to_ingest()
        if self.shed.memory.step != before.memory.step:
            self._shed_memory(self.shed)
            trim_heaps()
        if used is not None:
            self._count(used)

    def _send_to_ingest(self) -> None:
        shed, start = self.shed, self._ingest.starts
        if start != self._sent_start:
            self._sent, self._sent_start = ShedLoadCommand(), start
        command = ShedLoadCommand(fps_share=shed.fps_share, input_share=shed.input_share, memory_step=shed.memory.step)
        if command != self._sent and self._ingest.send(command):
            self._sent = command

    def _count(self, used: EnergyUse) -> None:
        """Count the energy in the meter. Raises StoreError."""
        for source, joules in used.joules.items():
            self._add(Metric(MetricName.ENERGY_J, source), joules)
        self._add(Metric(MetricName.ENERGY_CAMERA_S), used.seconds * self._cameras())

    def _add(self, metric: Metric, amount: float) -> None:
        """Add the whole units to the meter; keep the fraction for the next call."""
        self._left[metric] += amount
        whole = int(self._left[metric])
        self._left[metric] -= whole
        self._meter.add("", metric, whole)


def _hailo_helper(settings: HailoConfig) -> subprocess.Popen[bytes]:
    """Start the helper for `HailoChips`. Raises OSError."""
    return start_helper(python_with_bindings(settings), "temperatures")


@dataclass(frozen=True, slots=True)
class SystemProbes:
    """How the appliance does now, for the services that ask. Any thread."""

    escalates: bool
    supervisor: IngestSupervisor
    uplink: UplinkService | None
    backlog: WriteBacklog
    db: Database
    clock: Clock
    arming: Arming
    monitor: ApplianceMonitor

    def link(self) -> LinkState:
        """Return the link's state; only where there is an uplink."""
        assert self.uplink is not None
        state = self.uplink.link
        return replace(state, error=state.error or self.uplink.waits_for)

    def cloud(self) -> CloudStatus:
        if self.uplink is None or not self.escalates:
            return CloudStatus()
        link = self.uplink.link
        down_s = None if link.up else self.clock.now() - link.since
        return CloudStatus(configured=True, down_s=down_s, silent=link.up and link.breaker != "closed")

    def appliance(self) -> ApplianceStatus:
        status = self.supervisor.status
        if status.pid == 0 or status.health is None:
            return ApplianceStatus()
        return ApplianceStatus(
            starts=status.starts,
            load=load_per_core(),
            temperature_c=self.temperature_c(),
            detector_load=status.health.load,
            detector_queue=status.health.queue,
            hot=self.monitor.shed.heat.step > 0,
        )

    def temperature_c(self) -> float | None:
        """Return the reading of the hottest sensor; None: no sensor reports a temperature."""
        hottest = self.monitor.status.reading.hottest
        return hottest.celsius if hottest is not None else None

    def warning(self) -> str:
        """Return what is wrong with the database, or ''."""
        return self.backlog.warning or self.db.displaced

    def health(self) -> SystemHealth:
        status = self.supervisor.status
        warnings = [self.warning(), status.health.warning if status.health else "", *self.arming.warnings()]
        state = SystemHealth(
            ingest_running=status.pid != 0,
            ingest_starts=status.starts,
            ingest_pid=status.pid,
            warnings=tuple(text for text in warnings if text),
        )
        if status.health is None:
            return state
        return replace(
            state,
            detector_ms=status.health.detector_ms,
            queue=status.health.queue,
            rss_bytes=status.health.rss_bytes,
            load=status.health.load,
            age_p95_ms=status.health.age_p95_ms,
            hardware=status.health.hardware,
        )


class DiskWatch:
    """Tries the disk now and then by a small write that is flushed.

    State: what the last probe found, and since when a write has not returned. Owner: the thread that calls `run_once`,
    which does nothing else; `fault` may be read by any, also while a write hangs.
    """

    def __init__(self, root: Path, free_min_bytes: float, clock: Clock) -> None:
        """root: the storage folder. free_min_bytes: with less, recording pauses."""
        self._free_min_bytes = free_min_bytes
        self._root = root
        self._clock = clock
        self._probe_at = float("-inf")
        self._began: float | None = None
        self._slow = 0
        self._fault = ""

    @property
    def fault(self) -> str:
        """A sentence for a person that stays the same as long as the fault does; '': all is well."""
        began = self._began
        if began is not None and self._clock.monotonic() - began > SLOW_PROBES * SLOW_S:
            return "the disk is slow: a small write does not return"
        return self._fault

    def configure(self, free_min_bytes: float) -> None:
        """Use this bound from the next probe on."""
        self._free_min_bytes = free_min_bytes

    def run_once(self) -> None:
        """Look at the room, and write when it is time to."""
        short = self._shortage()
        if short or self._fault:
            self._probe_at = float("-inf")  # what is wrong is looked at each time: it is over within seconds of its end
        if self._clock.monotonic() - self._probe_at < PROBE_EVERY_S:
            return
        self._probe_at = self._clock.monotonic()
        self._fault = self._probe() or short

    def _shortage(self) -> str:
        try:
            stats = os.statvfs(self._root)
        except OSError as error:
            return f"the storage folder cannot be reached: {(error.strerror or 'it is gone').lower()}"
        if stats.f_flag & os.ST_RDONLY:
            return "the disk is read-only: nothing can be recorded or stored"
        if stats.f_bavail * stats.f_frsize < self._free_min_bytes:
            return (
                f"the disk is nearly full: less than {self._free_min_bytes / 1e6:.0f} MB are free, so recording pauses"
            )
        return ""

    def _probe(self) -> str:
        path, began = self._root / PROBE, self._clock.monotonic()
        self._began = began
        try:
            with path.open("wb", buffering=0) as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())
        except OSError as error:
            return f"the disk refuses writes: {(error.strerror or type(error).__name__).lower()}"
        finally:
            self._began = None
            with contextlib.suppress(OSError):
                path.unlink()
        self._slow = self._slow + 1 if self._clock.monotonic() - began > SLOW_S else 0
        return f"the disk is slow: a small write takes over {SLOW_S:g} s" if self._slow >= SLOW_PROBES else ""
