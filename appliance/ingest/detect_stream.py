"""One camera's detect stream: decodes its packets, queues frames for the shared detector, and emits their boxes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

import av

from appliance import config
from appliance.analysis.frame_analyzer import ActivityFlag, FrameAnalyzer, InferenceRequest, ObjectTracker
from appliance.clock import Clock
from appliance.decode_policy.keyframe_policy import LATE_FRAMES_MAX, DecodePolicy
from appliance.detect.detector import ObjectDetector
from appliance.errors import SourceLost
from appliance.health.tamper_detector import TamperDetector
from appliance.inference.camera_queue import CameraQueue, priority_of
from appliance.inference.frame_age import FrameAges, PacketArrivals
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.media.source import StreamInfo, VideoPacket
from appliance.types import DecodeState, Detections, DropReason, FrameBoxes, HealthKind, StreamHeader


@dataclass(frozen=True, slots=True)
class DetectCounts:
    """Since the start: frames decoded, packets damaged, looks answered, looks that were due and got no answer (why: by
    reason); packets that were not decoded; looks asked for again. decoding: what is decoded now, and why. ages: see
    `Ages.counts`."""

    decoded: int
    damaged: int
    examined: int
    unexamined: int
    skipped: int = 0
    decoding: DecodeState = "everything"
    decoding_reason: str = ""
    dropped: Mapping[DropReason, int] = field(default_factory=dict)
    ages: tuple[int, ...] = ()
    retries: int = 0

    def dropped_since(self, before: DetectCounts) -> dict[DropReason, int]:
        """Looks that came to nothing since then, by reason; reasons for which there were none are left out."""
        found = {reason: count - before.dropped.get(reason, 0) for reason, count in self.dropped.items()}
        return {reason: count for reason, count in found.items() if count}

    def ages_since(self, before: DetectCounts) -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(self.ages, before.ages or (0,) * len(self.ages), strict=True))


REPEATED_S_MAX = 60.0
OnSession = Callable[[str, tuple[int, int]], None]


@dataclass(frozen=True, slots=True)
class QueuedInference:
    """A look that waits for the detector, with the run it belongs to. arrived: when its packet came, monotonic; None of
    a picture that was decoded late."""

    analyzer: FrameAnalyzer
    request: InferenceRequest
    arrived: float | None = None


class DetectStream:
    """A sink that decodes. One camera's thread feeds it; the detector's thread takes requests and answers them.

    State: the decoder and what of the stream it is given (`Thrift`), the examiner of the present run, the looks that
    wait (`Lane`: the newest, and before it those of frames that were decoded late, LATE_MAX + 1 at most).
    Invariants: a header precedes the boxes of its run, and no boxes of an older run follow it; over all runs `t` rises,
    unless a clock was set far back.
    """

    def __init__(
        self,
        camera: str,
        detector: ObjectDetector,
        new_tracker: Callable[[tuple[str, ...]], ObjectTracker],
        plan: config.DetectConfig,
        clock: Clock,
        emit: Callable[[StreamHeader | FrameBoxes], None],
        sentry: TamperDetector | None = None,
    ) -> None:
        self._camera = camera
        self._detector = detector
        self._new_tracker = new_tracker
        self._plan = plan
        self._clock = clock
        self._emit = emit
        self._sentry = sentry
        self._anew = ""
        self._insisted = False
        self._lock = threading.Lock()
        self.queue: CameraQueue[QueuedInference] = CameraQueue(
            fps=plan.fps, heartbeat_s=plan.heartbeat_s, late_max=LATE_FRAMES_MAX + 1
        )
        self.ages = FrameAges()
        self.retries = 0
        self._arrivals = PacketArrivals()
        self._stir = ActivityFlag()
        self._decoder: Decoder | None = None
        self._thrift = DecodePolicy(plan.latency, plan.fps, plan.heartbeat_s, self)
        self._examiner: FrameAnalyzer | None = None
        self._label = ""
        self._run = ""
        self._size = (0, 0)
        self._last_t = self._taken_t = float("-inf")
        self._past_decoded = 0
        self._past_damaged = 0
        self._examined = 0
        self.wake: Callable[[], None] = lambda: None
        self.on_session: OnSession = lambda run, size: None

    def begin(self, info: StreamInfo, run: str) -> None:
        self._decoder = Decoder(f"camera {self._camera}", info)
        self._thrift.begin(self._decoder, info)
        self._label, self._run, self._size = info.label, run, (0, 0)

    def take(self, packet: VideoPacket) -> None:
        """Raises SourceLost when nothing can be decoded any more, or a new connection may mend what is wrong."""
        assert self._decoder is not None, "begin() first"
        self._arrivals.note(packet.t, self._clock.monotonic() - packet.lag_s)
        if self._sentry is not None:
            self._sentry.observe_packet(packet.t, packet.jump)
        self._taken_t = packet.t
        for frame in self._thrift.take(packet):
            self._consider(frame)
        if self._anew:
            reason, self._anew = self._anew, ""
            raise SourceLost(f"camera {self._camera}: {reason}; connecting again")

    def reconnect(self, reason: str) -> None:
        """End the connection with the next packet. Any thread."""
        self._anew = reason

    def until_needed_s(self) -> float:
        """For how long nobody asks for the next packet: until a picture can be due or, where only key frames are
        decoded, until the next one. Called by the camera's thread."""
        examiner = self._examiner
        if examiner is None or self._insisted:
            return 0.0
        if self._thrift.state == "idle":
            return self._thrift.until_key_s(self._taken_t)
        return examiner.until_next_s(self._taken_t)

    def force_next(self) -> None:
        """Have the next frame examined whatever gate and rhythm say. Any thread."""
        self._insisted = True

    def relearn(self, kind: HealthKind) -> None:
        """See `Sentry.relearn`. Any thread."""
        if self._sentry is not None:
            self._sentry.rebaseline(kind)

    def end(self) -> None:
        decoder, self._decoder = self._decoder, None
        if decoder is None:
            return
        for frame in self._thrift.end():
            self._consider(frame)
        self._past_decoded += decoder.decoded
        self._past_damaged += decoder.damaged

    def next_request(self) -> QueuedInference | None:
        """The look whose turn it is, taken."""
        turn = self.queue.take()
        return turn.item if turn is not None else None

    def answer(self, request: QueuedInference, detections: Detections | None, reason: DropReason = "failed") -> None:
        """Tell what the detector saw; None: it did not answer, for that reason. Answers for an older run are dropped,
        counted. Any thread."""
        with self._lock:
            if request.analyzer is not self._examiner:
                self.queue.count_dropped("run")
                return
            boxes = request.analyzer.result(request.request, detections)
            self._emit(boxes)
            if detections is None:
                self.queue.count_dropped(reason)
                return
            self._examined += 1
            self._stir.update(boxes)
            if request.arrived is not None:
                now = self._clock.monotonic()
                self.ages.add(now - request.arrived, now)

    def counts(self) -> DetectCounts:
        decoder, thrift, why = self._decoder, self._thrift, self.queue.dropped()
        return DetectCounts(
            decoded=self._past_decoded + (decoder.decoded if decoder else 0),
            damaged=self._past_damaged + (decoder.damaged if decoder else 0),
            examined=self._examined,
            unexamined=sum(why.values()),
            skipped=thrift.skipped,
            decoding=thrift.state,
            decoding_reason=thrift.reason,
            dropped=why,
            ages=self.ages.counts(),
            retries=self.retries,
        )

    def busy(self, t: float) -> bool:
        """See `thrift.attention.Attention`, as are the next three."""
        return self._examiner is None or self._insisted or self._examiner.busy(t)

    def moved(self, t: float) -> bool:
        return self._examiner is None or self._examiner.moved(t)

    def overdue(self, t: float) -> bool:
        return self._examiner is None or self._insisted or self._examiner.overdue(t)

    def changed(self, picture: av.VideoFrame) -> bool:
        same = upright_size(picture) == self._size  # else a new run begins, and there everything is movement
        return same and self._examiner is not None and self._examiner.changed(picture)

    def _consider(self, frame: DecodedFrame) -> None:
        size = upright_size(frame.av_frame)
        if size != self._size:
            self._begin_run(size)
        if self._last_t - REPEATED_S_MAX < frame.t <= self._last_t:
            # A server that begins with a cached group of pictures shows what was examined before the connection broke.
            return
        self._last_t = frame.t
        examiner = self._examiner
        assert examiner is not None
        if self._insisted:
            self._insisted = False
            examiner.force_next()
        look = examiner.select(frame.index, frame.t, frame.av_frame, next_s=frame.next_s)
        if self._sentry is not None:
            self._anew = self._anew or self._sentry.reconnect_reason(frame.t)
        if look is not None:
            arrived = None if frame.late else self._arrivals.of(frame.t, self._clock.monotonic())
            self._put(QueuedInference(examiner, look, arrived), size, late=frame.late)
            self.wake()

    def _put(self, request: QueuedInference, size: tuple[int, int], *, late: bool) -> None:
        look = request.request
        whole = self._detector.preferred_size(*size)
        shown = whole if look.mosaic is None else look.mosaic.size
        area = min(1.0, shown[0] * shown[1] / (whole[0] * whole[1]))
        self.queue.offer(
            request,
            self._clock.monotonic(),
            priority=priority_of(look.priority, active=self._stir.is_active, late=late, area=area),
            area=area,
            size=shown,
            late=late,
        )

    def _begin_run(self, size: tuple[int, int]) -> None:
        """The first picture of a connection, or a picture of another size: earlier track ids mean nothing now."""
        if self._size != (0, 0):
            self._run = uuid4().hex[:12]
        self._size = size
        self.queue.clear("run")
        with self._lock:
            self._stir = ActivityFlag()
            self._examiner = FrameAnalyzer(
                self._camera,
                self._detector,
                self._new_tracker(self._detector.labels),
                self._plan,
                on_luma=self._sentry.observe if self._sentry is not None else None,
            )
            self._emit(
                StreamHeader(camera=self._camera, clip=self._label, model=self._detector.name, size=size, run=self._run)
            )
        self.on_session(self._run, size)
