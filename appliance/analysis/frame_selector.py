"""Selects the frames of one camera session that the detector examines, by motion, tracks and heartbeat.

Also selects how much of each: all of it, or the parts where something moves or is tracked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis import decode_session
from appliance.analysis.motion_gate import MotionGate
from appliance.analysis.region_mosaic import (
    DetectorGrid,
    Mosaic,
    all_tracks_certain,
    choose_parts,
    lay_mosaic,
)
from appliance.analysis.session_tracks import (
    RATE_TUNING,
    InferenceRequest,
    SessionTracks,
    TrackSummary,
    gpu_frame_of,
    takes_gpu_frames,
)
from appliance.config import DetectConfig
from appliance.detect.detector import Batching, ObjectDetector, VariableInput
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import FrameConverter, at_host, quarter_turns, upright_box, upright_size
from appliance.track.tracker import VEHICLES
from appliance.types import Box, contained_share


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


REGION_TUNING = RegionTuning()


class RegionSelector:
    """Selects the parts for each request of one camera session. docs/gate.md has the rules.

    State: what moved lately, when the whole frame was requested, and up to which result that was wanted. Owner: the
    camera's thread; of the detector's side it reads `SessionTracks.summary`.
    """

    def __init__(
        self, detector: ObjectDetector, tracks: SessionTracks, whole_size: Callable[[tuple[int, int]], tuple[int, int]]
    ) -> None:
        """whole_size: of a frame's (width, height): in which the detector is shown all of it."""
        self._detector = detector
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
        uncertain_s = REGION_TUNING.uncertain_every_s - REGION_TUNING.early_s
        if t - self._whole_t >= uncertain_s and not all_tracks_certain(summary.active_boxes, summary.objects):
            return None
        if sum(each.label not in VEHICLES for each in summary.objects) > REGION_TUNING.people_max:
            return None
        turns, since_t = quarter_turns(av_frame), self._examined_until(t, summary)
        moved = [upright_box(box, turns) for at, boxes in self._recent if at > since_t for box in boxes]
        upright = upright_size(av_frame)
        grid = DetectorGrid(self._whole_size(upright), self._step, max(self._detector.preferred_size(*upright)))
        parts = choose_parts(moved, summary.active_boxes, [each.box for each in summary.objects], grid)
        return lay_mosaic(parts, grid) if parts else None

    def _examined_until(self, t: float, summary: TrackSummary) -> float:
        """Motion after that was not examined yet."""
        return max(t - REGION_TUNING.recent_s, min(summary.answered_t, t - REGION_TUNING.early_s))

    def _whole_wanted(self, summary: TrackSummary) -> bool:
        return summary.whole_wanted > self._whole_granted

    def _whole_due(self, t: float, summary: TrackSummary) -> bool:
        return self._whole_wanted(summary) or t - self._whole_t >= REGION_TUNING.whole_every_s - REGION_TUNING.early_s

    def _was_dropped(self, t: float, summary: TrackSummary) -> bool:
        """Return True if the request for the whole frame came to nothing."""
        return summary.whole_t < self._whole_t <= t - REGION_TUNING.skipped_s


@dataclass(frozen=True, slots=True)
class WorkShare:
    """The share of the usual work that is done.

    fps: share of the frames a second that are examined while something moves. input_: share of the sides of the
    detector's input, if it takes any size. Heartbeats stay as they are.
    """

    fps: float = 1.0
    input_: float = 1.0


ALL_WORK = WorkShare()


FrameFilter = Callable[[int, float, av.VideoFrame], av.VideoFrame]
"""(frame index, t, frame) to the frame that is analysed instead: how a replay makes weather."""


