"""Gate, detector and tracker for one camera run: which frames are looked at, and what is said about them.

No threads and no clock: what comes out depends only on frame numbers, camera times, pictures and the detector's
answers, in order. Live ingest and replay share it; that is what makes a replay exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import av
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.errors import DetectorError
from appliance.ingest.gate import Gate
from appliance.ingest.mosaic import Mosaic, lay
from appliance.ingest.picture import Pictures, quarter_turns, upright, upright_size
from appliance.ingest.region import TOLD_MIN, Grid, choose, known, within
from appliance.track.tracker import VEHICLES
from appliance.types import Box, Detections, FrameBoxes, TrackedObject

QUIET_AFTER_S = 1.0
WHOLE_EVERY_S = 1.0  # the whole picture, while only a part of it is looked at in between
STANDING_EVERY_S = 2.0  # while somebody stands still, so by key frames; a parked car waits for the heartbeat
STANDING_S = 4.5
UNSURE_EVERY_S = 0.4  # as long as it is not known for sure what moves
CONFIRM_S = 0.06  # in `lowest`: who is new is looked at again with the next picture, at 30 a second the one after it
SKIPPED_S = 0.5  # a look at the whole picture that has no answer by then was skipped: another one is due
RECENT_S = 0.5  # for so long something that moved is looked at: a look may have been skipped
FEW = 3  # people: where more are followed they cross, and who is who may hang on a score that a part changes by 0.01
LATE_SHARE = 0.1  # of heartbeat_s: a key frame that comes that much later is waited for
_EARLY_S = 0.002
SEEN_EVERY_S = 1.0  # what the sentry watches for lasts for seconds: while pictures come faster, it needs not all


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


@runtime_checkable
class Elastic(Protocol):
    """A detector to which a part of the picture costs less than the whole one. Optional; see `Examiner.picture`."""

    @property
    def shape_step(self) -> int:
        """A picture costs by its area, its sides rounded up to multiples of this; 0: as much as a whole one."""
        ...


class Tracker(Protocol):
    """Follows objects through the frames of one camera run."""

    @property
    def unsettled(self) -> tuple[Box, ...]:
        """Where the next look is needed because of what is followed: all but what rests."""
        ...

    @property
    def unconfirmed(self) -> bool:
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


Lens = Callable[[int, float, av.VideoFrame], av.VideoFrame]
"""(frame, t, picture) to the picture that is examined instead: how a replay makes weather."""


@dataclass(frozen=True, slots=True)
class Look:
    """A frame that is due. priority: how much moved, 0..1; a frame that is due anyway has 0. mosaic: the parts
    of it to be shown to the detector; None: all of it."""

    frame: int
    t: float
    picture: av.VideoFrame
    priority: float
    mosaic: Mosaic | None = None


class Examiner:
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
        self._seen_by_t = float("-inf")
        self._hurries = plan.latency == "lowest"
        self._gate = Gate(eager=self._hurries)
        self._for_gate = Pictures()
        self._sketched: tuple[av.VideoFrame, NDArray[np.uint8]] | None = None
        self._for_detector = Pictures()
        self._next_t: float | None = None
        self._look_t = float("-inf")
        self._moved_t = float("-inf")
        self._seen_t = float("-inf")
        self._standing_t = float("-inf")
        self._new_t = float("-inf")
        self._seq = 0
        self._step = detector.shape_step if isinstance(detector, Elastic) else 0
        self._whole_t = float("-inf")
        self._whole_seen_t = float("-inf")
        self._whole_next = False
        self._recent: deque[tuple[float, tuple[Box, ...]]] = deque(maxlen=16)
        self._objects: tuple[TrackedObject, ...] = ()
        self._unsettled: tuple[Box, ...] = ()

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
        before that, by more than LATE_SHARE, is due now. In `lowest` who is new is looked at again at once.
        """
        if not self._in_step(t) and not self._hurried(t):
            return None
        if self._lens is not None:
            picture = self._lens(frame, t, picture)
        sketch = self._sketch(picture)
        if self._seen is not None and not 0 <= t - self._seen_by_t < SEEN_EVERY_S - _EARLY_S:
            self._seen_by_t = t
            self._seen(t, self._for_gate.luma(picture))
        motion = self._gate.measure(sketch)
        if motion.priority > 0:
            self._moved_t = t
            self._recent.append((t, tuple(region.box for region in motion.regions)))
        if self._settle is not None and not self._wanted(t):
            self._settle()  # results can only add to the reasons for a look
        if not self._wanted(t) and not self.overdue(t + next_s - LATE_SHARE * self._heartbeat_s):
            return None
        self._look_t = t
        mosaic = None if motion.whole else self._parts(t, picture)
        if mosaic is None:
            self._whole_t, self._whole_next = t, False
        return Look(frame, t, picture, motion.priority, mosaic)

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
        every_s = min(STANDING_EVERY_S, self._heartbeat_s) if self._stands(t) else self._heartbeat_s
        return t - self._look_t >= every_s - _EARLY_S

    def _stands(self, t: float) -> bool:
        """Somebody is followed who is no vehicle: a rule may wait for them to have stayed long enough."""
        return t - self._standing_t <= STANDING_S

    def changed(self, picture: av.VideoFrame) -> bool:
        """Whether the gate would see movement in this picture; it learns nothing. Called by the camera's thread."""
        self._sketched = picture, self._for_gate.sketch(picture)  # it is wanted again in a moment, by `due`
        return self._gate.peek(self._sketched[1]) > 0

    def insist(self) -> None:
        """Make the next frame due, whatever rhythm and gate say of it."""
        self._next_t, self._look_t, self._whole_t = None, float("-inf"), float("-inf")

    def picture(self, look: Look) -> NDArray[np.uint8]:
        """What the detector is to be shown of a look, as it wants it: uint8 BGR (height, width, 3), upright.

        Parts of a picture come at the scale of the whole one, as one picture whose sides are multiples of
        `Elastic.shape_step`.
        """
        picture = self._for_detector.bgr(look.picture, self._detector.picture_size(*upright_size(look.picture)))
        return picture if look.mosaic is None else look.mosaic.draw(picture)

    def result(self, look: Look, detections: Detections | None) -> FrameBoxes:
        """What is known of the frame. None: the detector did not answer, so nothing is said about it."""
        objects: tuple[TrackedObject, ...] = ()
        if detections is None:
            self._whole_next = True
        else:
            objects = self._objects = tuple(map(_rounded, self._tracked(look, detections)))
            self._unsettled = self._tracker.unsettled
            self._new_t = look.t if self._tracker.unconfirmed else float("-inf")
            if self._unsettled:
                self._seen_t = look.t
            if any(each.label not in VEHICLES for each in objects):
                self._standing_t = look.t
        self._seq += 1
        return FrameBoxes(
            camera=self._camera,
            seq=self._seq - 1,
            frame=look.frame,
            t=look.t,
            looked=detections is not None,
            objects=objects,
        )

    def _tracked(self, look: Look, found: Detections) -> tuple[TrackedObject, ...]:
        planes = self._for_detector.planes(look.picture)
        if look.mosaic is None:
            self._whole_seen_t = look.t
            return self._tracker.update(found, look.t, planes)
        found, cut = look.mosaic.told_apart(found)
        self._whole_next |= any(map(self._is_new, cut.select(cut.scores >= TOLD_MIN).boxes.tolist()))
        return self._tracker.update(found, look.t, planes, parts=look.mosaic.parts)

    def _is_new(self, box: Sequence[float]) -> bool:
        """Whether what a part of the picture shows a piece of is none of what is followed."""
        return all(within(box, each.box) < 0.5 for each in self._objects)

    def _parts(self, t: float, picture: av.VideoFrame) -> Mosaic | None:
        """The parts of the picture to be shown to the detector; None: all of it."""
        if self._whole_due(t):
            return None
        if self._settle is not None:
            self._settle()  # where to look hangs on what was found
        if self._whole_next or (self._whole_seen_t < self._whole_t <= t - SKIPPED_S):
            return None
        if t - self._whole_t >= UNSURE_EVERY_S - _EARLY_S and not known(self._unsettled, self._objects):
            return None
        if sum(each.label not in VEHICLES for each in self._objects) > FEW:
            return None
        turns = quarter_turns(picture)
        moved = [upright(box, turns) for at, boxes in self._recent if t - at <= RECENT_S for box in boxes]
        grid = Grid(self._detector.picture_size(*upright_size(picture)), self._step)
        parts = choose(moved, self._unsettled, [each.box for each in self._objects], grid)
        return lay(parts, grid) if parts else None

    def _whole_due(self, t: float) -> bool:
        return not self._step or self._whole_next or t - self._whole_t >= WHOLE_EVERY_S - _EARLY_S

    def _wanted(self, t: float) -> bool:
        return t - max(self._moved_t, self._seen_t) <= QUIET_AFTER_S or self.overdue(t)

    def _sketch(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        made, self._sketched = self._sketched, None
        return made[1] if made is not None and made[0] is picture else self._for_gate.sketch(picture)

    def until_step_s(self, t: float) -> float:
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
