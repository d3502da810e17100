"""A detector with a fixed input, as cameras see it that share its calls: parts of pictures are worth making for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.ingest.ports import Detector
from appliance.ingest.schedule.sheet import STEP, Fixed
from appliance.types import Detections


class Shared:
    """Says `shape_step` where the detector by itself would not: its call costs the same whatever is in it, but several
    parts of pictures go into one (`Sheets`). What is said of it otherwise is the detector's own."""

    shape_step = STEP

    def __init__(self, detector: Detector) -> None:
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
        return self._detector.detect(pictures)


def shared(detector: Detector, cameras: int) -> Detector:
    """As so many cameras are to see it. One alone has nobody to share with."""
    fixed = isinstance(detector, Fixed) and detector.sheet is not None
    return Shared(detector) if fixed and cameras > 1 else detector
