"""A detector that stands before another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.detect.detector import ObjectDetector
from appliance.types import Detections


class Wrapper:
    """An ObjectDetector that is another one, but for what its heirs change.

    It says nothing of parts of pictures (`ingest.ports.Elastic`): an heir that may be shown some says so itself.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        self._detector = detector

    @property
    def name(self) -> str:
        return self._detector.name

    @property
    def warning(self) -> str:
        return self._detector.warning

    @property
    def labels(self) -> tuple[str, ...]:
        return self._detector.labels

    def picture_size(self, width: int, height: int) -> tuple[int, int]:
        return self._detector.picture_size(width, height)

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Raises DetectorError."""
        return self._detector.detect(pictures)
