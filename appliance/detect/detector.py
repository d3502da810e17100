"""What every detector can do, and how the one a site file asks for is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect import bundle, labels
from appliance.detect.hog import HogDetector
from appliance.errors import ModelError
from appliance.model import Detector
from appliance.types import Detections

if TYPE_CHECKING:
    from appliance.detect.onnx import OnnxDetector


class ObjectDetector(Protocol):
    """A port with one contract test, tests/contract/test_detectors.py."""

    @property
    def name(self) -> str:
        """File stem and the first 8 hex digits of its sha256, or `builtin:…`; goes into logs and replay headers."""
        ...

    @property
    def warning(self) -> str:
        """What a person should know of this detector as long as it is in use, or ''."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that `class_ids` index."""
        ...

    def picture_size(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) in which it wants a picture of `width` x `height`, so that the decoder can scale."""
        ...

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Look at BGR uint8 (H, W, 3) pictures of any size; one answer each, in order. Large ones are scaled down.

        Boxes are shares of the picture, clipped; scores at least the configured `score_min`; best score first, ties
        by box. Raises DetectorError, which is never to be read as "nothing there".
        """
        ...


def load(settings: Detector) -> OnnxDetector | HogDetector:
    """Find, check and warm up the detector that is asked for. Raises ModelError or MissingPart.

    `auto` is the network that comes with Vedette and, where that cannot be loaded, builtin:hog with a warning. A
    precision that is left open is the file's own: a box that runs for long asks `precision.settled` first.
    Sets OpenCV's thread count for the whole process to `settings.threads`.
    """
    cv2.setNumThreads(settings.threads)
    if settings.model == bundle.HOG:
        return HogDetector(score_min=settings.score_min)
    if settings.model == bundle.AUTO:
        try:
            return _network(settings, bundle.OWN)
        except ModelError as error:
            return HogDetector(score_min=settings.score_min, instead=str(error))
    return _network(settings, settings.model)


def _network(settings: Detector, model: str) -> OnnxDetector:
    found = bundle.find(model, precision=settings.precision)
    from appliance.detect.onnx import OnnxDetector  # a back end is loaded when it is chosen: it may not be installed

    return OnnxDetector(
        found.path,
        score_min=settings.score_min,
        threads=settings.threads,
        device=settings.device,
        head=settings.head if settings.head != "auto" else found.head,
        label_names=labels.read(settings.labels) if settings.labels else found.labels,
        bf16=found.bf16,
    )
