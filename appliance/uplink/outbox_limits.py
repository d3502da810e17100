"""Keeps the outbox within its bounds: expires what is too old, drops what the disk has no room for."""

from __future__ import annotations

import logging
from pathlib import Path

from appliance.base.clock import Clock, ClockStepDetector
from appliance.config import EscalationConfig, UplinkConfig
from appliance.store.escalations import EscalationRow
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.outbox import Outbox
from appliance.wire import PRIORITY_OF

EXPIRE_EVERY_S = 60.0  # ages are counted in hours
QUOTA_EVERY_S = 10.0  # what is over it meanwhile is some crops
DROPS_PER_RUN = 200  # some 100 ms of the disk

logger = logging.getLogger(__name__)


class OutboxQuota:
    """Drops the oldest of the least urgent escalations while the waiting ones take more disk than `outbox_mb_max`.

    All less urgent escalations are dropped before a more urgent one. An escalation is dropped with its facts and media;
    the alert, its still and its clip are kept (retention deletes those). Owner: the uplink's task.
    """

    def __init__(self, outbox: Outbox, root: Path, mb_max: float, meter: Meter) -> None:
        self._outbox = outbox
        self._root = root
        self._bytes_max = int(mb_max * 1e6)
        self._mb_max = mb_max
        self._meter = meter

    def run_once(self) -> int:
        """Free space by dropping at most DROPS_PER_RUN escalations; return how many were dropped. Raise StoreError."""
        over = self._outbox.queue.unsent_bytes() - self._bytes_max
        count = 0
        if over <= 0:
            return 0
        why = f"the outbox is over {self._mb_max:g} MB (uplink.outbox_mb_max), and this was the least urgent"
        chosen: list[tuple[EscalationRow, int]] = []
        for row, size in self._outbox.queue.least_urgent(DROPS_PER_RUN):
            if over <= 0:
                break
            chosen.append((row, size))
            over -= size
        for (row, size), paths in zip(chosen, self._outbox.drop([row for row, _ in chosen], why), strict=True):
            if paths is None:
                continue
            self._delete(paths)
            self._meter.add(row.camera, Metric(MetricName.OUTBOX_DROPPED), 1)
            self._meter.add(row.camera, Metric(MetricName.OUTBOX_DROPPED_BYTES), size)
            count += 1
        if count:  # else all that is too much still waits for its evidence
            logger.warning("%d escalations were given up: %s", count, why)
        return count

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError as error:  # the others are deleted and counted all the same
                logger.warning("%s cannot be deleted: %s", path, error.strerror)


class OutboxUpkeep:
    """Follows the clock, expires and counts old escalations, and enforces the quota, with and without a link.

    Owner: the task or thread that empties the outbox. State: when each of these is due next, and a step of the clock
    that is not recorded yet.
    """

    def __init__(self, outbox: Outbox, quota: OutboxQuota, meter: Meter, clock: Clock) -> None:
        self._outbox = outbox
        self._quota = quota
        self._meter = meter
        self._clock = clock
        self._steps = ClockStepDetector(clock)
        self._step_s = 0.0
        self._began = False
        self._expire_at = self._quota_at = float("-inf")

    def run_once(self) -> None:
        """Do what is due. Raises StoreError."""
        self._follow_clock()
        now = self._clock.monotonic()
        if now >= self._expire_at:
            for camera, count in self._outbox.expire(self._clock.now()).items():
                self._meter.add(camera, Metric(MetricName.OUTBOX_EXPIRED), count)
            self._expire_at = now + EXPIRE_EVERY_S
        if now >= self._quota_at:
            self._quota.run_once()
            self._quota_at = now + QUOTA_EVERY_S

    def _follow_clock(self) -> None:
        """Record a step of the clock once, before anything expires because of it; on failure, try again next time."""
        self._step_s += self._steps.step_s()
        if not self._began:  # what was missed holds what was seen since
            self._step_s = self._outbox.clock_offset.stepped_s() or self._step_s
        if self._began and not self._step_s:
            return
        self._outbox.clock_stepped(self._step_s)
        if self._step_s:
            logger.warning("the clock was stepped by %+.0f s: open escalations are no older for that", self._step_s)
        self._step_s, self._began = 0.0, True


def ttl_s(escalation: EscalationConfig, uplink: UplinkConfig | None) -> dict[str, float]:
    """Return for each priority the seconds after which an escalation is given up, at most escalation.expire_hours."""
    given = uplink.ttl_hours.model_dump() if uplink is not None else {}
    most = escalation.expire_hours
    return {
        priority: min(most, given[severity] if given.get(severity) is not None else most) * 3600
        for severity, priority in PRIORITY_OF.items()
    }
