"""How much of the detector's time a camera has had of late."""

from __future__ import annotations

import math

OVER_S = 4.0


class Account:
    """State: detector-seconds, forgotten with a time constant of OVER_S. Owner: the detector's thread."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._at = float("-inf")

    def spend(self, seconds: float, now: float) -> None:
        self._spent_s = self._left(now) + seconds
        self._at = now

    def share(self, now: float) -> float:
        """Of the detector's time, about 0..1."""
        return self._left(now) / OVER_S

    def _left(self, now: float) -> float:
        return self._spent_s * math.exp((self._at - now) / OVER_S) if self._spent_s else 0.0
