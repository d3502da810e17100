"""PicoDet from its ONNX file without post-processing: a teacher, and a network to compare with.

The appliance does not load this layout (eight outputs: scores and distributions of distances at strides 8 to 64).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from appliance.detect.labels import COCO_80
from appliance.detect.suppress import suppress, tidy
from appliance.types import Detections

STRIDES = (8, 16, 32, 64)
MEAN = np.array([123.675, 116.28, 103.53], np.float32)  # of RGB pixels 0..255, as ImageNet has them
SPREAD = np.array([58.395, 57.12, 57.375], np.float32)
IOU_MAX = 0.6
Floats = NDArray[np.float32]


class PicoDet:
    """An `ObjectDetector`; owned by one thread."""

    warning = ""
    labels = tuple(COCO_80)

    def __init__(self, path: Path, *, score_min: float, threads: int = 1) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        given = self._session.get_inputs()[0]
        self._input, self._height, self._width = given.name, int(given.shape[2]), int(given.shape[3])
        self._score_min = score_min
        self._name = f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"

    @property
    def name(self) -> str:
        """File stem and the first 8 hex digits of its sha256."""
        return self._name

    def picture_size(self, width: int, height: int) -> tuple[int, int]:
        """Its input: pictures are stretched to it."""
        return self._width, self._height

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Boxes as shares of each BGR picture, best score first."""
        return [self._look(picture) for picture in pictures]

    def _look(self, picture: NDArray[np.uint8]) -> Detections:
        laid = cv2.resize(picture, (self._width, self._height))[:, :, ::-1].astype(np.float32)
        given = ((laid - MEAN) / SPREAD).transpose(2, 0, 1)[None]
        answers = self._session.run(None, {self._input: np.ascontiguousarray(given)})
        parts = [
            _level(scores[0], reach[0], stride, -(-self._width // stride), self._score_min)
            for scores, reach, stride in zip(answers[: len(STRIDES)], answers[len(STRIDES) :], STRIDES, strict=True)
        ]
        boxes = np.concatenate([part[0] for part in parts]) / np.array([self._width, self._height] * 2, np.float32)
        scores, classes = (np.concatenate([part[number] for part in parts]) for number in (1, 2))
        found = Detections(boxes.clip(0, 1).astype(np.float32), scores.astype(np.float32), classes.astype(np.int32))
        return tidy(suppress(found, IOU_MAX, per_class=True), self._score_min)


def _level(
    scores: Floats, reach: Floats, stride: int, columns: int, score_min: float
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Boxes in pixels of the input, scores and classes of one level's cells that are sure enough."""
    keep = np.flatnonzero(scores.max(axis=1) >= score_min)
    bins = reach[keep].reshape(len(keep), 4, reach.shape[1] // 4)
    share = np.exp(bins - bins.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    away = share @ np.arange(share.shape[-1], dtype=np.float32) * stride
    x, y = (keep % columns + 0.5) * stride, (keep // columns + 0.5) * stride
    boxes = np.stack([x - away[:, 0], y - away[:, 1], x + away[:, 2], y + away[:, 3]], 1)
    return boxes.astype(np.float32), scores[keep].max(axis=1), scores[keep].argmax(axis=1)
