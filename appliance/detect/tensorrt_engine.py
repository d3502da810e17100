"""Builds a TensorRT engine from an .onnx file, on 10.3 (JetPack 6), 10.16 (JetPack 7.2, L4) and 11 each its way.

Until 10 the builder is told a precision (BuilderFlag.FP16); 11 knows strongly typed networks alone, in the types of the
file. Networks of integers carry QuantizeLinear and DequantizeLinear (explicit quantisation) in both.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.base.clock import Clock, SystemClock
from appliance.base.config_model import Precision
from appliance.base.errors import MissingDependency, ModelError
from appliance.detect.network_inputs import NetworkInputs
from appliance.detect.network_runtime import first_line
from appliance.detect.onnx_header import OnnxHeader

log = logging.getLogger(__name__)
VERSION_MIN = (10, 3)  # JetPack 6; 10.2 miscompiles (Ultralytics keeps it on a list of refused versions)
GPU_BATCH_SIZES = (1, 2, 4, 8)  # each is a build of minutes
WORKSPACE_BYTES = 1 << 30  # at most this, and a quarter of the GPU's memory, which on a Jetson is everybody's
LOG_EVERY_S = 5.0  # lines of a build that takes minutes
INSTALL_CURE = (
    "on a Jetson it comes with JetPack (make the environment with --system-site-packages); elsewhere: "
    "pip install 'tensorrt-cu12<11', or 'tensorrt-cu13<11' where nvidia-smi says CUDA 13"
)
TYPED_CURE = (
    "TensorRT 11 takes types from the file: python -m modelopt.onnx.autocast --onnx_path {path} --output_path NEW.onnx "
    "(NVIDIA ModelOpt) and name that file as detector.model, or set detector.precision to auto"
)
QUANTISED_CURE = (
    "it is quantised for ONNX Runtime (integers of {found}), and TensorRT takes int8 alone: in a checkout, python -m "
    "models.export variant FLOAT32.onnx --kind tensorrt --clip FILM --out NEW.onnx makes such a file; name it as "
    "detector.model, or name FLOAT32.onnx and set detector.precision to fp16"
)
DLA_INT8_MIN = (11, 4, 1)  # before, a DLA takes implicit quantisation alone, and leaves Q/DQ to the GPU without a word
DLA_CURE = "Orin AGX and NX have DLAs, up to TensorRT 10.7 and from 11.4.1 on; set detector.dla_core to null"


@dataclass(frozen=True, slots=True)
class EnginePrecision:
    """name: for people and keys. flags: names of BuilderFlags. typed: the file's types hold, whatever is faster.

    tf32: float32 products may be rounded to 10 bits of mantissa, as NVIDIA's own default is.
    """

    name: str
    flags: tuple[str, ...] = ()
    typed: bool = False
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class InputProfile:
    """The shapes of one input for which one profile is built: smallest, usual and largest."""

    name: str
    least: tuple[int, ...]
    usual: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The order for an engine. profiles: one for each input size, of all inputs. dla_core: None: on the GPU."""

    path: Path
    precision: EnginePrecision
    profiles: tuple[tuple[InputProfile, ...], ...]
    dla_core: int | None = None
    workspace_bytes: int = WORKSPACE_BYTES


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """plan: the engine. timing: what was learnt about kernels, for the next build."""

    plan: bytes
    timing: bytes


def load_tensorrt() -> Any:
    """Return the module. Raise MissingDependency with the cure: it is not here, lacks its libraries, or is too old."""
    try:
        import tensorrt
    except ModuleNotFoundError:
        raise MissingDependency(f"detector.backend tensorrt needs TensorRT's Python package: {INSTALL_CURE}") from None
    except (ImportError, OSError) as error:
        raise MissingDependency(
            f"TensorRT's Python package is here, its libraries are not ({first_line(error)}): {INSTALL_CURE}"
        ) from None
    found = version_of(tensorrt)
    if found[:2] < VERSION_MIN:
        raise MissingDependency(
            f"detector.backend tensorrt needs TensorRT {'.'.join(map(str, VERSION_MIN))} or later, and this is "
            f"{tensorrt.__version__}: {INSTALL_CURE}"
        )
    return tensorrt


