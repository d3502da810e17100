"""NVIDIA's CUDA runtime by cuda-bindings: memory, one stream, graphs; every return code is checked."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.detect.network_runtime import Array

BINDINGS_CURE = (
    "pip install 'cuda-bindings<13' for CUDA 12 (JetPack 6), pip install cuda-bindings for CUDA 13 (JetPack 7.2)"
)
DRIVER_CURE = (
    "install NVIDIA's driver until nvidia-smi works (in a container: start it with --gpus all; on a Jetson: "
    "--runtime nvidia)"
)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves. compute: its compute capability, `8.7` on Orin."""

    name: str
    compute: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.compute})"


@dataclass(slots=True)
class CudaBuffer:
    """Memory on the GPU, and as much page-locked memory on the host. Owned by the CudaRuntime that made it."""

    device: int
    host: int
    size: int

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the first bytes of the host's memory as an array. It is good until the buffer is freed."""
        count = int(np.prod(shape, dtype=np.int64))
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self.host)
        return np.frombuffer(memoryview(raw), dtype, count).reshape(shape)


class CudaRuntime:
    """The primary context of one GPU, and one stream in it. `close` gives back all that it hands out."""

    def __init__(self) -> None:
        """Load the CUDA runtime. Raises MissingDependency without it, ModelError without a GPU."""
        self._api = _bindings()
        self._buffers: list[CudaBuffer] = []
        self._graphs: list[Any] = []
        self.gpu = self._facts()
        try:
            # One that does not wait for the default stream, which other libraries of this process use.
            self.stream = self.call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)
        except DetectorError as error:
            raise ModelError(f"the GPU gives no stream: {error}") from None

    def call(self, name: str, *given: Any) -> Any:
        """Call a function of the CUDA runtime and return its results without the status.

        Raises DetectorError in CUDA's words.
        """
        return checked_call(self._api, name, given, self._api.cudaGetErrorString)

    def buffer(self, size: int) -> CudaBuffer:
        """Memory on both sides. Raises DetectorError: there is not as much."""
        made = CudaBuffer(0, 0, max(1, size))
        self._buffers.append(made)
        made.device = int(self.call("cudaMalloc", made.size))
        made.host = int(self.call("cudaMallocHost", made.size))
        return made

    def device_memory(self, size: int) -> int:
        """Memory on the GPU alone. Raises DetectorError."""
        made = CudaBuffer(0, 0, max(256, size))
        self._buffers.append(made)
        made.device = int(self.call("cudaMalloc", made.size))
        return made.device

    def upload(self, buffer: CudaBuffer, size: int) -> None:
        """Enqueue a copy of the first `size` bytes to the GPU."""
        way = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpyAsync", buffer.device, buffer.host, size, way, self.stream)

    def download(self, buffer: CudaBuffer, size: int) -> None:
        """Enqueue a copy of the first `size` bytes to the host."""
        way = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpyAsync", buffer.host, buffer.device, size, way, self.stream)

    def wait(self) -> None:
        """Until all that was enqueued is done; what failed on the GPU is raised here."""
        self.call("cudaStreamSynchronize", self.stream)

    def begin_capture(self) -> None:
        """Begin to record what is enqueued, instead of doing it."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """End the recording and return it, ready for `launch`.

        Raises DetectorError if something in it cannot be recorded.
        """
        graph = self.call("cudaStreamEndCapture", self.stream)
        try:
            ready = self.call("cudaGraphInstantiate", graph, 0)
        finally:
            self.call("cudaGraphDestroy", graph)
        self._graphs.append(ready)
        return ready

    def abandon_capture(self) -> None:
        """After a failure while recording: the stream takes work again."""
        with contextlib.suppress(DetectorError):
            graph = self.call("cudaStreamEndCapture", self.stream)
            self.call("cudaGraphDestroy", graph)
        self._api.cudaGetLastError()  # an error that was told is kept until it is asked for

    def launch(self, graph: Any) -> None:
        """Enqueue all that was recorded, in one call."""
        self.call("cudaGraphLaunch", graph, self.stream)

    def forget(self, graph: Any) -> None:
        """Give back what `end_capture` returned."""
        self._graphs.remove(graph)
        self.call("cudaGraphExecDestroy", graph)

    def forget_all(self) -> None:
        """Give all recordings back. A broken GPU refuses that too: what fails is left."""
        while self._graphs:
            self._api.cudaGraphExecDestroy(self._graphs.pop())

    def close(self) -> None:
        """Give everything back; what fails is left. A second call does nothing."""
        self.forget_all()
        while self._buffers:
            made = self._buffers.pop()
            if made.device:
                self._api.cudaFree(made.device)
            if made.host:
                self._api.cudaFreeHost(made.host)
        if self.stream is not None:
            self._api.cudaStreamDestroy(self.stream)
            self.stream = None

    def _facts(self) -> GpuFacts:
        try:
            count = self.call("cudaGetDeviceCount")
            if not count:
                raise DetectorError("cudaGetDeviceCount: no GPU")
            found = self.call("cudaGetDeviceProperties", 0)
        except DetectorError as error:
            raise ModelError(
                f"CUDA finds no GPU here ({error}): {DRIVER_CURE}, or set detector.device to cpu"
            ) from None
        return GpuFacts(_text(found.name).strip("\0 "), f"{found.major}.{found.minor}", int(found.totalGlobalMem))


def checked_call(api: Any, name: str, given: Sequence[Any], words: Callable[[Any], tuple[Any, Any]]) -> Any:
    """Call a function of NVIDIA's libraries and return its results without the status.

    Raises DetectorError in the words of `words`.
    """
    status, *values = getattr(api, name)(*given)
    if int(status) != 0:
        raise DetectorError(f"{name}: {_text(words(status)[1])} (CUDA error {int(status)})")
    return values[0] if len(values) == 1 else tuple(values) or None


def _text(words: Any) -> str:
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)


def _bindings() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MissingDependency(f"device cuda needs the package cuda-bindings ({error}): {BINDINGS_CURE}") from None
    return runtime
