"""Announces a worker to the sites: whether it is ready, how much waits, how long a cold start takes, and its price."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from nats.aio.client import Client

from appliance.base.clock import Clock
from appliance.base.errors import UplinkError
from appliance.base.telemetry import LogThrottle
from appliance.broker import broker_errors
from appliance.wire import POOL_COUNT_MAX, POOL_SUBJECT, PRICE_MAX, PoolStatus
from cloud_worker.config import PoolConfig
from cloud_worker.metrics import WorkerMetrics

LIVES = 4  # an announcement counts until so many more should have come
JUDGE_S_FIRST = 1.0  # seconds of a verdict, until the first one tells
_PRICE_CHARS_MAX = 64  # a float and a currency

logger = logging.getLogger(__name__)


class PoolAnnouncer:
    """Publisher of a small message every `pool.every_s`.

    Owner: the worker's loop owns it, with one task a connection. State: it knows when the worker began, and so the rest
    of its cold start.
    """

    def __init__(
        self,
        settings: PoolConfig,
        worker: str,
        slots: int,
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        ready: Callable[[], bool],
        waiting: Callable[[], int],
    ) -> None:
        """Take `ready`, which says whether escalations are taken now, and `waiting`, the count that the broker stores.

        The count is that for all workers.
        """
        self._settings = settings
        self._worker = worker
        self._slots = slots
        self._metrics = metrics
        self._clock = clock
        self._ready = ready
        self._waiting = waiting
        self._began = clock.monotonic()
        self._log = LogThrottle(logger, clock)

    async def run(self, client: Client) -> None:
        """Announce for as long as the connection lasts, or until cancelled."""
        while True:
            try:
                with broker_errors("the worker could not be announced"):
                    await client.publish(POOL_SUBJECT, self.status().to_json())
            except UplinkError as error:  # the connection's own task says that it is lost
                self._log.report(error)
            await asyncio.sleep(self._settings.every_s)

    def status(self) -> PoolStatus:
        """Return the worker's status as it is now."""
        ready = self._ready()
        left_s = self._settings.cold_start_s - (self._clock.monotonic() - self._began)
        return PoolStatus(
            worker=self._worker,
            ready=ready,
            waiting=min(max(0, self._waiting()), POOL_COUNT_MAX),
            slots=self._slots,
            judge_s=min(self._metrics.judge_s_mean() or JUDGE_S_FIRST, 3600.0),
            cold_start_s=0.0 if ready else max(0.0, left_s),
            gpu_hour=self._price(),
            ttl_s=min(300.0, self._settings.every_s * LIVES),
        )

    def _price(self) -> float | None:
        """Return the price in the file, which a watcher of the spot market keeps up to date, or the fixed one."""
        if self._settings.gpu_hour_file is None:
            return self._settings.gpu_hour
        return self._price_in(self._settings.gpu_hour_file)

    def _price_in(self, path: Path) -> float | None:
        try:
            with path.open(encoding="utf-8") as file:
                price = float(file.read(_PRICE_CHARS_MAX))
            if not 0 <= price <= PRICE_MAX:  # not a number is neither
                raise ValueError
        except (OSError, ValueError):
            self._log.report(f"{path} (pool.gpu_hour_file) holds no price from 0 to {PRICE_MAX:g}: none is announced")
            return None
        return price
