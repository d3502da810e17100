"""Reads all sensors of this appliance, also those that need a vendor's program or library: Pi, NVIDIA, Hailo."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.base.child_processes import end_child
from appliance.base.clock import SystemClock
from appliance.base.machine import Temperature
from appliance.sensors.linux_sensors import (
    NOTHING,
    EnergyReading,
    JetsonPowerRails,
    MemoryReading,
    RaplCounters,
    SensorReader,
    SensorReading,
    ThermalZones,
    cpu_throttle_counters,
    jetson_overcurrent_counters,
    matching,
    merged,
    number_of,
    text_of,
)

_CLOCK = SystemClock()
SYSFS_FLAGS = "sys/devices/platform/soc/soc:firmware/get_throttled"
CALL_S_MAX = 1.0  # two calls stay within the 2 s of a reading
RETRY_S = 60.0  # after a call that failed: without the group video, each fails
FLAGS = {
    0x1: "the power supply gives too little voltage",
    0x2: "the processor's clock is capped",
    0x4: "the processor is throttled",
    0x8: "the soft temperature limit is reached",
}
"""The bits that say how it is now; those 16 places further up say that it was so once. `get_throttled`:
raspberrypi.com/documentation/computers/os.html."""
_RAIL = re.compile(r"^\s*(\w+?)_([AV])\s+(?:current|volt)\(\d+\)=([0-9.]+)[AV]\s*$", re.MULTILINE)
DEVICES_MAX = 16  # the largest servers have 16 GPUs
HAILO_WAIT_S, HAILO_END_S_MAX = 1.5, 0.4  # a reading takes 2 s at most
HAILO_ANSWER_S_MAX = 30.0  # a slow card takes long to import numpy
HAILO_RETRY_S = 60.0  # each try starts a process
NVML_THROTTLING = {
    0x08: "the GPU is slowed down by its hardware",
    0x20: "the GPU is slowed down by heat",
    0x40: "the GPU is slowed down by heat (hardware)",
    0x80: "the GPU is slowed down by its power supply",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons; idle, set by hand and power-capped are no faults."""


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
            zones, cpu_throttle_counters(root), RaplCounters(root), JetsonPowerRails(root),
            jetson_overcurrent_counters(root),
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


