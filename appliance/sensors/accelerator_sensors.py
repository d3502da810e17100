"""Accelerators by their vendors' libraries, where these are installed: NVIDIA GPUs (NVML) and Hailo chips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.machine import Temperature
from appliance.sensors.readings import EnergyReading, SensorReading

DEVICES_MAX = 16
NVML_THROTTLING = {
    0x08: "the GPU is slowed down by its hardware",
    0x20: "the GPU is slowed down by heat",
    0x40: "the GPU is slowed down by heat (hardware)",
    0x80: "the GPU is slowed down by its power supply",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons; idle, set by hand and power-capped are no faults."""


class NvidiaGpus:
    """All GPUs that NVML knows: degrees, slow-downs, millijoules, milliwatts. Owner of the NVML session."""

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
        except Exception:  # noqa: BLE001 - no package, no driver, none of its versions: a box without this sensor
            self._gpus = []

    def read(self) -> SensorReading:
        temperatures, throttling, energy = [], [], []
        told = False
        for n, gpu in enumerate(self._gpus):
            celsius = self._ask("nvmlDeviceGetTemperature", gpu, 0)  # NVML_TEMPERATURE_GPU
            if celsius is not None:
                temperatures.append(Temperature(f"GPU {n}", float(celsius)))
            flags = self._ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
            if flags is None:  # its name before driver 535
                flags = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
            if flags is not None:
                told = True
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
        return SensorReading(tuple(temperatures), tuple(dict.fromkeys(throttling)) if told else None, tuple(energy))

    def _ask(self, function: str, *arguments: object) -> Any:
        """None: this GPU, this driver or this package does not tell."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except Exception:  # noqa: BLE001 - NVMLError has a class for each code; AttributeError: an older package
            return None


class HailoChips:
    """The two sensors of each Hailo chip, by HailoRT's `Device.control.get_chip_temperature()`. A device is opened
    anew for each reading, beside whoever infers on it."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        """load: imports hailo_platform, of the system's python3-hailort."""
        self._device: Any = None
        self._ids: list[Any] = []
        try:
            device = (load or _import_hailo)().Device
            self._ids = list(device.scan())[:DEVICES_MAX]
            self._device = device
        except Exception:  # noqa: BLE001 - no package, or no driver of its version
            self._ids = []

    def read(self) -> SensorReading:
        found = []
        for n, each in enumerate(self._ids):
            try:
                with self._device(each) as device:
                    told = device.control.get_chip_temperature()
                celsius = max(float(told.ts0_temperature), float(told.ts1_temperature))
            except Exception:  # noqa: BLE001 - it is being reset, or taken by a process that shares with nobody
                continue
            found.append(Temperature(f"Hailo {n}", round(celsius, 1)))
        return SensorReading(tuple(found))


def _import_nvml() -> Any:
    import pynvml  # optional, and 1 MB of memory: only where there is a GPU

    return pynvml


def _import_hailo() -> Any:
    import hailo_platform  # of the system's Python, and only where there is a chip

    return hailo_platform
