"""Analyses one camera, from packets to `FrameBoxes`; live ingest and replay both use it.

The way of a frame, each step a method of `CameraAnalysis`:

    packet ─► frames()          decode policy: all packets while something may happen, else only key frames
           ─► start_session()   with the first frame of a connection, and with one of another size
           ─► select()          motion gate, tracks and heartbeat say whether the detector examines it, and which parts
           ─► detector_input()  the image that the detector is shown
           ─► result()          tracker: detections become boxes with track ids

The caller decides who calls the detector, when, and what is dropped on the way there: `ingest.detect_stream`
shares one detector between cameras, a replay runs it in order. No threads and no clock: the output depends only on
packets, camera times and detections, in order. That is what makes a replay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis.decode_policy import DecodePolicy
from appliance.analysis.frame_selector import ALL_WORK, FrameFilter, FrameSelector, WorkShare
from appliance.analysis.session_tracks import InferenceRequest, SessionTracks
from appliance.config import DetectConfig
from appliance.detect.detector import ObjectDetector, calibration_of
from appliance.health.tamper_detector import TamperDetector
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.media.source import StreamInfo, VideoPacket
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes, HealthKind, Point

NewTracker = Callable[[tuple[str, ...]], Tracker]
"""The detector's labels to a tracker for one session."""


class SessionProbe:
    """The current session's answers to the decode policy (`ActivityProbe`).

    Without a session, or when the next frame is forced, every frame matters.
    """

    def __init__(self) -> None:
        self.selector: FrameSelector | None = None
        self.size = (0, 0)
        self.forced = False

    def is_active(self, t: float) -> bool:
        return self.selector is None or self.forced or self.selector.is_active(t)

    def has_motion(self, t: float) -> bool:
        return self.selector is None or self.selector.has_motion(t)

    def is_overdue(self, t: float, late_share: float = 0.0) -> bool:
        return self.selector is None or self.forced or self.selector.is_overdue(t, late_share)

    def shows_change(self, av_frame: av.VideoFrame) -> bool:
        """Not with another size: there a new session begins, and its first frame is motion anyway."""
        same = upright_size(av_frame) == self.size
        return same and self.selector is not None and self.selector.shows_change(av_frame)


