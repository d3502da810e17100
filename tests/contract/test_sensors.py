"""One contract for every reader of a sensor: it says what the documented files, programs and libraries say, and on a
box without them it says nothing; never zero, never an error."""

from __future__ import annotations

import subprocess
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.base.machine import Temperature
from appliance.detect.accelerators import start_helper
from appliance.sensors.appliance_sensors import SYSFS_FLAGS, HailoChips, NvidiaGpus, RaspberryPiFirmware
from appliance.sensors.linux_sensors import (
    NOTHING,
    EnergyReading,
    JetsonPowerRails,
    RaplCounters,
    SensorReader,
    SensorReading,
    ThermalZones,
    cpu_throttle_counters,
    jetson_overcurrent_counters,
)
from tests.support.hailo_files import FakeDevice
from tests.support.sensor_files import VCGENCMD, write_files
from tests.support.waiting import until

X86 = "sys/devices/system/cpu/cpu0/thermal_throttle"
HWMON = "sys/class/hwmon"
RAPL = "sys/class/powercap/intel-rapl"


class NvmlError(Exception):
    pass


class FakeNvml:
    """pynvml, with the names and units of nvidia-ml-py 12 and 13. Functions in `lacking` answer NOT_SUPPORTED."""

    lacking: tuple[str, ...] = ()
    flags = 0x4  # power-capped, which is no fault

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle-{index}"

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert (handle, sensor) == ("handle-0", 0)
        return 63

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self._or_refuse("nvmlDeviceGetCurrentClocksEventReasons", self.flags)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.flags

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._or_refuse("nvmlDeviceGetTotalEnergyConsumption", 12_500)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._or_refuse("nvmlDeviceGetPowerUsage", 31_500)

    def _or_refuse(self, function: str, value: int) -> int:
        if function in self.lacking:
            raise NvmlError("Not Supported")
        return value


def hailo_chips(device: FakeDevice, **options: Any) -> HailoChips:
    """By the helper, over the fake device of fake_hailo."""
    return HailoChips(lambda: start_helper(device.python, "temperatures"), **options)


def missing() -> types.ModuleType:
    raise ImportError("No module named that")


def ina3221(number: int, *rails: tuple[str, int, int]) -> dict[str, str]:
    """The files of one chip, hwmonN; of each rail label, mV and mA."""
    folder = f"{HWMON}/hwmon{number}"
    files = {f"{folder}/name": "ina3221\n"}
    for n, (label, millivolts, milliamperes) in enumerate(rails, start=1):
        files |= {f"{folder}/in{n}_label": f"{label}\n", f"{folder}/in{n}_input": f"{millivolts}\n"}
        files[f"{folder}/curr{n}_input"] = f"{milliamperes}\n"
    return files


@dataclass(frozen=True)
class Case:
    """make: the reader of a box whose files are in a folder. files: as documented; read: what it must say of them."""

    make: Callable[[Path, bool], SensorReader]
    files: dict[str, str]
    read: SensorReading


