"""Runs any supported ONNX network on ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from appliance.detect import class_labels, score_calibration, yolo_detr_heads
from appliance.detect.class_preference import ClassPreference
from appliance.detect.letterbox import GREY, Letterbox
from appliance.detect.model_files import sha256_of
from appliance.detect.nms import filter_and_sort
from appliance.detector_config import HeadName
from appliance.errors import DetectorError, ModelError
from appliance.types import Detections

RUNTIME = f"onnxruntime {ort.__version__}"
SIDE_DEFAULT = 640
GIVES_WAY_IOU_MIN = 0.7  # of two boxes of one object that the network gave two classes
SIDE_MAX = 4096
STEP = 32
DTYPES: dict[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
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
Device = Literal["cpu", "cuda"]
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
CUDA_NEEDS = "it needs NVIDIA's driver (nvidia-smi), CUDA 12 and cuDNN 9: pip install 'onnxruntime-gpu[cuda,cudnn]'"


@dataclass(frozen=True, slots=True)
class NetworkInputs:
    """What the network wants: the frame (name, dtype, side lengths) and perhaps its size as [[width, height]].

    free: the file leaves both sides open; `width` and `height` are then the box that a whole frame is scaled into.
    """

    frame: str
    dtype: type[np.floating[Any]]
    width: int
    height: int
    sizes: str
    free: bool = False


class OnnxDetector:
    """A network in an ONNX Runtime session, warmed up.

    Owned by one thread at a time. Frames are run one after the other: on a CPU a batch brings nothing
    (platform figures in models/README.md), and one by one the answer does not depend on the neighbours.

    Where the file leaves height and width open, each frame runs in the smallest input that holds it at its scale (see
    Letterbox), in one session: shapes are few (multiples of 32), and ONNX Runtime plans memory once for each.

    shape_step: any multiple of it is a side, and an inference costs by its area; 0: the input is fixed.
    """

    def __init__(
        self,
        path: Path,
        *,
        score_min: float = 0.1,
        threads: int = 1,
        device: Device = "cpu",
        head: HeadName = "auto",
        label_names: tuple[str, ...] = (),
        bf16: bool = False,
        calibration: score_calibration.ScoreLines | None = None,
    ) -> None:
        """Load, try the network on a grey frame, choose the head. Raises ModelError.

        calibration: of its scores, where models.toml knows it; else the file's metadata say it, or nobody.
        bf16: products in bfloat16 where ONNX Runtime has them (see `cpu.multiplies_bf16`); elsewhere it does nothing.
        """
        self.warning = ""
        self.name = f"{path.stem}@{sha256_of(path)[:8]}"
        self._path = path
        self._score_min = score_min
        self._session = _open(path, threads, device, bf16)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self._inputs = _inputs(path, self._session, self._metadata)
        size = (self._inputs.width, self._inputs.height)
        self._head = self._choose(head, size)
        self.shape_step = self._step(self._head, head)
        self._heads: dict[tuple[int, int], yolo_detr_heads.OutputHead] = {size: self._head}
        self._letterbox = Letterbox(*size, self._head.placing, self.shape_step)
        self._buffers = threading.local()
        self._preference: ClassPreference | None = None
        self.labels = class_labels.resolve(path, self._head.classes, self._metadata, label_names)
        lines = calibration or score_calibration.lines_from_metadata(path.name, self._metadata)
        self.calibration = score_calibration.to_common_scale(lines, self.labels)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        """The size in which a whole frame of `width` x `height` is wanted; larger ones are scaled down here."""
        return self._letterbox.preferred_size(width, height)

    def prefer(self, wanted: Iterable[str]) -> None:
        """Classes of which no rule wants any give way to those of `wanted` (see ClassPreference). Any thread."""
        preference = ClassPreference(self.labels, wanted)
        self._preference = preference if preference.gives_way.any() else None

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One Detections per BGR uint8 (H, W, 3) frame, of any sizes. Raises DetectorError."""
        return [self._detect_one(frame) for frame in frames]

    def _detect_one(self, frame: NDArray[np.uint8]) -> Detections:
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or frame.size == 0:
            raise DetectorError(f"not a BGR uint8 picture: {frame.dtype} {list(frame.shape)}")
        try:
            outputs = self._run(self._tensor(self._letterbox.lay(frame)))
        except ORT_ERRORS as error:
            raise DetectorError(f"{self.name}: {_first_line(error)}") from None
        found = self._head_at(self._letterbox.input_size(frame.shape[1], frame.shape[0])).decode(
            outputs, self._score_min, self._preference
        )
        shares = self._letterbox.to_shares(found.boxes, frame.shape[1], frame.shape[0])
        result = Detections(shares, found.scores, found.class_ids)
        if self._preference is not None and len(result) and int(result.class_ids.max()) < len(self.labels):
            result = self._preference.resolve(result, GIVES_WAY_IOU_MIN)
        result = filter_and_sort(result, self._score_min)
        if len(result) and not 0 <= result.class_ids.min() <= result.class_ids.max() < len(self.labels):
            raise DetectorError(f"{self.name} answers with more than {len(self.labels)} classes; set detector.labels")
        return result

    def _tensor(self, laid: NDArray[np.uint8]) -> NDArray[Any]:
        """BGR uint8 (H, W, 3) to (1, 3, H, W) in the network's order and range; 10 times as fast as blobFromImage.

        Good until the next frame in this thread: new memory for each costs as much as filling it.
        """
        height, width = laid.shape[:2]
        buffer = getattr(self._buffers, "pixels", None)
        if buffer is None or buffer.size < 3 * height * width:
            buffer = self._buffers.pixels = np.empty(3 * height * width, self._inputs.dtype)
        tensor: NDArray[Any] = buffer[: 3 * height * width].reshape(1, 3, height, width)
        planes = cv2.split(laid)
        for plane, source in enumerate(reversed(planes) if self._head.rgb else planes):
            self._normalise(source, plane, tensor[0, plane])
        return tensor

    def _normalise(self, source: NDArray[Any], plane: int, out: NDArray[Any]) -> None:
        how = self._head.normalisation
        if how is None:
            np.multiply(source, np.float32(self._head.scale), out=out, casting="same_kind")
            return
        np.subtract(source, np.float32(how.mean[plane]), out=out, casting="same_kind")
        np.divide(out, np.float32(how.std[plane]), out=out, casting="same_kind")

    def _run(self, tensor: NDArray[Any]) -> dict[str, yolo_detr_heads.Array]:
        feed: dict[str, NDArray[Any]] = {self._inputs.frame: tensor}
        if self._inputs.sizes:
            feed[self._inputs.sizes] = np.array([[self._inputs.width, self._inputs.height]], np.int64)
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))

    def _head_at(self, size: tuple[int, int]) -> yolo_detr_heads.OutputHead:
        """Remembered: at most one a shape, and shapes are multiples of `shape_step` up to the usual size."""
        if size not in self._heads:
            self._heads[size] = yolo_detr_heads.resized_head(self._head, size)
        return self._heads[size]

    def _step(self, head: yolo_detr_heads.OutputHead, wanted: HeadName) -> int:
        """32, or the network's own stride, if it takes another shape than its usual one and answers alike; else 0."""
        if not self._inputs.free or head.placing == "stretch":
            return 0
        named = self._metadata.get("stride", "")
        step = max(STEP, int(named) if named.isdigit() else 0)
        try:
            other = self._choose(wanted, (3 * step, 2 * step))
        except ModelError:
            return 0
        return step if other.name == head.name and other.classes == head.classes else 0

    def _choose(self, wanted: HeadName, size: tuple[int, int]) -> yolo_detr_heads.OutputHead:
        shape = (1, 3, size[1], size[0])
        try:
            outputs = self._run(np.full(shape, GREY / 255, self._inputs.dtype))
        except ORT_ERRORS as error:
            raise ModelError(f"{self._path}: the network fails on a trial picture: {_first_line(error)}") from None
        answer = yolo_detr_heads.TrialOutput(size, outputs, self._inputs.sizes, self._metadata)
        try:
            return yolo_detr_heads.choose_head(answer, wanted)
        except yolo_detr_heads.UnknownLayout as reason:
            raise ModelError(
                f"{self._path}: unknown output layout, {reason} (input {list(shape)}, outputs {answer.shapes()}; "
                f"detector.head is {wanted}); known: {yolo_detr_heads.KNOWN}"
            ) from None


