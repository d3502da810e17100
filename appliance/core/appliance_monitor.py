"""Reads the sensors of the appliance, counts the energy it draws, and sheds load when it is hot or short of memory."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.detector_config import HailoConfig
from appliance.base.malloc import trim_heaps
from appliance.config import LoadSheddingConfig
from appliance.detect.hailo_bindings import python_with_bindings, start_helper
from appliance.health.load_shedding import NOTHING_SHED, LoadShedder, LoadShedding
from appliance.sensors.appliance_sensors import ApplianceSensors, SensorStatus
from appliance.sensors.linux_sensors import MemorySensor
from appliance.sensors.readings import NOTHING, EnergyMeter, EnergyUse
from appliance.store.meter import Meter, Metric, MetricName
from appliance.types import HealthKind, ShedLoadCommand

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
    """For `HailoChips`. Raises OSError."""
    return start_helper(python_with_bindings(settings), "temperatures")
