"""Stand-ins for NVIDIA's Python modules, by the signatures of the real ones: a GPU that is this computer's memory.

What is enqueued on a stream is done when somebody waits for it: who reads too early reads nothing. Engines compute by
ONNX Runtime. nvidia_signatures.json says what each version has; test_nvidia_signatures.py holds these classes to it.
"""

from __future__ import annotations

import base64
import ctypes
import enum
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort

from appliance.detect import letterbox
from appliance.detect.letterbox import PixelRange, Placement
from appliance.detect.onnx_header import read_header
from benchmarks import gpu_reference

SIGNATURES: dict[str, Any] = json.loads((Path(__file__).parent / "nvidia_signatures.json").read_text())
VERSIONS = ("10.3.0", "10.16.1.11", "11.4.0.106")
Work = Callable[[], int]


class FakeGpu:
    """What the modules share. fails: the CUDA function, or step of TensorRT, that fails, with its status."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.queue: list[Work] = []
        self.recording: list[Work] | None = None
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []
        self.streams = 0
        self.graphs = 0
        self.dla_cores = 0
        self.builds = 0
        self.device_count = 1

    def allocate(self, size: int) -> int:
        block = ctypes.create_string_buffer(size)
        address = ctypes.addressof(block)
        self.blocks[address] = block
        return address

    def holds(self, address: int, size: int) -> bool:
        return any(at <= address and address + size <= at + len(block) for at, block in self.blocks.items())

    def enqueue(self, work: Work) -> None:
        (self.queue if self.recording is None else self.recording).append(work)

    def drain(self) -> int:
        """The first status that is not 0, as a real stream tells it at the next wait."""
        done, self.queue = self.queue, []
        return next((status for status in [work() for work in done] if status), 0)


Status = enum.IntEnum(
    "Status",
    {
        "cudaSuccess": 0,
        "cudaErrorMemoryAllocation": 2,
        "cudaErrorInsufficientDriver": 35,
        "cudaErrorIllegalAddress": 700,
        "cudaErrorStreamCaptureUnsupported": 900,
        "cudaErrorUnknown": 999,
    },
)


def fake_cudart(gpu: FakeGpu) -> ModuleType:
    """cuda.bindings.runtime: every function returns (status, values...)."""
    module = ModuleType("cuda.bindings.runtime")
    table = SIGNATURES["cuda 13.5.0"]
    kinds = enum.IntEnum("cudaMemcpyKind", table["enumerations"]["cudaMemcpyKind"])  # type: ignore[misc]

    def told(name: str, given: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def function(*args: Any) -> tuple[Any, ...]:
            gpu.calls.append(name)
            status = gpu.fails.get(name, 0)
            if status:
                return (Status(status), *([None] * max(0, len(given_none.get(name, ())))))
            return given(*args)

        return function

    given_none = {"cudaMalloc": (0,), "cudaMallocHost": (0,), "cudaGetDeviceCount": (0,), "cudaStreamEndCapture": (0,)}

    def free(devPtr: int) -> tuple[Any, ...]:  # noqa: N803
        known = gpu.blocks.pop(devPtr, None) is not None
        return (Status.cudaSuccess if known else Status.cudaErrorIllegalAddress,)

    def free_host(ptr: int) -> tuple[Any, ...]:
        return free(ptr)

    def copy(dst: int, src: int, count: int, kind: Any, stream: Any) -> tuple[Any, ...]:
        assert isinstance(kind, kinds)
        assert stream == "stream"

        def work() -> int:
            if not gpu.holds(dst, count) or not gpu.holds(src, count):
                return Status.cudaErrorIllegalAddress
            ctypes.memmove(dst, src, count)
            return 0

        gpu.enqueue(work)
        return (Status.cudaSuccess,)

    def create_stream(flags: int) -> tuple[Any, ...]:
        gpu.streams += 1
        return Status.cudaSuccess, Stream("stream")

    def destroy_stream(stream: Any) -> tuple[Any, ...]:
        gpu.streams -= 1
        return (Status.cudaSuccess,)

    def begin(stream: Any, mode: Any) -> tuple[Any, ...]:
        gpu.recording = []
        return (Status.cudaSuccess,)

    def end(stream: Any) -> tuple[Any, ...]:
        graph, gpu.recording = gpu.recording, None
        gpu.graphs += 1
        return Status.cudaSuccess, graph

    def instantiate(graph: Any, flags: int) -> tuple[Any, ...]:
        gpu.graphs += 1
        return Status.cudaSuccess, tuple(graph)

    def destroy_graph(graph: Any) -> tuple[Any, ...]:
        gpu.graphs -= 1
        return (Status.cudaSuccess,)

    def destroy_executable(graphExec: Any) -> tuple[Any, ...]:  # noqa: N803
        return destroy_graph(graphExec)

    def launch(graphExec: Any, stream: Any) -> tuple[Any, ...]:  # noqa: N803
        for work in graphExec:
            gpu.enqueue(work)
        return (Status.cudaSuccess,)

    def synchronise(stream: Any) -> tuple[Any, ...]:
        if gpu.recording is not None:
            return (Status.cudaErrorStreamCaptureUnsupported,)
        return (Status(gpu.drain()),)

    properties = SimpleNamespace(name=b"NVIDIA L4\0\0", major=8, minor=9, totalGlobalMem=24 << 30)
    functions: dict[str, Callable[..., tuple[Any, ...]]] = {
        "cudaGetDeviceCount": lambda: (Status.cudaSuccess, gpu.device_count),
        "cudaSetDevice": lambda device: (Status.cudaSuccess,),
        "cudaGetDeviceProperties": lambda device: (Status.cudaSuccess, properties),
        "cudaGetErrorString": lambda error: (Status.cudaSuccess, error.name.encode()),
        "cudaGetLastError": lambda: (Status.cudaSuccess,),
        "cudaMemGetInfo": lambda: (
            Status.cudaSuccess,
            (24 << 30) - sum(len(block) for block in gpu.blocks.values()),
            24 << 30,
        ),
        "cudaMalloc": lambda size: (Status.cudaSuccess, gpu.allocate(size)),
        "cudaMallocHost": lambda size: (Status.cudaSuccess, gpu.allocate(size)),
        "cudaFree": free,
        "cudaFreeHost": free_host,
        "cudaMemcpyAsync": copy,
        "cudaStreamCreateWithFlags": create_stream,
        "cudaStreamDestroy": destroy_stream,
        "cudaStreamSynchronize": synchronise,
        "cudaStreamBeginCapture": begin,
        "cudaStreamEndCapture": end,
        "cudaGraphInstantiate": instantiate,
        "cudaGraphDestroy": destroy_graph,
        "cudaGraphExecDestroy": destroy_executable,
        "cudaGraphLaunch": launch,
    }
    for name, function in functions.items():
        checked = told(name, function)
        checked.__wrapped__ = function  # type: ignore[attr-defined]
        setattr(module, name, checked)
    names = {"cudaMemcpyKind": kinds, "cudaStreamNonBlocking": table["cudaStreamNonBlocking"]}
    names["cudaStreamCaptureMode"] = enum.IntEnum(  # type: ignore[misc]
        "cudaStreamCaptureMode", table["enumerations"]["cudaStreamCaptureMode"]
    )
    for name, value in names.items():
        setattr(module, name, value)
    return module


def fake_driver(gpu: FakeGpu) -> ModuleType:
    """cuda.bindings.driver: a kernel is nv12_letterbox, and answers as numpy does."""
    module = ModuleType("cuda.bindings.driver")

    def launch(  # noqa: PLR0917  (as many as the real one)
        f: Any, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int, blockDimY: int, blockDimZ: int,  # noqa: N803
        sharedMemBytes: int, hStream: Any, kernelParams: Any, extra: Any,  # noqa: N803
    ) -> tuple[Any, ...]:  # fmt: skip
        values, types = kernelParams
        assert (f, int(hStream), len(values)) == (letterbox.NAME, 77, len(types))
        assert gridDimX * blockDimX >= values[10]
        assert gridDimY * blockDimY >= values[11]
        gpu.enqueue(lambda: _lay(gpu, values))
        return (Status.cudaSuccess,)

    _put(module, gpu, {
        "cuModuleLoadData": lambda image: (Status.cudaSuccess, bytes(image)),
        "cuModuleGetFunction": lambda hmod, name: (Status.cudaSuccess, name),
        "cuModuleUnload": lambda hmod: (Status.cudaSuccess,),
        "cuGetErrorString": lambda error: (Status.cudaSuccess, error.name.encode()),
        "cuLaunchKernel": launch,
    })  # fmt: skip
    return module


def fake_nvrtc(gpu: FakeGpu) -> ModuleType:
    """cuda.bindings.nvrtc: compiles anything."""
    module = ModuleType("cuda.bindings.nvrtc")

    def create(src: bytes, name: bytes, numHeaders: int, headers: Any, includeNames: Any) -> tuple[Any, ...]:  # noqa: N803
        return Status.cudaSuccess, src

    def compile_program(prog: Any, numOptions: int, options: Any) -> tuple[Any, ...]:  # noqa: N803
        assert numOptions == len(options)
        return (Status.cudaSuccess,)

    def fill(buffer: bytearray, text: bytes) -> tuple[Any, ...]:
        buffer[:] = text
        return (Status.cudaSuccess,)

    said, binary = b"nv12_letterbox.cu(7): error: expected a ;\0", b"\x7fELF"
    _put(module, gpu, {
        "nvrtcVersion": lambda: (Status.cudaSuccess, 13, 5),
        "nvrtcCreateProgram": create,
        "nvrtcCompileProgram": compile_program,
        "nvrtcGetProgramLogSize": lambda prog: (Status.cudaSuccess, len(said)),
        "nvrtcGetProgramLog": lambda prog, log: fill(log, said),
        "nvrtcGetCUBINSize": lambda prog: (Status.cudaSuccess, len(binary)),
        "nvrtcGetCUBIN": lambda prog, cubin: fill(cubin, binary),
        "nvrtcDestroyProgram": lambda prog: (Status.cudaSuccess,),
        "nvrtcGetErrorString": lambda result: (Status.cudaSuccess, result.name.encode()),
    })  # fmt: skip
    return module


def _put(module: ModuleType, gpu: FakeGpu, functions: dict[str, Callable[..., tuple[Any, ...]]]) -> None:
    """Into the module; each fails where `gpu.fails` names it."""

    def told(name: str, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def called(*args: Any) -> tuple[Any, ...]:
            gpu.calls.append(name)
            return (Status(gpu.fails[name]), None) if name in gpu.fails else function(*args)

        called.__wrapped__ = function  # type: ignore[attr-defined]
        return called

    for name, function in functions.items():
        setattr(module, name, told(name, function))


def _lay(gpu: FakeGpu, values: tuple[Any, ...]) -> int:
    """As the kernel, from one part of the GPU's memory to another."""
    luma_at, luma_pitch, chroma_at, chroma_pitch, width, height = values[:6]
    place = Placement(*values[6:10], (values[10], values[11]))
    half, out = values[-2:]
    size = 3 * values[10] * values[11] * (2 if half else 4)
    lines = (height + 1) // 2
    if not (
        gpu.holds(luma_at, luma_pitch * height) and gpu.holds(chroma_at, chroma_pitch * lines) and gpu.holds(out, size)
    ):
        return Status.cudaErrorIllegalAddress
    luma = np.frombuffer(ctypes.string_at(luma_at, luma_pitch * height), np.uint8).reshape(height, luma_pitch)
    chroma = np.frombuffer(ctypes.string_at(chroma_at, chroma_pitch * lines), np.uint8).reshape(lines, -1, 2)
    pixels = PixelRange(bool(values[-3]), values[18:21], values[21:24])
    laid = gpu_reference.lay(luma[:, :width], chroma[:, : (width + 1) // 2], place, pixels, full_range=values[12] == 1)
    content = laid.astype(np.float16 if half else np.float32).tobytes()
    ctypes.memmove(out, content, len(content))
    return 0


class Stream(str):
    """A handle, which goes to TensorRT as a number."""

    def __int__(self) -> int:
        return 77


def fake_tensorrt(version: str, gpu: FakeGpu) -> ModuleType:
    """The module `tensorrt` of one of VERSIONS."""
    module = ModuleType("tensorrt")
    module.__version__ = version  # type: ignore[attr-defined]
    table = SIGNATURES[f"tensorrt {version}"]
    made = {name: enum.IntEnum(name, members) for name, members in table["enumerations"].items()}  # type: ignore[misc]
    major = int(version.split(".", maxsplit=1)[0])
    flag, dtype, severity = made["BuilderFlag"], made["DataType"], made["Severity"]
    numpy_types = {
        dtype.FLOAT: np.float32,
        dtype.HALF: np.float16,
        dtype.INT64: np.int64,
        dtype.INT32: np.int32,
        dtype.UINT8: np.uint8,
    }
    by_name = {np.dtype(value).name: key for key, value in numpy_types.items()}

    class ILogger:
        Severity = severity

        def __init__(self) -> None:
            self.ready = True

        def log(self, severity: Any, msg: str) -> None: ...

    class IProgressMonitor:
        def __init__(self) -> None:
            self.ready = True

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None: ...

        def phase_finish(self, phase_name: str) -> None: ...

        def step_complete(self, phase_name: str, step: int) -> bool: ...

    class IHostMemory(bytes): ...

    class ITimingCache:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def serialize(self) -> IHostMemory:
            return IHostMemory(self._content + b"learnt;")

    class IOptimizationProfile:
        def __init__(self) -> None:
            self._shapes: dict[str, Any] = {}

        def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
            if not len(min) == len(opt) == len(max) or any(
                not low <= mid <= high for low, mid, high in zip(min, opt, max, strict=True)
            ):
                raise ValueError("an inconsistency was detected")
            self._shapes[input] = (tuple(min), tuple(opt), tuple(max))

    class IBuilderConfig:
        def __init__(self) -> None:
            self._flags = {flag.TF32}
            self._profiles: list[Any] = []
            self._timing: ITimingCache | None = None
            self._pool = 0

        def set_flag(self, flag: Any) -> None:
            self._flags.add(flag)

        def clear_flag(self, flag: Any) -> None:
            self._flags.discard(flag)

        def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
            self._pool = pool_size

        def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
            self._profiles.append(profile._shapes)
            return len(self._profiles) - 1

        def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache:
            return ITimingCache(bytes(serialized_timing_cache))

        def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
            if not set(cache._content.split(b";")) <= {b"learnt", b""}:
                return False
            self._timing = cache
            return True

        def get_timing_cache(self) -> ITimingCache | None:
            return self._timing

        progress_monitor = default_device_type = DLA_core = profiling_verbosity = None

    class INetworkDefinition:
        def __init__(self, flags: int) -> None:
            self._typed = major >= 11 or bool(flags & (1 << int(made["NetworkDefinitionCreationFlag"].STRONGLY_TYPED)))
            self._path = Path()

    class ParserError:
        def __init__(self, words: str) -> None:
            self._words = words

        def desc(self) -> str:
            return self._words

        def __str__(self) -> str:
            return self._words

    class OnnxParser:
        def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
            self._network = network
            self._errors: list[ParserError] = []

        def parse_from_file(self, model: str) -> bool:
            try:
                _session(Path(model).read_bytes())
            except Exception as error:  # noqa: BLE001  (whatever is wrong with a file)
                self._errors.append(ParserError(f"In node -1 (importModel): INVALID_GRAPH: {str(error)[:80]}"))
                return False
            self._network._path = Path(model)
            return True

        @property
        def num_errors(self) -> int:
            return len(self._errors)

        def get_error(self, index: int) -> ParserError:
            return self._errors[index]

    class Builder:
        def __init__(self, logger: ILogger) -> None:
            if not getattr(logger, "ready", False):
                raise TypeError("__init__(): incompatible constructor arguments")
            self._logger = logger

        @property
        def num_DLA_cores(self) -> int:
            return gpu.dla_cores

        def create_network(self, flags: int = 0) -> INetworkDefinition:
            return INetworkDefinition(flags)

        def create_builder_config(self) -> IBuilderConfig:
            return IBuilderConfig()

        def create_optimization_profile(self) -> IOptimizationProfile:
            return IOptimizationProfile()

        def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
            gpu.builds += 1
            why = self._objection(network, config)
            if why:
                self._logger.log(severity.ERROR, why)
                return None
            if config.progress_monitor is not None:
                config.progress_monitor.phase_start("Building Engine", None, 4)
                for step in range(4):
                    config.progress_monitor.step_complete("Building Engine", step)
                config.progress_monitor.phase_finish("Building Engine")
            told = {
                "version": version,
                "flags": sorted(each.name for each in config._flags),
                "typed": network._typed,
                "profiles": config._profiles,
                "dla": None if config.DLA_core is None else int(config.DLA_core),
                "onnx": base64.b64encode(network._path.read_bytes()).decode(),
            }
            return IHostMemory(json.dumps(told).encode())

        def _objection(self, network: INetworkDefinition, config: IBuilderConfig) -> str:
            if gpu.fails.get("build"):
                return "Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode})"
            named = {each.name for each in config._flags}
            header = read_header(network._path)
            if network._typed and named & {"FP16", "INT8", "BF16"}:
                return "Error Code 3: API Usage Error (precision flags on a strongly typed network)"
            if header.quantised and not network._typed and "INT8" not in named:
                return "Error Code 4: Int8 precision has been set for a layer but int8 is not configured in the builder"
            for shapes in config._profiles:
                for each in header.inputs:
                    _, _, most = shapes[each.name]
                    if any(
                        isinstance(side, int) and side != asked for side, asked in zip(each.shape, most, strict=True)
                    ):
                        return f"Error Code 4: {each.name}: kMAX dimensions in profile 0 are {most}"
            return ""

    class EngineInspector:
        def __init__(self, plan: dict[str, Any]) -> None:
            self._plan = plan

        def get_engine_information(self, format: Any) -> str:
            assert format is made["LayerInformationFormat"].JSON
            kind = "DLA" if self._plan["dla"] is not None and gpu.dla_cores else "CaskConvolution"
            return json.dumps({"Layers": [{"Name": "{ForeignNode[conv...add]}", "LayerType": kind}]})

    class IExecutionContext:
        def __init__(self, engine: ICudaEngine) -> None:
            self._engine = engine
            self._profile = 0
            self._shapes: dict[str, tuple[int, ...]] = {}
            self._addresses: dict[str, int] = {}
            self._scratch = (0, 0)

        def set_device_memory(self, memory: int, size: int) -> None:
            assert size >= self._engine.device_memory_size_v2
            self._scratch = (memory, size)

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            assert stream_handle == 77
            self._profile = profile_index
            return profile_index < len(self._engine._plan["profiles"])

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            least, _, most = self._engine._plan["profiles"][self._profile][name]
            fits = all(low <= side <= high for low, side, high in zip(least, shape, most, strict=True))
            if fits:
                self._shapes[name] = tuple(shape)
            return fits

        def infer_shapes(self) -> list[str]:
            return [each.name for each in self._engine._header.inputs if each.name not in self._shapes]

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self._shapes[name] if name in self._shapes else self._engine._answer_shapes(self._shapes)[name]

        def set_tensor_address(self, name: str, memory: int) -> bool:
            self._addresses[name] = int(memory)
            return bool(memory)

        def execute_async_v3(self, stream_handle: int) -> bool:
            assert stream_handle == 77
            if gpu.fails.get("execute") or not gpu.holds(*self._scratch):
                self._engine._logger.log(severity.ERROR, "Error Code 1: Cuda Runtime (an illegal memory access)")
                return False
            if gpu.recording is not None and gpu.fails.get("record"):
                self._engine._logger.log(severity.ERROR, "operation not permitted when stream is capturing")
                return False
            shapes = dict(self._shapes)
            gpu.enqueue(lambda: self._compute(shapes))
            return True

        def _compute(self, shapes: dict[str, tuple[int, ...]]) -> int:
            feed = {}
            for each in self._engine._header.inputs:
                kind, shape = np.dtype(each.dtype), shapes[each.name]
                size = int(np.prod(shape)) * kind.itemsize
                if not gpu.holds(self._addresses[each.name], size):
                    return Status.cudaErrorIllegalAddress
                raw = ctypes.string_at(self._addresses[each.name], size)
                feed[each.name] = np.frombuffer(raw, kind).reshape(shape)
            for name, answer in self._engine._run(feed).items():
                if not gpu.holds(self._addresses[name], answer.nbytes):
                    return Status.cudaErrorIllegalAddress
                content = np.ascontiguousarray(answer).tobytes()
                ctypes.memmove(self._addresses[name], content, len(content))
            return 0

    class ICudaEngine:
        def __init__(self, plan: dict[str, Any], logger: ILogger, header: Any) -> None:
            self._plan = plan
            self._logger = logger
            self._header = header
            self._session = _session(base64.b64decode(plan["onnx"]))
            self._known: dict[str, dict[str, tuple[int, ...]]] = {}

        device_memory_size_v2 = 4096

        @property
        def num_io_tensors(self) -> int:
            return len(self._header.inputs) + len(self._header.outputs)

        def get_tensor_name(self, index: int) -> str:
            return str([*self._header.inputs, *self._header.outputs][index].name)

        def get_tensor_mode(self, name: str) -> Any:
            mode = made["TensorIOMode"]
            return mode.INPUT if name in {each.name for each in self._header.inputs} else mode.OUTPUT

        def get_tensor_dtype(self, name: str) -> Any:
            spec = next(each for each in [*self._header.inputs, *self._header.outputs] if each.name == name)
            return by_name[spec.dtype]

        def create_execution_context(self, strategy: Any) -> IExecutionContext | None:
            assert strategy is made["ExecutionContextAllocationStrategy"].USER_MANAGED
            return None if gpu.fails.get("context") else IExecutionContext(self)

        def create_engine_inspector(self) -> EngineInspector:
            return EngineInspector(self._plan)

        def _run(self, feed: dict[str, Any]) -> dict[str, Any]:
            names = [each.name for each in self._session.get_outputs()]
            return dict(zip(names, self._session.run(names, feed), strict=True))

        def _answer_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
            if gpu.fails.get("shapes"):
                return {each.name: (-1, 4) for each in self._header.outputs}
            key = repr(sorted(shapes.items()))
            if key not in self._known:
                feed = {each.name: np.ones(shapes[each.name], each.dtype) for each in self._header.inputs}
                self._known[key] = {name: answer.shape for name, answer in self._run(feed).items()}
            return self._known[key]

    class Runtime:
        DLA_core = None

        def __init__(self, logger: ILogger) -> None:
            if gpu.fails.get("runtime"):
                raise TypeError("pybind11::init(): factory function returned nullptr")
            self._logger = logger

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
            try:
                plan = json.loads(bytes(serialized_engine))
                fits = plan["version"] == version and not gpu.fails.get("deserialize")
            except (ValueError, KeyError):
                fits = False
            if not fits:
                self._logger.log(
                    severity.ERROR, "Error Code 6: The engine plan file is not compatible with this version"
                )
                return None
            return ICudaEngine(plan, self._logger, _header(base64.b64decode(plan["onnx"])))

    def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
        return not gpu.fails.get("plugins")

    def nptype(trt_type: Any) -> Any:
        return numpy_types[trt_type]

    for each in (
        ILogger, IProgressMonitor, IHostMemory, ITimingCache, IOptimizationProfile, IBuilderConfig, INetworkDefinition,
        ParserError, OnnxParser, Builder, EngineInspector, IExecutionContext, ICudaEngine, Runtime,
        init_libnvinfer_plugins, nptype,
    ):  # fmt: skip
        setattr(module, each.__name__, each)
    for name, members in made.items():
        if name != "Severity":
            setattr(module, name, members)
    return module


def _session(content: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(content, options)


def _header(content: bytes) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(content)
        file.flush()
        return read_header(Path(file.name))


def install(monkeypatch: Any, version: str = "10.16.1.11", gpu: FakeGpu | None = None) -> FakeGpu:
    """Let `import tensorrt` and `from cuda.bindings import runtime` find the stand-ins."""
    gpu = gpu or FakeGpu()
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    runtime = fake_cudart(gpu)
    cuda.bindings = bindings  # type: ignore[attr-defined]
    driver, nvrtc = fake_driver(gpu), fake_nvrtc(gpu)
    bindings.runtime, bindings.driver, bindings.nvrtc = runtime, driver, nvrtc  # type: ignore[attr-defined]
    for name, module in {
        "tensorrt": fake_tensorrt(version, gpu),
        "cuda": cuda,
        "cuda.bindings": bindings,
        "cuda.bindings.runtime": runtime,
        "cuda.bindings.driver": driver,
        "cuda.bindings.nvrtc": nvrtc,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return gpu