def version_of(trt: Any) -> tuple[int, ...]:
    """(10, 16, 1) of `10.16.1.11`."""
    return tuple(int(part) for part in str(trt.__version__).split(".")[:3])


def choose_precision(
    asked: Precision, header: OnnxHeader, path: Path, version: tuple[int, ...], *, dla: bool
) -> EnginePrecision:
    """Return the precision to build for `detector.precision`.

    Raise ModelError where the file or this TensorRT does not give it. auto: a file of float32 in float16, which GPUs
    are made for, where TensorRT converts it (10); every other as it is.
    """
    own, major = header.precision, version[0]
    if asked == "auto":
        asked = "fp16" if own == "fp32" and major < 11 else own
        tf32 = own == "fp32" and major >= 11
    else:
        tf32 = False
    if asked == "int8":
        must_be_quantised(path, header)
    if own not in (asked, "fp32"):
        raise ModelError(f"{path}: it is exported in {own} and cannot run in {asked}: set detector.precision to auto")
    if asked != own and major >= 11:
        raise ModelError(f"{path}: it is exported in {own}. {TYPED_CURE.format(path=path)}")
    if dla and asked == "int8" and version < DLA_INT8_MIN:
        raise ModelError(
            f"{path}: a DLA takes networks of Q/DQ from TensorRT {'.'.join(map(str, DLA_INT8_MIN))} on: name the "
            "float32 network as detector.model and set detector.precision to fp16, or set detector.dla_core to null"
        )
    if dla and asked not in ("fp16", "int8"):
        raise ModelError(
            f"{path}: a DLA computes in fp16 and int8 alone, not in {asked}: set detector.precision to one of them, or "
            "detector.dla_core to null"
        )
    if asked == "int8":  # what is not quantised runs in float16 where TensorRT 10 may choose
        return EnginePrecision("int8", () if major >= 11 else ("INT8", "FP16"), typed=major >= 11)
    if asked == own:
        return EnginePrecision("tf32" if tf32 else own, (), typed=own != "fp32" or major >= 11, tf32=tf32)
    return EnginePrecision(asked, (asked.upper(),))


def must_be_quantised(path: Path, header: OnnxHeader) -> None:
    """Raise ModelError if the file holds no integers, or others than TensorRT's parser takes."""
    if header.precision != "int8":
        raise ModelError(f"{path}: detector.precision int8 needs a file that is quantised (Q/DQ): set it to auto")
    if others := sorted(header.integers & {"uint8", "int16", "uint16", "int32"}):
        raise ModelError(f"{path}: {QUANTISED_CURE.format(found=' and '.join(others))}")


def build_engine(trt: Any, order: EngineOrder, timing: bytes) -> BuiltEngine:
    """Build the engine, which takes seconds to many minutes, and log progress. Raise ModelError in TensorRT's words."""
    logger = make_logger(trt)
    try:
        built = _build(trt, order, timing, logger, SystemClock())
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refusal(trt, order, logger, first_line(error)) from None
    if isinstance(built, str):
        raise _refusal(trt, order, logger, built)
    return built


def _build(trt: Any, order: EngineOrder, timing: bytes, logger: Any, clock: Clock) -> BuiltEngine | str:
    """Return the engine, or a text: what did not work."""
    if not trt.init_libnvinfer_plugins(None, ""):
        return "its plugins do not load"
    builder = trt.Builder(logger)
    config = builder.create_builder_config()
    network = builder.create_network(_network_flags(trt, order.precision))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(order.path)):
        return "; ".join(first_line(ValueError(str(parser.get_error(n)))) for n in range(min(3, parser.num_errors)))
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, order.workspace_bytes)
    for name in order.precision.flags:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if not order.precision.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if order.dla_core is not None and (why := _use_dla(trt, builder, config, order.dla_core)):
        return why
    for shapes in order.profiles:
        profile = builder.create_optimization_profile()
        for each in shapes:
            profile.set_shape(each.name, each.least, each.usual, each.most)
        if config.add_optimization_profile(profile) < 0:
            return f"it takes no input of {' and '.join(f'{each.name} {list(each.most)}' for each in shapes)}"
    _use_timing(config, timing)
    config.progress_monitor = make_progress(trt, order.path.name, clock)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return "no engine came of it"
    learnt = config.get_timing_cache()
    return BuiltEngine(bytes(memoryview(plan)), bytes(memoryview(learnt.serialize())) if learnt is not None else b"")


