"""Jetson: power of the rails that its INA3221 chips measure, and how often over-current slowed it down."""

from __future__ import annotations

from pathlib import Path

from appliance.sensors.readings import NOTHING, EnergyReading, SensorReading
from appliance.sensors.sysfs import RisingCounters, matching, number_of, text_of

TOTALS = ("VDD_IN", "POM_5V_IN", "SYS_VIN_5V0")
"""Rails through which all of the module's power comes; of Orin Nano and NX, of Nano and of Xavier NX."""
INSIDE_ANOTHER = ("VDDQ_VDD2_1V8AO",)
"""Of AGX Orin: fed by VIN_SYS_5V0, which is measured, too."""
CHANNELS = (1, 2, 3)  # of an ina3221


class JetsonPowerRails:
    """The power rails of `/sys/class/hwmon/hwmon*` named ina3221.

    Files: in{1-3}_label, in{1-3}_input in mV, curr{1-3}_input in mA (kernel: Documentation/hwmon/ina3221; NVIDIA:
    Jetson Linux Developer Guide, Software-Based Power Consumption Modeling). tegrastats reads the same files. Where no
    rail is the input of all, the rails are summed up.
    """

    def __init__(self, root: Path) -> None:
        self._chips = [
            each for each in matching(root / "sys/class/hwmon", "hwmon*") if text_of(each / "name") == "ina3221"
        ]

    def read(self) -> SensorReading:
        rails = dict(rail for chip in self._chips for rail in _rails(chip))
        for name in TOTALS:
            if name in rails:
                return SensorReading(energy=(EnergyReading(f"Jetson {name}", True, rails[name]),))
        summed = {name: watts for name, watts in rails.items() if name not in INSIDE_ANOTHER}
        if not summed:
            return NOTHING
        named = " + ".join(sorted(summed))
        return SensorReading(energy=(EnergyReading(f"Jetson {named}", True, sum(summed.values())),))


class JetsonOvercurrentCounters:
    """The counters `/sys/class/hwmon/hwmon*/oc{1-3}_event_cnt`: how often clocks were lowered since the start.

    NVIDIA: Jetson Linux Developer Guide, Jetson Orin, Over-Current. The Jetson is throttled while these rise.
    """

    def __init__(self, root: Path) -> None:
        self._counters = RisingCounters(matching(root / "sys/class/hwmon", "hwmon*/oc[0-9]_event_cnt"))

    def read(self) -> SensorReading:
        rose = self._counters.rose()
        if rose is None:
            return NOTHING
        return SensorReading(throttling=("the Jetson is slowed down by over-current",) if rose else ())


def _rails(chip: Path) -> list[tuple[str, float]]:
    """Name and watts of the chip's channels that measure something."""
    found = []
    for n in CHANNELS:
        name = text_of(chip / f"in{n}_label")
        millivolts, milliamperes = number_of(chip / f"in{n}_input"), number_of(chip / f"curr{n}_input")
        if name and name != "NC" and millivolts is not None and milliamperes is not None:
            found.append((name, millivolts * milliamperes / 1e6))
    return found
