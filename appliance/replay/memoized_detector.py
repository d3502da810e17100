"""Calls the detector once for each picture, for replays of the same footage with other settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.detect.detector import DetectorProxy, ObjectDetector, VariableInput, calibration_of, prefer_labels
from appliance.types import Detections

CACHED_DETECTIONS_MAX = 100_000  # some 100 MB at 30 objects a frame; five and a half hours at 5 fps


class MemoizedDetector(DetectorProxy):
    """Caches the detector's detections by the contents of the frame; failures are not cached.

    State: the cache, oldest first, for the labels that rules want now. Owner: one thread.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        super().__init__(detector)
        self.shape_step = detector.shape_step if isinstance(detector, VariableInput) else 0
        self.calibration = calibration_of(detector)
        self._wanted: frozenset[str] = frozenset()
        self._cache: dict[bytes, Detections] = {}

    def prefer(self, wanted: Iterable[str]) -> None:
        """Pass on which labels rules want; with others the answers differ."""
        labels = frozenset(wanted)
        if labels != self._wanted:
            self.forget()
            self._wanted = labels
            prefer_labels(self._detector, sorted(labels))

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Return the remembered detections, or detect. Raise DetectorError."""
        return [self._detect_one(frame) for frame in frames]

    def forget(self) -> None:
        """Empty the cache before other footage, whose frames differ."""
        self._cache.clear()

    def _detect_one(self, frame: NDArray[np.uint8]) -> Detections:
        shape = b"%d,%d" % frame.shape[:2]
        key = hashlib.blake2b(np.ascontiguousarray(frame).data, digest_size=16, salt=shape).digest()
        if (known := self._cache.get(key)) is None:
            known = self._cache[key] = self._detector.detect([frame])[0]
            if len(self._cache) > CACHED_DETECTIONS_MAX:
                del self._cache[next(iter(self._cache))]
        return known
