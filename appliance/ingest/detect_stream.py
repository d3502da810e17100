"""One camera's detect stream: decodes its packets, queues frames for the shared detector, and emits their boxes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from appliance.analysis import decode_session
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, ClockStepDetector
from appliance.base.errors import SourceError, SourceLost
from appliance.config import DetectConfig
from appliance.health.camera_health import STEP_S_MIN
from appliance.inference.camera_queue import CameraQueue, FrameAges, PacketArrivals, priority_of
from appliance.inference.inference_worker import QueuedInference
from appliance.ingest.hardware_decoders import SOFTWARE, CameraHardware
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.source import StreamInfo, VideoPacket
from appliance.types import DecodeState, DetectCounts, Detections, DropReason, FrameBoxes, HealthKind, StreamHeader

logger = logging.getLogger(__name__)

REST_S_FIRST, REST_S_LAST = 1.0, 60.0  # s of camera time without detection after a bug, doubled each time
WELL_AFTER_S = 120.0  # without a bug
REPEATED_S_MAX = 60.0  # a server that begins with a cached GOP repeats so much; further back, a clock was set

OnSession = Callable[[str, tuple[int, int]], None]
"""A session begins: its id, and the (width, height) of its frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectStreamCounts(DetectCounts):
    """The counts of a detect stream since the start, and how it decodes now."""

    damaged: int  # packets that could not be decoded
    decoding: DecodeState = "everything"
    decoding_reason: str = ""
    decoder: str = SOFTWARE  # what decodes now: it, or a kind of hardware; "": nothing does
    decoder_fault: str = ""  # why the hardware that was asked for does not

    @property
    def crowded_out(self) -> int:
        """Frames that were due and not examined because the detector was busy; not those that it failed on."""
        return sum(self.dropped.get(reason, 0) for reason in ("newer", "capped", "late"))


