"""Clocks that disagree: two streams of a camera (`health.offset_s`), and the appliance's clock when it is set."""

from __future__ import annotations

from appliance.base.clock import Clock, ClockStepDetector
from appliance.health.conditions import HealthCondition, HealthListener

STEP_S_MIN = 2.0  # a smaller step of the system clock is what NTP does
OFFSET_HOLD_S = 8.0  # a stream that was just opened is steered to its sender's clock first


def streams_apart_s(main_behind_s: float | None, detect_behind_s: float | None) -> float | None:
    """Return by how much the detect stream's camera time is ahead of the main stream's. None: one is not known.

    main_behind_s, detect_behind_s: by how much each stream's camera time is behind the appliance's clock.
    """
    return None if main_behind_s is None or detect_behind_s is None else main_behind_s - detect_behind_s


class StreamOffset:
    """The condition `offset` of one camera: boxes have the detect stream's time, the recording the main stream's.

    Owner: as of `CameraWatchdog`.
    """

    def __init__(self, camera: str, report: HealthListener, offset_s: float) -> None:
        """offset_s: from so much on it is a fault."""
        self._condition = HealthCondition(camera, "offset", report, hold_s=OFFSET_HOLD_S)
        self._offset_s = offset_s

    def update(self, now: float, apart_s: float | None) -> None:
        """Take in `streams_apart_s` at camera time `now`."""
        reason = f"its second stream is {abs(apart_s or 0.0):.1f} s {'ahead of' if (apart_s or 0.0) > 0 else 'behind'} "
        reason += "its main stream by their clocks: boxes lie beside what they are of, and stills show another moment; "
        reason += "set the camera's time (NTP), or detect on the main stream"
        self._condition.update(now, None if apart_s is None else abs(apart_s) > self._offset_s, reason)


class ClockStep:
    """The condition `clock` of the appliance. Owner: as of `ApplianceWatchdog`."""

    def __init__(self, report: HealthListener, clock: Clock) -> None:
        self._steps = ClockStepDetector(clock, STEP_S_MIN)
        self._condition = HealthCondition("", "clock", report, hold_s=0.0)

    def update(self, now: float) -> None:
        """Compare the clocks; call it once a second."""
        step_s = self._steps.step_s()
        self._condition.update(now, step_s != 0, f"the clock of this appliance was set by {step_s:+.0f} s")
        if step_s:
            self._condition.record_recovery(now, "connecting to all cameras again, so that their times are true")