CASES = {
    "thermal zones": Case(
        lambda root, _: ThermalZones(root),
        {"sys/class/thermal/thermal_zone0/temp": "61500\n", "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n"},
        SensorReading((Temperature("cpu-thermal", 61.5),)),
    ),
    "x86 throttle counters": Case(
        lambda root, _: cpu_throttle_counters(root),
        {f"{X86}/core_throttle_count": "7\n", f"{X86}/package_throttle_count": "0\n"},
        SensorReading(throttling=()),
    ),
    "RAPL": Case(
        lambda root, _: RaplCounters(root),
        {
            f"{RAPL}:0/name": "package-0\n", f"{RAPL}:0/energy_uj": "2500000\n",
            f"{RAPL}:0/max_energy_range_uj": "262143328850\n", f"{RAPL}:0:0/name": "core\n",
            f"{RAPL}:0:0/energy_uj": "900000\n", f"{RAPL}:0:1/name": "dram\n", f"{RAPL}:0:1/energy_uj": "500000\n",
        },
        SensorReading(
            energy=(
                EnergyReading("RAPL package-0", joules=2.5, wraps_j=262143.32885),
                EnergyReading("RAPL dram", joules=0.5),
            )
        ),
    ),
    "Jetson Orin Nano": Case(
        lambda root, _: JetsonPowerRails(root),
        {**ina3221(1, ("VDD_IN", 5000, 1200), ("VDD_CPU_GPU_CV", 5000, 400)), f"{HWMON}/hwmon0/name": "tmp451\n"},
        SensorReading(energy=(EnergyReading("Jetson VDD_IN", is_whole=True, watts=6.0),)),
    ),
    "Jetson AGX Orin": Case(
        lambda root, _: JetsonPowerRails(root),
        {
            **ina3221(3, ("VDD_GPU_SOC", 19000, 200), ("NC", 0, 0)),
            **ina3221(4, ("VIN_SYS_5V0", 5000, 800), ("VDDQ_VDD2_1V8AO", 5000, 100)),
        },
        SensorReading(energy=(EnergyReading("Jetson VDD_GPU_SOC + VIN_SYS_5V0", is_whole=True, watts=7.8),)),
    ),
    "Jetson over-current": Case(
        lambda root, _: jetson_overcurrent_counters(root),
        {f"{HWMON}/hwmon5/oc1_event_cnt": "3\n"},
        SensorReading(throttling=()),
    ),
    "Raspberry Pi, sysfs": Case(
        lambda root, _: RaspberryPiFirmware(root, str(root / "vcgencmd")),
        {SYSFS_FLAGS: "50005\n"},
        SensorReading(throttling=("the power supply gives too little voltage", "the processor is throttled")),
    ),
    "Raspberry Pi 5, vcgencmd": Case(
        lambda root, _: RaspberryPiFirmware(root, str(root / "vcgencmd"), with_temperature=True),
        {"vcgencmd": VCGENCMD},
        SensorReading(
            (Temperature("cpu-thermal", 48.3),),
            ("the soft temperature limit is reached",),
            (EnergyReading("Raspberry Pi PMIC, without USB and HATs", watts=3.0),),
        ),
    ),
    "NVML": Case(
        lambda _, there: NvidiaGpus(FakeNvml if there else missing),
        {},
        SensorReading((Temperature("GPU 0", 63.0),), (), (EnergyReading("NVML GPU 0", watts=31.5, joules=12.5),)),
    ),
    "Hailo": Case(
        lambda root, there: hailo_chips(FakeDevice(root, devices=int(there)), wait_s=60),
        {},
        SensorReading((Temperature("Hailo 0", 55.0),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_says_what_is_measured(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_files(tmp_path, case.files)
    assert case.make(tmp_path, True).read() == case.read


@pytest.mark.parametrize("name", CASES)
def test_a_box_without_the_sensor_says_nothing(tmp_path: Path, name: str) -> None:
    assert CASES[name].make(tmp_path, False).read() == NOTHING


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.files])
def test_nonsense_is_nothing(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_files(
        tmp_path, {path: text if path.endswith(("name", "label")) else "?\n" for path, text in case.files.items()}
    )
    assert case.make(tmp_path, True).read() == NOTHING


@pytest.mark.parametrize("name", ["x86 throttle counters", "Jetson over-current"])
def test_a_counter_that_rises_is_throttling_and_its_old_height_is_not(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_files(tmp_path, case.files)
    reader = case.make(tmp_path, True)
    assert reader.read().throttling == ()
    write_files(tmp_path, {next(iter(case.files)): "8\n"})
    assert len(reader.read().throttling or ()) == 1
    assert reader.read().throttling == ()


def test_a_gpu_slowed_down_by_heat_says_so_also_with_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeNvml, "flags", 0x20 | 0x4)
    monkeypatch.setattr(
        FakeNvml, "lacking", ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption")
    )
    found = NvidiaGpus(FakeNvml).read()
    assert found.throttling == ("the GPU is slowed down by heat",)
    assert found.energy == (EnergyReading("NVML GPU 0", watts=31.5),)


def test_a_chip_that_hangs_holds_up_nobody_and_is_left_alone_for_a_while(tmp_path: Path) -> None:
    device, at, starts = FakeDevice(tmp_path, hang="get_chip_temperature"), [100.0], list[int]()

    def start() -> subprocess.Popen[bytes]:
        starts.append(1)
        return start_helper(device.python, "temperatures")

    chips = HailoChips(start, wait_s=0.05, monotonic=lambda: at[0])
    assert chips.read() == chips.read() == NOTHING
    assert len(starts) == 1, "it is waited for"
    at[0] += 31
    assert chips.read() == NOTHING
    device.set()
    at[0] += 59
    assert chips.read() == NOTHING
    assert len(starts) == 1
    at[0] += 1
    warm = SensorReading((Temperature("Hailo 0", 55.0),))
    until(lambda: chips.read() == warm)
    device.set(fail={"get_chip_temperature": ["HailoRTException", "it is being reset"]})
    until(lambda: chips.read() == NOTHING)
    device.set()
    until(lambda: chips.read() == warm)
    assert len(starts) == 2, "by the same process"


def test_a_python_without_bindings_is_asked_once_a_minute(tmp_path: Path) -> None:
    device, at = FakeDevice(tmp_path, **{"import": "no libhailort"}), [100.0]
    chips = hailo_chips(device, wait_s=60, monotonic=lambda: at[0])
    assert chips.read() == NOTHING
    device.set()
    assert chips.read() == NOTHING
    at[0] += 60
    assert chips.read() == SensorReading((Temperature("Hailo 0", 55.0),))
    device.python.unlink()
    at[0] += 60
    assert hailo_chips(device).read() == NOTHING


def test_a_program_that_hangs_is_given_up_and_left_alone_for_a_while(tmp_path: Path) -> None:
    write_files(tmp_path, {"vcgencmd": "#!/bin/sh\necho x >> $0.calls\nexec sleep 60\n"})
    at = [100.0]
    reader = RaspberryPiFirmware(tmp_path, str(tmp_path / "vcgencmd"), call_s_max=0.1, monotonic=lambda: at[0])
    began = time.monotonic()
    assert [reader.read(), reader.read()] == [NOTHING, NOTHING]
    assert time.monotonic() - began < 5
    assert len((tmp_path / "vcgencmd.calls").read_text().splitlines()) == 2, "each of its two commands, once"
    at[0] += 61
    reader.read()
    assert len((tmp_path / "vcgencmd.calls").read_text().splitlines()) == 4


def test_the_fake_program_answers_as_the_real_one() -> None:
    done = subprocess.run(["/bin/sh", "-c", VCGENCMD, "vcgencmd", "get_throttled"], capture_output=True, check=True)
    assert done.stdout == b"throttled=0x80008\n"
