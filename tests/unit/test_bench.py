"""`vedette bench` measures every way to run a network, each in its own process, and says what does not run here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import VedetteError
from appliance.detect import detector_loader, runtime_choice
from appliance.detect.accelerators import Accelerator
from appliance.detect.network_detector import NetworkDetector
from appliance.lab import bench_command, bench_measurement
from appliance.lab.bench_command import BenchRow
from appliance.lab.bench_measurement import DetectorBench, ProcessorEnergy
from appliance.media.frames import FrameConverter
from tests.support import tiny_networks as tiny
from tests.support.scripted_runtime import ScriptedRuntime
from tests.support.sensor_files import write_files
from tests.support.tiny_networks import Thing


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "yard.onnx"
    return str(tiny.yolo(path, [Thing((16, 16, 80, 112), 0.9, 0)], ["person", "car"]))


def a_few(network: str) -> list[DetectorConfig]:
    """Return of the ways those that differ in what is told of them: each takes a process of its own."""
    told = ("onnx cpu as the file", "onnx cpu int8", "openvino cpu as the file", "hailo")
    return [each for each in bench_command.ways_to_run(network) if bench_command.way(each).endswith(told)]


@pytest.fixture(scope="module")
def rows(network: str) -> list[BenchRow]:
    return [bench_command.measure_in_child(each, 0.02) for each in a_few(network)]


def test_each_way_is_measured_or_named_with_its_reason(network: str, rows: list[BenchRow]) -> None:
    found: dict[str, dict[str, Any]] = {row.way: row.figures for row in rows}
    usual = found[f"{network} onnx cpu as the file"]
    assert usual["name"].startswith("yard@")
    assert 0 < usual["p50_ms"] <= usual["p99_ms"]
    assert 0 < usual["network_share"] <= 1
    assert usual["memory_mb"] > 20
    assert all(rate > 0 for name in ("rates", "camera_rates") for rate in usual[name].values())
    assert (list(usual["batch_rates"]), list(usual["camera_rates"])) == (["1"], ["1", "4", "16"])
    assert all(0 < usual["efficiency"][each] <= 1 for each in ("scaled", "decoded"))
    assert "needs a model of models.toml" in found[f"{network} onnx cpu int8"]["error"]
    assert "runs .hef files: compile it" in found[f"{network} hailo"]["error"]
    if runtime_choice.installed_version("openvino"):
        assert found[f"{network} openvino cpu as the file"]["name"].endswith("+openvino-fp32")


@pytest.mark.parametrize(("load", "told"), [(0.0, False), (64.0, True)])
def test_a_busy_machine_is_told_beside_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, told: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: BenchRow("x", {"error": "none"}))
    assert main(["bench"]) == 2
    assert ("this machine is busy (load average 64.0)" in capsys.readouterr().err) == told


def test_a_table_for_people_ends_with_a_line_for_an_issue_and_machines_get_json(
    network: str, rows: list[BenchRow], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, ways = {row.way: row for row in rows}, a_few(network)
    monkeypatch.setattr(bench_command, "ways_to_run", lambda model: iter(ways))
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: left[bench_command.way(settings)])
    assert main(["bench", network]) == 0
    said = capsys.readouterr().out
    assert f"not here: {network} onnx cpu int8" in said
    assert "% end to end" in said
    assert said.splitlines()[-1].startswith(bench_command.machine())
    assert main(["bench", network, "--json"]) == 0
    assert [row["way"] for row in json.loads(capsys.readouterr().out)["rows"]] == list(left)


def test_the_column_end_to_end_says_the_two_figures_in_the_order_of_its_caption(
    network: str, rows: list[BenchRow], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = next(row for row in rows if not row.refusal)
    told = BenchRow(usual.way, {**usual.figures, "efficiency": {"scaled": 0.91, "decoded": 0.42}})
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: told)
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["bench", network]) == 0
    said = capsys.readouterr().out
    assert "from scaled frames / from decoded 720p" in " ".join(said.split())
    assert "91% / 42%" in said
    assert said.splitlines()[-1].count("91% / 42% end to end") >= 1


def test_tensorrt_is_named_where_nvidias_driver_is_and_its_package_is_not(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_choice, "installed_version", lambda backend: "1" if backend == "onnx" else "")
    for here in ((), (Accelerator("cuda", "/dev/nvidia0"),)):
        monkeypatch.setattr(bench_command, "accelerators", lambda here=here: here)
        ways = [each for each in bench_command.ways_to_run(network) if each.backend == "tensorrt"]
        assert bool(ways) == bool(here)
    with pytest.raises(VedetteError, match="tensorrt"):
        detector_loader.load(ways[0])


def test_where_nothing_runs_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = BenchRow("vedette-nano onnx", {"error": "it wants another processor"})
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: refused)
    assert main(["bench", "vedette-nano"]) == 2
    assert "not here: vedette-nano onnx: it wants another processor" in capsys.readouterr().out


def test_a_way_that_kills_its_process_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "exit code 1" in bench_command.measure_in_child(DetectorConfig(), 0.1).refusal


def test_energy_is_what_the_kernel_counts_once_or_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    assert ProcessorEnergy(tmp_path, clock).joules() is None

    def count(package_j: int, psys_j: int) -> None:
        rapl = "sys/class/powercap/intel-rapl"
        for number, name, joules in ((0, "package-0", package_j), (1, "psys", psys_j)):
            write_files(tmp_path, {f"{rapl}:{number}/name": name, f"{rapl}:{number}/energy_uj": f"{joules}000000"})

    count(10, 100)
    energy = ProcessorEnergy(tmp_path, clock)
    count(13, 105)
    clock.advance(2)
    assert energy.joules() == 5.0, "psys has what its packages use"


def test_cameras_share_runs_where_batches_pay_and_all_that_is_not_the_network_counts(tmp_path: Path) -> None:
    """A run of one takes 10 ms of the clock and of four 16; scaling a frame takes 2."""
    path = tiny.yolo(tmp_path / "n.onnx", [Thing((16, 16, 80, 112), 0.9, 0)], ["person"])
    clock = ManualClock()
    runtime = ScriptedRuntime(before=lambda count: clock.advance(0.008 + 0.002 * count))
    network = NetworkDetector(path, runtime)
    bench = DetectorBench(network, 4, (64, 48), clock, scaled=True)
    assert [bench.run_once() for _ in range(2)] == [4, 4]
    assert bench_measurement.batch_rates(network, (64, 48), 0.1, clock) == pytest.approx(
        {1: 100, 2: 166.7, 4: 250}, 0.01
    )
    assert bench_measurement.rate(network, 2, (64, 48), 0.1, clock) == pytest.approx(166.7, 0.01)
    found = bench_measurement.efficiency(network, 4, (64, 48), 0.1, clock, clock.monotonic)
    assert (found.scaled, found.decoded) == (1.0, 1.0)
    bgr = FrameConverter.bgr

    def slow(self: FrameConverter, frame: av.VideoFrame, size: tuple[int, int]) -> NDArray[np.uint8]:
        clock.advance(0.002)
        return bgr(self, frame, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameConverter, "bgr", slow)
        found = bench_measurement.efficiency(network, 4, (64, 48), 0.1, clock, clock.monotonic)
    assert (found.scaled, found.decoded) == (1.0, pytest.approx(16 / 24, abs=0.01))
