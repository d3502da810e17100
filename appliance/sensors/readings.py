"""Readings of the appliance's sensors: temperatures, throttling, power, energy. Absent is None or empty, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from appliance.base.machine import Temperature


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
