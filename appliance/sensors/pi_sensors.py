"""Raspberry Pi: throttling flags, and on a Pi 5 the power of its regulators, from the firmware."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from appliance.base.clock import SystemClock
from appliance.base.machine import Temperature
from appliance.sensors.linux_sensors import number_of
from appliance.sensors.readings import EnergyReading, SensorReading

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
