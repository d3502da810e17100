"""Says whether a box has moved. Needs no pixels: the core asks it, too, and never loads OpenCV."""

from __future__ import annotations

import math

from appliance.track.tracker_tuning import TUNING
from appliance.types import Box


def is_same_place(a: Box, b: Box) -> bool:
    """Return True if two boxes may be detections of the same unmoved object."""
    width_a, height_a, width_b, height_b = a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]
    if not (_same_length(width_a, width_b) and _same_length(height_a, height_b)):
        return False
    # Each direction by its own side would be harsh on the narrow ones: shares of width and height are of two lengths.
    size = math.sqrt(max(width_a * height_a, 1e-12))
    apart = max(abs(a[0] + a[2] - b[0] - b[2]), abs(a[1] + a[3] - b[1] - b[3])) / 2
    return apart <= TUNING.still.still_step_max * size


def _same_length(a: float, b: float) -> bool:
    return a <= TUNING.still.still_growth_max * b and b <= TUNING.still.still_growth_max * a
