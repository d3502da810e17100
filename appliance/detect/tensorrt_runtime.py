"""TensorRT as a NetworkRuntime: an engine built for this GPU, run on a stream of its own, as one recorded graph."""

from __future__ import annotations

import contextlib
import logging
import platform
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from appliance.base.config_model import Precision
from appliance.base.errors import DetectorError, ModelError
from appliance.bundle.manifest import sha256_of
from appliance.detect.cuda_runtime import CudaBuffer, CudaRuntime
from appliance.detect.letterbox import GpuFrame, Nv12Kernel, PixelRange, Placement, kernel_values
from appliance.detect.network_inputs import few_sizes, network_inputs, shape_step
from appliance.detect.network_runtime import CLOSED, Array
from appliance.detect.onnx_header import OnnxHeader, read_header
from appliance.detect.tensorrt_engine import (
    GPU_BATCH_SIZES,
    WORKSPACE_BYTES,
    EngineOrder,
    InputProfile,
    build_engine,
    choose_precision,
    input_profiles,
    load_tensorrt,
    make_logger,
    must_run_on_dla,
    version_of,
)
from appliance.detect.tensorrt_plan_cache import PlanCache, PlanKey, engine_folder, must_be_one_file

log = logging.getLogger(__name__)
RECORDED_MAX = 12  # three input sizes in four batch sizes; each holds some MB of the host's memory
Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Recording:
    """A recorded run: everything it enqueues, as one CUDA graph."""

    runs: int = 0
    graph: Any = None
    recordable: bool = True


@dataclass(slots=True)
class ReadyShape:
    """A context that was given its shapes and addresses, and its outputs.

    Frames come from the host, or are on the GPU already: a recording each.
    """

    context: Any
    outputs: tuple[tuple[int, ...], ...]
    from_host: Recording = field(default_factory=Recording)
    from_gpu: Recording = field(default_factory=Recording)


