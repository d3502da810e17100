"""Listens to the announcements of the workers: how long an escalation would wait, and the price of an hour."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from nats.aio.msg import Msg

from appliance.base.clock import Clock
from appliance.base.json_lines import WireError
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_link import NatsLink, stay_subscribed
from appliance.wire import POOL_STATUS_BYTES_MAX, POOL_SUBJECT, PoolStatus

WORKERS_MAX = 64  # more say nothing new about a queue that they share

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalJudgeState:
    """State of the local judge. judged: settled, or more evidence requested; left: not settled; both since the start.

    at_work: it is judging. waits_for: the reason if it is not. error: that of its model server; '': none.
    """

    judged: int = 0
    left: int = 0
    at_work: bool = False
    waits_for: str = ""
    error: str = ""

    @property
    def in_use(self) -> bool:
        """Return True while what is flagged is judged here."""
        return not (self.waits_for or self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """State of the workers by their latest announcements.

    workers, ready: their numbers; wait_s: the time until a worker begins an escalation that is sent now; gpu_hour: the
    lowest price per hour. None: no worker announced it. local: the appliance's own judge; None: it has none.
    """

    workers: int = 0
    ready: int = 0
    wait_s: float | None = None
    gpu_hour: float | None = None
    local: LocalJudgeState | None = None


@dataclass(frozen=True, slots=True)
class _Heard:
    """An announcement and the time until which it is valid (monotonic, by our clock: the sender's may be wrong)."""

    status: PoolStatus
    until: float


class PoolMonitor:
    """Owner of one subscription and of the last announcement of each worker, at most WORKERS_MAX; one task.

    `state` may be read from any thread. An announcement is valid for its own time to live, by our clock. One that is
    malformed, too large, or from a worker beyond WORKERS_MAX is ignored and counted.
    """

    def __init__(self, link: NatsLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        self._log = LogThrottle(logger, clock)
        self.refused = 0

    async def run(self) -> None:
        """Listen until cancelled. A broker that forbids the subscription looks like one without workers."""
        await stay_subscribed(self._link, POOL_SUBJECT, self._on_message, retry_s=1.0)

    async def _on_message(self, message: Msg) -> None:
        self.take(message.data)

    def take(self, data: bytes) -> None:
        """One announcement."""
        now = self._clock.monotonic()
        try:
            if len(data) > POOL_STATUS_BYTES_MAX:
                raise WireError(f"it has {len(data)} bytes")
            status: PoolStatus = PoolStatus.from_json(data)
        except WireError as error:
            self._refuse(str(error))
            return
        alive = {name: heard for name, heard in self._heard.items() if heard.until > now}
        if status.worker not in alive and len(alive) >= WORKERS_MAX:
            self._refuse(f"there are {WORKERS_MAX} workers already")
            return
        self._heard = {**alive, status.worker: _Heard(status, now + status.ttl_s)}

    @property
    def state(self) -> PoolState:
        """The workers as far as known now."""
        now = self._clock.monotonic()
        alive = [heard.status for heard in self._heard.values() if heard.until > now]
        if not alive:
            return PoolState()
        ready = [each for each in alive if each.ready]
        prices = [each.gpu_hour for each in ready or alive if each.gpu_hour is not None]
        return PoolState(
            workers=len(alive),
            ready=len(ready),
            wait_s=round(_wait_s(alive, ready), 1),
            gpu_hour=min(prices) if prices else None,
        )

    def _refuse(self, why: str) -> None:
        self.refused += 1
        self._log.report(f"refused an announcement of a worker: {why}")


def _wait_s(alive: list[PoolStatus], ready: list[PoolStatus]) -> float:
    """Return the wait in seconds: the longest that any worker saw of the common queue; cold ones begin once warm."""
    at_work = ready or alive
    cold_s = 0.0 if ready else min(each.cold_start_s for each in alive)
    judge_s = sum(each.judge_s for each in at_work) / len(at_work)
    return cold_s + max(each.waiting for each in alive) * judge_s / sum(each.slots for each in at_work)
