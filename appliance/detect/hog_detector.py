"""OpenCV's built-in pedestrian detector: needs no model file, and finds little."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import DetectorError, MissingDependency
from appliance.detect.letterbox import GREY
from appliance.detect.output_head import filter_and_sort, non_maximum_suppression, to_detections
from appliance.types import Detections

log = logging.getLogger(__name__)

# The window holds a person of about 96 pixels, so the smallest person found is 0.13 of the height of a 4:3 frame.
# AP50 on PETS09-S2L1: 640 wide 0.21, 800 wide 0.58, 960 wide 0.78. Pyramid steps of 1.05 instead of 1.2 take three
# times as long and bring 0.03.
SIDE = 960
PYRAMID_STEP = 1.2  # scale of one level to the next; finer ones cost more levels
WINDOW = (64, 128)  # pixels (width, height) of OpenCV's people detector (Dalal, Triggs 2005)
# The person within the window, as shares of it.
PERSON = np.array([0.47, 0.75])
# score = 1 / (1 + exp(-(SLOPE * weight + OFFSET))): logistic regression of "overlaps a person by half" on the SVM's
# weight over 100 frames of PETS09-S2L1 (1221 boxes, 486 right). It is within 0.12 of the observed share in all bins.
SLOPE, OFFSET = 2.60, -1.73
WEIGHT_MIN = -1.0  # an SVM's margin; below it nothing is a person
WARNING = "the detector is builtin:hog, a last resort: it misses many persons and knows nothing else"


class HogDetector:
    """Histograms of oriented gradients and a linear SVM (Dalal & Triggs 2005); upright, whole persons only.

    Owned by one thread at a time; holds no state between frames.
    """

    name = "builtin:hog"
    labels: tuple[str, ...] = ("person",)
    warning = f"{WARNING}; set detector.model"

    def __init__(self, *, score_min: float = 0.1) -> None:
        """Open OpenCV's HOG detector. Raises MissingDependency where OpenCV came without it."""
        if not hasattr(cv2, "HOGDescriptor"):
            raise MissingDependency(
                "builtin:hog needs OpenCV 4 (5 left it out): pip install 'opencv-python-headless<5'"
            )
        log.warning("%s", self.warning)
        self.stands_in = ""
        self._score_min = score_min
        self._weight_min = _weight(score_min)
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32))

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        """Proportions kept, the longer side 960."""
        ratio = SIDE / max(width, height)
        return max(1, round(width * ratio)), max(1, round(height * ratio))

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One Detections per BGR uint8 (H, W, 3) frame. Raises DetectorError."""
        return [self._detect_one(frame) for frame in frames]

    def close(self) -> None:
        """Nothing is held."""

    def _detect_one(self, frame: NDArray[np.uint8]) -> Detections:
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or frame.size == 0:
            raise DetectorError(f"not a BGR uint8 picture: {frame.dtype} {list(frame.shape)}")
        size = self.preferred_size(frame.shape[1], frame.shape[0])
        if (frame.shape[1], frame.shape[0]) != size:
            frame = np.asarray(cv2.resize(frame, size), np.uint8)
        windows, weights = self._windows(_at_least_a_window(frame))
        centres, sizes = windows[:, :2] + windows[:, 2:] / 2, windows[:, 2:] * PERSON
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        scores = 1 / (1 + np.exp(-(SLOPE * weights + OFFSET)))
        kept = non_maximum_suppression(to_detections(boxes, scores, np.zeros(len(boxes))), 0.35, per_class=False)
        shares = np.clip(kept.boxes / np.array(size * 2, np.float32), 0, 1).astype(np.float32)
        return filter_and_sort(Detections(shares, kept.scores, kept.class_ids), self._score_min)

    def _windows(self, frame: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(N, 4) x, y, width, height in pixels and (N,) SVM weights."""
        try:
            found, weights = self._hog.detectMultiScale(
                frame,
                hitThreshold=self._weight_min,
                winStride=(8, 8),
                padding=(8, 8),
                scale=PYRAMID_STEP,
                groupThreshold=0,
            )
        except cv2.error as error:
            raise DetectorError(f"{self.name}: {error.err}") from None
        return np.asarray(found, np.float64).reshape(-1, 4), np.asarray(weights, np.float64).reshape(-1)


def _weight(score: float) -> float:
    """Return the SVM weight that gives `score`, at least WEIGHT_MIN."""
    score = min(max(score, 1e-3), 1 - 1e-3)
    return max(WEIGHT_MIN, (math.log(score / (1 - score)) - OFFSET) / SLOPE)


def _at_least_a_window(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey added right and below: OpenCV crashes the process on a frame smaller than its window."""
    right, below = max(0, WINDOW[0] - frame.shape[1]), max(0, WINDOW[1] - frame.shape[0])
    if not right and not below:
        return frame
    grey = (GREY, GREY, GREY)
    return np.asarray(cv2.copyMakeBorder(frame, 0, below, 0, right, cv2.BORDER_CONSTANT, value=grey), np.uint8)
