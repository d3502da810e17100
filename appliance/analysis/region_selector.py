"""Selects how much of a frame the detector is shown: all of it, or the parts where something moves or is tracked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import av

from appliance.analysis.session_tracks import SessionTracks, TrackSummary
from appliance.detect.detector import ObjectDetector, VariableInput
from appliance.media.frames import quarter_turns, upright_box, upright_size
from appliance.motion.region_mosaic import DetectorGrid, Mosaic, all_tracks_certain, choose_parts, lay_mosaic
from appliance.track.tracker import VEHICLES
from appliance.types import Box


@dataclass(frozen=True, slots=True)
class RegionTuning:
    """When the whole frame is examined; seconds of camera time. docs/gate.md has the measurements."""

    whole_every_s: float = 2.0
    """While only parts are examined in between."""
    uncertain_every_s: float = 0.4
    """The same as long as it is not certain what moves."""
    skipped_s: float = 0.5
    """A request for the whole frame without a result by then was dropped: another one is due."""
    recent_s: float = 0.5
    """Motion is examined for so long: a request may have been dropped."""
    people_max: int = 3
    """With more people tracked the whole frame is examined: they cross, and who is who may depend on a score that a
    part changes by 0.01 (found on PETS)."""
    early_s: float = 0.002


TUNING = RegionTuning()


class RegionSelector:
    """Selects the parts for each request of one camera session. docs/gate.md has the rules.

    State: what moved lately, when the whole frame was requested, and up to which result that was wanted. Owner: the
    camera's thread; of the detector's side it reads `SessionTracks.summary`.
    """

    def __init__(
        self, detector: ObjectDetector, tracks: SessionTracks, whole_size: Callable[[tuple[int, int]], tuple[int, int]]
    ) -> None:
        """whole_size: of a frame's (width, height): in which the detector is shown all of it."""
        self._whole_size = whole_size
        self._tracks = tracks
        self._step = detector.shape_step if isinstance(detector, VariableInput) else 0
        self._whole_t = float("-inf")
        self._whole_granted = 0  # of `TrackSummary.whole_wanted`
        self._recent: deque[tuple[float, tuple[Box, ...]]] = deque(maxlen=16)

    def add_motion(self, t: float, boxes: Sequence[Box]) -> None:
        """Note that the motion gate saw motion there; boxes: shares of the frame as it is coded."""
        self._recent.append((t, tuple(boxes)))

    def select(self, t: float, av_frame: av.VideoFrame, *, whole: bool) -> Mosaic | None:
        """Return the parts of the frame that the detector is to examine; None: all of it. whole: it must be all."""
        mosaic = None if whole else self._parts(t, av_frame)
        if mosaic is None:
            self._whole_t, self._whole_granted = t, self._tracks.summary.whole_wanted
        return mosaic

    def nothing_to_see(self, t: float) -> bool:
        """Return True if nothing moved lately, nothing is tracked, and the whole frame was examined a moment ago.

        Call it when the tracks are settled.
        """
        summary = self._tracks.summary
        if summary.active_boxes or self._whole_due(t, summary) or self._was_dropped(t, summary):
            return False
        return all(at <= self._examined_until(t, summary) for at, _ in self._recent)

    def force_whole(self) -> None:
        """Whatever request comes next is for the whole frame, as the first of a session is."""
        self._whole_t = float("-inf")

    def _parts(self, t: float, av_frame: av.VideoFrame) -> Mosaic | None:
        if not self._step or self._whole_due(t, self._tracks.summary):
            return None
        summary = self._tracks.settled()
        if self._whole_wanted(summary) or self._was_dropped(t, summary):
            return None
        uncertain_s = TUNING.uncertain_every_s - TUNING.early_s
        if t - self._whole_t >= uncertain_s and not all_tracks_certain(summary.active_boxes, summary.objects):
            return None
        if sum(each.label not in VEHICLES for each in summary.objects) > TUNING.people_max:
            return None
        turns, since_t = quarter_turns(av_frame), self._examined_until(t, summary)
        moved = [upright_box(box, turns) for at, boxes in self._recent if at > since_t for box in boxes]
        grid = DetectorGrid(self._whole_size(upright_size(av_frame)), self._step)
        parts = choose_parts(moved, summary.active_boxes, [each.box for each in summary.objects], grid)
        return lay_mosaic(parts, grid) if parts else None

    def _examined_until(self, t: float, summary: TrackSummary) -> float:
        """Motion after that was not examined yet."""
        return max(t - TUNING.recent_s, min(summary.answered_t, t - TUNING.early_s))

    def _whole_wanted(self, summary: TrackSummary) -> bool:
        return summary.whole_wanted > self._whole_granted

    def _whole_due(self, t: float, summary: TrackSummary) -> bool:
        return self._whole_wanted(summary) or t - self._whole_t >= TUNING.whole_every_s - TUNING.early_s

    def _was_dropped(self, t: float, summary: TrackSummary) -> bool:
        """Return True if the request for the whole frame came to nothing."""
        return summary.whole_t < self._whole_t <= t - TUNING.skipped_s
