"""`vedette bench` measures every way to run a network, each in its own process, and says what does not run here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_networks as tiny
from tiny_networks import Thing

from appliance.cli import main
from appliance.detect import runtime_choice
from appliance.detector_config import DetectorConfig
from appliance.lab.bench import bench_command, runtime_measurement
from appliance.lab.bench.bench_command import BenchRow


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "yard.onnx"
    return str(tiny.yolo(path, [Thing((16, 16, 80, 112), 0.9, 0)], ["person", "car"]))


@pytest.fixture(scope="module")
def rows(network: str) -> list[BenchRow]:
    return [bench_command.measure_in_child(each, 0.02) for each in bench_command.ways_to_run(network)]


def test_each_way_is_measured_or_named_with_its_reason(network: str, rows: list[BenchRow]) -> None:
    found: dict[str, dict[str, Any]] = {row.way: row.figures for row in rows}
    usual = found[f"{network} onnx cpu as the file"]
    assert usual["name"].startswith("yard@")
    assert 0 < usual["p50_ms"] <= usual["p99_ms"]
    assert 0 < usual["network_share"] <= 1
    assert usual["memory_mb"] > 20
    assert all(rate > 0 for rate in usual["rates"].values())
    assert "needs a model of models.toml" in found[f"{network} onnx cpu int8"]["error"]
    assert "runs .hef files: compile it" in found[f"{network} hailo"]["error"]
    if runtime_choice.installed_version("openvino"):
        assert found[f"{network} openvino cpu as the file"]["name"].endswith("+openvino-fp32")


def test_a_table_for_people_ends_with_a_line_for_an_issue_and_machines_get_json(
    network: str, rows: list[BenchRow], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {row.way: row for row in rows}
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: left[bench_command.way(settings)])
    assert main(["bench", network]) == 0
    said = capsys.readouterr().out
    assert f"not here: {network} onnx cpu int8" in said
    assert said.splitlines()[-1].startswith(bench_command.machine())
    assert main(["bench", network, "--json"]) == 0
    assert [row["way"] for row in json.loads(capsys.readouterr().out)["rows"]] == list(left)


def test_where_nothing_runs_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = BenchRow("mine onnx", {"error": "there is no model `mine`"})
    monkeypatch.setattr(bench_command, "measure_in_child", lambda settings, seconds: refused)
    assert main(["bench", "mine"]) == 2
    assert "not here: mine onnx: there is no model `mine`" in capsys.readouterr().out


def test_a_way_that_kills_its_process_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "exit code 1" in bench_command.measure_in_child(DetectorConfig(), 0.1).refusal


def test_energy_is_what_the_kernel_counts_or_nothing(tmp_path: Path) -> None:
    assert runtime_measurement._joules(tmp_path) is None
    for package, used in (("intel-rapl:0", "2500000"), ("intel-rapl:1", "500000"), ("intel-rapl:0:0", "7")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "energy_uj").write_text(used + "\n")
    assert runtime_measurement._joules(tmp_path) == 3.0
