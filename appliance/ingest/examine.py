"""Gate, detector and tracker for one camera run: which frames are looked at, and what is said about them.

No threads and no clock: what comes out depends only on frame numbers, camera times, pictures and the detector's
answers, in order. Live ingest and replay share it; that is what makes a replay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
LATE_SHARE = 0.1  # of heartbeat_s: a key frame that comes that much later is waited for
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

    def update(
        self, detections: Detections, t: float, planes: Sequence[NDArray[np.uint8]]
    ) -> tuple[TrackedObject, ...]:
        """The objects of this frame. Called only for frames that were looked at; `t` rises.

        planes: the picture, brightness and perhaps two colour planes, upright (see `Pictures.planes`).
        """
        ...


Lens = Callable[[int, float, av.VideoFrame], av.VideoFrame]
"""(frame, t, picture) to the picture that is examined instead: how a replay makes weather."""


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

    lens: put before gate and detector; asked only for frames that are in step. settle: brings in the results of all
    looks so far. A replay that asks the detector ahead passes it; it is called only where a decision hangs on them.
    seen: shown the gate's small plane of every frame that is in step (see `health.sentry.Sentry.look`).
    """

    def __init__(
        self,
        camera: str,
        detector: Detector,
        tracker: Tracker,
        plan: config.Detect,
        *,
        lens: Lens | None = None,
        settle: Callable[[], None] | None = None,
        seen: Callable[[float, NDArray[np.uint8]], None] | None = None,
    ) -> None:
        self._camera = camera
        self._detector = detector
        self._tracker = tracker
        self._every_s = min(1 / plan.fps, plan.heartbeat_s)
        self._heartbeat_s = plan.heartbeat_s
        self._lens = lens
        self._settle = settle
        self._seen = seen
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

    def due(self, frame: int, t: float, picture: av.VideoFrame, *, next_s: float = 0.0) -> Look | None:
        """A look to be taken, or None: too early, or nothing moves, nothing is followed and the heartbeat is not due.

        Call it for each decoded frame in order. next_s: no other may come for so long; a heartbeat that would fall due
        before that, by more than LATE_SHARE, is due now.
        """
        if not self._in_step(t):
            return None
        if self._lens is not None:
            picture = self._lens(frame, t, picture)
        plane = self._for_gate.luma(picture)
        if self._seen is not None:
            self._seen(t, plane)
        priority = self._gate.measure(plane)
        if priority > 0:
            self._moved_t = t
        if self._settle is not None and not self._wanted(t):
            self._settle()  # results can only add to the reasons for a look
        if not self._wanted(t) and not self.overdue(t + next_s - LATE_SHARE * self._heartbeat_s):
            return None
        self._look_t = t
        return Look(frame, t, picture, priority)

    def moved(self, t: float) -> bool:
        """The gate saw something move at `t`, or a moment before. Called by the camera's thread."""
        return t - self._moved_t <= QUIET_AFTER_S

    def busy(self, t: float) -> bool:
        """Something moves or is followed, or did a moment ago. Called by the camera's thread."""
        if self._settle is not None and not self.moved(t):
            self._settle()
        return t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S

    def overdue(self, t: float) -> bool:
        """The heartbeat is due at `t`. Called by the camera's thread."""
        return t - self._look_t >= self._heartbeat_s - _EARLY_S

    def changed(self, picture: av.VideoFrame) -> bool:
        """Whether the gate would see movement in this picture; it learns nothing. Called by the camera's thread."""
        return self._gate.peek(self._for_gate.luma(picture)) > 0

    def insist(self) -> None:
        """Make the next frame due, whatever rhythm and gate say of it."""
        self._next_t, self._look_t = None, float("-inf")

    def picture(self, look: Look) -> NDArray[np.uint8]:
        """The picture of a look as the detector wants it: uint8 BGR (height, width, 3), upright."""
        return self._for_detector.bgr(look.picture, self._detector.picture_size(*upright_size(look.picture)))

    def result(self, look: Look, detections: Detections | None) -> FrameBoxes:
        """What is known of the frame. None: the detector did not answer, so nothing is said about it."""
        objects: tuple[TrackedObject, ...] = ()
        if detections is not None:
            planes = self._for_detector.planes(look.picture)
            objects = tuple(map(_rounded, self._tracker.update(detections, look.t, planes)))
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

    def _wanted(self, t: float) -> bool:
        return t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S or self.overdue(t)

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