class CameraAnalysis:
    """Decode policy, motion gate, inference requests, tracker and tamper detector of one camera.

    State: the current session, the decode policy, which outlives it. Owner: the camera's thread; `detector_input` and
    `result` are called by whoever runs the detector, one call at a time, and touch nothing but the request's
    `SessionTracks`. Invariant: the requests of a session have rising times; those of an older session are still
    answered by its own tracker.
    """

    def __init__(
        self,
        camera: str,
        detector: ObjectDetector,
        new_tracker: NewTracker,
        settings: DetectConfig,
        *,
        tamper: TamperDetector | None = None,
        frame_filter: FrameFilter | None = None,
        drain: Callable[[], None] | None = None,
        decode_everything: bool = False,
    ) -> None:
        """drain: see `SessionTracks`. decode_everything: as with `latency: lowest`, whatever is configured."""
        self.camera = camera
        self.detector = self._next_detector = detector
        self._new_tracker = new_tracker
        self._settings = settings
        self._tamper = tamper
        self._frame_filter = frame_filter
        self._drain = drain
        self._lines: tuple[tuple[Point, Point], ...] = ()
        self._work = ALL_WORK
        self.probe = SessionProbe()
        self._tracks: SessionTracks | None = None
        latency = "lowest" if decode_everything else settings.latency
        self.decode_policy = DecodePolicy(latency, settings.fps, self.probe)

    @property
    def has_session(self) -> bool:
        return self._tracks is not None

    @property
    def calibration(self) -> Mapping[str, tuple[float, float]]:
        """Calibration of the detector's scores, for the headers of sessions."""
        return calibration_of(self.detector)

    @property
    def is_moving(self) -> bool:
        """An object is new since the last result, or has moved: its camera should not wait for the detector."""
        return self._tracks is not None and self._tracks.summary.is_moving

    def watch_lines(self, lines: Sequence[tuple[Point, Point]]) -> None:
        """Track for these lines of the camera's rules from now on. Any thread."""
        self._lines = tuple(lines)
        if (tracks := self._tracks) is not None:
            tracks.watch_lines(self._lines)

    def open(self, decoder: Decoder, info: StreamInfo) -> None:
        """Begin a new connection. Its first frame begins a session, whatever its size."""
        self.decode_policy.open(decoder, info)
        self.probe.size = (0, 0)

    def frames(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """Yield the frames that the decode policy picks.

        Ask for the next one only when the last was selected or not. Raise SourceLost if nothing can be decoded any
        more.
        """
        if self._tamper is not None:
            self._tamper.observe_packet(packet.t, packet.jump)
        yield from self.decode_policy.frames(packet)

    def close(self) -> Iterator[DecodedFrame]:
        """Yield the frames that the decoder still holds back when a connection ends."""
        yield from self.decode_policy.close()

    def begins_session(self, frame: DecodedFrame) -> bool:
        """Return True if it is the first frame of a connection or for a detector, or has another size than before."""
        return self._next_detector is not self.detector or upright_size(frame.av_frame) != self.probe.size

    def start_session(self, frame: DecodedFrame) -> tuple[int, int]:
        """Forget what was tracked: earlier track ids mean nothing now. The (width, height) of its frames, upright."""
        self.detector = self._next_detector
        tracker = self._new_tracker(self.detector.labels)
        self._tracks = tracks = SessionTracks(self.camera, self.detector, tracker, self._drain)
        tracks.watch_lines(self._lines)  # now that `watch_lines` sees it: another thread may change them meanwhile
        self.probe.size = upright_size(frame.av_frame)
        self.probe.selector = FrameSelector(
            self.detector,
            self._settings,
            tracks,
            frame_filter=self._frame_filter,
            on_luma=self._tamper.observe if self._tamper is not None else None,
            work=lambda: self._work,
        )
        return self.probe.size

    def end_session(self) -> None:
        """End the session: the frames that come next have nothing to do with those before."""
        self._tracks = self.probe.selector = None

    def select(self, frame: DecodedFrame) -> InferenceRequest | None:
        """Return the request for a frame, or None if it need not be examined.

        Call it for each frame, in order.
        """
        selector = self.probe.selector
        assert selector is not None, "start_session() first"
        if self.probe.forced:
            self.probe.forced = False
            selector.force_next()
        return selector.select(frame)

    def detector_input(self, request: InferenceRequest) -> NDArray[np.uint8]:
        """See `SessionTracks.detector_input`. Called by whoever runs the detector."""
        return request.tracks.detector_input(request)

    def result(self, request: InferenceRequest, detections: Detections | None) -> FrameBoxes:
        """Return the boxes of a frame; detections None: the detector did not answer.

        The thread that runs the detector calls it.
        """
        return request.tracks.result(request, detections)

    def is_current(self, request: InferenceRequest) -> bool:
        """Its session has not ended."""
        return request.tracks is self._tracks

    def until_needed_s(self, t: float) -> float:
        """Return the seconds from the camera time `t` of the last packet on until the next one is needed.

        It is needed when a frame can be due or, if only key frames are decoded, when the next key frame comes.
        """
        selector = self.probe.selector
        if selector is None or self.probe.forced:
            return 0.0
        return self.decode_policy.until_key_s(t) if self.decode_policy.state == "idle" else selector.until_next_s(t)

    def use_detector(self, detector: ObjectDetector) -> None:
        """Examine by this detector from the next frame on, which begins a session. Any thread."""
        if detector is not self._next_detector:
            self._next_detector = detector
            self.probe.forced = True

    def set_work(self, work: WorkShare) -> None:
        """Do so much of the usual from the next frame on. Any thread."""
        self._work = work

    def force_next(self) -> None:
        """Have the next frame examined whatever motion and rhythm say. Any thread."""
        self.probe.forced = True

    def reconnect_reason(self, t: float) -> str:
        """Why a new connection may mend what the camera shows, or ''. A reason is given once."""
        return "" if self._tamper is None else self._tamper.reconnect_reason(t)

    def rebaseline(self, kind: HealthKind) -> None:
        """See `TamperDetector.rebaseline`. Any thread."""
        if self._tamper is not None:
            self._tamper.rebaseline(kind)
