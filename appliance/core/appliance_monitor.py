"""Reads the state of the appliance for services and pages: sensors, energy, load shedding, broker link, warnings."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.detector_config import HailoConfig
from appliance.base.machine import load_per_core
from appliance.base.malloc import trim_heaps
from appliance.broker.nats_connection import LinkState
from appliance.config import LoadSheddingConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.dashboard.deps import SystemHealth
from appliance.detect.hailo_bindings import python_with_bindings, start_helper
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


class IngestLink(Protocol):
    """The ingest process, as far as load shedding needs it."""

    @property
    def starts(self) -> int:
        """How often it was started."""
        ...

    def send(self, command: ShedLoadCommand) -> bool:
        """Send the command; return False if there is no process now."""
        ...


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
        ingest: IngestLink,
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