class TensorrtRuntime:
    """An engine on one GPU. Calls queue: one stream, one set of buffers, as large as the largest batch."""

    takes_any_shape = False

    def __init__(
        self,
        path: Path,
        *,
        precision: Precision = "auto",
        dla_core: int | None = None,
        cache: PlanCache | None = None,
    ) -> None:
        """Load the engine for `path` from the cache, or build it. Raise ModelError, MissingDependency."""
        self._trt = load_tensorrt()
        header = read_header(path)
        must_be_one_file(path, header.external)
        self._cuda = CudaRuntime()
        self._lock = threading.Lock()
        self._ready: OrderedDict[Shapes, ReadyShape] = OrderedDict()
        self._engine: Any = None
        self._runtime: Any = None
        self._outputs: list[str] = []
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._scratch_bytes = 0
        self._scratch = 0
        self._buffers: dict[str, CudaBuffer] = {}
        self._kernel: Nv12Kernel | None = None
        self.inputs = header.inputs
        self.metadata: Mapping[str, str] = header.metadata
        try:
            self._open(path, header, precision, dla_core, cache or PlanCache(engine_folder()))
        except DetectorError as error:
            self.close()
            raise ModelError(f"{path}: TensorRT {self._trt.__version__} does not come up: {error}") from None
        except ModelError:
            self.close()
            raise

    def _open(self, path: Path, header: OnnxHeader, asked: Precision, dla_core: int | None, cache: PlanCache) -> None:
        precision = choose_precision(asked, header, path, version_of(self._trt), dla=dla_core is not None)
        self._takes = found = network_inputs(path, header.inputs, header.metadata)
        # A DLA takes one shape: no profile with a range, and one size.
        on_dla = dla_core is not None
        sizes = few_sizes(found, shape_step(header.metadata))
        self.input_sizes = sizes[-1:] if on_dla else sizes
        self.batch_sizes = GPU_BATCH_SIZES if found.free_batch and not on_dla else (1,)
        # Kernels are tuned for a profile's usual shape: the one frame of a quiet site has profiles of its own.
        counts = sorted({1, self.batch_sizes[-1]})
        self._profiles = tuple(
            each for count in counts for each in input_profiles(header, found, self.input_sizes, count)
        )
        gpu = self._cuda.gpu
        built_as = precision.name + (f" dla{dla_core}" if on_dla else "")
        self.version = f"tensorrt {self._trt.__version__}, {gpu.name}, {built_as}"
        self.mark = f"tensorrt-{built_as}".replace(" ", "-")
        key = PlanKey(
            sha256_of(path), str(self._trt.__version__), gpu.name, gpu.compute,
            f"{platform.machine()} {platform.system()}", built_as, _profile_names(self._profiles),
        )  # fmt: skip
        order = EngineOrder(path, precision, self._profiles, dla_core, min(WORKSPACE_BYTES, gpu.memory_bytes // 4))
        self._logger = make_logger(self._trt)
        try:
            self._runtime = self._trt.Runtime(self._logger)
        except TypeError as error:  # what its factory says where the driver is older than TensorRT
            message = "; ".join(self._logger.errors) or str(error)
            raise DetectorError(f"{message}; is the driver new enough for it (nvidia-smi)?") from None
        if on_dla:
            self._runtime.DLA_core = dla_core
        self._engine = self._load(key, order, cache)
        if on_dla:
            must_run_on_dla(self._trt, self._engine, order, header.convolutions)
        self._reserve()

    def _load(self, key: PlanKey, order: EngineOrder, cache: PlanCache) -> Any:
        """Return the engine that is kept, or one that is built now. Raise ModelError."""
        plan = cache.load(key)
        engine = self._runtime.deserialize_cuda_engine(plan) if plan is not None else None
        if engine is not None:
            log.info("TensorRT: the engine for %s was built before", order.path.name)
            return engine
        if plan is not None:
            log.warning("TensorRT: the kept engine for %s is not taken, and built again", order.path.name)
            cache.discard(key)
        log.info("TensorRT: building an engine for %s on %s, once; this takes minutes", order.path.name, key.gpu)
        built = build_engine(self._trt, order, cache.load_timing(key))
        cache.store_timing(key, built.timing)
        cache.store(key, built.plan)
        log.info("TensorRT: built an engine of %.1f MB for %s", len(built.plan) / 1e6, order.path.name)
        engine = self._runtime.deserialize_cuda_engine(built.plan)
        if engine is None:
            cache.discard(key)
            message = "; ".join(self._logger.errors) or "it does not say why"
            raise ModelError(f"{order.path}: TensorRT does not load the engine it has built: {message}")
        return engine

    def _reserve(self) -> None:
        """Buffers for the largest run of any profile, and memory for what lies between layers. Raises DetectorError."""
        engine, trt = self._engine, self._trt
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        outputs = {name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT}
        self._outputs = [each for each in names if each in outputs]
        self._dtypes = {name: self._numpy_type(name) for name in names}
        self._scratch_bytes = int(engine.device_memory_size_v2)
        self._scratch = self._cuda.device_memory(self._scratch_bytes)
        sizes = dict.fromkeys(names, 0)
        for shapes in self._profiles:
            most = tuple(each.most for each in shapes)
            context = self._context(most)
            found = zip(self._outputs, self._answers(context), strict=True)
            for name, shape in [*zip((each.name for each in shapes), most, strict=True), *found]:
                sizes[name] = max(sizes[name], int(np.prod(shape)) * self._dtypes[name].itemsize)
        self._buffers = {name: self._cuda.buffer(size) for name, size in sizes.items()}

    def _numpy_type(self, name: str) -> np.dtype[Any]:
        kind = self._engine.get_tensor_dtype(name)
        try:
            known: np.dtype[Any] = np.dtype(self._trt.nptype(kind))
        except TypeError:
            raise DetectorError(f"{name} is {kind}, which numpy has not: export it with float32 there") from None
        return known

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Record the run in these shapes. Any thread."""
        feed = {each.name: np.zeros(shapes[each.name], self._dtypes[each.name]) for each in self.inputs}
        for _ in range(2):  # the first run of a context lets TensorRT settle, the second is recorded
            try:
                self.run(feed)
            except DetectorError as error:
                log.info("TensorRT: nothing is recorded for %s: %s", shapes, error)
                return

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network. Raise DetectorError."""
        given = [(each.name, feed[each.name]) for each in self.inputs]
        for name, array in given:
            if array.dtype != self._dtypes[name]:
                raise DetectorError(f"{name} is {array.dtype}, and the network takes {self._dtypes[name]}")
        with self._lock:
            if self._engine is None:
                raise DetectorError(CLOSED)
            ready = self._at(tuple(array.shape for _, array in given))
            for name, array in given:
                np.copyto(self._buffers[name].view(array.dtype, array.shape), array)
            self._go(ready, ready.from_host, [(self._buffers[name], array.nbytes) for name, array in given])
            return self._answer(ready)

    def run_frames(
        self, frames: Sequence[GpuFrame], places: Sequence[Placement], pixels: PixelRange, others: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run the network on frames in the GPU's memory, which are laid into the input there; see `run`.

        others: what the network takes beside them. Raise DetectorError; MissingDependency, ModelError: the kernel
        cannot be had.
        """
        taken = self._takes
        if taken.order != "NCHW" or taken.dtype is np.uint8:
            raise DetectorError(f"frames on the GPU are laid as planes of floats, and {taken.frame} is something else")
        shape = (len(frames), 3, *reversed(places[0].input_size))
        with self._lock:
            if self._engine is None:
                raise DetectorError(CLOSED)
            ready = self._at(
                tuple(shape if each.name == taken.frame else others[each.name].shape for each in self.inputs)
            )
            self._lay(frames, places, pixels)
            for name, array in others.items():
                np.copyto(self._buffers[name].view(array.dtype, array.shape), array)
            self._go(ready, ready.from_gpu, [(self._buffers[name], array.nbytes) for name, array in others.items()])
            return self._answer(ready)

    @property
    def recorded(self) -> int:
        """How many runs are CUDA graphs now."""
        return sum(
            each.graph is not None for ready in self._ready.values() for each in (ready.from_host, ready.from_gpu)
        )

    def close(self) -> None:
        """Give memory, stream and engine back. A second call does nothing."""
        with self._lock:
            with contextlib.suppress(DetectorError):  # a GPU that is lost; what still runs would use what is freed here
                self._cuda.wait()
            self._cuda.forget_all()
            self._ready.clear()
            self._engine = self._runtime = None
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            self._cuda.close()

    def _lay(self, frames: Sequence[GpuFrame], places: Sequence[Placement], pixels: PixelRange) -> None:
        """Enqueue the kernel for each frame. The kernel is compiled with the first."""
        self._cuda.call("cudaSetDevice", 0)  # calls of the CUDA driver in this thread mean this GPU
        self._cuda.call("cudaStreamSynchronize", 0)  # the default stream: NVDEC writes on it, and ours does not wait
        if self._kernel is None:
            self._kernel = Nv12Kernel(self._cuda.gpu.compute)
        kind, at = self._dtypes[self._takes.frame], self._buffers[self._takes.frame].device
        for frame, place in zip(frames, places, strict=True):
            values = kernel_values(frame, place, pixels, at, half_floats=kind.itemsize == 2)
            self._kernel.launch(values, place.input_size, int(self._cuda.stream))
            at += 3 * place.input_size[0] * place.input_size[1] * kind.itemsize

    def _answer(self, ready: ReadyShape) -> dict[str, Array]:
        """Once it is there."""
        self._cuda.wait()
        return {
            name: self._buffers[name].view(self._dtypes[name], shape).copy()
            for name, shape in zip(self._outputs, ready.outputs, strict=True)
        }

    def _go(self, ready: ReadyShape, recording: Recording, copies: Sequence[tuple[CudaBuffer, int]]) -> None:
        """Enqueue a run: copies in, network, copies out; from the second time on as one recorded graph."""
        recording.runs += 1
        if recording.runs == 2 and recording.recordable:
            self._record(ready, recording, copies)
        if recording.graph is not None:
            self._cuda.launch(recording.graph)
        else:
            self._enqueue(ready, copies)

    def _enqueue(self, ready: ReadyShape, copies: Sequence[tuple[CudaBuffer, int]]) -> None:
        for buffer, size in copies:
            self._cuda.upload(buffer, size)
        if not ready.context.execute_async_v3(int(self._cuda.stream)):
            raise DetectorError(f"TensorRT does not run: {'; '.join(self._logger.errors) or 'it does not say why'}")
        for name, shape in zip(self._outputs, ready.outputs, strict=True):
            self._cuda.download(self._buffers[name], int(np.prod(shape)) * self._dtypes[name].itemsize)

    def _record(self, ready: ReadyShape, recording: Recording, copies: Sequence[tuple[CudaBuffer, int]]) -> None:
        """Record the run; a network that cannot be (a loop, a shape that depends on data) is run call by call."""
        try:
            self._cuda.begin_capture()
            self._enqueue(ready, copies)
            recording.graph = self._cuda.end_capture()
        except DetectorError as error:
            self._cuda.abandon_capture()
            recording.recordable = False
            log.info("TensorRT: runs are not recorded as a CUDA graph: %s", error)

    def _at(self, shapes: Shapes) -> ReadyShape:
        """Contexts are kept by shape: a recorded graph is good for one. The least used goes. Raises DetectorError."""
        found = self._ready.get(shapes)
        if found is not None:
            self._ready.move_to_end(shapes)
            return found
        context = self._context(shapes)
        for name, buffer in self._buffers.items():
            if not context.set_tensor_address(name, buffer.device):
                raise DetectorError(f"TensorRT does not take the memory for {name}")
        made = ReadyShape(context, self._answers(context))
        if len(self._ready) >= RECORDED_MAX:
            _, old = self._ready.popitem(last=False)
            for each in (old.from_host, old.from_gpu):
                if each.graph is not None:
                    self._cuda.forget(each.graph)
        self._ready[shapes] = made
        return made

    def _context(self, shapes: Shapes) -> Any:
        """With all inputs in these shapes. Raises DetectorError: no profile has them."""
        trt = self._trt
        number = next((n for n, each in enumerate(self._profiles) if _holds(each, shapes)), None)
        if number is None:
            known = ", ".join(_profile_names((each,)) for each in self._profiles)
            raise DetectorError(f"no engine for inputs of {[list(shape) for shape in shapes]}; there are {known}")
        context = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if context is None:
            raise DetectorError(f"TensorRT gives no context: {'; '.join(self._logger.errors) or 'out of memory?'}")
        context.set_device_memory(self._scratch, self._scratch_bytes)
        if not context.set_optimization_profile_async(number, int(self._cuda.stream)):
            raise DetectorError(f"TensorRT refuses its profile {number}")
        self._cuda.wait()
        for each, shape in zip(self.inputs, shapes, strict=True):
            if not context.set_input_shape(each.name, shape):
                raise DetectorError(f"TensorRT refuses {each.name} of {list(shape)}")
        return context

    def _answers(self, context: Any) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of its outputs. Raise DetectorError: they are known only after a run."""
        unknown = context.infer_shapes()
        shapes = tuple(tuple(int(side) for side in context.get_tensor_shape(name)) for name in self._outputs)
        if unknown or any(side < 0 for shape in shapes for side in shape):
            raise DetectorError(f"the sizes of its outputs depend on what is seen ({[list(each) for each in shapes]})")
        return shapes


def _holds(profile: tuple[InputProfile, ...], shapes: Shapes) -> bool:
    return len(profile) == len(shapes) and all(
        len(shape) == len(each.most)
        and all(low <= side <= high for low, side, high in zip(each.least, shape, each.most, strict=True))
        for each, shape in zip(profile, shapes, strict=True)
    )


def _profile_names(profiles: tuple[tuple[InputProfile, ...], ...]) -> str:
    """`images 1-8x3x288x416`, for keys and messages."""
    return "; ".join(
        " and ".join(
            f"{each.name} "
            + "x".join(
                str(low) if low == high else f"{low}-{high}" for low, high in zip(each.least, each.most, strict=True)
            )
            for each in profile
        )
        for profile in profiles
    )
