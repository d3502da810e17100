"""Motion gate, detector and tracker for one camera session: which frames are inferred, and the boxes that follow.

No threads and no clock: the output depends only on frame numbers, camera times, frames and detections, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import av
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.analysis.region_selector import RegionSelector
from appliance.decode_policy.keyframe_policy import LATE_SHARE
from appliance.detect.detector import ObjectDetector
from appliance.errors import DetectorError
from appliance.media.frames import FrameConverter, upright_size
from appliance.motion.motion_gate import MotionGate
from appliance.motion.region_mosaic import Mosaic
from appliance.track.tracker import VEHICLES
from appliance.types import Box, Detections, FrameBoxes, TrackedObject


class ObjectTracker(Protocol):
    """Follows objects through the frames of one camera run."""

    @property
    def active_boxes(self) -> tuple[Box, ...]:
        """Where the next look is needed because of what is followed: all but what rests."""
        ...

    @property
    def has_unconfirmed(self) -> bool:
        """Somebody was found in the last look who is not told of until another one has found them, too."""
        ...

    def update(
        self, detections: Detections, t: float, planes: Sequence[NDArray[np.uint8]], parts: Sequence[Box] = ()
    ) -> tuple[TrackedObject, ...]:
        """The objects of this frame. Called only for frames that were looked at; `t` rises.

        planes: the whole picture, brightness and perhaps two colour planes, upright (see `Pictures.planes`). parts:
        of the picture, those that were looked at; none: all of it. Boxes are always shares of the whole picture.
        """
        ...


FrameFilter = Callable[[int, float, av.VideoFrame], av.VideoFrame]
"""(frame, t, picture) to the picture that is examined instead: how a replay makes weather."""


MOVED_SHARE_MIN = 0.01  # of the picture: what rests is never measured quite alike


class ActivityFlag:
    """State: who was where at the last look of one run. Owner: whoever holds the run's answers."""

    def __init__(self) -> None:
        self.is_active = False
        self._present: dict[int, Box] = {}

    def update(self, boxes: FrameBoxes) -> None:
        """Somebody stirs who was not there at the last look, or has moved since. What rests is worth no hurry."""
        before, self._present = self._present, {each.track: each.box for each in boxes.objects}
        self.is_active = any(
            track not in before or max(abs(a - b) for a, b in zip(box, before[track], strict=True)) > MOVED_SHARE_MIN
            for track, box in self._present.items()
        )


