"""Notices escalations: announced ones at once, and once a second everything that is stored at the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from appliance.broker import broker_errors
from appliance.wire import STREAM_ESCALATION
from cloud_worker import dead_letter_store
from cloud_worker.fair_queue import FairQueue
from cloud_worker.metrics import WorkerMetrics
from cloud_worker.stream_setup import site_and_priority

SWEEP_S = 1.0  # how late an escalation is noticed that nobody announced: given back, or of another server
STORED_MAX = 2**53  # a gauge is a float, and a broker may say any number
STRAYS_PER_SWEEP_MAX = 100  # each costs three requests to the broker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredEscalations:
    """Escalations that the broker stores, in a worker's hands or not.

    counts: how many by site and priority. strays: subjects on which no site may publish, which no consumer reads.
    """

    counts: Mapping[tuple[str, str], int]
    strays: tuple[str, ...]

    @property
    def sites(self) -> int:
        """The number of sites that have any."""
        return len({site for site, _ in self.counts})


class BacklogMonitor:
    """Puts the sites with escalations into the queue. State: `stored`, what the last sweep found. Owner: one task."""

    def __init__(
        self, queue: FairQueue, worker: str, metrics: WorkerMetrics, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """Take `worker`, the name that stands in dead letters, and `changed`, called after the queue has changed."""
        self._queue = queue
        self._worker = worker
        self._metrics = metrics
        self._clock = clock
        self._changed = changed
        self._throttle = LogThrottle(logger, clock)
        self.stored = StoredEscalations({}, ())

    def count(self, priority: str) -> int:
        """Return the number of escalations of this priority that the broker stores."""
        return sum(count for (_, own), count in self.stored.counts.items() if own == priority)

    async def on_message(self, message: Msg) -> None:
        """Note that an escalation passed by: JetStream's subjects are ordinary ones, too. Its copy is dropped."""
        found = site_and_priority(message.subject)
        if found is not None:
            self._queue.announce(*found, self._clock.monotonic())
            self._changed()

    async def run(self, jetstream: JetStreamContext) -> None:
        """Sweep what is stored, for as long as one connection lasts. Raise UplinkError.

        A sweep finds what was there before, was given back, or came over a server that announces nothing.
        """
        while True:
            self.stored = await _stored_escalations(jetstream)
            if self.stored.counts:
                self._queue.mark_stored(self.stored.counts, self._clock.monotonic())
                self._changed()
            await self._move_strays(jetstream)
            await asyncio.sleep(SWEEP_S)

    async def _move_strays(self, jetstream: JetStreamContext) -> None:
        """Move all stored strays to the dead letters, STRAYS_PER_SWEEP_MAX at most, several of a subject too."""
        left = STRAYS_PER_SWEEP_MAX
        for subject in self.stored.strays:
            while left:
                letter = await dead_letter_store.move_stray(jetstream, subject, self._worker)
                if letter is None:
                    break
                left -= 1
                self._metrics.dead.labels(letter.kind).inc()
                self._throttle.report(f"moved an escalation on {subject} to the dead letters: {letter.reason}")


async def _stored_escalations(js: JetStreamContext) -> StoredEscalations:
    counts: dict[tuple[str, str], int] = {}
    strays: list[str] = []
    with broker_errors("the escalations could not be counted"):
        info = await js.stream_info(STREAM_ESCALATION, subjects_filter=">")
        for subject, count in (info.state.subjects or {}).items():
            found = site_and_priority(subject)
            if found is None:
                strays.append(subject)
            else:
                counts[found] = min(int(count), STORED_MAX)
    return StoredEscalations(counts, tuple(strays))
