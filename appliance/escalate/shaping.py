"""How fast the uplink may send: a token bucket of which what is urgent may use more than what can wait."""

from __future__ import annotations

from appliance.clock import Clock

BURST_S = 1.0
BURST_BYTES_MIN = 32 * 1024
SLACK_S = 0.25


class TokenBucket:
    """Bytes that may be sent now, refilled at the rate of `kbps_max`.

    State: the level, at most `burst` (a second's worth) and a little slack. What can wait is sent while the level is
    above `burst`, so that the burst is there for what is live, which is sent while the level is above zero. A message
    is taken whole: the level may fall below zero, and the next waits for longer. Over any time the sum is at most
    the rate times that time, one burst, its slack and one message. Owner: the uplink's task. No rate: nothing waits.
    """

    def __init__(self, kbps_max: float | None, clock: Clock) -> None:
        self._clock = clock
        self._rate = kbps_max * 1000 / 8 if kbps_max is not None else 0.0
        self._burst = max(BURST_S * self._rate, BURST_BYTES_MIN)
        self._full = self._burst + SLACK_S * self._rate
        self._level = self._full
        self._at = clock.monotonic()

    def wait_s(self, *, live: bool) -> float:
        """Seconds until a message may go; 0: now."""
        if not self._rate:
            return 0.0
        self._refill()
        return max(0.0, (0.0 if live else self._burst) - self._level) / self._rate

    def take(self, amount: int) -> None:
        """`amount` bytes were sent, whether they had to wait or not."""
        if self._rate:
            self._refill()
            self._level -= amount

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._level = min(self._full, self._level + (now - self._at) * self._rate)
        self._at = now
