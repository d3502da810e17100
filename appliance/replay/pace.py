"""How fast a replay goes: as a factor of real time, by a clock that is handed in."""

from __future__ import annotations

from appliance.clock import Clock


class Pace:
    """Holds frames back until they are due. Decides nothing: a replay that cannot keep up drops no frame.

    State: when and where it began; the furthest it fell behind. speed None: as fast as the machine allows.
    """

    def __init__(self, clock: Clock, speed: float | None) -> None:
        self._clock = clock
        self._speed = speed
        self._begin: tuple[float, float] | None = None
        self.behind_s = 0.0

    def wait(self, t: float) -> None:
        """Return when the footage's second `t` is due; the first call says where it begins."""
        if self._speed is None:
            return
        now = self._clock.monotonic()
        if self._begin is None:
            self._begin = (now, t)
            return
        ahead_s = self._begin[0] + (t - self._begin[1]) / self._speed - now
        self.behind_s = max(self.behind_s, -ahead_s)
        if ahead_s > 0:
            self._clock.sleep(ahead_s)
