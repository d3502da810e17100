"""Writes the health events that last: faults of cameras, of the appliance itself, and recordings that pause."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from uuid import uuid4

from appliance.base.clock import Clock
from appliance.core.core_settings import CoreSettings, CoreStores
from appliance.core.ingest_supervisor import HEALTHY_AFTER_S
from appliance.store.meter import Metric, MetricName
from appliance.store.write_backlog import WriteBacklog
from appliance.types import PAUSED, Gap, HealthEvent, HealthKind

logger = logging.getLogger(__name__)

FAILED_STARTS_MIN = 3  # of the ingest process, one after the other: the first two may be the machine's start
PAUSE_REPORTED_S_MAX = 30.0  # it reports a pause each 5 s and at a key frame; silent for longer, it is not paused


class LastingFaults:
    """Health events that have begun and not ended. Owner: the core's thread."""

    def __init__(self, stores: CoreStores, backlog: WriteBacklog, clock: Clock) -> None:
        self._stores = stores
        self._backlog = backlog
        self._clock = clock
        self._faults: dict[str, HealthEvent] = {}
        self._own: dict[HealthKind, HealthEvent] = {}
        self._paused: dict[str, tuple[HealthEvent, float]] = {}  # recordings, with when it was last reported
        self._up_at: float | None = None
        self._failed_starts, self._died = 0, ""

    def ingest_lives(self) -> None:
        """Note that the ingest process is up."""
        self._up_at = self._clock.monotonic() if self._up_at is None else self._up_at
        if self._clock.monotonic() - self._up_at > HEALTHY_AFTER_S:
            self._failed_starts = 0

    def ingest_died(self, reason: str) -> None:
        """Note that the ingest process is gone; dying young again and again is a fault."""
        lived_s = self._clock.monotonic() - self._up_at if self._up_at is not None else 0.0
        self._up_at, self._died = None, reason
        self._failed_starts = self._failed_starts + 1 if lived_s < HEALTHY_AFTER_S else 1

    def end_all(self, reason: str) -> None:
        """End every event: nothing is known of what they were about."""
        self._backlog.write(partial(self._stores.health.end_open, self._clock.now(), reason))
        self._faults.clear()
        self._own.clear()
        self._paused.clear()
        self._stores.health.forget()

    def end_of_others(self, cameras: Collection[str]) -> None:
        """End the events of cameras that are not among these."""
        now = self._clock.now()
        for fault in list(self._faults.values()):
            if fault.camera and fault.camera not in cameras:
                self.note(replace(fault, t=now, t_end=now, recovery=""))

    def watch_appliance(self, settings: CoreSettings) -> None:
        """Report faults that no other process reports: a database that was moved, heat, lack of memory.

        A database file that was moved or deleted is a fault at once, though it is stored only once it is back.
        """
        now, lasting = self._clock.now(), dict(settings.appliance_faults())
        if gone := self._stores.displaced():
            lasting["database"] = gone
        if self._failed_starts >= FAILED_STARTS_MIN:
            lasting["model"] = f"detection does not stay up, and nothing is watched: {self._died}"
        for camera, (_, reported_at) in list(self._paused.items()):
            if self._clock.monotonic() - reported_at > PAUSE_REPORTED_S_MAX:
                self._resume(camera, now)
        for kind, reason in lasting.items():
            known = self._own.get(kind)
            if known is not None and known.reason == reason:
                continue
            event = (
                HealthEvent(camera="", id=uuid4().hex[:16], kind=kind, t=now, t_start=now, reason=reason)
                if known is None
                else replace(known, t=now, reason=reason)
            )
            self._own[kind] = event
            self.note(event)
        for kind in self._own.keys() - lasting.keys():
            self.note(replace(self._own.pop(kind), t=now, t_end=now))

    def pause(self, gap: Gap, ignored: Collection[HealthKind]) -> None:
        """Open an event while the disk takes no recording of a camera whose picture comes all the same.

        ignored: the kinds that the camera's settings leave out.
        """
        if gap.t_end is not None:
            self._resume(gap.camera, gap.t_end)
        elif gap.reason.startswith(PAUSED) and "unrecorded" not in ignored:
            event, _ = self._paused.get(gap.camera, (None, 0.0))
            if event is None:
                event = HealthEvent(
                    camera=gap.camera, id=uuid4().hex[:16], kind="unrecorded", t=self._clock.now(), t_start=gap.t_start,
                    reason=gap.reason,
                )  # fmt: skip
                self.note(event)
            self._paused[gap.camera] = event, self._clock.monotonic()

    def _resume(self, camera: str, t: float) -> None:
        event, _ = self._paused.pop(camera, (None, 0.0))
        if event is not None:
            self.note(replace(event, t=self._clock.now(), t_end=max(event.t_start, t)))

    def note(self, event: HealthEvent) -> None:
        """Write the event, count it when it is new, and log each of its changes."""
        self._stores.health.note(event)
        self._backlog.write(partial(self._stores.health.put, event), key=f"health {event.id}")
        who = f"camera {event.camera}" if event.camera else "the appliance"
        known, key = self._faults.get(event.id), event.id
        if event.t_end is not None:
            self._faults.pop(key, None)
            logger.info("%s is well again: %s ended after %.0f s", who, event.kind, event.t_end - event.t_start)
            return
        self._faults[key] = event
        if known is None:
            self._stores.meter.add(event.camera, Metric(MetricName.HEALTH, event.kind), 1)
            logger.warning("%s is ill (%s): %s", who, event.kind, event.reason)
        elif event.reason != known.reason:
            logger.warning("%s: %s: now %s", who, event.kind, event.reason)
        if event.attempts > (known.attempts if known else 0):
            logger.info("%s: %s; tried: %s (%d)", who, event.kind, event.recovery, event.attempts)
