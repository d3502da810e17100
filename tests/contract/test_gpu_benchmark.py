"""benchmarks.gpu: its steps on stand-ins for NVIDIA's modules, and that a step which fails or hangs ends nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_nvidia
import numpy as np
import pytest
from fake_nvidia import FakeGpu

from appliance.base.errors import MissingDependency
from appliance.detect.accelerators import Accelerator
from appliance.detect.onnx_header import read_header
from appliance.media import hardware_codec
from appliance.types import Detections
from benchmarks import gpu as command
from benchmarks import gpu_steps as steps
from benchmarks.gpu_steps import GpuPlan, NotMet
from tests.support import tiny_networks as tiny
from tests.support.decode_devices import Device
from tests.support.tiny_networks import Thing

SHORT = 0.001  # of the usual measuring time: each thing as often as it must be


@pytest.fixture(scope="module")
def frames() -> dict[str, Any]:
    """One, by its format: what the steps take of the clip is what most of their time would go into."""
    return {form: steps.frames(1, form) for form in ("bgr24", "nv12")}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frames: dict[str, Any]) -> FakeGpu:
    monkeypatch.setenv("VEDETTE_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(steps, "frames", lambda count=1, form="bgr24": frames[form])
    monkeypatch.setattr(steps, "WARM_UP", 2)
    monkeypatch.setattr(steps, "RUNS_MIN", 1)
    monkeypatch.setattr(steps, "accelerators", lambda: (Accelerator("cuda", "/dev/nvidia0"),))
    return fake_nvidia.install(monkeypatch)


@pytest.fixture
def plan(tmp_path: Path) -> GpuPlan:
    return GpuPlan("vedette-nano", tmp_path, SHORT)


@pytest.fixture
def small(plan: GpuPlan) -> GpuPlan:
    """With a network of a few nodes, where it does not matter which."""
    network = tiny.of_any_batch(tiny.yolo(plan.folder / "n.onnx", [Thing((8, 8, 64, 64), 1.0, 0)], ["person"]))
    return GpuPlan(str(network), plan.folder, SHORT)


def test_the_box_says_what_it_is(gpu: FakeGpu, plan: GpuPlan) -> None:
    figures = steps.box(plan)
    assert figures["GPU"] == "NVIDIA L4 (compute capability 8.9), 24576 MiB"
    assert "onnxruntime" in str(figures["packages"])
    assert figures["TensorRT"] == "10.16.1.11"


def test_a_gpu_without_its_makers_libraries_is_a_gpu(plan: GpuPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "accelerators", lambda: (Accelerator("cuda", "/dev/nvidia0"),))
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    figures = steps.box(plan)
    assert "pip install cuda-bindings for CUDA 13" in str(figures["GPU"])
    assert "pip install 'tensorrt-cu12<11'" in str(figures["TensorRT"])
    with pytest.raises(MissingDependency, match="cuda-bindings"):
        steps.runtime(plan)


def test_copies_are_measured_and_what_is_not_given_back_is_told(
    gpu: FakeGpu, plan: GpuPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = steps.runtime(plan)
    assert figures["MiB lost by opening and closing"] == 0
    assert gpu.blocks == {}
    free = iter(range(24 << 30, 0, -(64 << 20)))
    monkeypatch.setattr(steps, "_free_bytes", lambda: next(free))
    with pytest.raises(NotMet, match="64 MiB were not given back"):
        steps.runtime(plan)


def test_without_a_gpu_the_cure_is_named(plan: GpuPlan) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NotMet, match=r"there is no NVIDIA GPU, or its driver is not loaded: install") as caught:
        steps.box(plan)
    assert "machine" in caught.value.figures


def test_an_engine_is_built_and_then_loaded(gpu: FakeGpu, small: GpuPlan) -> None:
    figures = steps.engine(small)
    assert gpu.builds == 1
    assert str(figures["runtime"]).startswith("tensorrt 10.16.1.11, NVIDIA L4")
    assert isinstance(figures["engine MB"], float)
    assert figures["engine MB"] > 0


def test_parity_holds_of_the_same_arithmetic_and_not_of_another(
    gpu: FakeGpu, plan: GpuPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = steps.parity(plan)  # of a frame with people in it
    assert {"onnx-tensorrt", "tensorrt-fp32", "tensorrt-fp16"} & set(figures) == {"tensorrt-fp32", "tensorrt-fp16"}
    monkeypatch.setattr(steps, "compare", lambda *given: ([0.5] * 9, [0.2] * 9))
    with pytest.raises(NotMet, match=r"fp32: IoU 0\.5 \(at least 0\.99\), scores 0\.2 \(at most 0\.001\); auto:"):
        steps.parity(plan)


def test_latency_has_a_bar(gpu: FakeGpu, small: GpuPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "P99_MS_MAX", 1e9)
    assert steps.latency(small)["recorded graphs"] == 4, "one for each size of a batch"
    monkeypatch.setattr(steps, "P99_MS_MAX", 0.0)
    with pytest.raises(NotMet, match=r"p99 is .* is the bar"):
        steps.latency(small)


def test_our_network_is_freed_for_batches_once(plan: GpuPlan) -> None:
    made = steps.any_batch(plan)
    assert read_header(Path(made)).inputs[0].shape[0] == "batch"
    written = Path(made).stat().st_mtime_ns
    assert steps.any_batch(plan) == made
    assert Path(made).stat().st_mtime_ns == written


def test_batches_and_cameras_are_measured(gpu: FakeGpu, small: GpuPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "any_batch", lambda plan: plan.model)
    assert {f"frames/s, {count} a run" for count in (1, 2, 4, 8)} <= set(steps.batches(small))
    monkeypatch.setattr(steps, "CAMERAS", (1, 2))
    monkeypatch.setattr(steps, "serve", lambda network, frame, cameras, seconds: (10, 10 if cameras == 1 else 5, 3.0))
    figures = steps.scheduler(small)
    assert figures["cameras of 10 fps"] == 1
    assert figures["2 cameras"] == {"examined": 0.5, "age p99 ms": 3.0}


def test_cameras_are_served_by_the_scheduler(gpu: FakeGpu, small: GpuPlan) -> None:
    network = steps.load(small)
    offered, examined, age = steps.serve(network, steps.sized(network, steps.frames()[0]), 2, 0.3)
    assert offered >= examined >= 2
    assert 0 < age < 5000


@pytest.mark.slow
def test_the_kernel_is_held_against_numpy(gpu: FakeGpu, plan: GpuPlan) -> None:
    figures = steps.kernel(plan)
    assert figures["largest difference of 255"] == 0.0
    assert not gpu.blocks, "all is given back"


def test_the_gpus_decoder_is_refused_where_it_is_not(plan: GpuPlan) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NotMet, match=r"the probe of decode\.hardware refuses it: cuda"):
        steps.nvdec(plan)


def test_nvdec_comes_up_after_cuda_and_gives_the_frames_of_software(
    gpu: FakeGpu, plan: GpuPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(filters=True, has_context=lambda: gpu.streams > 0)
    monkeypatch.setattr(hardware_codec, "Libav", device.libav)
    figures = steps.nvdec(plan)
    assert figures["contexts"] == "CUDA, then NVDEC"
    assert {str(each.options) for each in device.accels} == {"{'primary_ctx': '0', 'current_ctx': '1'}"}
    monkeypatch.setattr(hardware_codec, "enter_primary_context", lambda cuda, device: {"primary_ctx": "1"})
    with pytest.raises(NotMet, match="incompatible flags"):
        steps.nvdec(plan)


def test_a_rehearsal_runs_from_an_empty_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", "gpu.json", "--only"]
    done = subprocess.run(
        [*command, "box", "runtime", "nvdec"], cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    rows = {row["step"]: row for row in json.loads((tmp_path / "gpu.json").read_text())}
    assert {name: (row["state"], row["why"]) for name, row in rows.items()} == dict.fromkeys(rows, ("passed", ""))
    assert rows["nvdec"]["figures"]["contexts"] == "CUDA, then NVDEC"
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_rehearsal_of_all_steps_is_within_nine_minutes(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert command.main(["--rehearse", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["step"] for row in rows] == list(command.STEPS)
    states = {row["step"]: row["state"] for row in rows}
    assert {*states.values()} <= {"passed", "lacking"}
    assert [name for name, state in states.items() if state == "lacking"] in ([], ["onnx-cuda"])


def program(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_a_step_that_fails_hangs_or_says_nothing_ends_only_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "box": 'print(\'{"state": "passed", "figures": {"GPU": "L4"}, "why": ""}\')',
        "engine": "import time; time.sleep(60)",
        "parity": "raise SystemExit('Segmentation fault')",
        "latency": 'print(\'{"state": "failed", "figures": {}, "why": "too slow"}\')',
        "batches": 'print(\'{"state": "lacking", "figures": {}, "why": "pip install onnx"}\')',
    }
    limited = {name: (step, 0.5 if name == "engine" else 20, needs) for name, (step, _, needs) in command.STEPS.items()}
    monkeypatch.setattr(command, "STEPS", limited)
    out = tmp_path / "gpu.json"
    written: list[list[str]] = []

    def note(results: Sequence[command.StepResult]) -> None:
        command.write(out, results)
        written.append([row["step"] for row in json.loads(out.read_text())])

    results = command.run_steps(list(texts), lambda name: program(texts[name]), tmp_path, note)
    assert written == [list(texts)[: n + 1] for n in range(len(texts))], "a kill loses the present step alone"
    assert [each.state for each in results] == ["passed", "over", "failed", "failed", "lacking"]
    assert [each.why for each in results] == [
        "", "it was ended after 0.5 s", "exit code 1: Segmentation fault", "too slow", "pip install onnx"
    ]  # fmt: skip
    assert "GPU: L4" in command.table(results)


def test_without_a_gpu_the_exit_code_says_so_and_what_needs_none_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = 'print(\'{"state": "failed", "figures": {}, "why": "no GPU"}\')'
    monkeypatch.setattr(command, "_command", lambda name, options, folder: program(why))
    assert command.main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert [each["step"] for each in json.loads((tmp_path / "gpu.json").read_text())] == list(command.STEPS)
    assert "no GPU" in capsys.readouterr().out


def test_all_steps_together_are_within_nine_minutes() -> None:
    assert sum(limit for _, limit, _ in command.STEPS.values()) <= command.WHOLE_S_MAX == 540


def test_what_was_not_met_is_told_with_its_figures(
    plan: GpuPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missed(given: GpuPlan) -> dict[str, object]:
        raise NotMet("too slow", {"p99": given.share})

    monkeypatch.setattr(command, "STEPS", {"box": (missed, 1, "nothing")})
    assert command.main(["--step", "box", "--folder", str(plan.folder)]) == 0
    assert json.loads(capsys.readouterr().out) == {"state": "failed", "figures": {"p99": 1.0}, "why": "too slow"}


class Answer:
    """A detector with one box of a class."""

    def __init__(self, box: tuple[float, ...], score: float, kind: int) -> None:
        self._found = Detections(np.array([box], np.float32), np.array([score], np.float32), np.array([kind], np.int32))

    def detect(self, pictures: Sequence[Any]) -> list[Detections]:
        return [self._found]


def test_another_class_and_a_box_too_many_are_not_alike() -> None:
    usual, picture = Answer((0.1, 0.1, 0.3, 0.3), 0.8, 0), [np.zeros((8, 8, 3), np.uint8)]

    def alike(other: Answer) -> list[float]:
        return [round(each, 3) for each in steps.compare(usual, other, picture)[0]]  # type: ignore[arg-type]

    assert alike(usual) == [1.0]
    assert alike(Answer((0.1, 0.1, 0.3, 0.3), 0.8, 1)) == [0.0, 0.0]
    assert alike(Answer((0.6, 0.6, 0.9, 0.9), 0.8, 0)) == [0.0, 0.0]
    assert alike(Answer((0.6, 0.6, 0.9, 0.9), 0.1, 0)) == [0.0], "what is weak is not sure of anything"
