"""Non-maximum suppression, and the fixed order of a detector's answer."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.types import Detections

CANDIDATES_MAX = 1000  # by score; the cost grows with the square, and a frame shows fewer objects
DETECTIONS_MAX = 300  # of a frame, as Ultralytics' max_det


def non_maximum_suppression(found: Detections, iou_max: float, *, per_class: bool) -> Detections:
    """Keep the best of boxes that overlap by more than `iou_max`; within a class only if `per_class`.

    Of more than CANDIDATES_MAX boxes the best are taken. OpenCV's loop was 5 to 20 times faster than a vectorised
    numpy one for 10 to 1000 boxes.
    """
    if len(found) > CANDIDATES_MAX:
        found = found.select(np.argsort(-found.scores, kind="stable")[:CANDIDATES_MAX])
    if len(found) < 2:
        return found
    corners_sizes = found.boxes.copy()
    corners_sizes[:, 2:] -= corners_sizes[:, :2]
    groups = found.class_ids if per_class else np.zeros_like(found.class_ids)
    keep = cv2.dnn.NMSBoxesBatched(corners_sizes, found.scores, groups, 0.0, iou_max)  # type: ignore[arg-type]
    return found.select(np.asarray(keep, np.intp).reshape(-1))


def filter_and_sort(found: Detections, score_min: float) -> Detections:
    """Finite boxes with an area and a score of at least `score_min`, best score first, ties by box; at most 300."""
    size = found.boxes[:, 2:] - found.boxes[:, :2]
    fine = np.isfinite(found.boxes).all(axis=1) & (size > 1e-4).all(axis=1) & (found.scores >= score_min)
    found = found.select(fine)
    order = np.lexsort((found.class_ids, *found.boxes.T[::-1], -found.scores))
    return found.select(order[:DETECTIONS_MAX])


def to_detections(
    boxes: NDArray[np.generic], scores: NDArray[np.generic], class_ids: NDArray[np.generic]
) -> Detections:
    """Return detections, contiguous, from whatever dtypes a network answered with."""
    return Detections(
        np.ascontiguousarray(boxes, np.float32).reshape(-1, 4),
        np.minimum(np.ascontiguousarray(scores, np.float32).reshape(-1), 1.0),
        np.ascontiguousarray(class_ids, np.int32).reshape(-1),
    )
