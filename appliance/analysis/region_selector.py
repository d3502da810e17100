"""Selects how much of a frame the detector is shown: all of it, or the regions where something moves or is tracked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import av

from appliance.detect.detector import ObjectDetector, VariableInput
from appliance.media.frames import quarter_turns, upright_box, upright_size
from appliance.motion.region_mosaic import (
    CUT_SCORE_MIN,
    DetectorGrid,
    Mosaic,
    all_tracks_certain,
    choose_parts,
    contained_share,
    lay_mosaic,
)
from appliance.track.tracker import VEHICLES
from appliance.types import Box, Detections, TrackedObject

WHOLE_EVERY_S = 2.0  # the whole picture, while only a part of it is looked at in between
UNSURE_EVERY_S = 0.4  # as long as it is not known for sure what moves
SKIPPED_S = 0.5  # a look at the whole picture that has no answer by then was skipped: another one is due
RECENT_S = 0.5  # for so long something that moved is looked at: a look may have been skipped
PEOPLE_FOR_PARTS_MAX = (
    3  # people: where more are followed they cross, and who is who may hang on a score that a part changes by 0.01
)
_EARLY_S = 0.002


class RegionSelector:
    """Chooses for each look of one camera run. Docs/gate.md has the rules.

    State: what moved lately, what was told of the last look, when the whole was chosen and when it was seen.
    `settle` as in `Examiner`. The camera's thread chooses, the detector's tells what came of it.
    """

    def __init__(self, detector: ObjectDetector, settle: Callable[[], None] | None) -> None:
        self._detector = detector
        self._settle = settle
        self._step = detector.shape_step if isinstance(detector, VariableInput) else 0
        self._whole_t = float("-inf")
        self._whole_seen_t = float("-inf")
        self._whole_next = False
        self._answered_t = float("-inf")
        self._recent: deque[tuple[float, tuple[Box, ...]]] = deque(maxlen=16)
        self._objects: tuple[TrackedObject, ...] = ()
        self._unsettled: tuple[Box, ...] = ()

    def add_motion(self, t: float, boxes: Sequence[Box]) -> None:
        """The gate saw movement there: shares of the picture as it is coded."""
        self._recent.append((t, tuple(boxes)))

    def select(self, t: float, picture: av.VideoFrame, *, whole: bool) -> Mosaic | None:
        """The parts of the picture to be shown to the detector; None: all of it. whole: it must be."""
        mosaic = None if whole else self._parts(t, picture)
        if mosaic is None:
            self._whole_t, self._whole_next = t, False
        return mosaic

    def nothing_to_see(self, t: float) -> bool:
        """Nothing moved lately, nothing is followed, and the whole picture was seen a moment ago. Call it when all
        results are in."""
        if self._unsettled or self._whole_due(t) or self._skipped(t):
            return False
        return all(at <= self._since(t) for at, _ in self._recent)

    def force_whole(self) -> None:
        """Whatever look comes next shows the whole picture, as one at a run's begin does."""
        self._whole_t = float("-inf")

    def force_whole_next(self) -> None:
        """A look had no answer: the next one shows the whole picture."""
        self._whole_next = True

    def update_tracks(self, t: float, objects: tuple[TrackedObject, ...], unsettled: tuple[Box, ...]) -> None:
        """What the look at `t` told of, and where `Tracker.unsettled` wants the next one."""
        self._answered_t, self._objects, self._unsettled = t, objects, unsettled

    def whole_frame_done(self, t: float) -> None:
        """A look at the whole picture was answered."""
        self._whole_seen_t = t

    def add_cut_detections(self, found: Detections) -> None:
        """What ends where a part was cut: if it is none of what is followed, the next look shows the whole picture."""
        self._whole_next |= any(map(self._is_new, found.select(found.scores >= CUT_SCORE_MIN).boxes.tolist()))

    def _since(self, t: float) -> float:
        """What moved later than that was not looked at yet."""
        return max(t - RECENT_S, min(self._answered_t, t - _EARLY_S))

    def _whole_due(self, t: float) -> bool:
        return self._whole_next or t - self._whole_t >= WHOLE_EVERY_S - _EARLY_S

    def _skipped(self, t: float) -> bool:
        """The look that was to see the whole picture was not taken."""
        return self._whole_seen_t < self._whole_t <= t - SKIPPED_S

    def _is_new(self, box: Sequence[float]) -> bool:
        return all(contained_share(box, each.box) < 0.5 for each in self._objects)

    def _parts(self, t: float, picture: av.VideoFrame) -> Mosaic | None:
        if not self._step or self._whole_due(t):
            return None
        if self._settle is not None:
            self._settle()  # where to look hangs on what was found
        if self._whole_next or self._skipped(t):
            return None
        if t - self._whole_t >= UNSURE_EVERY_S - _EARLY_S and not all_tracks_certain(self._unsettled, self._objects):
            return None
        if sum(each.label not in VEHICLES for each in self._objects) > PEOPLE_FOR_PARTS_MAX:
            return None
        turns = quarter_turns(picture)
        moved = [upright_box(box, turns) for at, boxes in self._recent if at > self._since(t) for box in boxes]
        grid = DetectorGrid(self._detector.preferred_size(*upright_size(picture)), self._step)
        parts = choose_parts(moved, self._unsettled, [each.box for each in self._objects], grid)
        return lay_mosaic(parts, grid) if parts else None
