"""The page System and its parts: processes, sensors and clock as the kernel tells them, versions, the log in memory."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from appliance.base import machine
from appliance.base.clock import ManualClock
from appliance.base.telemetry import LogRing, log_text
from appliance.broker.nats_connection import LinkState
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.sandbox.confinement import missing_confinement
from appliance.store.database import STEPS
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, ManualClock(T0))
    site.health = SystemHealth(ingest_running=True, ingest_starts=3, detector_ms=20.0, load=0.25, queue=2)
    yield site
    site.close()


@pytest.fixture
def ring(site: Site) -> LogRing:
    return LogRing(site.clock)


@pytest.fixture
def http(site: Site, ring: LogRing) -> Iterator[TestClient]:
    probes = CoreProbes(link=lambda: site.link, health=lambda: site.health, log=ring.tail)
    app = create_app(site.stored, site.config.for_dashboard(), probes=probes)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        yield client


def record(level: int, text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("appliance.core.core_loop", level, "", 0, text, values, None)


def test_each_process_is_there_with_what_it_takes(site: Site, http: TestClient) -> None:
    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        site.health = SystemHealth(ingest_running=True, ingest_starts=3, ingest_pid=child.pid)
        found = {each["name"]: each for each in http.get("/api/v1/system").json()["processes"]}
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
    core, ingest = found["core"], found["ingest"]
    assert (core["pid"], ingest["pid"], ingest["restarts"], core["restarts"]) == (os.getpid(), child.pid, 2, None)
    assert core["memory_bytes"] > ingest["memory_bytes"] > 1_000_000
    assert core["threads"] > 1
    assert ingest["uptime_s"] < core["uptime_s"] < 86400


def test_cpu_is_a_rate_since_the_last_look(site: Site, http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [100.0]

    def usage(pids: list[int]) -> list[machine.ProcessUsage]:
        return [
            machine.ProcessUsage(
                pid=os.getpid(), command="x", uptime_s=400.0, memory_bytes=1, proportional=False,
                cpu_s=spent[0], threads=1,
            )
        ]  # fmt: skip

    monkeypatch.setattr(machine, "usages", usage)

    def cpu() -> float:
        return float(http.get("/api/v1/system").json()["processes"][0]["cpu"])

    assert cpu() == 0.25, "the mean since its start"
    spent[0] += 6.0
    assert cpu() == 0.25, "within two seconds nothing is read again"
    site.clock.advance(4)  # type: ignore[attr-defined]
    assert cpu() == 1.5


def test_memory_is_the_share_where_the_kernel_tells_and_marked_where_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("1000.0 1\n")
    for pid, name in ((7, "a (b) c"), (8, "d")):
        place = tmp_path / str(pid)
        place.mkdir()
        ticks = os.sysconf("SC_CLK_TCK")
        fields = f"S 1 {'0 ' * 9}{5 * ticks} {3 * ticks} 0 0 0 0 4 0 {900 * ticks} 0 10 0"
        (place / "stat").write_text(f"{pid} ({name}) {fields}")
        (place / "cmdline").write_bytes(b"python\0-m\0appliance.sandbox.sandbox_child\0")
    (tmp_path / "7/smaps_rollup").write_text("x\nRss: 99 kB\nPss:      12 kB\n")
    shared, resident = machine.usages([7, 8, 9], tmp_path)
    assert (shared.memory_bytes, shared.proportional) == (12 * 1024, True)
    assert (resident.memory_bytes, resident.proportional) == (10 * os.sysconf("SC_PAGE_SIZE"), False)
    assert (shared.cpu_s, shared.uptime_s, shared.threads, shared.command) == (
        8.0,
        100.0,
        4,
        "python -m appliance.sandbox.sandbox_child",
    )


def test_what_the_kernel_does_not_tell_is_absent(tmp_path: Path) -> None:
    assert machine.temperatures(tmp_path) == []
    assert (machine.memory_bytes(tmp_path), machine.uptime_s(tmp_path)) == (None, None)
    assert machine.process_usage(2**22 + 1) is None
    zone = tmp_path / "thermal_zone0"
    zone.mkdir()
    (zone / "temp").write_text("61500\n")
    (zone / "type").write_text("cpu-thermal\n")
    assert machine.temperatures(tmp_path) == [machine.Temperature("cpu-thermal", 61.5)]
    assert machine.clock_sync().synchronised in (True, False, None)


def test_a_unit_that_may_not_ask_for_the_clock_believes_the_mark_of_timesyncd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ProtectClock of vedette.service refuses adjtimex; ClockWatch then said that nothing sets a clock that was set."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(adjtimex=lambda asked: -1))
    monkeypatch.setattr(machine, "TIMESYNC", tmp_path / "synchronized")
    assert machine.clock_sync().synchronised is None
    (tmp_path / "synchronized").touch()
    assert machine.clock_sync().synchronised is True


def test_a_box_without_a_sensor_says_so(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "temperatures", list)
    assert "this kernel shows no sensor" in http.get("/system").text
    monkeypatch.setattr(machine, "temperatures", lambda: [machine.Temperature("soc", 71.2)])
    assert "71 °C" in http.get("/system").text
    for synchronised, words in (
        (True, "in step (NTP)"),
        (False, "not in step with a time server"),
        (None, "does not report"),
    ):
        monkeypatch.setattr(machine, "clock_sync", lambda known=synchronised: machine.ClockSync(known))
        assert words in http.get("/system").text


def test_what_the_kernel_lacks_to_confine_decoding_is_told(http: TestClient) -> None:
    assert http.get("/api/v1/system").json()["confinement_missing"] == list(missing_confinement())


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "Landlock of this kernel is older than Linux 6.12"),
        ("de", "Landlock dieses Kernels ist älter als Linux 6.12"),
    ],
)
def test_an_older_landlock_is_told(http: TestClient, monkeypatch: pytest.MonkeyPatch, language: str, said: str) -> None:
    monkeypatch.setattr("appliance.sandbox.confinement._landlock_version", lambda: 5)
    assert said in http.get("/system", headers={"Accept-Language": language}).text


def test_detector_missed_frames_links_and_versions_are_told(site: Site, http: TestClient) -> None:
    site.live("gate", T0)
    site.spend("gate", 1000, 10)
    site.link = LinkState(up=False, since=T0, error="refused by nats://user:geheim@hub")
    found = http.get("/api/v1/system").json()
    detector = found["detector"]
    assert (detector["network"], detector["load"], detector["inference_ms"]) == ("vedette-nano", 0.25, 20.0)
    assert (detector["backend"], detector["device"], detector["queue"]) == ("ONNX Runtime", "cpu", 2)
    assert detector["inferences_s"] == 4.8
    assert detector["room"] == pytest.approx(37.5)
    [_, gate] = found["unexamined"]
    assert gate == {"camera": "gate", "examined": 40, "unexamined": 2, "reasons": {"newer": 1, "failed": 1}}
    assert found["links"][0]["up"] is False
    assert any("cloud link is down" in each for each in found["faults"])
    assert found["versions"]["schema"] == str(len(STEPS))
    assert {"python", "kernel", "sqlite", "numpy", "onnxruntime"} <= set(found["versions"])
    page = http.get("/system").text
    assert "a newer picture took its place" in page
    assert "The detector" not in page


def test_the_log_is_kept_in_memory_bounded_redacted_and_by_level(ring: LogRing, http: TestClient) -> None:
    ring.emit(record(logging.INFO, "in the beginning"))
    ring.emit(record(logging.WARNING, "lost %s", "rtsp://viewer:hunter2@192.168.1.20/main"))
    ring.emit(record(logging.ERROR, "a\x1b[31mb\nsecond line"))
    found = http.get("/api/v1/system/log").json()
    assert [each["text"] for each in found] == [
        "in the beginning",
        "lost rtsp://192.168.1.20/…",
        "a\\x1b[31mb\nsecond line",
    ]
    graver = http.get("/api/v1/system/log?level=warning").json()
    assert [each["level"] for each in graver] == ["warning", "error"]
    page = http.get("/system?level=warning").text
    assert "lost rtsp" in page
    assert "in the beginning" not in page
    small = LogRing(ManualClock(T0), lines_max=3)
    for n in range(5):
        small.emit(record(logging.INFO, f"line {n} " + "x" * 9000))
    assert [each.number for each in small.tail()] == [3, 4, 5]
    assert len(small.tail(count=1)[0].text) == 2000
    assert " info     core.core_loop: line 4 xx" in log_text(small.tail(count=1))
    assert http.get("/api/v1/system/log?level=loud").status_code == 422


def test_lines_of_the_ingest_process_are_told_apart(ring: LogRing) -> None:
    ring.add_child_line("12:34:56 warning ingest.reader: no packets from rtsp://u:p@h/1")
    ring.add_child_line(json.dumps({"t": "x", "level": "error", "room": "appliance.ingest", "message": "it broke"}))
    ring.add_child_line("[h264 @ 0x55] error while decoding MB 3 4")
    ring.add_child_line("{nonsense")
    ring.add_child_line("   ")
    assert [(each.level, each.room, each.text) for each in ring.tail()] == [
        ("warning", "ingest.reader", "no packets from rtsp://h/…"),
        ("error", "appliance.ingest", "it broke"),
        ("info", "ingest", "[h264 @ 0x55] error while decoding MB 3 4"),
        ("info", "ingest", "{nonsense"),
    ]


def test_the_package_sensors_of_processors_are_read_where_the_board_shows_no_zone(tmp_path: Path) -> None:
    """An AMD PC has k10temp alone; Tctl may lie 27 degrees above the chip, so Tdie counts where there is one."""
    chips = {
        "hwmon0": ("nvme", {"temp1": ("Composite", 41850)}),
        "hwmon1": ("k10temp", {"temp1": ("Tctl", 98000), "temp2": ("Tdie", 71000), "temp3": ("Tccd1", 68000)}),
        "hwmon2": ("coretemp", {"temp1": ("Package id 0", 66000), "temp2": ("Core 0", 64000)}),
        "hwmon3": ("zenpower", {"temp1": ("Tctl", 55500)}),
        "hwmon4": ("k10temp", {}),
    }
    for name, (kind, sensors) in chips.items():
        chip = tmp_path / "hwmon" / name
        chip.mkdir(parents=True)
        (chip / "name").write_text(f"{kind}\n")
        for sensor, (label, millidegrees) in sensors.items():
            (chip / f"{sensor}_label").write_text(f"{label}\n")
            (chip / f"{sensor}_input").write_text(f"{millidegrees}\n")
    assert machine.temperatures(tmp_path / "thermal") == [
        machine.Temperature("Tdie", 71.0),
        machine.Temperature("Package id 0", 66.0),
        machine.Temperature("Tctl", 55.5),
    ]
