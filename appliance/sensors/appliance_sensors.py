"""The sensors of this appliance, as one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.sensors.accelerator_sensors import HailoChips, NvidiaGpus
from appliance.sensors.linux_sensors import (
    CpuThrottleCounters,
    JetsonOvercurrentCounters,
    JetsonPowerRails,
    MemoryReading,
    RaplCounters,
    ThermalZones,
    matching,
    text_of,
)
from appliance.sensors.pi_sensors import RaspberryPiFirmware
from appliance.sensors.readings import SensorReader, SensorReading, merged


@dataclass(frozen=True, slots=True)
class SensorStatus:
    """The readings now. watts: mean power since the last reading, where it is measured."""

    reading: SensorReading
    memory: MemoryReading
    watts: float | None


class ApplianceSensors:
    """Reads all sensors, one after another. Owner: one thread."""

    def __init__(self, readers: Sequence[SensorReader]) -> None:
        self._readers = tuple(readers)

    @classmethod
    def found(cls, root: Path, hailo: Callable[[], subprocess.Popen[bytes]]) -> ApplianceSensors:
        """Return the sensors that the appliance has; a vendor's library is loaded only where its device is.

        root: of the file system that /sys, /proc and /dev lie in; another than `/` where a container has the host's
        mounted elsewhere. hailo: see `HailoChips`.
        """
        zones = ThermalZones(root)
        readers: list[SensorReader] = [
            zones, CpuThrottleCounters(root), RaplCounters(root), JetsonPowerRails(root),
            JetsonOvercurrentCounters(root),
        ]  # fmt: skip
        if "Raspberry Pi" in (text_of(root / "proc/device-tree/model") or ""):
            readers.append(RaspberryPiFirmware(root, with_temperature=not zones.read().temperatures))
        if matching(root / "dev", "nvidiactl"):
            readers.append(NvidiaGpus())
        if matching(root / "dev", "hailo*"):
            readers.append(HailoChips(hailo))
        return cls(readers)

    def read(self) -> SensorReading:
        return merged([each.read() for each in self._readers])
