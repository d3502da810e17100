"""Detections of one frame, tracked objects, overlap of boxes, and messages about frames across the ingest boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from appliance.types.literals import SCHEMA, Box

if TYPE_CHECKING:  # the core takes boxes as plain values and never loads numpy
    import numpy as np
    from numpy.typing import NDArray

SAME_PLACE_IOU_MIN = 0.3  # by centre alone, HOG confirmed a patch of lawn beside a false box
PLACE_SCALE = 1.5  # a centre this much outside the flagged box still counts: detectors disagree a little
SIZE_RATIO_MAX = 2.0  # but not when it is another size


@dataclass(frozen=True, slots=True)
class Detections:
    """The detections of one inference on one frame.

    boxes: float32 (N, 4) xyxy, shares of the frame; scores: float32 (N,) 0..1; class_ids: int32 (N,), an index into the
    detector's `labels`. Empty arrays mean "examined, and nothing found"; "not examined" is `None`, never this.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def empty(cls) -> Detections:
        import numpy as np

        return cls(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))

    def select(self, index: NDArray[np.bool_] | NDArray[np.intp]) -> Detections:
        """Return the rows that `index` (a mask or positions) picks."""
        return Detections(self.boxes[index], self.scores[index], self.class_ids[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedObject:
    """One object in one examined frame. `score` is this frame's detection score, rounded to 3 places; `box` to 4.

    stood_s: seconds that it was known to stand there, unmoved, before this track of it began (in an earlier session of
    the camera, or long unseen); None: nothing is known from before.
    """

    track: int
    label: str
    score: float
    box: Box
    stood_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeader:
    """First line of a camera's session (or of a replay log). A new `run` makes all its earlier track ids stale.

    known_before: what stood there before the session is known, from an earlier session or a file; what is there and is
    not known (`TrackedObject.stood_s` is None) came meanwhile. calibration: by label, (slope, offset) of the line from
    the log-odds of this network's scores to those of the common scale; a label that is not in it needs none.
    """

    type: Literal["header"] = "header"
    schema: int = SCHEMA
    camera: str
    clip: str
    model: str
    size: tuple[int, int]
    run: str = ""
    known_before: bool = False
    calibration: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameBoxes:
    """The objects of one examined frame; the only thing made from pixels that crosses the ingest boundary.

    seq counts these messages per session from 0; frame is the 0-based index of the decoded frame in the session.
    looked=False: the detector failed on this frame, so `objects` means nothing.
    """

    type: Literal["boxes"] = "boxes"
    camera: str
    seq: int
    frame: int
    t: float
    looked: bool
    objects: tuple[TrackedObject, ...] = ()


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


def contained_share(box: Sequence[float], other: Sequence[float]) -> float:
    """Which part of `box` lies in `other`, 0..1."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return width * height / area if width > 0 and height > 0 and area > 0 else 0.0


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
