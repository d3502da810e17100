"""When the thread that reads a stream may sleep, and read several packets at once afterwards.

A thread that wakes for one packet finds nothing of what it needs in the processor's caches: 0.4 ms a packet; those that
follow it cost 0.1. What is not wanted at once can wait in the socket, where it also keeps its order.
"""

from __future__ import annotations

from appliance.clock import Clock

REST_S_MAX = 0.4
REST_S_MIN = 0.08  # shorter, and there is nothing to gain
REST_BYTES = 96_000  # what may come meanwhile: cameras have small send buffers, and kernels begin with small windows
BEHIND_S_MAX = 0.07  # a packet that late was not the last that had come
PROMPT_EVERY_S = 1.0  # a packet is waited for that often: its arrival tells camera time, see `timeline`
_LEAK = 0.001  # the least lag follows a camera's crystal, in seconds a second


class Rest:
    """State: what came on this connection so far, and how late packets are that are waited for (`socket` buffers do not
    tell: libavformat gives a packet out when the next one has begun). Owner: the reading thread."""

    def __init__(self, clock: Clock) -> None:
        self.rests = 0
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A new connection."""
        self._began = self._at = self._prompt_at = self._clock.monotonic()
        self._least_s = float("inf")
        self._bytes = 0

    def after(self, size: int, t: float, patience_s: float) -> float:
        """Seconds to sleep after a packet of `size` bytes and camera time `t`; patience_s: for so long nobody asks for
        the next one. 0 as long as more has come already."""
        now = self._clock.monotonic()
        lag_s = self._clock.now() - t
        self._least_s = min(lag_s, self._least_s + _LEAK * (now - self._at))
        self._at = now
        self._bytes += size
        if patience_s < REST_S_MIN or lag_s - self._least_s > BEHIND_S_MAX:
            return 0.0
        if now - self._prompt_at >= PROMPT_EVERY_S:
            self._prompt_at = now
            return 0.0
        rest_s = min(patience_s, REST_S_MAX, REST_BYTES * (now - self._began) / max(1, self._bytes))
        if rest_s < REST_S_MIN:
            return 0.0
        self.rests += 1
        return rest_s
