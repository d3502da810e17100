"""The box's sensors as one, its memory, the joules that it drew, and how all that is shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.config_model import HailoConfig
from appliance.base.machine import Temperature
from appliance.core.appliance_monitor import ApplianceMonitor
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.health.load_shedding import LoadShedding, SheddingStep
from appliance.sensors.appliance_sensors import ApplianceSensors, SensorStatus
from appliance.sensors.linux_sensors import (
    EnergyMeter,
    EnergyReading,
    MemoryReading,
    MemorySensor,
    RaplCounters,
    SensorReading,
)
from appliance.store.database import Database
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.savings import EnergyAccount
from tests.support.dashboard_site import Site, config_of
from tests.support.hailo_files import FakeDevice
from tests.support.sensor_files import heat, memory, write_files
from tests.support.waiting import until

T0 = 1_700_000_000.0
MB = 1024 * 1024


def test_a_raspberry_pi_is_asked_by_its_program_and_no_other_box_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.sensors.appliance_sensors.RaspberryPiFirmware._call", lambda *_: "throttled=0x4")
    found = partial(ApplianceSensors.found, tmp_path, lambda: pytest.fail("this box has no Hailo chip"))
    heat(tmp_path, 61.5)
    assert found().read() == SensorReading((Temperature("cpu-thermal", 61.5),))
    write_files(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0"})
    assert found().read().throttling == ("the processor is throttled",)


def test_the_heat_of_a_hailo_chip_is_asked_with_the_python_that_the_detector_has_it_by(tmp_path: Path) -> None:
    write_files(tmp_path, {"dev/hailo0": ""})
    settings = HailoConfig(python=str(FakeDevice(tmp_path).python))
    clock, db = ManualClock(), Database(tmp_path / "vedette.db", ManualClock())
    ingest = IngestSupervisor(config_of().for_ingest(), clock)
    monitor = ApplianceMonitor(tmp_path, Meter(db, "core"), clock, lambda: 0, ingest, settings)

    def hottest() -> Temperature | None:
        monitor.run_once()
        return monitor.status.reading.hottest

    until(lambda: hottest() == Temperature("Hailo 0", 55.0))
    db.close()


def test_the_memory_of_the_machine_and_of_our_group(tmp_path: Path) -> None:
    assert MemorySensor(tmp_path).read() == MemoryReading()
    memory(tmp_path, available_mb=900, stalled_percent=12.5)
    assert MemorySensor(tmp_path).read() == MemoryReading(900 * MB, 4000 * MB, 0.125)
    group = "sys/fs/cgroup/system.slice/vedette.service"
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/vedette.service\n", f"{group}/memory.current": f"{500 * MB}\n",
            f"{group}/memory.high": "max\n", f"{group}/memory.max": "max\n",
            f"{group}/memory.stat": f"anon 1\ninactive_file {120 * MB}\n",
            f"{group}/memory.pressure": "some avg10=40.00 avg60=0.00 avg300=0.00 total=0\n",
        },
    )  # fmt: skip
    assert MemorySensor(tmp_path).read() == MemoryReading(900 * MB, 4000 * MB, 0.125), "a group without a limit"
    write_files(tmp_path, {f"{group}/memory.high": f"{400 * MB}\n", f"{group}/memory.max": f"{512 * MB}\n"})
    assert MemorySensor(tmp_path).read() == MemoryReading(900 * MB, 4000 * MB, 0.4, 380 * MB, 400 * MB)


def test_each_joule_is_counted_once() -> None:
    def counter(joules: float, **values: float) -> EnergyReading:
        return EnergyReading("RAPL package-0", joules=joules, **values)

    def rail(watts: float) -> EnergyReading:
        return EnergyReading("Jetson VDD_IN", is_whole=True, watts=watts)

    meter = EnergyMeter()
    assert meter.add((counter(90.0, wraps_j=100.0),), 0.0) is None, "nothing is known of before"
    used = meter.add((counter(5.0, wraps_j=100.0), EnergyReading("NVML GPU 0", watts=8.0)), 5.0)
    assert used is not None
    assert (used.joules, used.seconds, used.watts) == ({"RAPL package-0": 15.0}, 5.0, 3.0), "it went over its end"
    used = meter.add((counter(7.0, wraps_j=100.0), EnergyReading("NVML GPU 0", watts=10.0)), 10.0)
    assert used is not None
    assert used.joules == {"RAPL package-0": 2.0, "NVML GPU 0": 45.0}
    assert meter.add((rail(6.0), counter(20.0)), 15.0) is None
    used = meter.add((rail(8.0), counter(40.0)), 17.0)
    assert used is not None
    assert used.joules == {"Jetson VDD_IN": 14.0}, "what measures all of the box makes its parts superfluous"
    assert meter.add((rail(8.0),), 17.0 + 61) is None, "a pause in which anything may have been"
    assert meter.add((), 80.0) is None


def test_the_memory_of_each_of_two_processors_is_counted(tmp_path: Path) -> None:
    """The kernel calls both `dram`."""
    meter, zones = EnergyMeter(), "sys/class/powercap/intel-rapl"
    files = {f"{zones}:{n}/name": f"package-{n}" for n in (0, 1)} | {f"{zones}:{n}:0/name": "dram" for n in (0, 1)}
    counts = {
        f"{zones}:0/energy_uj": 1,
        f"{zones}:1/energy_uj": 2,
        f"{zones}:0:0/energy_uj": 4,
        f"{zones}:1:0/energy_uj": 8,
    }
    write_files(tmp_path, files | dict.fromkeys(counts, "1000000"))
    sensor = RaplCounters(tmp_path)
    assert meter.add(sensor.read().energy, 0.0) is None
    write_files(tmp_path, {path: str(1_000_000 * (1 + joules)) for path, joules in counts.items()})
    used = meter.add(sensor.read().energy, 1.0)
    assert used is not None
    assert used.watts == pytest.approx(15)


def test_the_monitor_counts_what_was_drawn_and_for_how_many_cameras(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    db = Database(tmp_path / "vedette.db", clock)
    meter = Meter(db, "core")
    zone = "sys/class/powercap/intel-rapl:0"
    write_files(
        tmp_path, {f"{zone}/name": "package-0", f"{zone}/energy_uj": "0", f"{zone}/max_energy_range_uj": "9" * 9}
    )
    ingest = IngestSupervisor(config_of().for_ingest(), clock)
    monitor = ApplianceMonitor(tmp_path, meter, clock, lambda: 2, ingest)
    assert EnergyAccount.of(meter.totals("start")) is None
    for joules in (0, 7.5, 15, 22.5, 30):
        write_files(tmp_path, {f"{zone}/energy_uj": f"{joules * 1e6:.0f}"})
        monitor.run_once()
        clock.advance(5)
    assert monitor.status.watts == 1.5
    meter.add("gate", Metric(MetricName.ALERTS), 3)
    account = EnergyAccount.of(meter.totals("start"))
    assert account == EnergyAccount(
        joules=30, sources=("RAPL package-0",), joules_per_camera_hour=30 / (2 * 20) * 3600, joules_per_alert=10.0
    )
    db.close()


def test_the_page_the_api_and_the_metrics_say_it_and_where_it_is_from(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(T0))
    status, shed = SensorStatus(SensorReading(), MemoryReading(), None), LoadShedding()
    app = create_app(
        site.stored, site.config.for_dashboard(), probes=CoreProbes(sensors=lambda: status, shedding=lambda: shed)
    )
    with TestClient(app, base_url="http://127.0.0.1:8080") as http:
        bare = http.get("/api/v1/system").json()["machine"]
        assert (bare["throttling"], bare["energy"], bare["memory_stalled"], bare["temperatures"]) == (
            None,
            None,
            None,
            [],
        )
        page = http.get("/system").text
        assert "not measured here" in page
        assert "95 % under" not in page, "nobody has measured the age of a frame yet"
        told = http.get("/metrics").text
        assert not any(name in told for name in ("vedette_box_throttled", "vedette_box_power", "vedette_energy"))
        status = SensorStatus(
            SensorReading((Temperature("GPU 0", 81.0),), ("the GPU is slowed down by heat",)),
            MemoryReading(300 * MB, 4000 * MB, 0.2), 7.25,
        )  # fmt: skip
        shed = LoadShedding(SheddingStep(2, "81 °C at GPU 0"), SheddingStep(), 0.5, 0.75)
        site.meter.add("", Metric(MetricName.ENERGY_J, "Jetson VDD_IN"), 72_000)
        site.meter.add("", Metric(MetricName.ENERGY_CAMERA_S), 14_400)
        site.meter.add("gate", Metric(MetricName.ALERTS), 5)
        box = http.get("/api/v1/system").json()["machine"]
        german = http.get("/system", headers={"Accept-Language": "de"}).text
        page, told = http.get("/system").text, http.get("/metrics").text
    site.close()
    assert box["throttling"] == ["the GPU is slowed down by heat"]
    assert box["energy"] == {
        "joules": 72_000, "sources": ["Jetson VDD_IN"], "watts": 7.25, "joules_per_camera_hour": 18_000.0,
        "joules_per_alert": 14_400.0,
    }  # fmt: skip
    assert box["shedding"] == {
        "heat_step": 2, "memory_step": 0, "fps_share": 0.5, "input_share": 0.75, "offload": False,
        "reasons": [
            "the appliance is hot or throttled (81 °C at GPU 0): fewer detections a second, at a lower resolution"
        ],
    }  # fmt: skip
    assert "heiß oder gedrosselt (81 °C an GPU 0): weniger Erkennungen je Sekunde, in kleinerer Auflösung" in german
    for words in (
        "the appliance is hot or throttled (81 °C at GPU 0)",
        "81 °C",
        "slowed down by heat",
        "7.2 W",
        "18 kJ a camera-hour",
        "14.4 kJ an alert",
        "by Jetson VDD_IN",
    ):
        assert words in page, words
    for line in (
        'vedette_box_temperature_celsius{sensor="GPU 0"} 81.0', "vedette_box_throttled 1.0",
        "vedette_box_power_watts 7.25", "vedette_box_memory_stalled_ratio 0.2",
        'vedette_load_shedding_step{against="heat"} 2.0',
        'vedette_energy_joules_total{source="Jetson VDD_IN"} 72000.0',
        "vedette_energy_joules_per_camera_hour 18000.0", "vedette_energy_joules_per_alert 14400.0",
    ):  # fmt: skip
        assert line in told, line
