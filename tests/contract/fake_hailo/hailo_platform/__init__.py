"""A Hailo device that is not there: the part of `hailo_platform` 4.23.0 that Vedette calls, with its signatures.

test_hailo_device.py holds them against hailo_platform_4_23.json, a list made from Hailo's public source (MIT). It runs
in the helper process. What the device is like stands in the JSON file $HAILO_FAKE, read anew at each call, so that a
test can take the device away and bring it back: `devices`, `library`, `firmware`, `architecture`, `import`, `fail`
({call: [class, text]}), `hang` (a call), `together` (two inferences wait for each other). A HEF of the tests is a real
header followed by JSON that says what to answer.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

_STATE = Path(os.environ["HAILO_FAKE"])
_PAIR = threading.Barrier(2)
_HEADER_BYTES = {0: 32, 1: 28, 2: 44, 3: 56}


def _state() -> dict[str, Any]:
    return dict(json.loads(_STATE.read_text()))


__version__ = _state().get("library", "4.23.0")
if _state().get("import"):
    raise ImportError(_state()["import"])


class HailoRTException(Exception):
    pass


class HailoRTTimeout(HailoRTException):
    pass


class HailoRTStreamAborted(HailoRTException):
    pass


class HailoRTInvalidOperationException(HailoRTException):
    pass


class HailoRTHEFNotCompatibleWithDevice(HailoRTException):
    pass


class HailoSchedulingAlgorithm(Enum):
    NONE = 0
    ROUND_ROBIN = 1


class FormatType(Enum):
    AUTO = 0
    UINT8 = 1
    UINT16 = 2
    FLOAT32 = 3


class FormatOrder(Enum):
    NHWC = 1
    NC = 6
    NV12 = 13
    HAILO_NMS_BY_CLASS = 22
    HAILO_NMS_BY_SCORE = 23


class _Architecture(IntEnum):
    HAILO8 = 1
    HAILO8L = 2
    HAILO10H = 6

    def __str__(self) -> str:
        return self.name


def _call(name: str) -> dict[str, Any]:
    """What the device is like now; fails or hangs if that is what a test wants of this call."""
    state = _state()
    if state.get("hang") == name:
        time.sleep(60)
    if name in state.get("fail", {}):
        kind, text = state["fail"][name]
        raise globals()[kind](text)
    return state


class Device:
    def __init__(self, device_id: str | None = None) -> None:
        self._device_id = device_id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *args: object) -> bool:
        return False

    @classmethod
    def scan(cls) -> list[str]:
        return ["0001:01:00.0"] * int(_call("scan").get("devices", 1))

    @property
    def control(self) -> Control:
        return Control(self)

    def release(self) -> None:
        pass


class Control:
    def __init__(self, device: Any) -> None:
        self._device = device

    def identify(self) -> Any:
        state = _call("identify")
        return SimpleNamespace(
            device_architecture=_Architecture[state.get("architecture", "HAILO8L")],
            firmware_version=f"{state.get('firmware', '4.23.0')} (release,app)",
        )

    def get_chip_temperature(self) -> Any:
        _call("get_chip_temperature")
        return SimpleNamespace(ts0_temperature=52.31, ts1_temperature=54.96)


class HEF:
    def __init__(self, hef_source: str | bytes) -> None:
        if not isinstance(hef_source, (str, bytes)):
            raise ValueError("HEF can only be created from a file path (str) or a buffer (bytes)")
        data = Path(hef_source).read_bytes() if isinstance(hef_source, str) else hef_source
        _, version, proto_bytes = struct.unpack_from(">III", data)
        self._network = json.loads(data[_HEADER_BYTES[version] + proto_bytes :])

    def get_output_vstream_infos(self, name: str | None = None) -> list[Any]:
        return [
            SimpleNamespace(
                name=each["name"],
                format=SimpleNamespace(order=FormatOrder[each["order"]]),
                nms_shape=SimpleNamespace(
                    number_of_classes=each.get("classes", 0), max_bboxes_per_class=each.get("most", 0)
                ),
            )
            for each in self._network["outputs"]
        ]


class VDevice:
    def __init__(self, params: Any = None, *, device_ids: list[str] | None = None) -> None:
        _call("VDevice")
        self._params = params or VDevice.create_params()
        self._creation_pid = os.getpid()

    def __enter__(self) -> VDevice:
        return self

    def __exit__(self, *args: object) -> bool:
        return False

    @staticmethod
    def create_params() -> Any:
        return SimpleNamespace(
            scheduling_algorithm=HailoSchedulingAlgorithm.NONE, multi_process_service=False, group_id="UNIQUE"
        )

    def create_infer_model(self, hef_source: str | bytes, name: str = "") -> InferModel:
        if os.getpid() != self._creation_pid:
            raise HailoRTException("InferModel can be created only from the process VDevice was created in.")
        _call("create_infer_model")
        if self._params.scheduling_algorithm is not HailoSchedulingAlgorithm.ROUND_ROBIN:
            raise HailoRTInvalidOperationException("Invalid operation. See hailort.log for more information")
        return InferModel(HEF(hef_source), hef_source)

    def release(self) -> None:
        pass


class InferModel:
    class InferStream:
        def __init__(self, infer_stream: dict[str, Any]) -> None:
            self._stream = infer_stream

        @property
        def name(self) -> str:
            return str(self._stream["name"])

        @property
        def shape(self) -> list[int]:
            return list(self._stream["shape"])

        @property
        def format(self) -> Any:
            return SimpleNamespace(order=FormatOrder[self._stream["order"]], type=self._stream.get("type"))

        @property
        def is_nms(self) -> bool:
            return "NMS" in self._stream["order"]

        def set_format_type(self, type: FormatType) -> None:
            self._stream["type"] = type

        def set_nms_score_threshold(self, threshold: float) -> None:
            self._stream["threshold"] = threshold

    def __init__(self, infer_model: HEF, hef_path: str | bytes) -> None:
        self._hef = infer_model
        network = infer_model._network
        self._inputs = [self.InferStream(dict(network["input"]))]
        self._outputs = [self.InferStream(dict(each)) for each in network["outputs"]]

    @property
    def hef(self) -> HEF:
        return self._hef

    @property
    def inputs(self) -> list[InferStream]:
        return self._inputs

    @property
    def outputs(self) -> list[InferStream]:
        return self._outputs

    @property
    def output_names(self) -> list[str]:
        return [each.name for each in self._outputs]

    def input(self, name: str = "") -> InferStream:
        return self._inputs[0]

    def set_batch_size(self, batch_size: int) -> None:
        assert batch_size >= 1

    def configure(self) -> ConfiguredInferModel:
        _call("configure")
        if self._hef._network.get("nms_on_chip") and any("threshold" in each._stream for each in self._outputs):
            raise HailoRTInvalidOperationException("Invalid operation. See hailort.log for more information")
        return ConfiguredInferModel(self._hef._network, self)


class AsyncInferCompletionInfo:
    def __init__(self, exception: Exception | None) -> None:
        self._exception = exception

    @property
    def exception(self) -> Exception | None:
        return self._exception


class AsyncInferJob:
    def __init__(self, job: threading.Thread) -> None:
        self._job = job

    def wait(self, timeout_ms: int) -> None:
        self._job.join(timeout_ms / 1000)
        if self._job.is_alive():
            raise HailoRTTimeout("Received a timeout - hailort has failed because a timeout had occurred")


class ConfiguredInferModel:
    class Bindings:
        class InferStream:
            def __init__(self, infer_stream: InferModel.InferStream, nms_info: Any = None) -> None:
                self._stream = infer_stream
                self._buffer: Any = None

            def set_buffer(self, buffer: Any) -> None:
                if not buffer.flags.c_contiguous:
                    raise HailoRTException("Buffer must be C_CONTIGUOUS")
                bytes_wanted = 4 if self._stream.format.type is FormatType.FLOAT32 else 1
                if buffer.itemsize != bytes_wanted or list(buffer.shape) != self._stream.shape:
                    raise HailoRTException("libhailort failed with error: 5 (HAILO_INSUFFICIENT_BUFFER)")
                self._buffer = buffer

            def get_buffer(self, tf_format: bool | None = False) -> Any:
                return self._buffer

        def __init__(self, bindings: InferModel, input_names: Any, output_names: Any, nms_infos: Any) -> None:
            self._inputs = {each.name: self.InferStream(each) for each in bindings.inputs}
            self._outputs = {each.name: self.InferStream(each) for each in bindings.outputs}

        def input(self, name: str = "") -> InferStream:
            return self._inputs[name or next(iter(self._inputs))]

        def output(self, name: str = "") -> InferStream:
            return self._outputs[name or next(iter(self._outputs))]

    def __init__(self, configured_infer_model: dict[str, Any], infer_model: InferModel) -> None:
        self._network, self._model = configured_infer_model, infer_model
        self._session: Any = None

    def __enter__(self) -> ConfiguredInferModel:
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        pass

    def create_bindings(self, input_buffers: Any = None, output_buffers: Any = None) -> Bindings:
        bindings = self.Bindings(self._model, None, None, None)
        for name, buffer in (input_buffers or {}).items():
            bindings.input(name).set_buffer(buffer)
        for name, buffer in (output_buffers or {}).items():
            bindings.output(name).set_buffer(buffer)
        return bindings

    def wait_for_async_ready(self, timeout_ms: int = 1000, frames_count: int = 1) -> None:
        _call("wait_for_async_ready")

    def run_async(self, bindings: list[Bindings], callback: Any = None) -> AsyncInferJob:
        assert isinstance(bindings, list)
        thread = threading.Thread(target=self._infer, args=(bindings[0], callback), daemon=True)
        thread.start()
        return AsyncInferJob(thread)

    def set_scheduler_timeout(self, timeout_ms: int) -> None:
        assert timeout_ms >= 0

    def set_scheduler_threshold(self, threshold: int) -> None:
        assert threshold >= 1

    def get_async_queue_size(self) -> int:
        return 4

    def _infer(self, bindings: Bindings, callback: Any) -> None:
        error: Exception | None = None
        try:
            if _call("infer").get("together"):
                _PAIR.wait(5)
            self._answer(bindings)
        except HailoRTException as failure:
            error = failure
        except threading.BrokenBarrierError:
            error = HailoRTTimeout("nobody came")
        callback(completion_info=AsyncInferCompletionInfo(error))

    def _answer(self, bindings: Bindings) -> None:
        frame = bindings.input()._buffer
        if "onnx" in self._network:
            return self._answer_by_network(frame, bindings)
        red = _red(frame, self._model.input().format.order.name)
        stream = bindings.output()
        threshold = stream._stream._stream.get("threshold", 0.0)
        rows = [(box, score * red, class_id) for box, score, class_id in self._network["things"]]
        rows = [row for row in rows if row[1] >= threshold and row[1] > 0]
        write = _by_score if stream._stream.format.order is FormatOrder.HAILO_NMS_BY_SCORE else _by_class
        write(rows, stream._buffer, stream._stream._stream.get("classes", 0))
        return None

    def _answer_by_network(self, frame: Any, bindings: Bindings) -> None:
        """As the compiled network would: normalised on the device, answers in rows of channels."""
        if self._session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(self._network["onnx"], options)
        planes = np.ascontiguousarray(frame.transpose(2, 0, 1)[None], np.float32) / 255
        names = [each.name for each in self._session.get_outputs()]
        for name, answer in zip(names, self._session.run(names, {"images": planes}), strict=True):
            bindings.output(name)._buffer[...] = answer[0].transpose(1, 2, 0)


def _red(frame: Any, order: str) -> float:
    """The mean of the red channel, 0..1."""
    if order != "NV12":
        return float(frame[:, :, 0].mean() / 255)
    data = frame.reshape(-1)
    brightness, colours = data[: data.size * 2 // 3], data[data.size * 2 // 3 :]
    red = 1.164 * (brightness.mean() - 16.0) + 1.596 * (colours[1::2].mean() - 128.0)
    return float(np.clip(red / 255, 0, 1))


def _by_class(rows: list[Any], out: Any, classes: int) -> None:
    at = 0
    for class_id in range(classes):
        mine = [(*box, score) for box, score, each in rows if each == class_id]
        out[at] = len(mine)
        out[at + 1 : at + 1 + 5 * len(mine)] = np.array(mine, np.float32).reshape(-1)
        at += 1 + 5 * len(mine)
    out[at:] = 7.0  # what lies behind the last row is left over from earlier frames


def _by_score(rows: list[Any], out: Any, classes: int) -> None:
    packed = b"".join(struct.pack("<5fH", *box, score, class_id) for box, score, class_id in rows)
    data = struct.pack("<H", len(rows)) + packed
    out[: len(data)] = np.frombuffer(data, np.uint8)
