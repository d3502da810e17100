"""Reads how the link, the queue and the appliance are doing, for the router."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from appliance.broker import LinkState
from appliance.clock import Clock
from appliance.router.decide import SystemLoad
from appliance.store.escalations import EscalationStore

THERMAL = Path("/sys/class/thermal")
READ_EVERY_S = 10.0  # temperatures and one-minute means move no faster
_ZONES_MAX = 32


class AnnouncedPool(Protocol):
    """The workers as they announce themselves; None: nobody said."""

    @property
    def wait_s(self) -> float | None: ...

    @property
    def gpu_hour(self) -> float | None: ...


class SystemLoadMonitor:
    """Reads the load, at most every READ_EVERY_S (link and workers each time). Owner: the core's thread."""

    def __init__(
        self,
        link: Callable[[], LinkState] | None,
        escalations: EscalationStore,
        clock: Clock,
        thermal: Path = THERMAL,
        pool: Callable[[], AnnouncedPool] | None = None,
    ) -> None:
        self._link = link
        self._pool = pool
        self._escalations = escalations
        self._clock = clock
        self._thermal = thermal
        self._read_at = float("-inf")
        self._last = SystemLoad()

    def read(self) -> SystemLoad:
        """Raises StoreError."""
        now = self._clock.monotonic()
        if now >= self._read_at:
            self._read_at = now + READ_EVERY_S
            self._last = SystemLoad(
                queue_age_s=round(self._escalations.queue_age_s(self._clock.now()), 1),
                load=load_per_core(),
                temperature_c=temperature_c(self._thermal),
            )
        last, pool = self._last, self._pool() if self._pool else None
        return SystemLoad(
            link_up=self._link().up if self._link else None,
            queue_age_s=last.queue_age_s,
            load=last.load,
            temperature_c=last.temperature_c,
            pool_wait_s=pool.wait_s if pool else None,
            gpu_hour=pool.gpu_hour if pool else None,
        )


def load_per_core() -> float | None:
    """1 minute mean of running tasks per core; None: the system does not tell."""
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except OSError:
        return None


def temperature_c(thermal: Path = THERMAL) -> float | None:
    """Of the hottest sensor that Linux shows; None: there is none, or it cannot be read."""
    found = []
    try:
        zones = sorted(thermal.glob("thermal_zone*/temp"))[:_ZONES_MAX]
    except OSError:  # no file descriptor is left to read the folder with
        return None
    for zone in zones:
        try:
            found.append(int(zone.read_text()) / 1000)
        except (OSError, ValueError):  # a sensor that is asleep cannot be read
            continue
    return max(found) if found else None