@dataclass(frozen=True, slots=True)
class SelectionTuning:
    """When a frame is due, in seconds of camera time. docs/gate.md has the measurements."""

    active_s: float = 1.0
    """After the last motion, or the last active track, frames are due at full rate for so long."""
    standing_every_s: float = 2.0
    """While a person stands still, so by key frames; a parked car waits for the heartbeat."""
    stopped_every_s: float = 1.0
    """The same for a person who has just stopped, and will likely walk on."""
    stopped_s: float = 20.0
    """A person who has not moved for so long has not just stopped."""
    standing_s: float = 4.5
    """A person who was not found for so long does not stand there any more."""
    confirm_s: float = 0.06
    """With `latency: lowest`, a new object is examined again in the next frame; at 30 fps in the one after it."""
    fast_s: float = 0.25
    """After something fast was last seen, frames come at `fps_max` for so long: it may have been missed just now."""
    searching_s: float = 1.0
    """When motion has led to nothing for so long, and nothing else moves, every second frame is enough."""
    luma_every_s: float = 1.0
    """The tamper detector gets one plane in so long: what it detects lasts for seconds."""
    luma_between_s: tuple[float, ...] = (0.2, 0.6, 0.4, 0.8)
    """And one more so long after each, in turns: of a recording that loops each second it would else get the same
    frame for ever, and take it for a frozen picture."""
    early_s: float = 0.002
    """A frame that comes by so little too early is in step: cameras round their time stamps to milliseconds."""


TUNING = SelectionTuning()
FRUITLESS_MAX = 16  # requests whose motion is remembered: two seconds at the usual rate


