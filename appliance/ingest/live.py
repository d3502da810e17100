"""Keeps what is looked at in the present: what is long past is recorded and not looked at."""

from __future__ import annotations

import logging
from typing import Protocol

from appliance.clock import Clock
from appliance.ingest.source import StreamInfo, VideoPacket
from appliance.telemetry import Repeats

BEHIND_S_MAX = 2.0
LIVE_S = 0.5
SHOW_S = 2.0

logger = logging.getLogger(__name__)


class Looker(Protocol):
    """A sink that costs more than reading does: the watch."""

    def begin(self, info: StreamInfo, run: str) -> None: ...

    def take(self, packet: VideoPacket) -> None: ...

    def end(self) -> None: ...


class Live:
    """Hands packets on until they are more than `behind_s_max` late; then key frames alone, one each `show_s`, up to
    one that is not late.

    It stands before the watch alone: the recorder beside it keeps everything. State: whether it skips, how many packets
    it left out, the greatest lateness since somebody asked. Owner: the camera's reading thread; numbers may be read by
    others.
    """

    def __init__(
        self, camera: str, looker: Looker, clock: Clock, *, behind_s_max: float = BEHIND_S_MAX, show_s: float = SHOW_S
    ) -> None:
        self.skipped = 0
        self.skips = 0
        self.is_behind = False
        self._behind_s = self._worst_s = 0.0
        self._camera = camera
        self._looker = looker
        self._behind_s_max = behind_s_max
        self._show_s = show_s
        self._shown_t = float("-inf")
        self._repeats = Repeats(logger, clock)

    def begin(self, info: StreamInfo, run: str) -> None:
        self.is_behind, self._behind_s = False, 0.0
        self._looker.begin(info, run)

    def take(self, packet: VideoPacket) -> None:
        self._behind_s = packet.behind_s
        self._worst_s = max(self._worst_s, packet.behind_s)
        if self.is_behind:
            self.is_behind = packet.behind_s > LIVE_S or not packet.keyframe
        elif packet.behind_s > self._behind_s_max:
            self.is_behind = True
            self.skips += 1
            self._repeats.report(
                f"camera {self._camera}: pictures are {packet.behind_s:.0f} s late; what waits is only recorded"
            )
        if self.is_behind and not self._must_show(packet):
            self.skipped += 1
            return
        self._shown_t = packet.t
        self._looker.take(packet)

    def end(self) -> None:
        self.is_behind, self._behind_s = False, 0.0
        self._looker.end()

    def worst_s(self) -> float:
        """The greatest lateness since the last call, in seconds."""
        worst, self._worst_s = self._worst_s, self._behind_s
        return worst

    def _must_show(self, packet: VideoPacket) -> bool:
        """Late is better than never: a box that cannot keep up still looks at every camera now and then."""
        return packet.keyframe and not 0 <= packet.t - self._shown_t < self._show_s
