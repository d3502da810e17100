"""Readings of the appliance's sensors, and the energy that they add up to. Absent is None or empty, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from appliance.base.machine import Temperature

PAUSE_S_MAX = 60.0  # after a longer pause power says nothing of what was between


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """The power or energy at one place where it is measured. None: this place does not measure it."""

    name: str
    is_whole: bool = False
    """The place measures all that the appliance draws; others measure a part."""
    watts: float | None = None
    """Power now."""
    joules: float | None = None
    """State of a counter that only rises, and begins again at 0 beyond `wraps_j`."""
    wraps_j: float | None = None


@dataclass(frozen=True, slots=True)
class SensorReading:
    """The readings of one sensor, or of all of them together, now.

    throttling: why a processor is slower than it could be, a sentence each; (): none is; None: nothing here reports it.
    """

    temperatures: tuple[Temperature, ...] = ()
    throttling: tuple[str, ...] | None = None
    energy: tuple[EnergyReading, ...] = ()

    @property
    def hottest(self) -> Temperature | None:
        """The highest temperature; None: no temperature is known."""
        return max(self.temperatures, key=lambda each: each.celsius, default=None)


NOTHING = SensorReading()


class SensorReader(Protocol):
    """A port with one contract test, tests/contract/test_sensors.py. One thread calls it, every few seconds."""

    def read(self) -> SensorReading:
        """Return what is measured now, in 2 s at most. Never raises: what is absent, asleep or broken is left out."""
        ...


def merged(readings: list[SensorReading]) -> SensorReading:
    """Merge the readings into one."""
    reported = [each.throttling for each in readings if each.throttling is not None]
    return SensorReading(
        tuple(each for reading in readings for each in reading.temperatures),
        tuple(dict.fromkeys(reason for each in reported for reason in each)) if reported else None,
        tuple(each for reading in readings for each in reading.energy),
    )


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
