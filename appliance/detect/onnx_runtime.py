"""ONNX Runtime as a NetworkRuntime: on the CPU, or on an NVIDIA GPU by CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from appliance.detect.network_runtime import CLOSED, Array, TensorSpec, first_line
from appliance.errors import DetectorError, ModelError

VERSION = f"onnxruntime {ort.__version__}"
NUMPY_NAMES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(uint8)": "uint8",
}  # fmt: skip
GPU_BATCH_SIZES = (1, 2, 4, 8)
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
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
CUDA_NEEDS = "it needs NVIDIA's driver (nvidia-smi), CUDA 12 and cuDNN 9: pip install 'onnxruntime-gpu[cuda,cudnn]'"


class OnnxRuntime:
    """A session of ONNX Runtime.

    Where the file leaves sides open, all shapes run in one session: ONNX Runtime plans memory once for each. On a CPU a
    batch of 2 to 8 frames takes 0.97 to 1.02 of their time one by one (docs/hardware.md), so there are none.
    """

    def __init__(
        self, path: Path, *, threads: int = 1, device: Literal["cpu", "cuda"] = "cpu", bf16: bool = False
    ) -> None:
        """Raises ModelError. bf16: products in bfloat16 where ONNX Runtime has them, on arm64 (see
        `model_files.cpu_has_bf16`); elsewhere it does nothing."""
        session = _open(path, threads, device, bf16)
        self._session: ort.InferenceSession | None = session
        self._outputs = [output.name for output in session.get_outputs()]
        self.version = f"{VERSION}, {device}"
        self.mark = "" if device == "cpu" else f"onnx-{device}"
        self.takes_any_shape = device == "cpu"  # cuDNN searches its algorithms for each
        self.batch_sizes = (1,) if device == "cpu" else GPU_BATCH_SIZES
        self.inputs = tuple(
            TensorSpec(each.name, NUMPY_NAMES.get(each.type, each.type), tuple(each.shape))
            for each in session.get_inputs()
        )
        self.input_sizes: tuple[tuple[int, int], ...] = ()
        self.metadata: Mapping[str, str] = dict(session.get_modelmeta().custom_metadata_map)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Nothing: memory is planned at the first inference in a shape."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Raises DetectorError."""
        session = self._session
        if session is None:
            raise DetectorError(CLOSED)
        try:
            return dict(zip(self._outputs, session.run(self._outputs, dict(feed)), strict=True))
        except ORT_ERRORS as error:
            raise DetectorError(first_line(error)) from None

    def close(self) -> None:
        """A run that is under way keeps the session until it ends."""
        self._session = None


def _open(path: Path, threads: int, device: str, bf16: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4
    # Spinning doubles the CPU time of an inference when the machine is loaded.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if bf16:
        options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if device == "cuda":
        check_cuda(path, ort.get_available_providers())
    try:
        # Without enable_fallback=0 a CUDA that does not come up silently becomes a CPU session.
        session = ort.InferenceSession(str(path), options, providers=[provider], enable_fallback=0)
    except ORT_ERRORS as error:
        what = f"CUDA did not come up; {CUDA_NEEDS}" if device == "cuda" else "not a usable ONNX file"
        raise ModelError(f"{path}: {what}: {first_line(error)}") from None
    if session.get_providers()[0] != provider:
        raise ModelError(f"{path}: device cuda was asked for, but CUDA did not come up; {CUDA_NEEDS}")
    return session


def check_cuda(path: Path, providers: Sequence[str], driver: Path = NVIDIA_DRIVER) -> None:
    """Package first, then driver: each with its cure. Raises ModelError."""
    if "CUDAExecutionProvider" not in providers:
        raise ModelError(
            f"{path}: device cuda needs the package onnxruntime-gpu, and this is onnxruntime {ort.__version__} for the "
            "CPU: pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu, or set detector.device "
            "to cpu"
        )
    if not driver.exists():
        raise ModelError(
            f"{path}: device cuda needs NVIDIA's driver, and none is loaded here ({driver} is missing): install it "
            "until nvidia-smi works (in a container: start it with --gpus all), or set detector.device to cpu"
        )
