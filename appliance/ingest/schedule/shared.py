"""A detector with a fixed input, as cameras see it that share its calls: parts of pictures are worth making for it."""

from __future__ import annotations

from appliance.detect.detector import ObjectDetector
from appliance.detect.wrapper import Wrapper
from appliance.ingest.schedule.sheet import STEP, Fixed


class Shared(Wrapper):
    """Says `shape_step` where the detector by itself would not: its call costs the same whatever is in it, but several
    parts of pictures go into one (`Sheets`). What is said of it otherwise is the detector's own."""

    shape_step = STEP


def shared(detector: ObjectDetector, cameras: int) -> ObjectDetector:
    """As so many cameras are to see it. One alone has nobody to share with."""
    fixed = isinstance(detector, Fixed) and detector.sheet is not None
    return Shared(detector) if fixed and cameras > 1 else detector
