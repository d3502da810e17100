"""Joules from what sensors say: differences of counters, power times time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.sensors.readings import EnergyReading

PAUSE_S_MAX = 60.0  # after a longer pause power says nothing of what was between


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """The energy since the last reading. joules: by the place where they were measured; seconds: over which."""

    joules: Mapping[str, float]
    seconds: float

    @property
    def watts(self) -> float:
        """Mean power."""
        return sum(self.joules.values()) / self.seconds


class EnergyMeter:
    """Sums up the energy of the appliance, each joule once: where a place measures all of it, parts are left out.

    State: the last readings and when they were. Owner: one thread.
    """

    def __init__(self) -> None:
        self._last: dict[str, EnergyReading] = {}
        self._at: float | None = None

    def add(self, readings: tuple[EnergyReading, ...], at: float) -> EnergyUse | None:
        """Return the energy since the last call; None: nothing was measured, or the call was too long ago.

        at: monotonic seconds.
        """
        counted = [each for each in readings if each.is_whole] or list(readings)
        before, passed_s = self._last, None if self._at is None else at - self._at
        self._last, self._at = {each.name: each for each in counted}, at
        if passed_s is None or not 0 < passed_s <= PAUSE_S_MAX:
            return None
        used = {each.name: _joules(before[each.name], each, passed_s) for each in counted if each.name in before}
        known = {name: joules for name, joules in used.items() if joules is not None}
        return EnergyUse(known, passed_s) if known else None


def _joules(before: EnergyReading, now: EnergyReading, passed_s: float) -> float | None:
    if before.joules is not None and now.joules is not None:
        used = now.joules - before.joules
        if used < 0 and now.wraps_j is not None:
            used += now.wraps_j
        return used if used >= 0 else None  # a counter that began again: the driver was loaded anew
    if before.watts is not None and now.watts is not None:
        return (before.watts + now.watts) / 2 * passed_s
    return None