def _open(path: Path, threads: int, device: Device, bf16: bool) -> ort.InferenceSession:
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
        raise ModelError(f"{path}: {what}: {_first_line(error)}") from None
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


def _inputs(path: Path, session: ort.InferenceSession, metadata: Mapping[str, str]) -> NetworkInputs:
    found = session.get_inputs()
    frames = [each for each in found if len(each.shape) == 4]
    sizes = [each for each in found if len(each.shape) == 2 and each.type == "tensor(int64)" and each.shape[1] == 2]
    seen = ", ".join(f"{each.name} {each.type} {each.shape}" for each in found) or "none"
    if len(frames) != 1 or len(frames) + len(sizes) != len(found) or len(sizes) > 1:
        raise ModelError(f"{path}: its inputs ({seen}) are not a picture [1, 3, height, width] and at most one [1, 2]")
    frame = frames[0]
    if frame.shape[1] not in (3, "channels") or frame.type not in DTYPES:
        raise ModelError(f"{path}: its input ({seen}) is not float [1, 3, height, width]")
    height, width = (_side(path, value, metadata, index) for index, value in enumerate(frame.shape[2:]))
    free = not any(isinstance(side, int) for side in frame.shape[2:])
    return NetworkInputs(frame.name, DTYPES[frame.type], width, height, sizes[0].name if sizes else "", free)


def _side(path: Path, value: object, metadata: Mapping[str, str], index: int) -> int:
    """A fixed side length, else the one Ultralytics wrote as `imgsz` ("[384, 640]"), else 640."""
    if not isinstance(value, int):
        named = [int(part) for part in metadata.get("imgsz", "").strip("[]() ").split(",") if part.strip().isdigit()]
        value = named[index] if len(named) == 2 else SIDE_DEFAULT
    if not 16 <= value <= SIDE_MAX:
        raise ModelError(f"{path}: an input side of {value} pixels is not between 16 and {SIDE_MAX}")
    return value


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
