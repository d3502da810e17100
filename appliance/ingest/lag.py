"""How late packets are read from the socket, and the filter that drops to key frames when a reader lags."""

from __future__ import annotations

import logging

from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from appliance.ingest.reconnecting_reader import PacketSink
from appliance.media.source import StreamInfo, VideoPacket

KEEPING_UP_S = 0.3  # with so much unread, a reader keeps up
PAUSE_LAG_S = 0.5  # after a pause of the reader (READ_PAUSE_S_MAX) so much may wait, and a frame
KNOWN_S_MIN = 1.0  # of the stream, before its bytes a second are known
_FRAMES_UNREAD = 1.5  # libavformat gives a frame out when the next has begun: part of that is always unread
_MEMORY_S = 10.0  # over which bytes a second are averaged
_STEP_S_MAX = 2.0  # between two stamps; more is a jump
LAG_S_MAX = 2.0  # later than that, frames are dropped
CAUGHT_UP_S = 0.5  # less than this behind the camera is the jitter of a network
KEY_FRAME_EVERY_S = 2.0  # while lagging

logger = logging.getLogger(__name__)


class LagEstimator:
    """Estimates for how long what is read now has waited in the socket: a reader that cannot keep up must know.

    State: the stream's usual bytes a second and seconds a packet, and when it was last read to its end. Owner: the
    reading thread. Only differences of times matter.
    """

    def __init__(self, now: float) -> None:
        """Begin a connection; now: monotonic seconds."""
        self._bytes = self._seconds = self._packets = 0.0
        self._last_t: float | None = None
        self._up_to_date = now

    def lag_s(self, size: int, stream_t: float, unread: int | None, now: float) -> float:
        """Return the seconds by which a packet of `size` bytes is late; 0 if that is not known.

        stream_t: its stamp. unread: bytes left in the socket. It is never more than what has passed since nothing was
        waiting.
        """
        self._learn(size, stream_t)
        if unread is None or self._seconds < KNOWN_S_MIN:
            self._up_to_date = now
            return 0.0
        unread_s = unread * self._seconds / max(1.0, self._bytes)
        if unread_s <= max(KEEPING_UP_S, _FRAMES_UNREAD * self._seconds / self._packets):
            self._up_to_date = now
            return 0.0
        lag_s = min(unread_s, now - self._up_to_date)
        # After a pause some packets wait, and perhaps the first half of a key frame; that is no lag.
        return lag_s if lag_s > PAUSE_LAG_S else 0.0

    def _learn(self, size: int, stream_t: float) -> None:
        step_s = 0.0 if self._last_t is None else min(max(0.0, stream_t - self._last_t), _STEP_S_MAX)
        self._last_t = stream_t
        kept = 1 - step_s / _MEMORY_S if self._seconds > KNOWN_S_MIN else 1.0
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + step_s
        self._packets = self._packets * kept + 1


class LagFilter:
    """A filter that skips packets once they are more than LAG_S_MAX late.

    Then it hands on key frames alone, one each `key_frame_every_s`, up to one that is not late. It stands before the
    detect stream alone: the recorder beside it keeps everything. State: whether it lags, how many packets it skipped,
    the greatest lag since it was last asked. Owner: the camera's reading thread; other threads may read the numbers.
    """

    def __init__(
        self,
        camera: str,
        sink: PacketSink,
        clock: Clock,
        *,
        key_frame_every_s: float = KEY_FRAME_EVERY_S,
    ) -> None:
        self.skipped = 0
        self.skips = 0
        self.is_lagging = False
        self._lag_s = self._worst_s = 0.0
        self._camera = camera
        self._sink = sink
        self._key_frame_every_s = key_frame_every_s
        self._handed_on_t = float("-inf")
        self._repeats = LogThrottle(logger, clock)

    def begin(self, info: StreamInfo, session_id: str) -> None:
        self.is_lagging, self._lag_s = False, 0.0
        self._sink.begin(info, session_id)

    def take(self, packet: VideoPacket) -> None:
        self._lag_s = packet.lag_s
        self._worst_s = max(self._worst_s, packet.lag_s)
        if self.is_lagging:
            self.is_lagging = packet.lag_s > CAUGHT_UP_S or not packet.keyframe
        elif packet.lag_s > LAG_S_MAX:
            self.is_lagging = True
            self.skips += 1
            self._repeats.report(
                f"camera {self._camera}: pictures are {packet.lag_s:.0f} s late; what waits is only recorded"
            )
        if self.is_lagging and not self._is_due_key_frame(packet):
            self.skipped += 1
            return
        self._handed_on_t = packet.t
        self._sink.take(packet)

    def end(self) -> None:
        self.is_lagging, self._lag_s = False, 0.0
        self._sink.end()

    def take_worst_s(self) -> float:
        """Return the greatest lag since the last call, in seconds."""
        worst, self._worst_s = self._worst_s, self._lag_s
        return worst

    def _is_due_key_frame(self, packet: VideoPacket) -> bool:
        """Return True for a key frame that is due, although it is late.

        Late is better than never: an appliance that cannot keep up still examines every camera now and then.
        """
        return packet.keyframe and not 0 <= packet.t - self._handed_on_t < self._key_frame_every_s
