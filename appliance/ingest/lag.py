"""How late packets are read from the socket, and the filter that drops to key frames when a reader lags."""

from __future__ import annotations

import logging
from typing import Protocol

from appliance.clock import Clock
from appliance.media.source import StreamInfo, VideoPacket
from appliance.telemetry import LogThrottle

logger = logging.getLogger(__name__)

KEEPS_UP_S = 0.3
RESTS_S = 0.5  # more than `rest.REST_S_MAX` and a picture
KNOWN_S_MIN = 1.0
_PICTURES = 1.5  # libavformat gives a picture out when the next has begun: part of that is always there
_MEMORY_S = 10.0
_STEP_S_MAX = 2.0


class LagEstimator:
    """State: the stream's usual bytes a second and seconds a packet, and when it was last read to its end.

    Owner: the thread that reads. Seconds, of which only differences matter, except for camera time.
    """

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A new connection."""
        self._bytes = self._seconds = self._packets = 0.0
        self._last_t: float | None = None
        self._up_to_date = now

    def lag_s(self, size: int, stream_t: float, waiting: int | None, now: float) -> float:
        """Seconds by which a packet of `size` bytes is late. stream_t: its stamp; waiting: bytes that nobody read yet.

        Never more than what has passed since nothing was waiting. 0 where it cannot be told.
        """
        self._learn(size, stream_t)
        if waiting is None or self._seconds < KNOWN_S_MIN:
            self._up_to_date = now
            return 0.0
        waiting_s = waiting * self._seconds / max(1.0, self._bytes)
        if waiting_s <= max(KEEPS_UP_S, _PICTURES * self._seconds / self._packets):
            self._up_to_date = now
            return 0.0
        behind_s = min(waiting_s, now - self._up_to_date)
        # Who has just rested finds some packets and perhaps the first half of a key frame, and is not behind.
        return behind_s if behind_s > RESTS_S else 0.0

    def _learn(self, size: int, stream_t: float) -> None:
        step_s = 0.0 if self._last_t is None else min(max(0.0, stream_t - self._last_t), _STEP_S_MAX)
        self._last_t = stream_t
        kept = 1 - step_s / _MEMORY_S if self._seconds > KNOWN_S_MIN else 1.0
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + step_s
        self._packets = self._packets * kept + 1


LAG_S_MAX = 2.0
CAUGHT_UP_S = 0.5
KEY_FRAME_EVERY_S = 2.0


class LaggingSink(Protocol):
    """A sink that costs more than reading does: the watch."""

    def begin(self, info: StreamInfo, run: str) -> None: ...

    def take(self, packet: VideoPacket) -> None: ...

    def end(self) -> None: ...


class LagFilter:
    """Hands packets on until they are more than `behind_s_max` late; then key frames alone, one each `show_s`, up to
    one that is not late.

    It stands before the watch alone: the recorder beside it keeps everything. State: whether it skips, how many packets
    it left out, the greatest lateness since somebody asked. Owner: the camera's reading thread; numbers may be read by
    others.
    """

    def __init__(
        self,
        camera: str,
        looker: LaggingSink,
        clock: Clock,
        *,
        lag_s_max: float = LAG_S_MAX,
        key_frame_every_s: float = KEY_FRAME_EVERY_S,
    ) -> None:
        self.skipped = 0
        self.skips = 0
        self.is_lagging = False
        self._behind_s = self._worst_s = 0.0
        self._camera = camera
        self._looker = looker
        self._behind_s_max = lag_s_max
        self._show_s = key_frame_every_s
        self._shown_t = float("-inf")
        self._repeats = LogThrottle(logger, clock)

    def begin(self, info: StreamInfo, run: str) -> None:
        self.is_lagging, self._behind_s = False, 0.0
        self._looker.begin(info, run)

    def take(self, packet: VideoPacket) -> None:
        self._behind_s = packet.lag_s
        self._worst_s = max(self._worst_s, packet.lag_s)
        if self.is_lagging:
            self.is_lagging = packet.lag_s > CAUGHT_UP_S or not packet.keyframe
        elif packet.lag_s > self._behind_s_max:
            self.is_lagging = True
            self.skips += 1
            self._repeats.report(
                f"camera {self._camera}: pictures are {packet.lag_s:.0f} s late; what waits is only recorded"
            )
        if self.is_lagging and not self._must_show(packet):
            self.skipped += 1
            return
        self._shown_t = packet.t
        self._looker.take(packet)

    def end(self) -> None:
        self.is_lagging, self._behind_s = False, 0.0
        self._looker.end()

    def take_worst_s(self) -> float:
        """The greatest lateness since the last call, in seconds."""
        worst, self._worst_s = self._worst_s, self._behind_s
        return worst

    def _must_show(self, packet: VideoPacket) -> bool:
        """Late is better than never: a box that cannot keep up still looks at every camera now and then."""
        return packet.keyframe and not 0 <= packet.t - self._shown_t < self._show_s
