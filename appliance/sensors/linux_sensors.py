"""Sensors that Linux itself shows: thermal zones, throttle counters of x86 processors, RAPL energy counters."""

from __future__ import annotations

from pathlib import Path

from appliance.base import machine
from appliance.sensors.readings import NOTHING, EnergyReading, SensorReading
from appliance.sensors.sysfs import RisingCounters, matching, number_of, text_of

MICRO = 1e-6  # J in a microjoule


class ThermalZones:
    """The zones `/sys/class/thermal/thermal_zone*`: type, and temp in thousandths of a degree Celsius.

    Kernel: sysfs-api of the thermal framework. ARM boards, Jetson and most PCs have them.
    """

    def __init__(self, root: Path) -> None:
        """root: of the file system that /sys lies in."""
        self._folder = root / "sys/class/thermal"

    def read(self) -> SensorReading:
        return SensorReading(tuple(machine.temperatures(self._folder)))


class CpuThrottleCounters:
    """Counters of how often heat slowed down Intel processors since the start.

    `/sys/devices/system/cpu/cpu*/thermal_throttle/{core,package}_throttle_count` (kernel:
    Documentation/admin-guide/thermal, therm_throt.c).

    State: the counts of the last reading. A processor is throttled while they rise.
    """

    def __init__(self, root: Path) -> None:
        files = matching(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle/*_throttle_count")
        self._counters = RisingCounters(files)

    def read(self) -> SensorReading:
        rose = self._counters.rose()
        if rose is None:
            return NOTHING
        return SensorReading(throttling=("the processor is slowed down by heat",) if rose else ())


class RaplCounters:
    """Energy counters of Intel and AMD processors: `/sys/class/powercap/intel-rapl:N`.

    energy_uj rises up to max_energy_range_uj (kernel: Documentation/power/powercap). `psys` is the whole platform,
    `package-N` a processor; zones inside a package (core, uncore, dram) are left out, since the package has them, but
    for dram, which nothing else counts.

    Since kernel 5.10 root alone may read energy_uj: docs/power.md says how to allow it.
    """

    def __init__(self, root: Path) -> None:
        self._zones = [
            zone
            for zone in matching(root / "sys/class/powercap", "intel-rapl:*")
            if _is_package_psys_or_dram(zone, text_of(zone / "name") or "")
        ]

    def read(self) -> SensorReading:
        found = []
        for zone in self._zones:
            energy, most = number_of(zone / "energy_uj"), number_of(zone / "max_energy_range_uj")
            if energy is None:
                continue
            name = text_of(zone / "name") or zone.name
            found.append(
                EnergyReading(
                    f"RAPL {name}", name == "psys", joules=energy * MICRO, wraps_j=most * MICRO if most else None
                )
            )
        return SensorReading(energy=tuple(found))


def _is_package_psys_or_dram(zone: Path, name: str) -> bool:
    is_top = zone.name.count(":") == 1
    return (is_top and (name == "psys" or name.startswith("package-"))) or (not is_top and name == "dram")