class DetectStream:
    """A packet sink that feeds the detector.

    One camera's thread calls it; the detector's thread takes from `queue` and calls `complete`.

    State: the decoder, the camera's analysis, the frames that wait (`CameraQueue`: the newest, and before it those that
    were decoded late). Invariants: a header precedes the boxes of its session, and no boxes of an older session follow
    it; over all sessions `t` rises, unless a clock was set far back.
    """

    def __init__(
        self,
        analysis: CameraAnalysis,
        settings: DetectConfig,
        clock: Clock,
        emit: Callable[[StreamHeader | FrameBoxes], None],
        *,
        wake: threading.Event | None = None,
        on_session: OnSession | None = None,
        known_before: bool = False,
        hardware: CameraHardware | None = None,
    ) -> None:
        """Prepare the stream; nothing is decoded yet.

        wake: set when a frame waits. on_session: called by the camera's
        thread, before the packet goes to the sinks after this one. known_before: the objects that stood there before
        the first session are known; those before later sessions always are. hardware: the hardware that decodes; None:
        software decodes.
        """
        self.camera = analysis.camera
        self._analysis = analysis
        self._clock = clock
        self._emit = emit
        self._wake = wake or threading.Event()
        self._on_session = on_session
        self._known_before = known_before
        self._hardware = hardware
        self._reconnect_reason = ""
        self._lock = threading.Lock()
        late_max = decode_session.TUNING.late_frames_max + 1  # and the key frame before them
        self.queue: CameraQueue[QueuedInference] = CameraQueue(
            fps=settings.fps, heartbeat_s=settings.heartbeat_s, late_max=late_max
        )
        self.ages = FrameAges()
        self._arrivals = PacketArrivals()
        self._info: StreamInfo | None = None
        self._decoder: Decoder | None = None
        self._rest = Backoff(REST_S_FIRST, REST_S_LAST)
        self._rests_until = self._failed_t = float("-inf")
        self._label = ""
        self._session_id = ""
        self._has_header = False  # of this connection
        self._last_t = self._packet_t = float("-inf")
        self._clock_steps = ClockStepDetector(clock, STEP_S_MIN)
        self._past_decoded = self._past_damaged = 0
        self._examined = 0

    def begin(self, info: StreamInfo, session_id: str) -> None:
        # In the time of the clock as it is now: what comes after it was set back is no repetition.
        self._last_t += min(0.0, self._clock_steps.step_s())
        self._info, self._rests_until = info, float("-inf")
        self._decoder = Decoder(f"camera {self.camera}", info, self._hardware)
        self._analysis.open(self._decoder, info)
        self._label, self._session_id, self._has_header = info.label, session_id, False

    def take(self, packet: VideoPacket) -> None:
        """Decode a packet and queue the frames that are due.

        Raise SourceLost if nothing can be decoded any more, or if a new connection may mend what is wrong. After a bug
        nothing is decoded up to a key frame some seconds later: the recorder gets the same packets, and goes on.
        """
        if self._decoder is None:
            info = self._info
            if info is None or not packet.keyframe or packet.t < self._rests_until:
                return
            info.stream.codec_context.flush_buffers()
            self.begin(info, uuid4().hex[:12])
        try:
            self._take(packet)
        except SourceError:
            raise
        except Exception:
            logger.exception("camera %s: a packet could not be examined; going on with another one", self.camera)
            if packet.t - self._failed_t > WELL_AFTER_S:
                self._rest.reset()
            self._failed_t, self._rests_until = packet.t, packet.t + self._rest.next_s()
            self._release_decoder()

    def _take(self, packet: VideoPacket) -> None:
        self._arrivals.note(packet.t, self._clock.monotonic() - packet.lag_s)
        self._packet_t = packet.t
        for frame in self._analysis.frames(packet):
            self._consider(frame)
        if self._reconnect_reason:
            reason, self._reconnect_reason = self._reconnect_reason, ""
            raise SourceLost(f"camera {self.camera}: {reason}; connecting again")

    def end(self) -> None:
        self._info = None
        if self._decoder is None:
            return
        try:
            for frame in self._analysis.close():
                self._consider(frame)
        finally:
            self._release_decoder()

    def _release_decoder(self) -> None:
        decoder, self._decoder = self._decoder, None
        if decoder is None:
            return
        self._past_decoded += decoder.decoded
        self._past_damaged += decoder.damaged
        decoder.close()

    def reconnect(self, reason: str) -> None:
        """End the connection with the next packet. Any thread."""
        self._reconnect_reason = reason

    def force_next(self) -> None:
        """Have the next frame examined whatever motion and rhythm say. Any thread."""
        self._analysis.force_next()

    def rebaseline(self, kind: HealthKind) -> None:
        """See `TamperDetector.rebaseline`. Any thread."""
        self._analysis.rebaseline(kind)

    def until_needed_s(self) -> float:
        """Return for how many seconds from now on no further packet is needed. The camera's thread calls it."""
        return self._analysis.until_needed_s(self._packet_t)

    def complete(self, queued: QueuedInference, detections: Detections | None, reason: DropReason = "failed") -> None:
        """Emit what the detector found; None means that it did not answer, for the given reason.

        Results of an older session are dropped and counted. Any thread may call.
        """
        with self._lock:
            if not self._analysis.is_current(queued.request):
                self.queue.count_dropped("run")
                return
            self._emit(self._analysis.result(queued.request, detections))
            if detections is None:
                self.queue.count_dropped(reason)
                return
            self._examined += 1
            if queued.arrived is not None:
                now = self._clock.monotonic()
                self.ages.add(now - queued.arrived, now)

    def counts(self) -> DetectStreamCounts:
        decoder, policy, dropped = self._decoder, self._analysis.decode_policy, self.queue.dropped()
        hardware = self._hardware
        return DetectStreamCounts(
            decoded=self._past_decoded + (decoder.decoded if decoder else 0),
            damaged=self._past_damaged + (decoder.damaged if decoder else 0),
            examined=self._examined,
            unexamined=sum(dropped.values()),
            skipped=policy.counts().skipped,
            decoding=policy.state,
            decoding_reason=policy.reason,
            dropped=dropped,
            ages=self.ages.counts(),
            retries=self.queue.retries,
            decoder=SOFTWARE if hardware is None else hardware.device,
            decoder_fault="" if hardware is None else hardware.fault,
            decoder_failures=0 if hardware is None else hardware.failures,
        )

    def _consider(self, frame: DecodedFrame) -> None:
        if self._analysis.begins_session(frame):
            self._start_session(frame)
        if self._last_t - REPEATED_S_MAX < frame.t <= self._last_t:
            return  # it was examined before the connection broke
        self._last_t = frame.t
        request = self._analysis.select(frame)
        self._reconnect_reason = self._reconnect_reason or self._analysis.reconnect_reason(frame.t)
        if request is not None:
            self._enqueue(request, frame)
            self._wake.set()

    def _enqueue(self, request: InferenceRequest, frame: DecodedFrame) -> None:
        now = self._clock.monotonic()
        arrived = None if frame.late else self._arrivals.of(frame.t, now)
        priority = priority_of(request.priority, active=self._analysis.is_moving, late=frame.late, area=request.area)
        self.queue.offer(
            QueuedInference(request, arrived),
            now,
            priority=priority,
            area=request.area,
            size=request.input_size,
            late=frame.late,
        )

    def _start_session(self, frame: DecodedFrame) -> None:
        """Start a session with the first frame of a connection, or with a frame of another size.

        Earlier track ids mean nothing now.
        """
        if self._has_header:
            self._session_id = uuid4().hex[:12]
        self._has_header = True
        self.queue.clear("run")
        with self._lock:
            size = self._analysis.start_session(frame)
            header = StreamHeader(
                camera=self.camera,
                clip=self._label,
                model=self._analysis.detector.name,
                size=size,
                run=self._session_id,
                known_before=self._known_before,
                calibration=self._analysis.calibration,
            )
            self._emit(header)
            self._known_before = True
        if self._on_session is not None:
            self._on_session(self._session_id, size)
