"""OpenVINO as a NetworkRuntime: on any CPU, in bfloat16 where it multiplies that, and on Intel's GPUs and NPUs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov

from appliance.detect.network_runtime import Array, Side, TensorSpec, first_line
from appliance.errors import DetectorError, ModelError

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
Shapes = tuple[tuple[int, ...], ...]


class OpenvinoRuntime:
    """A network compiled for one device, and on the CPU for the shapes that come most often."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        device: Literal["cpu", "gpu", "npu"] = "cpu",
        precision: OwnPrecision = "fp32",
    ) -> None:
        """Raises ModelError. precision: of products; a network of integers stays one."""
        self._core = ov.Core()
        self._device = DEVICES[device]
        _must_have(self._core, path, self._device, precision)
        self._options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY",
        } | ({"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1} if self._device == "CPU" else {})  # fmt: skip
        try:
            self._model = self._core.read_model(path)
            self.inputs = tuple(_spec(each) for each in self._model.inputs)
            self.metadata: Mapping[str, str] = _metadata(self._model)
            self._outputs = [each.get_any_name() for each in self._model.outputs]
            self._any_shape = self._core.compile_model(self._model, self._device, self._options)
        except RuntimeError as error:
            raise ModelError(f"{path}: {VERSION} cannot run it on {self._device}: {_reason(error)}") from None
        self.version = f"{VERSION}, {device}, {precision}"
        self.mark = f"openvino-{precision}" if device == "cpu" else f"openvino-{device}-{precision}"
        self.takes_any_shape = self._device == "CPU"
        self._prepared: dict[Shapes, ov.CompiledModel] = {}
        self._compiling = threading.Lock()
        self._requests = threading.local()

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compile for these shapes alone, where that brings something and there is room. Any thread."""
        wanted = tuple(shapes[each.name] for each in self.inputs)
        open_sides = any(not isinstance(side, int) for each in self.inputs for side in each.shape)
        with self._compiling:
            if not open_sides or wanted in self._prepared or len(self._prepared) >= PREPARED_MAX:
                return
            try:
                model = self._model.clone()
                model.reshape({index: ov.PartialShape(list(shape)) for index, shape in enumerate(wanted)})
                self._prepared[wanted] = self._core.compile_model(model, self._device, self._options)
            except RuntimeError:
                return  # it says that its shape is free and is not: the first inference in it tells

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Raises DetectorError."""
        given = [np.ascontiguousarray(feed[each.name]) for each in self.inputs]
        try:
            request = self._request(tuple(each.shape for each in given))
            request.infer(given, share_inputs=True)
        except RuntimeError as error:
            raise DetectorError(_reason(error)) from None
        return {name: request.get_output_tensor(index).data for index, name in enumerate(self._outputs)}

    def _request(self, shapes: Shapes) -> ov.InferRequest:
        """This thread's own: two that infer in one request overwrite each other's answer."""
        compiled = self._prepared.get(shapes, self._any_shape)
        mine: dict[int, ov.InferRequest] = self._requests.__dict__.setdefault("of", {})
        if id(compiled) not in mine:
            mine[id(compiled)] = compiled.create_infer_request()
        return mine[id(compiled)]


def multiplies_bf16() -> bool:
    """Whether OpenVINO multiplies in bfloat16 on this CPU (AVX512_BF16, AMX, or arm64 with FEAT_BF16)."""
    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _must_have(core: ov.Core, path: Path, device: str, precision: str) -> None:
    """What was asked for is here. Raises ModelError with the cure."""
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
    """The ONNX file's metadata_props, which the importer keeps under `framework`; {} where there are none."""
    kept = model.get_rt_info("framework") if model.has_rt_info("framework") else None
    return {name: str(value) for name, value in kept.value.items()} if kept is not None else {}


def _reason(error: Exception) -> str:
    """OpenVINO tells first where in its sources an exception came from, then what it is."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return first_line(RuntimeError(lines[0])) if lines else first_line(error)