QUIET_AFTER_S = 1.0
STANDING_EVERY_S = 2.0  # while somebody stands still, so by key frames; a parked car waits for the heartbeat
STOPPED_EVERY_S = 1.0  # who has just come to stand will likely walk on
STOPPED_S = 20.0
STANDING_S = 4.5
CONFIRM_S = 0.06  # in `lowest`: who is new is looked at again with the next picture, at 30 a second the one after it
_EARLY_S = 0.002
LUMA_EVERY_S = 1.0  # what the sentry watches for lasts for seconds: while pictures come faster, it needs not all


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A frame that is due. priority: how much moved, 0..1; a frame that is due anyway has 0. mosaic: the parts
    of it to be shown to the detector; None: all of it."""

    frame_index: int
    t: float
    av_frame: av.VideoFrame
    priority: float
    mosaic: Mosaic | None = None


class FrameAnalyzer:
    """Decides which frames are due and turns the detector's answers into `FrameBoxes`.

    State: gate, tracker, when the last look and the last movement were, the sequence number. Live, `due` is called by
    the camera's thread, `picture` and `result` by the detector's; each touches only its own part of the state, and
    `result` is never called twice at once.

    lens: put before gate and detector; asked only for frames that are in step. settle: brings in the results of all
    looks so far. A replay that asks the detector ahead passes it; it is called only where a decision hangs on them.
    seen: shown a small plane of the frames that are in step, one each SEEN_EVERY_S (see `health.sentry.Sentry.look`).
    """

    def __init__(
        self,
        camera: str,
        detector: ObjectDetector,
        tracker: ObjectTracker,
        plan: config.DetectConfig,
        *,
        frame_filter: FrameFilter | None = None,
        drain: Callable[[], None] | None = None,
        on_luma: Callable[[float, NDArray[np.uint8]], None] | None = None,
    ) -> None:
        self._camera = camera
        self._detector = detector
        self._tracker = tracker
        self._every_s = min(1 / plan.fps, plan.heartbeat_s)
        self._heartbeat_s = plan.heartbeat_s
        self._lens = frame_filter
        self._settle = drain
        self._seen = on_luma
        self._seen_by_t = float("-inf")
        self._hurries = plan.latency == "lowest"
        self._gate = MotionGate(eager=self._hurries)
        self._for_gate = FrameConverter()
        self._sketched: tuple[av.VideoFrame, NDArray[np.uint8]] | None = None
        self._for_detector = FrameConverter()
        self._next_t: float | None = None
        self._look_t = float("-inf")
        self._moved_t = float("-inf")
        self._seen_t = float("-inf")
        self._standing_t = self._stirred_t = float("-inf")
        self._somebody = False
        self._new_t = float("-inf")
        self._seq = 0
        self._framing = RegionSelector(detector, drain)

    def examine(self, frame: int, t: float, picture: av.VideoFrame) -> FrameBoxes | None:
        """The whole way for one frame; None when it is not due. A detector that fails gives `looked=False`."""
        look = self.select(frame, t, picture)
        if look is None:
            return None
        try:
            return self.result(look, self._detector.detect([self.detector_input(look)])[0])
        except DetectorError:
            return self.result(look, None)

    def select(self, frame: int, t: float, picture: av.VideoFrame, *, next_s: float = 0.0) -> InferenceRequest | None:
        """A look to be taken, or None: too early, or nothing moves, nothing is followed and the heartbeat is not due.

        Call it for each decoded frame in order. next_s: no other may come for so long; a heartbeat that would fall due
        before that, by more than LATE_SHARE, is due now. In `lowest` who is new is looked at again at once.
        """
        if not self._in_step(t) and not self._hurried(t):
            return None
        if self._lens is not None:
            picture = self._lens(frame, t, picture)
        sketch = self._sketch(picture)
        if self._seen is not None and not 0 <= t - self._seen_by_t < LUMA_EVERY_S - _EARLY_S:
            self._seen_by_t = t
            self._seen(t, self._for_gate.small_luma(picture))
        motion = self._gate.measure(sketch)
        if motion.priority > 0:
            self._moved_t = t
            self._framing.add_motion(t, [region.box for region in motion.regions])
        elif not self._wanted(t, next_s):
            return None
        self._look_t = t
        return InferenceRequest(
            frame, t, picture, motion.priority, self._framing.select(t, picture, whole=motion.whole)
        )

    def moved(self, t: float) -> bool:
        """The gate saw something move at `t`, or a moment before. Called by the camera's thread."""
        return t - self._moved_t <= QUIET_AFTER_S

    def busy(self, t: float) -> bool:
        """Something moves or is followed, or did a moment ago. Called by the camera's thread."""
        if self._settle is not None and not self.moved(t):
            self._settle()
        return t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S

    def overdue(self, t: float) -> bool:
        """The heartbeat is due at `t`, which is faster while somebody stands still. Called by the camera's thread."""
        if self._settle is not None:
            self._settle()
        return self._is_overdue(t)

    def _is_overdue(self, t: float) -> bool:
        return t - self._look_t >= self._rhythm_s(t) - _EARLY_S

    def _rhythm_s(self, t: float) -> float:
        """Seconds between two looks if nothing moves: fewer while somebody is followed who is no vehicle, since a rule
        may wait for them to have stayed long enough."""
        if t - self._standing_t > STANDING_S:
            return self._heartbeat_s
        stopped = self._somebody and t - self._stirred_t <= STOPPED_S
        return min(STOPPED_EVERY_S if stopped else STANDING_EVERY_S, self._heartbeat_s)

    def changed(self, picture: av.VideoFrame) -> bool:
        """Whether the gate would see movement in this picture; it learns nothing. Called by the camera's thread."""
        self._sketched = picture, self._for_gate.motion_plane(picture)  # it is wanted again in a moment, by `due`
        return self._gate.peek_priority(self._sketched[1]) > 0

    def force_next(self) -> None:
        """Make the next frame due, whatever rhythm and gate say of it."""
        self._next_t, self._look_t = None, float("-inf")
        self._framing.force_whole()

    def detector_input(self, look: InferenceRequest) -> NDArray[np.uint8]:
        """What the detector is to be shown of a look, as it wants it: uint8 BGR (height, width, 3), upright.

        Parts of a picture come at the scale of the whole one, as one picture whose sides are multiples of
        `Elastic.shape_step`.
        """
        picture = self._for_detector.bgr(look.av_frame, self._detector.preferred_size(*upright_size(look.av_frame)))
        return picture if look.mosaic is None else look.mosaic.draw(picture)

    def result(self, look: InferenceRequest, detections: Detections | None) -> FrameBoxes:
        """What is known of the frame. None: the detector did not answer, so nothing is said about it."""
        objects: tuple[TrackedObject, ...] = ()
        if detections is None:
            self._framing.force_whole_next()
        else:
            objects = tuple(map(_rounded, self._tracked(look, detections)))
            unsettled = self._tracker.active_boxes
            self._framing.update_tracks(look.t, objects, unsettled)
            self._new_t = look.t if self._tracker.has_unconfirmed else float("-inf")
            if unsettled:
                self._seen_t = self._stirred_t = look.t
            self._somebody = any(each.label not in VEHICLES for each in objects)
            if self._somebody:
                self._standing_t = look.t
        self._seq += 1
        return FrameBoxes(
            camera=self._camera,
            seq=self._seq - 1,
            frame=look.frame_index,
            t=look.t,
            looked=detections is not None,
            objects=objects,
        )

    def _tracked(self, look: InferenceRequest, found: Detections) -> tuple[TrackedObject, ...]:
        planes = self._for_detector.planes(look.av_frame)
        if look.mosaic is None:
            self._framing.whole_frame_done(look.t)
            return self._tracker.update(found, look.t, planes)
        found, cut = look.mosaic.split(found)
        self._framing.add_cut_detections(cut)
        return self._tracker.update(found, look.t, planes, parts=look.mosaic.parts)

    def _wanted(self, t: float, next_s: float) -> bool:
        """Whether a frame in which nothing moves is to be looked at. That hangs on what was found so far."""
        if self._settle is not None:
            self._settle()
        awake = t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S and not self._framing.nothing_to_see(t)
        return awake or self._is_overdue(t + max(0.0, next_s - LATE_SHARE * self._rhythm_s(t)))

    def _sketch(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        made, self._sketched = self._sketched, None
        return made[1] if made is not None and made[0] is picture else self._for_gate.motion_plane(picture)

    def until_next_s(self, t: float) -> float:
        """Seconds from camera time `t` on until another frame can be due. Called by the camera's thread."""
        if self._next_t is None or (self._hurries and self.moved(t)):
            return 0.0
        return max(0.0, self._next_t - t)

    def _hurried(self, t: float) -> bool:
        """The last look found somebody who moves and is not told of yet: this picture says whether there is anybody."""
        if not self._hurries or t - self._look_t < CONFIRM_S or not self.moved(t):
            return False
        if self._settle is not None:
            self._settle()
        return self._new_t == self._look_t

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
    return replace(found, score=round(float(found.score), 3), box=box)
