"""Reads the sensors of the box every few seconds, for whoever shows them, and counts the joules that it draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from appliance.clock import Clock
from appliance.sensors.box_sensors import BoxSensors, BoxStatus
from appliance.sensors.energy_meter import EnergyMeter, EnergyUse
from appliance.sensors.memory_pressure import MemorySensor
from appliance.sensors.readings import NOTHING
from appliance.store.meter import Meter, Metric, MetricName

READ_EVERY_S = 5.0


class BoxMonitor:
    """Owner of the sensors: one named thread that calls `run_once()` every READ_EVERY_S.

    State: the last status, which any thread may read; parts of a joule that are not yet counted. Invariant: each joule
    is counted once, under the place where it was measured, with the camera-seconds that it bought.
    """

    def __init__(self, root: Path, meter: Meter, clock: Clock, cameras: Callable[[], int]) -> None:
        """root: see `BoxSensors.found`. cameras: how many run now."""
        self._meter = meter
        self._clock = clock
        self._cameras = cameras
        self._sensors, self._memory = BoxSensors.found(root), MemorySensor(root)
        self._energy = EnergyMeter()
        self._left: defaultdict[Metric, float] = defaultdict(float)
        self.status = BoxStatus(NOTHING, self._memory.read(), None)

    def run_once(self) -> None:
        reading = self._sensors.read()
        used = self._energy.add(reading.energy, self._clock.monotonic())
        if used is not None:
            self._count(used)
        self.status = BoxStatus(reading, self._memory.read(), used.watts if used is not None else None)

    def _count(self, used: EnergyUse) -> None:
        for source, joules in used.joules.items():
            self._add(Metric(MetricName.ENERGY_J, source), joules)
        self._add(Metric(MetricName.ENERGY_CAMERA_S), used.seconds * self._cameras())

    def _add(self, metric: Metric, amount: float) -> None:
        """The meter counts whole ones; what is left over comes with the next."""
        self._left[metric] += amount
        whole = int(self._left[metric])
        self._left[metric] -= whole
        self._meter.add("", metric, whole)
