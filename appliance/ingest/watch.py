"""One camera's pictures: decoded, offered to the shared detector, and told of as boxes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from appliance import config
from appliance.clock import Clock
from appliance.ingest.decode import Decoder, Frame
from appliance.ingest.examine import Detector, Examiner, Look, Tracker
from appliance.ingest.latest import Latest
from appliance.ingest.picture import upright_size
from appliance.ingest.source import StreamInfo, VideoPacket
from appliance.types import Detections, FrameBoxes, StreamHeader

AGAIN_S_MAX = 60.0
RunBegan = Callable[[str, tuple[int, int]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A look that waits for the detector, with the run it belongs to."""

    examiner: Examiner
    look: Look


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """Since the start: frames decoded, packets damaged, looks answered, looks that were due and got no answer."""

    decoded: int
    damaged: int
    examined: int
    unexamined: int


class Watch:
    """A sink that decodes. One camera's thread feeds it; the detector's thread takes requests and answers them.

    State: the decoder, the examiner of the present run, one waiting request. Invariants: a header precedes the boxes
    of its run, and no boxes of an older run follow it; over all runs `t` rises, unless a clock was set far back.
    """

    def __init__(
        self,
        camera: str,
        detector: Detector,
        new_tracker: Callable[[tuple[str, ...]], Tracker],
        plan: config.Detect,
        clock: Clock,
        emit: Callable[[StreamHeader | FrameBoxes], None],
    ) -> None:
        self._camera = camera
        self._detector = detector
        self._new_tracker = new_tracker
        self._plan = plan
        self._clock = clock
        self._emit = emit
        self._lock = threading.Lock()
        self._slot: Latest[Request] = Latest()
        self._decoder: Decoder | None = None
        self._examiner: Examiner | None = None
        self._label = ""
        self._run = ""
        self._size = (0, 0)
        self._last_t = float("-inf")
        self._past_decoded = 0
        self._past_damaged = 0
        self._examined = 0
        self._unanswered = 0
        self.wake: Callable[[], None] = lambda: None
        self.run_began: RunBegan = lambda run, size: None

    @property
    def heartbeat_s(self) -> float:
        return self._plan.heartbeat_s

    def begin(self, info: StreamInfo, run: str) -> None:
        self._decoder = Decoder(f"camera {self._camera}", info)
        self._label, self._run, self._size = info.label, run, (0, 0)

    def take(self, packet: VideoPacket) -> None:
        """Raises SourceLost when nothing can be decoded any more."""
        assert self._decoder is not None, "begin() first"
        for frame in self._decoder.decode(packet):
            self._consider(frame)

    def end(self) -> None:
        decoder, self._decoder = self._decoder, None
        if decoder is None:
            return
        for frame in decoder.flush():
            self._consider(frame)
        self._past_decoded += decoder.decoded
        self._past_damaged += decoder.damaged

    def waiting(self) -> tuple[Request, float] | None:
        """The look that waits and since when (monotonic seconds)."""
        return self._slot.peek()

    def next_request(self) -> Request | None:
        return self._slot.take()

    def answer(self, request: Request, detections: Detections | None) -> None:
        """Tell what the detector saw; None: it did not answer. Answers for an older run are dropped, counted."""
        with self._lock:
            if request.examiner is not self._examiner:
                self._unanswered += 1
                return
            self._emit(request.examiner.result(request.look, detections))
            if detections is None:
                self._unanswered += 1
            else:
                self._examined += 1

    def counts(self) -> WatchCounts:
        decoder = self._decoder
        return WatchCounts(
            decoded=self._past_decoded + (decoder.decoded if decoder else 0),
            damaged=self._past_damaged + (decoder.damaged if decoder else 0),
            examined=self._examined,
            unexamined=self._unanswered + self._slot.dropped(),
        )

    def _consider(self, frame: Frame) -> None:
        size = upright_size(frame.picture)
        if size != self._size:
            self._begin_run(size)
        if self._last_t - AGAIN_S_MAX < frame.t <= self._last_t:
            # A server that begins with a cached group of pictures shows what was examined before the connection broke.
            return
        self._last_t = frame.t
        examiner = self._examiner
        assert examiner is not None
        look = examiner.due(frame.index, frame.t, frame.picture)
        if look is not None:
            self._slot.put(Request(examiner, look), self._clock.monotonic())
            self.wake()

    def _begin_run(self, size: tuple[int, int]) -> None:
        """The first picture of a connection, or a picture of another size: earlier track ids mean nothing now."""
        if self._size != (0, 0):
            self._run = uuid4().hex[:12]
        self._size = size
        self._slot.clear()
        with self._lock:
            self._examiner = Examiner(
                self._camera, self._detector, self._new_tracker(self._detector.labels), self._plan
            )
            self._emit(
                StreamHeader(camera=self._camera, clip=self._label, model=self._detector.name, size=size, run=self._run)
            )
        self.run_began(self._run, size)
