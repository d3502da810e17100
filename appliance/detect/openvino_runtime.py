"""OpenVINO as a NetworkRuntime: on any CPU, in bfloat16 where it multiplies that, and on Intel's GPUs and NPUs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov

from appliance.base.errors import DetectorError, ModelError
from appliance.detect.network_runtime import CLOSED, Array, Side, TensorSpec, first_line

VERSION = f"openvino {ov.__version__.partition('-')[0]}"
DEVICES = {"cpu": "CPU", "gpu": "GPU", "npu": "NPU"}
CURES = {
    "GPU": "an Intel GPU needs its OpenCL driver (Debian: intel-opencl-icd) and a user in the group `render`",
    "NPU": "an Intel NPU needs the driver intel-npu-driver (/dev/accel/accel0) and a user in the group `render`",
}
OwnPrecision = Literal["fp32", "bf16", "fp16"]
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# On a CPU a network of open shape takes any; compiled for one shape it takes a tenth less (vedette-nano at 416x256 in
# bf16: 5.5 against 6.0 ms), for 0.2 s of compiling and about 5 MB. Worth it for the whole frames of a few cameras.
PREPARED_MAX = 4
BATCH_SIZES = {"CPU": (1,), "GPU": (1, 2, 4), "NPU": (1,)}
Shapes = tuple[tuple[int, ...], ...]


class OpenvinoRuntime:
    """A network compiled for one device.

    On a CPU it is compiled once for any shape, and once more for each of up to `PREPARED_MAX` shapes that are prepared.
    A GPU or NPU runs open shapes badly or not at all, so there it is compiled for each shape that is run.

    A CPU gets no batches. Compiled for its size, a batch of 2 or 4 frames takes 0.90 to 0.94 of the time of single
    frames. Each size would cost 0.2 s and 5 MB. Without a compiled model for its size a batch takes longer than that.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        device: Literal["cpu", "gpu", "npu"] = "cpu",
        precision: OwnPrecision = "fp32",
        cache: Path | None = None,
    ) -> None:
        """Compile the network. Raise ModelError.

        precision: in which the network multiplies; an INT8 network stays INT8. cache: folder for compiled models. Only
        those for a GPU or NPU are kept, as compiling takes seconds to a minute there, on a CPU 0.2 s.
        """
        self._core = ov.Core()
        self._device = DEVICES[device]
        _must_have(self._core, path, self._device, precision)
        self._options = _options(self._device, precision, threads, cache)
        self.version = f"{VERSION}, {device}, {precision}"
        self.mark = f"openvino-{precision}" if device == "cpu" else f"openvino-{device}-{precision}"
        self.takes_any_shape = self._device == "CPU"
        self.input_sizes: tuple[tuple[int, int], ...] = ()
        self.batch_sizes = BATCH_SIZES[self._device]
        self._compiled: dict[Shapes, ov.CompiledModel] = {}
        self._compiling = threading.Lock()
        self._requests = threading.local()
        self._closed = False
        try:
            self._model = self._core.read_model(path)
            self.inputs = tuple(_spec(each) for each in self._model.inputs)
            self.metadata: Mapping[str, str] = _metadata(self._model)
            self._outputs = [each.get_any_name() for each in self._model.outputs]
            self._any_shape = self._compile_any_shape()
        except RuntimeError as error:
            raise ModelError(f"{path}: {VERSION} cannot run it on {self._device}: {_reason(error)}") from None

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compile for exactly these shapes, where that saves time and there is room. Any thread."""
        wanted = tuple(shapes[each.name] for each in self.inputs)
        if self._any_shape is not None and (not self._is_open() or len(self._compiled) >= PREPARED_MAX):
            return
        # Some networks declare open sides and still take one shape only. `run` reports that; it must not end here.
        with contextlib.suppress(RuntimeError):
            self._compile(wanted)

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network. Raise DetectorError."""
        if self._closed:
            raise DetectorError(CLOSED)
        given = [np.ascontiguousarray(feed[each.name]) for each in self.inputs]
        try:
            request = self._request(tuple(each.shape for each in given))
            for index, array in enumerate(given):  # as arguments of `infer` they would be copied
                request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise DetectorError(_reason(error)) from None
        return {name: request.get_output_tensor(index).data for index, name in enumerate(self._outputs)}

    def close(self) -> None:
        """Give the compiled network up. A run that is under way keeps what it needs until it ends."""
        self._closed, self._any_shape, self._requests = True, None, threading.local()
        self._compiled.clear()

    def _compile_any_shape(self) -> ov.CompiledModel | None:
        if self._device != "CPU" and self._is_open():
            return None
        return self._core.compile_model(self._model, self._device, self._options)

    def _is_open(self) -> bool:
        return any(not isinstance(side, int) for each in self.inputs for side in each.shape)

    def _compile(self, shapes: Shapes) -> ov.CompiledModel:
        """Return the model compiled for these shapes; compile it only once. Raise RuntimeError."""
        with self._compiling:
            if shapes not in self._compiled:
                model = self._model.clone()
                model.reshape({index: ov.PartialShape(list(shape)) for index, shape in enumerate(shapes)})
                self._compiled[shapes] = self._core.compile_model(model, self._device, self._options)
            return self._compiled[shapes]

    def _request(self, shapes: Shapes) -> ov.InferRequest:
        """Return this thread's own request: two that infer in one overwrite each other's answer."""
        compiled = self._compiled.get(shapes) or self._any_shape or self._compile(shapes)
        mine: dict[int, ov.InferRequest] = self._requests.__dict__.setdefault("of", {})
        if id(compiled) not in mine:
            mine[id(compiled)] = compiled.create_infer_request()
        return mine[id(compiled)]


def _options(device: str, precision: OwnPrecision, threads: int, cache: Path | None) -> dict[str, Any]:
    """Return options for low latency: one stream of inferences, which gets all threads on a CPU."""
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        return options | {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    if cache is not None:
        options["CACHE_DIR"] = str(cache)
    return options if device == "NPU" else options | {"NUM_STREAMS": 1}  # an NPU has no streams to choose


def _must_have(core: ov.Core, path: Path, device: str, precision: str) -> None:
    """Check that the wanted device and precision are here. Raise ModelError with the cure."""
    there: Sequence[str] = core.available_devices
    if not any(each.partition(".")[0] == device for each in there):
        cure = CURES.get(device, "reinstall openvino")
        raise ModelError(
            f"{path}: detector.device {device.lower()} was asked of {VERSION}, which finds "
            f"{', '.join(there) or 'none'} here: {cure}, or set detector.device to cpu"
        )
    able: Sequence[str] = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    if precision != "fp32" and precision.upper() not in able:
        raise ModelError(
            f"{path}: detector.precision {precision} was asked of {VERSION}, and its {device} has {', '.join(able)}: "
            "set detector.precision to auto"
        )


def _spec(port: ov.Output) -> TensorSpec:
    sides: list[Side] = [side.get_length() if side.is_static else None for side in port.get_partial_shape()]
    return TensorSpec(port.get_any_name(), port.get_element_type().to_dtype().name, tuple(sides))


def _metadata(model: ov.Model) -> dict[str, str]:
    """Return the ONNX file's metadata_props, which the importer keeps under `framework`; {} where there are none."""
    kept = model.get_rt_info("framework") if model.has_rt_info("framework") else None
    return {name: str(value) for name, value in kept.value.items()} if kept is not None else {}


def _reason(error: Exception) -> str:
    """Return the first line of an OpenVINO error that is not the place in OpenVINO's own sources."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return first_line(RuntimeError(lines[0])) if lines else first_line(error)
