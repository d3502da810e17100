"""Runs a network by ONNX Runtime: on the CPU, or on an NVIDIA GPU by CUDA or TensorRT."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from appliance.base.clock import SystemClock
from appliance.base.config_model import Precision, Provider
from appliance.base.errors import DetectorError, ModelError
from appliance.bundle.manifest import sha256_of
from appliance.detect.accelerators import NVIDIA_FILES
from appliance.detect.model_files import cpu_sums_int8
from appliance.detect.network_inputs import few_sizes, network_inputs, shape_step
from appliance.detect.network_runtime import CLOSED, Array, TensorSpec, first_line
from appliance.detect.onnx_header import read_header
from appliance.detect.tensorrt_engine import (
    GPU_BATCH_SIZES,
    WORKSPACE_BYTES,
    InputProfile,
    input_profiles,
    must_be_quantised,
)
from appliance.detect.tensorrt_plan_cache import PLANS_MAX, PlanCache, engine_folder, keep_newest

_CLOCK = SystemClock()
CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
ProviderOptions = tuple[str, dict[str, str]]

VERSION = f"onnxruntime {ort.__version__}"
NUMPY_NAMES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(uint8)": "uint8",
}  # fmt: skip
ORT_ERRORS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
    ort_errors.EPFail,
    RuntimeError,
    ValueError,
)
CUDA_NEEDS = "it needs NVIDIA's driver (nvidia-smi), CUDA 13 and cuDNN 9: pip install 'onnxruntime-gpu[cuda,cudnn]'"
TENSORRT_NEEDS = "it needs TensorRT 10 beside that (libnvinfer.so.10; 11 is not loaded): pip install 'tensorrt-cu13<11'"
BOUND_MAX = 12  # three input sizes in four batch sizes
GIVE_BACK = "memory.enable_memory_arena_shrinkage"  # an option of a run, with the devices whose memory is meant
# Runs that far apart each give their memory back (4 MB), which costs 0.6 ms a run: at most 0.12 % of a core.
IDLE_S = 0.5
Shapes = tuple[tuple[int, ...], ...]


class OnnxRuntime:
    """A session of ONNX Runtime.

    Where the file leaves sides open, all shapes run in one session, whose memory is for the largest so far; on a CPU
    what is free of it goes back after the first run in each shape (else the trial picture, a square that no camera
    fills, would be paid for ever: 4 MB) and after a run that follows a pause. A batch of 2 to 8 frames takes 0.97 to
    1.02 of their time one by one there (docs/scheduling.md), so there are none.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        device: Literal["cpu", "cuda"] = "cpu",
        bf16: bool = False,
        provider: Provider = "cuda",
        precision: Precision = "auto",
        bound: bool | None = None,
    ) -> None:
        """Open the network. Raise ModelError.

        bf16: products in bfloat16 where ONNX Runtime has them, on arm64 (see `model_files.cpu_has_bf16`); elsewhere it
        does nothing. provider, precision: on a GPU. bound: whether inputs stay where the device reads them from run to
        run (IOBinding); None: on a GPU.
        """
        session = _open(path, threads, bf16, _providers(path, device, provider, precision))
        self._session: ort.InferenceSession | None = session
        self._outputs = [output.name for output in session.get_outputs()]
        self.version = f"{VERSION}, {device}"
        self.mark = "" if device == "cpu" else f"onnx-{device}"
        if device == "cuda" and provider == "tensorrt":
            as_built = "fp16" if precision == "auto" else precision
            self.version, self.mark = f"{VERSION}, cuda, tensorrt {as_built}", f"onnx-tensorrt-{as_built}"
        self.takes_any_shape = device == "cpu"  # cuDNN searches its algorithms for each
        self.batch_sizes = (1,) if device == "cpu" else GPU_BATCH_SIZES
        self.inputs = tuple(
            TensorSpec(each.name, NUMPY_NAMES.get(each.type, each.type), tuple(each.shape))
            for each in session.get_inputs()
        )
        self.input_sizes = () if device == "cpu" else gpu_input_sizes(path)
        self._device = device
        self._bound = (device == "cuda") if bound is None else bound
        self._mine = threading.local()
        self._shapes: set[Shapes] = set()
        self._ran_at = float("-inf")  # monotonic seconds
        self._give_back = ort.RunOptions()
        self._give_back.add_run_config_entry(GIVE_BACK, "cpu:0")
        self.metadata: Mapping[str, str] = dict(session.get_modelmeta().custom_metadata_map)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Nothing: memory is planned at the first inference in a shape."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network. Raise DetectorError."""
        session = self._session
        if session is None:
            raise DetectorError(CLOSED)
        try:
            answers = self._run_bound(session, feed) if self._bound else self._run_on_host(session, feed)
        except ORT_ERRORS as error:
            raise DetectorError(first_line(error)) from None
        return dict(zip(self._outputs, answers, strict=True))

    def _run_on_host(self, session: ort.InferenceSession, feed: Mapping[str, Array]) -> list[Array]:
        shapes = tuple(array.shape for array in feed.values())
        now = _CLOCK.monotonic()
        is_rare = shapes not in self._shapes or now - self._ran_at > IDLE_S
        self._shapes.add(shapes)
        self._ran_at = now
        gives_back = is_rare and self._device == "cpu"
        answers: list[Array] = session.run(self._outputs, dict(feed), self._give_back if gives_back else None)
        return answers

    def _run_bound(self, session: ort.InferenceSession, feed: Mapping[str, Array]) -> list[Array]:
        """In this thread's own memory on the device, which is kept for each shape; the least used goes."""
        given = [(each.name, np.ascontiguousarray(feed[each.name])) for each in self.inputs]
        for (name, array), spec in zip(given, self.inputs, strict=True):
            if array.dtype != spec.dtype:
                raise ValueError(f"{name} is {array.dtype}, and the network takes {spec.dtype}")
        kept: OrderedDict[Shapes, BoundInputs] = self._mine.__dict__.setdefault("kept", OrderedDict())
        shapes = tuple(array.shape for _, array in given)
        if shapes not in kept:
            made = BoundInputs(session, dict(given), self._outputs, self._device)
            while len(kept) >= BOUND_MAX:
                kept.popitem(last=False)
            kept[shapes] = made
        kept.move_to_end(shapes)
        return kept[shapes].run(dict(given))

    def close(self) -> None:
        """Give the session up. A run that is under way keeps it until it ends."""
        self._session = None
        self._mine = threading.local()


