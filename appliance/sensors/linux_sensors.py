"""Sensors that Linux itself shows in /sys and /proc: heat, throttling, energy, memory, and the rails of Jetsons.

Also defines what any sensor reads, and adds up the energy. What is absent is None or empty, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance.base import machine
from appliance.base.machine import Temperature

PAUSE_S_MAX = 60.0  # after a longer pause power says nothing of what was between
FILES_MAX = 256  # that are read at one place


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """The power or energy at one place where it is measured. None: this place does not measure it."""

    name: str
    is_whole: bool = False
    """The place measures all that the appliance draws; others measure a part."""
    watts: float | None = None
    """Power now."""
    joules: float | None = None
    """State of a counter that only rises, and begins again at 0 beyond `wraps_j`."""
    wraps_j: float | None = None


@dataclass(frozen=True, slots=True)
class SensorReading:
    """The readings of one sensor, or of all of them together, now.

    throttling: why a processor is slower than it could be, a sentence each; (): none is; None: nothing here reports it.
    """

    temperatures: tuple[Temperature, ...] = ()
    throttling: tuple[str, ...] | None = None
    energy: tuple[EnergyReading, ...] = ()

    @property
    def hottest(self) -> Temperature | None:
        """The highest temperature; None: no temperature is known."""
        return max(self.temperatures, key=lambda each: each.celsius, default=None)


NOTHING = SensorReading()


class SensorReader(Protocol):
    """A port with one contract test, tests/contract/test_sensors.py. One thread calls it, every few seconds."""

    def read(self) -> SensorReading:
        """Return what is measured now, in 2 s at most. Never raises: what is absent, asleep or broken is left out."""
        ...


def merged(readings: list[SensorReading]) -> SensorReading:
    """Merge the readings into one."""
    reported = [each.throttling for each in readings if each.throttling is not None]
    return SensorReading(
        tuple(each for reading in readings for each in reading.temperatures),
        tuple(dict.fromkeys(reason for each in reported for reason in each)) if reported else None,
        tuple(each for reading in readings for each in reading.energy),
    )


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """The energy since the last reading. joules: by the place where they were measured; seconds: over which."""

    joules: Mapping[str, float]
    seconds: float

    @property
    def watts(self) -> float:
        """Mean power."""
        return sum(self.joules.values()) / self.seconds


class EnergyMeter:
    """Sums up the energy of the appliance, each joule once: where a place measures all of it, parts are left out.

    State: the last readings and when they were. Owner: one thread.
    """

    def __init__(self) -> None:
        self._last: dict[str, EnergyReading] = {}
        self._at: float | None = None

    def add(self, readings: tuple[EnergyReading, ...], at: float) -> EnergyUse | None:
        """Return the energy since the last call; None: nothing was measured, or the call was too long ago.

        at: monotonic seconds.
        """
        counted = [each for each in readings if each.is_whole] or list(readings)
        before, passed_s = self._last, None if self._at is None else at - self._at
        self._last, self._at = {each.name: each for each in counted}, at
        if passed_s is None or not 0 < passed_s <= PAUSE_S_MAX:
            return None
        used = {each.name: _joules(before[each.name], each, passed_s) for each in counted if each.name in before}
        known = {name: joules for name, joules in used.items() if joules is not None}
        return EnergyUse(known, passed_s) if known else None


def _joules(before: EnergyReading, now: EnergyReading, passed_s: float) -> float | None:
    if before.joules is not None and now.joules is not None:
        used = now.joules - before.joules
        if used < 0 and now.wraps_j is not None:
            used += now.wraps_j
        return used if used >= 0 else None  # a counter that began again: the driver was loaded anew
    if before.watts is not None and now.watts is not None:
        return (before.watts + now.watts) / 2 * passed_s
    return None


MICRO = 1e-6  # J in a microjoule
TOTALS = ("VDD_IN", "POM_5V_IN", "SYS_VIN_5V0")
"""Rails through which all of the module's power comes; of Orin Nano and NX, of Nano and of Xavier NX."""
INSIDE_ANOTHER = ("VDDQ_VDD2_1V8AO",)
"""Rails that another measured one feeds; on AGX Orin it is VIN_SYS_5V0."""
CHANNELS = (1, 2, 3)  # of an ina3221


def text_of(path: Path) -> str | None:
    """Return the file's text without the white space around it; None: it is not there, or cannot be read now."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a sensor that is asleep, a file of root's alone
        return None


def number_of(path: Path, base: int = 10) -> int | None:
    """Return the number in a file; None: it is not there, cannot be read, or is no number."""
    text = text_of(path)
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the matching paths, sorted; []: there are none, or no file descriptor is left to list them with."""
    try:
        return sorted(folder.glob(pattern))[:FILES_MAX]
    except OSError:
        return []


class ThermalZones:
    """The zones `/sys/class/thermal/thermal_zone*`: type, and temp in thousandths of a degree Celsius.

    Kernel: sysfs-api of the thermal framework. ARM boards, Jetson and most PCs have them.
    """

    def __init__(self, root: Path) -> None:
        """root: of the file system that /sys lies in."""
        self._folder = root / "sys/class/thermal"

    def read(self) -> SensorReading:
        return SensorReading(tuple(machine.temperatures(self._folder)))


