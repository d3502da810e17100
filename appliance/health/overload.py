"""How many inferences a camera gets against how many it was promised: the measure behind `overloaded`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 5.0  # rates are of so many seconds: a detector that was held up for less is no overload
KEPT_SHARE = 0.8  # of the promise; less is below it
CLEARED_SHARE = 0.9  # of the promise; so much is kept again, and between the two nothing changes
MISSING_MIN = 0.5  # inferences a second: of a heartbeat each few seconds one may be missed
BUSY_LOAD = 0.8  # of the detector's time; above it the detector is what there is too little of


@dataclass(frozen=True, slots=True)
class InferenceRates:
    """Inferences a second over the last WINDOW_S.

    promised: the frames that were due by motion, tracks and heartbeat, never more than `detect.fps`; all of that while
    packets are read so late that frames are not even considered. examined: those that the detector answered.
    """

    promised: float
    examined: float

    @property
    def is_below(self) -> bool | None:
        """Less than was promised; None: a little less, which neither begins an overload nor ends it."""
        if self.promised - self.examined >= MISSING_MIN and self.examined < KEPT_SHARE * self.promised:
            return True
        kept = self.promised - self.examined < MISSING_MIN or self.examined >= CLEARED_SHARE * self.promised
        return False if kept else None


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    due: int
    examined: int
    lagging: bool


class InferenceRateMeter:
    """Measures the `InferenceRates` of one camera.

    State: the readings of the last WINDOW_S, one a second. Owner: as of `CameraWatchdog`.
    """

    def __init__(self, fps: float) -> None:
        """fps: `detect.fps` of the camera."""
        self._fps = fps
        self._readings: deque[_Reading] = deque()

    def clear(self) -> None:
        """Forget all readings, because what comes next has nothing to do with them.

        The camera was silent, or the detector stuck.
        """
        self._readings.clear()

    def add(self, at: float, due: int, examined: int, *, lagging: bool) -> InferenceRates | None:
        """Take in the counts since the start, at monotonic seconds `at`. None: not known yet.

        due: frames that were examined, or dropped because the detector was busy. lagging: packets are read late, and
        most of them go past the detector.
        """
        self._readings.append(_Reading(at, due, examined, lagging))
        while len(self._readings) > 2 and at - self._readings[1].at >= WINDOW_S:
            self._readings.popleft()
        first = self._readings[0]
        passed_s = at - first.at
        if passed_s < WINDOW_S - 0.5:
            return None
        wanted = self._fps if any(each.lagging for each in self._readings) else (due - first.due) / passed_s
        return InferenceRates(min(self._fps, wanted), (examined - first.examined) / passed_s)


def overload_reason(rates: InferenceRates, detector_load: float) -> str:
    """Return one sentence that says what is too little, and what helps.

    detector_load: share of the time that the detector works.
    """
    got = f"{rates.examined:.1f} of {rates.promised:.1f} inferences a second"
    if detector_load >= BUSY_LOAD:
        return (
            f"it gets {got}: the detector is at work {min(1.0, detector_load):.0%} of the time; lower detect.fps, take "
            "a quicker network, or fewer cameras"
        )
    return (
        f"it gets {got}, though the detector is at work only {detector_load:.0%} of the time: the processor is too "
        "busy; use a smaller detect_url, set detect.latency: thrifty, or take fewer cameras"
    )
