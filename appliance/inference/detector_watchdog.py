"""The watchdog of the detector's calls: one that lasts too long is given up, one that hangs ends the process."""

from __future__ import annotations

from appliance.base.clock import Clock

STUCK_S = 10.0  # far beyond an inference on a loaded machine: what the call was for is given up, and counted
HUNG_S = 30.0  # a call that does not come back keeps the detector for ever: only a new process helps


class DetectorHung(Exception):
    """A call of the detector does not come back; only a new process helps."""


class DetectorWatchdog:
    """State: since when the detector is at its present call. Its thread calls `begin` and `end`, any other asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy_since: float | None = None

    def begin(self) -> None:
        """Note that the detector is called now."""
        self._busy_since = self._clock.monotonic()

    def end(self) -> None:
        """Note that the call came back, or failed."""
        self._busy_since = None

    def busy_s(self) -> float:
        """Seconds that the present call has taken so far; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def is_stuck(self) -> bool:
        return self.busy_s() > STUCK_S

    def check(self) -> None:
        """Raise DetectorHung if the present call takes longer than HUNG_S."""
        if self.busy_s() > HUNG_S:
            raise DetectorHung(f"the detector has not answered for {HUNG_S:.0f} s")
