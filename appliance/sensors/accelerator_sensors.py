"""Accelerators by their vendors' libraries, where these are installed: NVIDIA GPUs (NVML) and Hailo chips (HailoRT)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import weakref
from collections.abc import Callable
from typing import Any

from appliance.base.child_end import end_child
from appliance.base.clock import SystemClock
from appliance.base.machine import Temperature
from appliance.sensors.readings import NOTHING, EnergyReading, SensorReading

_CLOCK = SystemClock()
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
