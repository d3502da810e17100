"""Reads how the link, the queue and the appliance are doing, for the router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.machine import load_per_core
from appliance.broker import LinkState
from appliance.router.decide import SystemLoad
from appliance.store.escalations import EscalationStore

READ_EVERY_S = 10.0  # a one-minute mean moves no faster


class AnnouncedPool(Protocol):
    """The workers as they announce themselves; None: nobody said."""

    @property
    def wait_s(self) -> float | None: ...

    @property
    def gpu_hour(self) -> float | None: ...


class SystemLoadMonitor:
    """Reads queue and load at most every READ_EVERY_S, all else each time. Owner: the core's thread."""

    def __init__(
        self,
        link: Callable[[], LinkState] | None,
        escalations: EscalationStore,
        clock: Clock,
        temperature_c: Callable[[], float | None] = lambda: None,
        pool: Callable[[], AnnouncedPool] | None = None,
        offload: Callable[[], bool] = bool,
    ) -> None:
        """Take the sources of the readings.

        temperature_c: of the hottest sensor. offload: True while the appliance is too hot to find out by itself what it
        is not sure of.
        """
        self._offload = offload
        self._link = link
        self._pool = pool
        self._escalations = escalations
        self._clock = clock
        self._temperature_c = temperature_c
        self._read_at = float("-inf")
        self._last = SystemLoad()

    def read(self) -> SystemLoad:
        """Read the load. Raise StoreError."""
        now = self._clock.monotonic()
        if now >= self._read_at:
            self._read_at = now + READ_EVERY_S
            self._last = SystemLoad(
                queue_age_s=round(self._escalations.queue_age_s(self._clock.now()), 1),
                load=load_per_core(),
            )
        last, pool = self._last, self._pool() if self._pool else None
        return SystemLoad(
            link_up=self._link().up if self._link else None,
            queue_age_s=last.queue_age_s,
            load=last.load,
            temperature_c=self._temperature_c(),
            pool_wait_s=pool.wait_s if pool else None,
            gpu_hour=pool.gpu_hour if pool else None,
            offload=self._offload(),
        )
