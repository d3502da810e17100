"""What ONNX Runtime is told for an NVIDIA GPU; that it does what it is told is unmeasured."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from appliance.base.errors import ModelError
from appliance.detect import model_files
from appliance.detect.onnx_header import read_header
from appliance.detect.onnx_runtime import cuda_options, gpu_input_sizes, gpu_providers, keep_few
from models.variants import make_variant
from tests.support import tiny_networks as tiny
from tests.support.tiny_networks import Thing

OWN = model_files.find_model("vedette-nano").path
# Named in libonnxruntime_providers_cuda.so and libonnxruntime_providers_tensorrt.so of onnxruntime-gpu 1.31.1.
KNOWN = {
    "device_id", "cudnn_conv_algo_search", "arena_extend_strategy", "use_tf32",
    "trt_max_workspace_size", "trt_fp16_enable", "trt_bf16_enable", "trt_int8_enable",
    "trt_context_memory_sharing_enable", "trt_profile_min_shapes", "trt_profile_opt_shapes",
    "trt_profile_max_shapes", "trt_engine_cache_enable", "trt_engine_cache_path",
    "trt_engine_cache_prefix", "trt_timing_cache_enable", "trt_timing_cache_path",
}  # fmt: skip


def test_cuda_searches_nothing_and_takes_what_it_needs() -> None:
    ((name, options),) = gpu_providers("cuda", OWN, "auto", None)
    assert name == "CUDAExecutionProvider"
    assert (options["cudnn_conv_algo_search"], options["use_tf32"]) == ("HEURISTIC", "1")
    assert cuda_options("fp32")["use_tf32"] == "0"


def test_tensorrt_builds_one_engine_for_few_sizes_and_keeps_it(tmp_path: Path) -> None:
    (first, options), (second, _) = gpu_providers("tensorrt", OWN, "auto", tmp_path)
    assert (first, second) == ("TensorrtExecutionProvider", "CUDAExecutionProvider"), "never the CPU"
    assert gpu_input_sizes(OWN) == ((416, 288), (416, 352), (416, 416))
    shapes = {which: options[f"trt_profile_{which}_shapes"] for which in ("min", "opt", "max")}
    assert shapes["min"].startswith("images:1x3x288x416")
    assert shapes["opt"].endswith("x3x288x416"), "most cameras are 16:9"
    assert shapes["max"].endswith("x3x416x416")
    assert options["trt_engine_cache_path"] == str(tmp_path)
    assert (options["trt_fp16_enable"], options["trt_int8_enable"]) == ("1", "0")
    assert set(options) | set(cuda_options("auto")) <= KNOWN


def test_a_batch_and_a_second_input_are_in_the_ranges(tmp_path: Path) -> None:
    network = tiny.of_any_batch(tiny.yolo(tmp_path / "n.onnx", [Thing((1, 1, 9, 9), 1.0, 0)], ["person"]))
    options = dict(gpu_providers("tensorrt", network, "fp32", None)[0][1])
    assert options["trt_profile_max_shapes"] == "images:8x3x128x128"
    assert (options["trt_fp16_enable"], "trt_engine_cache_enable" in options) == ("0", False)
    two = tiny.detr(tmp_path / "two.onnx", [Thing((1, 1, 9, 9), 1.0, 0)])
    options = dict(gpu_providers("tensorrt", two, "auto", None)[0][1])
    assert options["trt_profile_min_shapes"] == "images:1x3x128x128,orig_target_sizes:1x2"


def test_int8_is_what_a_quantised_file_has(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"int32 and uint8.*--kind tensorrt"):
        gpu_providers("tensorrt", model_files.find_model("vedette-nano", precision="int8").path, "auto", None)
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (416, 416, 3), np.uint8) for _ in range(2)]
    quantised = make_variant(OWN, tmp_path / "tensorrt.onnx", "tensorrt", frames)
    assert read_header(quantised).integers == {"int8"}
    options = dict(gpu_providers("tensorrt", quantised, "int8", None)[0][1])
    assert (options["trt_int8_enable"], options["trt_fp16_enable"]) == ("1", "1")
    with pytest.raises(ModelError, match="needs a file that is quantised"):
        gpu_providers("tensorrt", OWN, "int8", None)


def test_few_of_its_engines_are_kept(tmp_path: Path) -> None:
    for n in range(10):
        for ending in ("engine", "profile"):
            (tmp_path / f"{n}.{ending}").touch()
            os.utime(tmp_path / f"{n}.{ending}", (n, n))
    keep_few(tmp_path)
    assert sorted(each.stem for each in tmp_path.glob("*.engine")) == [str(n) for n in range(2, 10)]
    assert len(list(tmp_path.glob("*.profile"))) == 8
