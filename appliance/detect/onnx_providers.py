"""How ONNX Runtime is told to use an NVIDIA GPU: its execution providers, with the options that are chosen and why."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from appliance.base.detector_config import Precision, Provider
from appliance.detect.model_files import sha256_of
from appliance.detect.network_inputs import few_sizes, network_inputs, shape_step
from appliance.detect.onnx_header import read_header
from appliance.detect.tensorrt_engine import (
    GPU_BATCH_SIZES,
    WORKSPACE_BYTES,
    InputProfile,
    input_profiles,
    must_be_quantised,
)
from appliance.detect.tensorrt_plan_cache import PLANS_MAX, keep_newest

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
ProviderOptions = tuple[str, dict[str, str]]


def gpu_input_sizes(path: Path) -> tuple[tuple[int, int], ...]:
    """Return the few (width, height) for which kernels are chosen and engines built. Raise ModelError."""
    header = read_header(path)
    return few_sizes(network_inputs(path, header.inputs, header.metadata), shape_step(header.metadata))


def gpu_providers(
    provider: Provider, path: Path, precision: Precision, engines: Path | None
) -> tuple[ProviderOptions, ...]:
    """Return the providers for InferenceSession, in the order of preference.

    engines: a folder for TensorRT's; None: they are built at each start. Raise ModelError.
    """
    if provider == "cuda":
        return ((CUDA, cuda_options(precision)),)
    # What TensorRT does not take runs on CUDA: so ONNX Runtime's own documentation wants it, and it stays on the GPU.
    return ((TENSORRT, tensorrt_options(path, precision, engines)), (CUDA, cuda_options(precision)))


def cuda_options(precision: Precision) -> dict[str, str]:
    """See docs/detector.md."""
    return {
        "device_id": "0",  # the first that CUDA_VISIBLE_DEVICES leaves
        "cudnn_conv_algo_search": "HEURISTIC",  # EXHAUSTIVE, the default, tries each convolution in each new shape
        "arena_extend_strategy": "kSameAsRequested",  # not by doubling: a camera's box shares the GPU's memory
        "use_tf32": "0" if precision == "fp32" else "1",  # as for TensorRT: fp32, asked for, is float32
    }


def tensorrt_options(path: Path, precision: Precision, engines: Path | None) -> dict[str, str]:
    """See docs/detector.md. Raises ModelError: the file is not what is asked for."""
    header = read_header(path)
    if precision == "int8":
        must_be_quantised(path, header)
    inputs = network_inputs(path, header.inputs, header.metadata)
    sizes = few_sizes(inputs, shape_step(header.metadata))
    profiles = input_profiles(header, inputs, sizes, GPU_BATCH_SIZES[-1] if inputs.free_batch else 1)
    options = {
        "device_id": "0",
        "trt_max_workspace_size": str(WORKSPACE_BYTES),
        "trt_fp16_enable": _flag(precision in ("auto", "fp16", "int8")),  # GPUs are made for it
        "trt_bf16_enable": _flag(precision == "bf16"),
        "trt_int8_enable": _flag(header.quantised),  # explicit Q/DQ: no calibration table
        "trt_context_memory_sharing_enable": "1",  # its subgraphs run one after the other
        # One engine for all sizes and numbers of frames, in place of one for each shape that comes.
        "trt_profile_min_shapes": _ranges(profiles, "least"),
        "trt_profile_opt_shapes": _ranges(profiles, "usual"),
        "trt_profile_max_shapes": _ranges(profiles, "most"),
    }
    if engines is not None:
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(engines),
            # ONNX Runtime puts TensorRT's version, the GPU and a hash of the graph behind it.
            "trt_engine_cache_prefix": f"{sha256_of(path)[:16]}-{precision}",
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(engines),
        }
    return options


def keep_few(engines: Path) -> None:
    """Keep the PLANS_MAX engines of ONNX Runtime that were written last: it removes none itself."""
    for old in keep_newest(engines, "*.engine", PLANS_MAX):
        with contextlib.suppress(OSError):  # an engine of one shape has none
            old.with_suffix(".profile").unlink()


def _flag(on: bool) -> str:
    return "1" if on else "0"


def _ranges(profiles: Sequence[Sequence[InputProfile]], which: str) -> str:
    """`images:1x3x288x416`: of each input the smallest, middle or largest over all profiles, in one range."""
    texts = []
    for each in zip(*profiles, strict=True):
        shapes = [getattr(profile, which) for profile in each]
        if which == "least":
            chosen = tuple(min(sides) for sides in zip(*shapes, strict=True))
        elif which == "most":
            chosen = tuple(max(sides) for sides in zip(*shapes, strict=True))
        else:
            chosen = shapes[0]  # the first is the size of 16:9, which most cameras are
        texts.append(f"{each[0].name}:{'x'.join(map(str, chosen))}")
    return ",".join(texts)
