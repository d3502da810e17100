"""Gate, detector and tracker for one camera run: which frames are looked at, and what is said about them.

No threads and no clock: what comes out depends only on frame numbers, camera times, pictures and the detector's
answers, in order. Live ingest and replay share it; that is what makes a replay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import av
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.errors import DetectorError
from appliance.ingest.gate import Gate
from appliance.ingest.picture import Pictures, upright_size
from appliance.types import Box, Detections, FrameBoxes, TrackedObject

QUIET_AFTER_S = 2.0
_EARLY_S = 0.002


class Detector(Protocol):
    """Finds objects in pictures; shared by all cameras."""

    @property
    def name(self) -> str:
        """What stands in `StreamHeader.model`."""
        ...

    @property
    def warning(self) -> str:
        """What a person should know of it as long as it is in use, or ''."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that `Detections.class_ids` index."""
        ...

    def picture_size(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) in which it wants to be handed a picture of that size."""
        ...

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One answer per picture (uint8 BGR HxWx3), boxes as shares of the picture. May raise DetectorError."""
        ...


class Tracker(Protocol):
    """Follows objects through the frames of one camera run."""

    def update(self, detections: Detections, t: float) -> tuple[TrackedObject, ...]:
        """The objects of this frame. Called only for frames that were looked at; `t` rises."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """A frame that is due. priority: how much moved, 0..1; a frame that is due anyway has 0."""

    frame: int
    t: float
    picture: av.VideoFrame
    priority: float


class Examiner:
    """Decides which frames are due and turns the detector's answers into `FrameBoxes`.

    State: gate, tracker, when the last look and the last movement were, the sequence number. Live, `due` is called by
    the camera's thread, `picture` and `result` by the detector's; each touches only its own part of the state, and
    `result` is never called twice at once.
    """

    def __init__(self, camera: str, detector: Detector, tracker: Tracker, plan: config.Detect) -> None:
        self._camera = camera
        self._detector = detector
        self._tracker = tracker
        self._every_s = min(1 / plan.fps, plan.heartbeat_s)
        self._heartbeat_s = plan.heartbeat_s
        self._gate = Gate()
        self._for_gate = Pictures()
        self._for_detector = Pictures()
        self._next_t: float | None = None
        self._look_t = float("-inf")
        self._moved_t = float("-inf")
        self._seen_t = float("-inf")
        self._seq = 0

    def examine(self, frame: int, t: float, picture: av.VideoFrame) -> FrameBoxes | None:
        """The whole way for one frame; None when it is not due. A detector that fails gives `looked=False`."""
        look = self.due(frame, t, picture)
        if look is None:
            return None
        try:
            return self.result(look, self._detector.detect([self.picture(look)])[0])
        except DetectorError:
            return self.result(look, None)

    def due(self, frame: int, t: float, picture: av.VideoFrame) -> Look | None:
        """A look to be taken, or None: too early, or nothing moves, nothing is followed and the heartbeat is not due.

        Call it for each decoded frame in order.
        """
        if not self._in_step(t):
            return None
        priority = self._gate.measure(self._for_gate.luma(picture))
        if priority > 0:
            self._moved_t = t
        busy = t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S
        if not busy and t - self._look_t < self._heartbeat_s - _EARLY_S:
            return None
        self._look_t = t
        return Look(frame, t, picture, priority)

    def picture(self, look: Look) -> NDArray[np.uint8]:
        """The picture of a look as the detector wants it: uint8 BGR (height, width, 3), upright."""
        return self._for_detector.bgr(look.picture, self._detector.picture_size(*upright_size(look.picture)))

    def result(self, look: Look, detections: Detections | None) -> FrameBoxes:
        """What is known of the frame. None: the detector did not answer, so nothing is said about it."""
        objects: tuple[TrackedObject, ...] = ()
        if detections is not None:
            objects = tuple(map(_rounded, self._tracker.update(detections, look.t)))
            if objects:
                self._seen_t = look.t
        self._seq += 1
        return FrameBoxes(
            camera=self._camera,
            seq=self._seq - 1,
            frame=look.frame,
            t=look.t,
            looked=detections is not None,
            objects=objects,
        )

    def _in_step(self, t: float) -> bool:
        """At most `fps` frames a second, evenly, by camera time; a late frame does not bring two after it."""
        if self._next_t is None:
            self._next_t = t
        if t < self._next_t - _EARLY_S:
            return False
        self._next_t += self._every_s
        if self._next_t <= t:
            self._next_t = t + self._every_s
        return True


def _rounded(found: TrackedObject) -> TrackedObject:
    x1, y1, x2, y2 = (round(float(side), 4) for side in found.box)
    box: Box = (x1, y1, x2, y2)
    return TrackedObject(track=found.track, label=found.label, score=round(float(found.score), 3), box=box)