class FrameSelector:
    """Selects frames for the detector, at most `fps` a second, and answers the decode policy (`ActivityProbe`).

    State: motion gate, the rhythm, when the last request and the last motion were. Owner: the camera's thread. No
    clock: it depends only on frames, their camera time and `SessionTracks.summary`.
    on_luma: shown a small brightness plane of the frames that are in step, one each `luma_every_s`.
    """

    def __init__(
        self,
        detector: ObjectDetector,
        settings: DetectConfig,
        tracks: SessionTracks,
        *,
        frame_filter: FrameFilter | None,
        on_luma: Callable[[float, NDArray[np.uint8]], None] | None,
        work: Callable[[], WorkShare],
    ) -> None:
        """work: how much of the usual is done now; with less, nothing hurries."""
        self._detector = detector
        self._batching = detector if isinstance(detector, Batching) else None
        self._tracks = tracks
        self._work = work
        self._fps = settings.fps
        self._fast_every_s = 1 / (settings.fps_max or settings.fps)
        self._is_adaptive = self._fast_every_s < min(1 / settings.fps, settings.heartbeat_s)
        self._heartbeat_s = settings.heartbeat_s
        self._may_hurry = settings.latency == "lowest"
        self._frame_filter = frame_filter
        self._on_luma = on_luma
        self._gate = MotionGate(eager=self._may_hurry)
        self._takes_gpu_frames = takes_gpu_frames(detector)
        # Not a method: a cycle would keep the planes and scalers of each ended session until a full collection.
        takes_any_size = isinstance(detector, VariableInput) and detector.shape_step > 0
        self._whole_size = partial(_whole_size, detector, work, takes_any_size=takes_any_size)
        self._regions = RegionSelector(detector, tracks, self._whole_size)
        self._converter = FrameConverter()
        self._fruitless: deque[tuple[float, tuple[Box, ...]]] = deque(maxlen=FRUITLESS_MAX)
        self._peeked: tuple[av.VideoFrame, av.VideoFrame, NDArray[np.uint8]] | None = None
        self._next_t: float | None = None
        self._request_t = self._motion_t = self._luma_t = float("-inf")
        self._between_t = float("-inf")
        self._lumas = 0

    def select(self, frame: DecodedFrame) -> InferenceRequest | None:
        """Return the request for a frame, or None if none is due.

        None is due if it is too early, or if nothing moves, nothing is tracked and the heartbeat is not due. Call it
        for each decoded frame in order. A heartbeat that would fall due before the next frame can come
        (`DecodedFrame.next_s`), by more than `wait_share`, is due now.
        """
        t, av_frame = frame.t, frame.av_frame
        if not self._in_step(t) and not (self._must_confirm(t) or self._must_hurry(t)):
            return None
        if self._frame_filter is None:
            av_frame, plane = self._motion_plane(av_frame)
        else:  # everything is decoded, and nothing was peeked at
            av_frame = self._frame_filter(frame.index, t, at_host(av_frame))
            plane = self._converter.motion_plane(av_frame)
        self._show_luma(t, av_frame)
        motion = self._gate.measure(plane)
        if motion.priority > 0:
            self._motion_t = t
            boxes = [region.box for region in motion.regions]
            self._regions.add_motion(t, boxes)
            if self._is_fruitless(t, boxes, whole=motion.whole):
                return None
        elif not self._is_wanted(t, frame.next_s):
            return None
        self._request_t = t
        self._fruitless.append((t, tuple(region.box for region in motion.regions)))
        mosaic = self._regions.select(t, av_frame, whole=motion.whole)
        whole = self._detector.preferred_size(*upright_size(av_frame))
        drawn = self._whole_size(upright_size(av_frame)) if mosaic is None else mosaic.whole
        size = drawn if mosaic is None else mosaic.size
        area = min(1.0, size[0] * size[1] / (whole[0] * whole[1]))
        # One that waits for others holds a surface of the decoder; a smaller one is drawn on the host.
        stays = self._takes_gpu_frames and mosaic is None and drawn == whole and not frame.late
        gpu_frame = gpu_frame_of(frame.av_frame) if stays and self._frame_filter is None else None
        size = size if self._batching is None else self._batching.input_size(*size)
        return InferenceRequest(
            self._tracks, frame.index, t, av_frame, motion.priority, drawn, mosaic, size, area, gpu_frame
        )

    def force_next(self) -> None:
        """Make the next frame due, whatever rhythm and motion gate say of it."""
        self._next_t, self._request_t = None, float("-inf")
        self._regions.force_whole()

    def has_motion(self, t: float) -> bool:
        """See `ActivityProbe`, as are the next three."""
        return t - self._motion_t <= TUNING.active_s

    def is_active(self, t: float) -> bool:
        return self.has_motion(t) or t - self._tracks.settled().active_t <= TUNING.active_s

    def is_overdue(self, t: float, late_share: float = 0.0) -> bool:
        self._tracks.settled()
        return self._heartbeat_due(t - late_share * self._rhythm_s(t))

    def shows_change(self, av_frame: av.VideoFrame) -> bool:
        here = at_host(av_frame)
        plane = self._converter.motion_plane(here)
        self._peeked = av_frame, here, plane  # it is wanted again in a moment, by `select`
        return self._gate.peek_priority(plane) > 0

    def until_next_s(self, t: float) -> float:
        """Seconds from camera time `t` on until another frame can be due."""
        if self._next_t is None or (self._hurries and self.has_motion(t)):
            return 0.0
        if self._by_need and t - self._tracks.summary.fast_t <= TUNING.fast_s:
            return max(0.0, min(self._next_t, self._request_t + self._fast_every_s) - t)
        return max(0.0, self._next_t - t)

    @property
    def _every_s(self) -> float:
        return min(1 / (self._fps * self._work().fps), self._heartbeat_s)

    @property
    def _by_need(self) -> bool:
        return self._is_adaptive and self._work().fps == 1

    @property
    def _hurries(self) -> bool:
        return self._may_hurry and self._work().fps == 1

    def _in_step(self, t: float) -> bool:
        """At most `fps` frames a second, evenly, by camera time; a late frame does not bring two after it."""
        if self._next_t is None:
            self._next_t = t
        if t < self._next_t - TUNING.early_s:
            return False
        self._next_t += self._every_s
        if self._next_t <= t:
            self._next_t = t + self._every_s
        return True

    def _must_confirm(self, t: float) -> bool:
        """Return True if this frame must confirm a moving object that the last inference found.

        That is so with `latency: lowest`, while the object is not confirmed.
        """
        if not self._hurries or t - self._request_t < TUNING.confirm_s or not self.has_motion(t):
            return False
        return self._tracks.settled().unconfirmed_t == self._request_t

    def _must_hurry(self, t: float) -> bool:
        """Something is fast or new: this frame comes between two of the usual ones. The next usual one moves on."""
        if not self._by_need or not self.has_motion(t):
            return False
        if t - self._request_t < self._fast_every_s - TUNING.early_s:
            return False
        summary = self._tracks.settled()
        is_new = summary.unconfirmed_t == self._request_t and len(summary.objects) < RATE_TUNING.few_max
        if t - summary.fast_t > TUNING.fast_s and not is_new:
            return False
        self._next_t = t + self._every_s
        return True

    def _is_fruitless(self, t: float, boxes: Sequence[Box], *, whole: bool) -> bool:
        """Return True if this motion was examined many times and is nothing: a tree, rain.

        Every second frame is enough, until it moves elsewhere.
        """
        if not self._by_need or whole or self._hurries:
            return False
        if t - self._request_t >= 2 * self._every_s - TUNING.early_s:
            return False
        summary = self._tracks.settled()
        if t - summary.active_t <= TUNING.searching_s or summary.unconfirmed_t == self._request_t:
            return False
        lately = [(at, found) for at, found in self._fruitless if t - at <= 2 * TUNING.searching_s]
        if not lately or min(t, summary.answered_t) - lately[0][0] < TUNING.searching_s:
            return False
        known = [box for _, found in lately for box in found]
        return all(any(contained_share(box, other) >= 0.5 for other in known) for box in boxes)

    def _is_wanted(self, t: float, next_s: float) -> bool:
        """Return True if a frame without motion is due. That depends on what was found so far."""
        summary = self._tracks.settled()
        is_active = t - max(self._motion_t, summary.active_t) <= TUNING.active_s
        if is_active and not self._regions.nothing_to_see(t):
            return True
        wait_s = decode_session.TUNING.wait_share * self._rhythm_s(t)
        return self._heartbeat_due(t + max(0.0, next_s - wait_s))

    def _heartbeat_due(self, t: float) -> bool:
        return t - self._request_t >= self._rhythm_s(t) - TUNING.early_s

    def _rhythm_s(self, t: float) -> float:
        """Return the seconds between two inferences if nothing moves.

        They are fewer while an object is tracked that is no vehicle, since a rule may wait for it to have stayed long
        enough.
        """
        summary = self._tracks.summary
        if t - summary.people_t > TUNING.standing_s:
            return self._heartbeat_s
        has_stopped = summary.has_people and t - summary.active_t <= TUNING.stopped_s
        return min(TUNING.stopped_every_s if has_stopped else TUNING.standing_every_s, self._heartbeat_s)

    def _show_luma(self, t: float, av_frame: av.VideoFrame) -> None:
        if self._on_luma is None:
            return
        if not 0 <= t - self._luma_t < TUNING.luma_every_s - TUNING.early_s:
            self._luma_t = t
            self._between_t = t + TUNING.luma_between_s[self._lumas % len(TUNING.luma_between_s)]
            self._lumas += 1
        elif t >= self._between_t - TUNING.early_s:
            self._between_t = float("inf")
        else:
            return
        self._on_luma(t, self._converter.small_luma(av_frame))

    def _motion_plane(self, av_frame: av.VideoFrame) -> tuple[av.VideoFrame, NDArray[np.uint8]]:
        """Return the frame where its pixels can be read, and its plane.

        A frame that a device decoded is copied from there only now: most are never read.
        """
        peeked, self._peeked = self._peeked, None
        if peeked is not None and peeked[0] is av_frame:
            return peeked[1], peeked[2]
        here = at_host(av_frame)
        return here, self._converter.motion_plane(here)


def _whole_size(
    detector: ObjectDetector, work: Callable[[], WorkShare], size: tuple[int, int], *, takes_any_size: bool
) -> tuple[int, int]:
    """Return the (width, height) in which the detector gets all of a frame of `size`."""
    width, height = detector.preferred_size(*size)
    share = work().input_ if takes_any_size else 1.0
    return (width, height) if share == 1 else (max(1, round(width * share)), max(1, round(height * share)))
