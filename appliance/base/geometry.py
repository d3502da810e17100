"""Geometry of two bounding boxes: intersection over union, and whether they are at the same place.

Any unit, as long as both have the same.
"""

from __future__ import annotations

from appliance.types import Box

SAME_PLACE_IOU_MIN = 0.3  # by centre alone, HOG confirmed a patch of lawn beside a false box
PLACE_SCALE = 1.5  # a centre this much outside the flagged box still counts: detectors disagree a little
SIZE_RATIO_MAX = 2.0  # but not when it is another size


def iou(a: Box, b: Box) -> float:
    """Return the intersection over union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    if width <= 0:
        return 0.0
    height = min(a[3], b[3]) - max(a[1], b[1])
    if height <= 0:
        return 0.0
    both = width * height
    return both / max((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both, 1e-12)


def is_same_place(found: Box, flagged: Box) -> bool:
    """Return True for an IoU of at least SAME_PLACE_IOU_MIN, or for about the same height near the flagged box.

    Near: its centre lies inside the flagged box enlarged by PLACE_SCALE.
    """
    ax, ay = (found[0] + found[2]) / 2, (found[1] + found[3]) / 2
    bx, by = (flagged[0] + flagged[2]) / 2, (flagged[1] + flagged[3]) / 2
    reach_x, reach_y = (flagged[2] - flagged[0]) * PLACE_SCALE / 2, (flagged[3] - flagged[1]) * PLACE_SCALE / 2
    near = abs(ax - bx) <= reach_x and abs(ay - by) <= reach_y
    ratio = (found[3] - found[1]) / max(flagged[3] - flagged[1], 1e-6)
    return (near and 1 / SIZE_RATIO_MAX <= ratio <= SIZE_RATIO_MAX) or iou(found, flagged) >= SAME_PLACE_IOU_MIN