def _network_flags(trt: Any, precision: EnginePrecision) -> int:
    """10: only where the file's types are to hold; 11: always so, and the flag means nothing."""
    if version_of(trt)[0] >= 11 or not precision.typed:
        return 0
    return int(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))


def _use_dla(trt: Any, builder: Any, config: Any, core: int) -> str:
    """'': it is set. A layer that a DLA lacks falls back to the GPU without a word; `must_run_on_dla` tells."""
    if core >= builder.num_DLA_cores:
        return f"detector.dla_core {core} was asked for, and there are {builder.num_DLA_cores} here: {DLA_CURE}"
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    return ""


def _use_timing(config: Any, timing: bytes) -> None:
    """Use an earlier build's timings. TensorRT refuses those of another GPU or version and begins with none."""
    cache = config.create_timing_cache(timing)
    if cache is None or not config.set_timing_cache(cache, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def _refusal(trt: Any, order: EngineOrder, logger: Any, what: str) -> ModelError:
    message = "; ".join(logger.errors) or what
    cure = ""
    if version_of(trt) < (10, 7) and order.precision.name == "int8":
        cure = (
            ". TensorRT 10.3 cannot build INT8 with NMS-free heads (TopK): set detector.model to the file that was "
            "quantised, as it was before"
        )
    return ModelError(f"{order.path}: TensorRT {trt.__version__} builds no engine: {message}{cure}")


def make_logger(trt: Any) -> Any:
    """TensorRT's words in our log; `errors`: the last of them that were errors, for a message."""

    class EngineLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=3)

        def log(self, severity: Any, msg: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(first_line(RuntimeError(msg)))
                log.error("TensorRT: %s", msg)
            elif severity == trt.ILogger.Severity.WARNING:
                log.info("TensorRT: %s", msg)

    return EngineLog()


def make_progress(trt: Any, name: str, clock: Clock) -> Any:
    """Return a monitor that logs a line every LOG_EVERY_S: the part of the build at work, and how much is done."""

    class BuildProgress(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._parts: dict[str, int] = {}
            self._logged_at = clock.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._parts[phase_name] = num_steps

        def phase_finish(self, phase_name: str) -> None:
            self._parts.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            now = clock.monotonic()
            steps = self._parts.get(phase_name, 0)
            if now - self._logged_at >= LOG_EVERY_S and steps:
                self._logged_at = now
                log.info("TensorRT builds %s: %s, %d of %d", name, phase_name, step + 1, steps)
            return True  # False would end the build

    return BuildProgress()


def must_run_on_dla(trt: Any, engine: Any, order: EngineOrder, convolutions: int) -> None:
    """Raise ModelError unless a DLA does most of an engine's convolutions: TensorRT says nothing of what falls back.

    convolutions: of the file. A part of the network on a DLA is one layer of the type `DLA`, whatever it holds.
    """
    information = json.loads(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    kinds = [each.get("LayerType", "") for each in information["Layers"] if isinstance(each, dict)]
    on_gpu = sum("conv" in kind.lower() for kind in kinds)
    if "DLA" not in kinds or 2 * on_gpu > convolutions:
        raise ModelError(
            f"{order.path}: {on_gpu} of {convolutions} convolutions run on the GPU and {kinds.count('DLA')} parts of "
            f"it on the DLA: {DLA_CURE}"
        )


def input_profiles(
    header: OnnxHeader, inputs: NetworkInputs, sizes: Sequence[tuple[int, int]], batch_max: int
) -> tuple[tuple[InputProfile, ...], ...]:
    """Return a profile for each (width, height), with one to `batch_max` frames. Every other input is [batch, 2]."""
    usual = max(1, batch_max // 2)

    def shapes(count: int, size: tuple[int, int], name: str) -> tuple[int, ...]:
        sides = {"N": count, "C": 3, "H": size[1], "W": size[0]}
        return tuple(sides[axis] for axis in inputs.order) if name == inputs.frame else (count, 2)

    return tuple(
        tuple(
            InputProfile(
                each.name,
                shapes(1, size, each.name),
                shapes(usual, size, each.name),
                shapes(batch_max, size, each.name),
            )
            for each in header.inputs
        )
        for size in sizes
    )
