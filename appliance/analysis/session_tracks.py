"""Tracks the objects of one camera session: shows frames to the detector and takes its results into the tracker.

Frames that a decoder left on the GPU are taken there by a network that runs there, not by way of the host. Only whole
frames: parts of one are drawn side by side on the host. A frame that is looked at visits the host all the same: motion
gate and tracker look at a copy, made once for both.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis import region_mosaic
from appliance.analysis.region_mosaic import Mosaic
from appliance.base.errors import MissingDependency, ModelError
from appliance.detect.detector import ObjectDetector
from appliance.detect.letterbox import GpuFrame, GpuFrameRuntime
from appliance.media.frames import FrameConverter, device_format, quarter_turns, upright_size
from appliance.rules.line_polygon_geometry import crossing, foot
from appliance.track.tracker import VEHICLES, Tracker
from appliance.types import Box, Detections, FrameBoxes, Point, TrackedObject, contained_share

logger = logging.getLogger(__name__)

MOVED_SHARE_MIN = 0.01  # of the frame: the box of an object at rest is never measured quite alike
_NEVER = float("-inf")
_BT709, _FULL_RANGE = 1, 2  # AVCOL_SPC_BT709, AVCOL_RANGE_JPEG; swscale takes what is not named for BT.601, limited


@dataclass(frozen=True, slots=True)
class TrackSummary:
    """The state of the tracks after the latest inference: all that the camera's side reads of the detector's side.

    Times are camera time in seconds, -inf: never.
    """

    answered_t: float = _NEVER  # of the latest frame that the detector answered
    objects: tuple[TrackedObject, ...] = ()
    active_boxes: tuple[Box, ...] = ()
    active_t: float = _NEVER  # when something active was last tracked
    people_t: float = _NEVER  # when an object was last tracked that is no vehicle
    has_people: bool = False  # the latest frame shows one
    unconfirmed_t: float = _NEVER  # of the latest frame, if it shows an object that is not confirmed yet
    is_moving: bool = False  # an object is new in the latest frame, or has moved since the one before
    fast_t: float = _NEVER  # when something was last tracked that needs more than the usual rate, see `RateNeed`
    whole_t: float = _NEVER  # of the latest frame that was examined as a whole
    whole_wanted: int = 0  # how often a result has asked for the whole of the next frame


@dataclass(frozen=True, slots=True, eq=False)
class InferenceRequest:
    """A frame that the detector is to examine."""

    tracks: SessionTracks  # of the session that it belongs to
    frame_index: int
    t: float  # camera time in seconds
    av_frame: av.VideoFrame
    priority: float  # the share of the frame that moved, 0..1; 0: it is due without motion
    drawn_size: tuple[int, int]  # (width, height) in which all of the frame is drawn
    mosaic: Mosaic | None = None  # the parts of the frame that the detector is shown; None: all of it
    input_size: tuple[int, int] = (0, 0)  # (width, height) of the detector's input; alike: they may share a run
    area: float = 1.0  # of that, as a share of the whole frame's input
    gpu_frame: GpuFrame | None = None  # the whole frame where a decoder left it, for a detector that takes it there


@dataclass(frozen=True, slots=True)
class RateTuning:
    """Thresholds beyond which objects need more than the usual rate.

    Speeds are in sizes (geometric mean of the box's sides) a second.
    """

    fast: float = 2.5
    """At five a second what goes so fast moves by half its size between two frames, and a car is gone after four."""
    near_line: float = 1.0
    """The same for a track that moves towards a line of a rule."""
    line_s: float = 0.5
    """And reaches it within so long: a crossing is believed after two or three frames beyond it."""
    people_max: int = 3
    """With more people their boxes jump where they pass each other, and whole frames are examined: vehicles count."""
    few_max: int = 2
    """With more objects than that somebody is always new, and whole frames are examined: only what is fast counts."""
    known_s: float = 0.5
    """Between two frames that are further apart a speed is not measured."""


RATE_TUNING = RateTuning()


class RateNeed:
    """The need for the next frame sooner, because an object is new, is fast, or is about to cross a line."""

    def __init__(self, lines: Sequence[tuple[Point, Point]]) -> None:
        self._lines = tuple(lines)

    def needs_more(self, objects: Sequence[TrackedObject], before: TrackSummary, t: float) -> bool:
        """objects: of the frame at `t`; before: the summary of the frame before it."""
        passed = t - before.answered_t
        if not 0 < passed <= RATE_TUNING.known_s:
            return False
        known = {each.track: each.box for each in before.objects}
        people = sum(each.label not in VEHICLES for each in objects)
        watched = [each for each in objects if people <= RATE_TUNING.people_max or each.label in VEHICLES]
        if any(self._is_fast(known[each.track], each.box, passed) for each in watched if each.track in known):
            return True
        few = len(objects) <= RATE_TUNING.few_max
        return few and any(each.track not in known and each.stood_s is None for each in objects)

    def _is_fast(self, was: Box, box: Box, passed: float) -> bool:
        size = math.sqrt(max((box[2] - box[0]) * (box[3] - box[1]), 1e-9))
        # The side that moved less: a box that grows at the frame's border, or loses its half, does not go anywhere.
        step_x, step_y = (_least(box[low] - was[low], box[low + 2] - was[low + 2]) for low in (0, 1))
        speed = math.hypot(step_x, step_y) / size / passed
        if speed >= RATE_TUNING.fast:
            return True
        if not self._lines or speed < RATE_TUNING.near_line:
            return False
        here, ahead = foot(box), RATE_TUNING.line_s / passed
        there = here[0] + step_x * ahead, here[1] + step_y * ahead
        return any(crossing(here, there, a, b) for a, b in self._lines)


def _least(a: float, b: float) -> float:
    """Return the smaller of two steps in one direction; 0 for steps in opposite ones."""
    return 0.0 if a * b <= 0 else min(a, b, key=abs)


class SessionTracks:
    """Shows the detector frames, and turns its detections into `FrameBoxes`.

    State: tracker, sequence number, `summary`. Owner: whoever runs the detector, one call at a time; the camera's
    thread only reads `summary`, an immutable value that is replaced as a whole.
    drain: brings in the results of all requests so far. A replay that runs the detector ahead passes it.
    """

    def __init__(
        self,
        camera: str,
        detector: ObjectDetector,
        tracker: Tracker,
        drain: Callable[[], None] | None,
    ) -> None:
        """camera: its name. detector: that examines the frames of this session."""
        self.summary = TrackSummary()
        self.detector = detector
        self.camera = camera
        self._tracker = tracker
        self._drain = drain
        self._converter = FrameConverter()
        self._rate = RateNeed(())
        self._seq = 0

    def watch_lines(self, lines: Sequence[tuple[Point, Point]]) -> None:
        """Watch these lines of the camera's rules from now on. Any thread may call."""
        self._rate = RateNeed(lines)

    def settled(self) -> TrackSummary:
        """Return the summary for a decision that depends on it.

        In a replay it comes after the results of all requests so far. The camera's thread calls it.
        """
        if self._drain is not None:
            self._drain()
        return self.summary

    def whole_frame(self, request: InferenceRequest, side: int) -> NDArray[np.uint8]:
        """Return the whole frame as the detector is shown it; in more detail for a network that wants `side` pixels."""
        native, shown = upright_size(request.av_frame), request.drawn_size
        share = min(1.0, side / max(native))
        wider = (round(native[0] * share), round(native[1] * share))
        return self._converter.bgr(request.av_frame, shown if side <= max(shown) else wider)

    def detector_input(self, request: InferenceRequest) -> NDArray[np.uint8]:
        """Return the image for the detector: uint8 BGR (height, width, 3), upright.

        Parts of a frame come at the scale of the whole one, as one image whose sides are multiples of
        `VariableInput.shape_step`.
        """
        image = self._converter.bgr(request.av_frame, request.drawn_size)
        return image if request.mosaic is None else request.mosaic.draw(image)

    def result(self, request: InferenceRequest, detections: Detections | None) -> FrameBoxes:
        """Return the boxes of a frame.

        detections None: the detector did not answer, so nothing is known of the frame.
        """
        if detections is None:
            self.summary = replace(self.summary, whole_wanted=self.summary.whole_wanted + 1)
        else:
            self.summary = self._tracked(request, detections)
        self._seq += 1
        return FrameBoxes(
            camera=self.camera,
            seq=self._seq - 1,
            frame=request.frame_index,
            t=request.t,
            looked=detections is not None,
            objects=() if detections is None else self.summary.objects,
        )

    def _tracked(self, request: InferenceRequest, detections: Detections) -> TrackSummary:
        before, t, mosaic = self.summary, request.t, request.mosaic
        planes = self._converter.planes(request.av_frame)
        whole_t, whole_wanted = before.whole_t, before.whole_wanted
        if mosaic is None:
            whole_t = t
            found = self._tracker.update(detections, t, planes)
        else:
            inside, cut = mosaic.split(detections)
            whole_wanted += _shows_new(cut, before.objects)
            found = self._tracker.update(inside, t, planes, parts=mosaic.parts)
        objects = tuple(map(_rounded, found))
        active, has_people = self._tracker.active_boxes, any(each.label not in VEHICLES for each in objects)
        return TrackSummary(
            answered_t=t,
            objects=objects,
            active_boxes=active,
            active_t=t if active else before.active_t,
            people_t=t if has_people else before.people_t,
            has_people=has_people,
            unconfirmed_t=t if self._tracker.has_unconfirmed else _NEVER,
            is_moving=_has_moved(objects, before.objects),
            fast_t=t if self._rate.needs_more(objects, before, t) else before.fast_t,
            whole_t=whole_t,
            whole_wanted=whole_wanted,
        )


def _shows_new(cut: Detections, objects: Sequence[TrackedObject]) -> bool:
    """Return True if a box that ends where a part was cut belongs to no tracked object.

    Then the whole frame is wanted.
    """
    boxes = cut.select(cut.scores >= region_mosaic.TUNING.cut_score_min).boxes.tolist()
    return any(all(contained_share(box, each.box) < 0.5 for each in objects) for box in boxes)


def _has_moved(objects: Sequence[TrackedObject], before: Sequence[TrackedObject]) -> bool:
    """Return True if an object is new, or has moved since: the next inference should not wait."""
    known = {each.track: each.box for each in before}
    return any(
        each.track not in known
        or max(abs(a - b) for a, b in zip(each.box, known[each.track], strict=True)) > MOVED_SHARE_MIN
        for each in objects
    )


def _rounded(found: TrackedObject) -> TrackedObject:
    x1, y1, x2, y2 = (round(float(side), 4) for side in found.box)
    box: Box = (x1, y1, x2, y2)
    return replace(found, score=round(float(found.score), 3), box=box)


def gpu_frame_of(frame: av.VideoFrame) -> GpuFrame | None:
    """Where NVDEC left a frame; None: it is elsewhere, not 8 bit NV12, or has to be turned."""
    if frame.format.name != "cuda" or device_format(frame) != "nv12" or quarter_turns(frame):
        return None
    luma, chroma = frame.planes
    return GpuFrame(
        luma.buffer_ptr,
        luma.line_size,
        chroma.buffer_ptr,
        chroma.line_size,
        frame.width,
        frame.height,
        "bt709" if frame.colorspace == _BT709 else "bt601",
        frame.color_range == _FULL_RANGE,
        frame,
    )


class GpuHandOver:
    """Calls the detector, on the GPU where all frames of a call lie there and it takes them.

    State: whether it does. Where the kernel cannot be had, frames go by the host, and the log has said so. Owner:
    the detector's thread.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        self.detector = detector
        self._on_gpu = takes_gpu_frames(detector)

    def detect(self, requests: Sequence[InferenceRequest]) -> list[Detections]:
        """One answer for each request, in order. Raises DetectorError."""
        frames = [request.gpu_frame for request in requests if request.gpu_frame is not None]
        if self._on_gpu and len(frames) == len(requests):
            try:
                return list(self.detector.detect_on_gpu(frames))  # type: ignore[attr-defined]
            except (MissingDependency, ModelError) as error:
                self._on_gpu = False
                logger.warning("frames are copied from the GPU and back to it: %s", error)
        return self.detector.detect([request.tracks.detector_input(request) for request in requests])


def takes_gpu_frames(detector: ObjectDetector) -> bool:
    """Its network runs where NVDEC leaves frames, and has the kernel that lays them into its input."""
    return isinstance(getattr(detector, "runtime", None), GpuFrameRuntime)
