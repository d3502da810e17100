"""The connection to one notification target: sends a message, waits after a failure, counts what left."""

from __future__ import annotations

import logging

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from appliance.config import Target
from appliance.notify.message import MessageSender, NotificationMessage, SendResult
from appliance.store.meter import Meter, Metric, MetricName

BACKOFF_FIRST_S, BACKOFF_LAST_S = 2.0, 300.0  # a phone is told within minutes once the service is back
AWAY_S_MAX = 25.0  # a target that is away, or has trouble of its own, comes back by itself
LOCAL_BYTES = Metric(MetricName.NOTICE_LOCAL_BYTES)

logger = logging.getLogger(__name__)


class TargetConnection:
    """Sends to one target. Owner: the notifier's loop; its figures may be read by any thread.

    failing_since: UTC seconds of the first failure since a message arrived; None: the last one arrived. failures:
    attempts that did not arrive.
    """

    def __init__(self, name: str, target: Target, sender: MessageSender, meter: Meter, clock: Clock) -> None:
        self.failing_since: float | None = None
        self.error = ""
        self.failures = 0
        self._name = name
        self._target = target
        self._sender = sender
        self._meter = meter
        self._clock = clock
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_LAST_S)
        self._try_at = float("-inf")
        self._throttle = LogThrottle(logger, clock)

    @property
    def rests(self) -> bool:
        """True while a failure is too recent to try again."""
        return self._clock.monotonic() < self._try_at

    async def send(self, message: NotificationMessage) -> SendResult:
        """Send one message and return what came of it."""
        result = await self._sender.send(message)
        self._count_bytes(message.camera, result.sent)
        if result.ok:
            self._succeeded()
        elif not result.refused:
            self._failed(result)
        return result

    async def close(self) -> None:
        """Close the connection."""
        await self._sender.close()

    def _count_bytes(self, camera: str, sent: int) -> None:
        add = self._meter.add
        if self._target.local:
            add(camera, LOCAL_BYTES, sent)
            return
        add(camera, Metric(MetricName.UPLINK_BYTES), sent)
        add(camera, Metric(MetricName.UPLINK_BYTES, "notice"), sent)

    def _succeeded(self) -> None:
        if self.failing_since is not None:
            logger.info("%s takes messages again", self._name)
        self._backoff.reset()
        self.failing_since, self.error = None, ""

    def _failed(self, result: SendResult) -> None:
        wait_s = self._backoff.next_s()
        if result.status is None or result.status >= 500:
            wait_s = min(wait_s, AWAY_S_MAX)
        wait_s = max(wait_s, result.after_s or 0.0)
        self._try_at = self._clock.monotonic() + wait_s
        self._throttle.report(f"a message to {self._name} failed: {result.error}")
        self.failing_since = self._clock.now() if self.failing_since is None else self.failing_since
        self.error = result.error
        self.failures += 1