class BoundInputs:
    """Inputs of one shape that stay on the device (IOBinding): no memory is taken for them at a run."""

    def __init__(
        self, session: ort.InferenceSession, feed: Mapping[str, Array], outputs: Sequence[str], device: str
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in feed.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._binding.bind_output(name, device)

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """Return the answers in the host's memory. Raise as the session does."""
        for name, array in feed.items():
            self._values[name].update_inplace(array)
        self._session.run_with_iobinding(self._binding)
        return list(self._binding.copy_outputs_to_cpu())


def _providers(path: Path, device: str, provider: Provider, precision: Precision) -> tuple[ProviderOptions, ...]:
    if device == "cpu":
        return (("CPUExecutionProvider", {}),)
    check_cuda(path, ort.get_available_providers(), provider=provider)
    engines = PlanCache(engine_folder()).subfolder("onnxruntime") if provider == "tensorrt" else None
    if engines is not None:
        keep_few(engines)
    return gpu_providers(provider, path, precision, engines)


def _open(path: Path, threads: int, bf16: bool, providers: Sequence[ProviderOptions]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4
    # A plan of memory is kept for each shape, and mosaics have many: 5 MB, and no faster (benchmarks/RESULTS.md).
    options.enable_mem_pattern = False
    # Spinning doubles the CPU time of an inference when the machine is loaded.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not cpu_sums_int8():
        # Products of 8-bit weights then have sums of 32 bits, as on a CPU with VNNI, to the byte; at twice the time.
        options.add_session_config_entry("session.x64quantprecision", "1")
    if bf16:
        options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
    wanted = providers[0][0]
    needs = {CUDA: f"CUDA did not come up; {CUDA_NEEDS}", TENSORRT: f"TensorRT did not come up; {TENSORRT_NEEDS}"}
    try:
        # Without enable_fallback=0 a CUDA that does not come up silently becomes a CPU session.
        session = ort.InferenceSession(str(path), options, providers=list(providers), enable_fallback=0)
    except ORT_ERRORS as error:
        raise ModelError(f"{path}: {needs.get(wanted, 'not a usable ONNX file')}: {first_line(error)}") from None
    if session.get_providers()[0] != wanted:
        raise ModelError(f"{path}: device cuda was asked for, and {needs[wanted]}")
    return session


def check_cuda(path: Path, providers: Sequence[str], root: Path = Path("/"), provider: Provider = "cuda") -> None:
    """Package first, then driver: each with its cure. Raises ModelError."""
    if provider == "tensorrt" and CUDA in providers and TENSORRT not in providers:
        raise ModelError(
            f"{path}: detector.provider tensorrt: this onnxruntime-gpu {ort.__version__} is built without it, "
            "as that for arm64 is: set detector.backend to tensorrt, or detector.provider to cuda"
        )
    if CUDA not in providers:
        raise ModelError(
            f"{path}: device cuda needs the package onnxruntime-gpu, and this is onnxruntime {ort.__version__} for the "
            "CPU: pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu, or set detector.backend "
            "to tensorrt (quicker where its package is), or detector.device to cpu"
        )
    if not any((root / each).exists() for each in NVIDIA_FILES):  # a Jetson has the second alone
        raise ModelError(
            f"{path}: device cuda needs NVIDIA's driver, and none is loaded here (no /{NVIDIA_FILES[0]}): install it "
            "until nvidia-smi works (in a container: start it with --gpus all), or set detector.device to cpu"
        )


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
    # Layers that TensorRT does not take run on CUDA, as ONNX Runtime's documentation advises: they stay on the GPU.
    return ((TENSORRT, tensorrt_options(path, precision, engines)), (CUDA, cuda_options(precision)))


def cuda_options(precision: Precision) -> dict[str, str]:
    """Return the options of ONNX Runtime's CUDA provider."""
    return {
        "device_id": "0",  # the first that CUDA_VISIBLE_DEVICES leaves
        "cudnn_conv_algo_search": "HEURISTIC",  # EXHAUSTIVE, the default, tries each convolution in each new shape
        "arena_extend_strategy": "kSameAsRequested",  # not by doubling: a camera's box shares the GPU's memory
        "use_tf32": "0" if precision == "fp32" else "1",  # as for TensorRT: fp32, asked for, is float32
    }


def tensorrt_options(path: Path, precision: Precision, engines: Path | None) -> dict[str, str]:
    """Return the options of ONNX Runtime's TensorRT provider. Raises ModelError: the file is not what is asked for."""
    header = read_header(path)
    if precision == "int8" or header.quantised:
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