class RaspberryPiFirmware:
    """The firmware's word: from sysfs where the kernel shows it, else from `vcgencmd` (which needs the group video).

    State: until when vcgencmd is not called again after it failed.
    """

    def __init__(
        self,
        root: Path,
        command: str = "vcgencmd",
        *,
        with_temperature: bool = False,
        call_s_max: float = CALL_S_MAX,
        monotonic: Callable[[], float] = _CLOCK.monotonic,
    ) -> None:
        """with_temperature: the kernel shows no thermal zone."""
        self._flags = root / SYSFS_FLAGS
        self._command = command
        self._with_temperature = with_temperature
        self._call_s_max = call_s_max
        self._monotonic = monotonic
        self._not_before = {"get_throttled": 0.0, "measure_temp": 0.0, "pmic_read_adc": 0.0}

    def read(self) -> SensorReading:
        return SensorReading(self._temperature(), self._throttling(), self._energy())

    def _throttling(self) -> tuple[str, ...] | None:
        flags = number_of(self._flags, 16)
        if flags is None:
            found = re.search(r"throttled=0x([0-9a-fA-F]+)", self._call("get_throttled"))
            flags = int(found[1], 16) if found else None
        if flags is None:
            return None
        return tuple(reason for bit, reason in FLAGS.items() if flags & bit)

    def _temperature(self) -> tuple[Temperature, ...]:
        found = re.search(r"temp=(-?[0-9.]+)'C", self._call("measure_temp")) if self._with_temperature else None
        return (Temperature("cpu-thermal", float(found[1])),) if found else ()

    def _energy(self) -> tuple[EnergyReading, ...]:
        """Volt times ampere of each regulator that tells both; what USB and HATs draw from the 5 V is not in it."""
        amperes: dict[str, float] = {}
        volts: dict[str, float] = {}
        for name, unit, value in _RAIL.findall(self._call("pmic_read_adc")):
            (amperes if unit == "A" else volts)[name] = float(value)
        both = amperes.keys() & volts.keys()
        if not both:
            return ()
        watts = sum(amperes[name] * volts[name] for name in both)
        return (EnergyReading("Raspberry Pi PMIC, without USB and HATs", watts=watts),)

    def _call(self, what: str) -> str:
        """Return what vcgencmd prints; '': nothing that could be used."""
        if self._monotonic() < self._not_before[what]:
            return ""
        try:
            done = subprocess.run(
                [self._command, what], capture_output=True, stdin=subprocess.DEVNULL, timeout=self._call_s_max,
                check=True, env={"PATH": "/usr/bin:/bin:/opt/vc/bin", "LC_ALL": "C"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):  # not there, no right to it, hung
            self._not_before[what] = self._monotonic() + RETRY_S
            return ""
        return done.stdout.decode(errors="replace")


class NvidiaGpus:
    """Reads all GPUs that NVML knows: degrees, slow-downs, millijoules, milliwatts. Owner of the NVML session."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        """load: imports pynvml, of the package nvidia-ml-py."""
        self._nvml: Any = None
        self._gpus: list[Any] = []
        try:
            nvml = (load or _import_nvml)()
            nvml.nvmlInit()
            count = min(nvml.nvmlDeviceGetCount(), DEVICES_MAX)
            self._gpus = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
            self._nvml = nvml
        except Exception:  # noqa: BLE001 - no package, no driver, none of its versions: an appliance without this sensor
            self._gpus = []

    def read(self) -> SensorReading:
        temperatures, throttling, energy = [], [], []
        reported = False
        for n, gpu in enumerate(self._gpus):
            celsius = self._ask("nvmlDeviceGetTemperature", gpu, 0)  # NVML_TEMPERATURE_GPU
            if celsius is not None:
                temperatures.append(Temperature(f"GPU {n}", float(celsius)))
            flags = self._ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
            if flags is None:  # its name before driver 535
                flags = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
            if flags is not None:
                reported = True
                throttling += [reason for bit, reason in NVML_THROTTLING.items() if int(flags) & bit]
            joules, watts = (
                self._ask("nvmlDeviceGetTotalEnergyConsumption", gpu), self._ask("nvmlDeviceGetPowerUsage", gpu)
            )  # fmt: skip
            if joules is not None or watts is not None:
                energy.append(
                    EnergyReading(
                        f"NVML GPU {n}",
                        watts=watts / 1000 if watts is not None else None,
                        joules=joules / 1000 if joules is not None else None,
                    )
                )
        return SensorReading(tuple(temperatures), tuple(dict.fromkeys(throttling)) if reported else None, tuple(energy))

    def _ask(self, function: str, *arguments: object) -> Any:
        """Return the answer; None: this GPU, this driver or this package does not report it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except Exception:  # noqa: BLE001 - NVMLError has a class for each code; AttributeError: an older package
            return None


class HailoChips:
    """The hotter of the two sensors of each Hailo chip, as `hailo_helper` reports it.

    HailoRT's bindings come for the system's Python alone (decision 116).

    State: the helper; since when it has been asked; until when none is started after one that failed. Owner of the
    helper, which ends with this object.
    """

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        wait_s: float = HAILO_WAIT_S,
        monotonic: Callable[[], float] = _CLOCK.monotonic,
    ) -> None:
        """Prepare the reader; the first reading starts the helper.

        start: starts the helper with pipes; it answers each line with one of JSON. May raise OSError. wait_s: for an
        answer; a later one counts for the next reading.
        """
        self._start, self._wait_s, self._monotonic = start, wait_s, monotonic
        self._helper: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._rest = b""
        self._requested_at: float | None = None
        self._not_before = 0.0

    def read(self) -> SensorReading:
        now = self._monotonic()
        if self._helper is None and now < self._not_before:
            return NOTHING
        try:
            line = self._ask(now)
            reported = json.loads(line)["celsius"] if line else []
            known = [(n, celsius) for n, celsius in enumerate(reported) if celsius is not None]
            return SensorReading(tuple(Temperature(f"Hailo {n}", round(celsius, 1)) for n, celsius in known))
        except (OSError, ValueError, KeyError, TypeError):  # no bindings, no driver, or it hangs
            self._end()
            self._helper, self._requested_at, self._rest = None, None, b""
            self._not_before = now + HAILO_RETRY_S
            return NOTHING

    def _ask(self, now: float) -> bytes:
        """Return an answer; b"": there is none yet. Raises OSError: there will be none."""
        if self._helper is None:
            self._helper = self._start()
            self._end = weakref.finalize(self, _end, self._helper)
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        if self._requested_at is None:
            os.write(self._helper.stdin.fileno(), b"\n")
            self._requested_at = now
        pipe, ready = self._helper.stdout.fileno(), select.poll()
        ready.register(pipe, select.POLLIN)
        while b"\n" not in self._rest:
            if not ready.poll(self._wait_s * 1000):
                if now - self._requested_at > HAILO_ANSWER_S_MAX:
                    raise TimeoutError
                return b""
            block = os.read(pipe, 4096)
            if not block:
                raise BrokenPipeError
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        self._requested_at = None
        return line


def _end(helper: subprocess.Popen[bytes]) -> None:
    end_child(helper, killed_s=HAILO_END_S_MAX)
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None:
            pipe.close()


def _import_nvml() -> Any:
    import pynvml  # optional, and 1 MB of memory: only where there is a GPU

    return pynvml