class ThrottleCounters:
    """Files that each hold how often something was slowed down since the machine's start.

    State: the counts of the last reading. It is throttled while any of them rises.
    """

    def __init__(self, files: Sequence[Path], text: str) -> None:
        """text: what is said while it is throttled."""
        self._files = tuple(files)
        self._text = text
        self._counts: dict[Path, int] | None = None

    def read(self) -> SensorReading:
        before = self._counts
        now = {path: count for path in self._files if (count := number_of(path)) is not None}
        self._counts = now
        if not now:
            return NOTHING
        rose = before is not None and any(count > before.get(path, count) for path, count in now.items())
        return SensorReading(throttling=(self._text,) if rose else ())


def cpu_throttle_counters(root: Path) -> ThrottleCounters:
    """Return the counters of how often heat slowed down Intel processors.

    `/sys/devices/system/cpu/cpu*/thermal_throttle/{core,package}_throttle_count` (kernel:
    Documentation/admin-guide/thermal, therm_throt.c).
    """
    files = matching(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle/*_throttle_count")
    return ThrottleCounters(files, "the processor is slowed down by heat")


def jetson_overcurrent_counters(root: Path) -> ThrottleCounters:
    """Return the counters `/sys/class/hwmon/hwmon*/oc{1-3}_event_cnt`: how often clocks were lowered.

    NVIDIA: Jetson Linux Developer Guide, Jetson Orin, Over-Current.
    """
    files = matching(root / "sys/class/hwmon", "hwmon*/oc[0-9]_event_cnt")
    return ThrottleCounters(files, "the Jetson is slowed down by over-current")


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
        found: list[EnergyReading] = []
        for zone in self._zones:
            energy, most = number_of(zone / "energy_uj"), number_of(zone / "max_energy_range_uj")
            if energy is None:
                continue
            name = text_of(zone / "name") or zone.name
            shown = f"RAPL {name}"
            if any(each.name == shown for each in found):  # the memory of a second processor
                shown += f" ({zone.name})"
            found.append(
                EnergyReading(shown, name == "psys", joules=energy * MICRO, wraps_j=most * MICRO if most else None)
            )
        return SensorReading(energy=tuple(found))


def _is_package_psys_or_dram(zone: Path, name: str) -> bool:
    is_top = zone.name.count(":") == 1
    return (is_top and (name == "psys" or name.startswith("package-"))) or (not is_top and name == "dram")


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


def _rails(chip: Path) -> list[tuple[str, float]]:
    """Name and watts of the chip's channels that measure something."""
    found = []
    for n in CHANNELS:
        name = text_of(chip / f"in{n}_label")
        millivolts, milliamperes = number_of(chip / f"in{n}_input"), number_of(chip / f"curr{n}_input")
        if name and name != "NC" and millivolts is not None and milliamperes is not None:
            found.append((name, millivolts * milliamperes / 1e6))
    return found


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory of the machine and of our control group. None: the kernel does not report it.

    available_bytes, total_bytes: of the machine. stalled: the share of the last ten seconds in which some task waited
    for memory, 0..1. group_bytes: what the control group holds that cannot be dropped at once; group_max_bytes: from
    where on the kernel throttles or kills it.
    """

    available_bytes: int | None = None
    total_bytes: int | None = None
    stalled: float | None = None
    group_bytes: int | None = None
    group_max_bytes: int | None = None

    @property
    def left_bytes(self) -> int | None:
        """The bytes that this machine, or our control group, still has; None: the kernel does not report it."""
        left = [] if self.available_bytes is None else [self.available_bytes]
        if self.group_bytes is not None and self.group_max_bytes is not None:
            left.append(max(0, self.group_max_bytes - self.group_bytes))
        return min(left, default=None)


class MemorySensor:
    """Reads the memory of the machine and of our control group (version 2).

    Files: /proc/meminfo, /proc/pressure/memory (kernel: Documentation/accounting/psi); of the group memory.current,
    memory.stat, memory.high, memory.max and memory.pressure.
    """

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        group = re.search(r"^0::(/.*)$", text_of(self._proc / "self/cgroup") or "", re.MULTILINE)
        self._group = root / "sys/fs/cgroup" / group[1].lstrip("/") if group else None

    def read(self) -> MemoryReading:
        known = machine.memory_bytes(self._proc)
        total, available = known if known is not None else (None, None)
        held, limit = self._group_bytes()
        stalled = _stalled(self._proc / "pressure/memory")
        if limit is not None and self._group is not None:
            own = _stalled(self._group / "memory.pressure")
            stalled = max((each for each in (stalled, own) if each is not None), default=None)
        return MemoryReading(available, total, stalled, held, limit)

    def _group_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes held and the bytes allowed; both None without a limit."""
        if self._group is None:
            return None, None
        limits = [number_of(self._group / f"memory.{name}") for name in ("high", "max")]  # "max" is no number
        limit = min((each for each in limits if each is not None), default=None)
        current = number_of(self._group / "memory.current")
        if limit is None or current is None:
            return None, None
        cache = re.search(r"^inactive_file (\d+)$", text_of(self._group / "memory.stat") or "", re.MULTILINE)
        return max(0, current - int(cache[1] if cache else 0)), limit


def _stalled(path: Path) -> float | None:
    """Return `some avg10` of a pressure file, 0..1."""
    found = re.search(r"^some avg10=([0-9.]+)", text_of(path) or "", re.MULTILINE)
    return float(found[1]) / 100 if found else None
