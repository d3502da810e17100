"""Notices escalations: announced ones at once, and once a second everything that is stored at the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from appliance.clock import Clock
from appliance.telemetry import LogThrottle
from cloud_worker import dead_letters, stream_setup
from cloud_worker.fair_queue import FairQueue
from cloud_worker.metrics import WorkerMetrics

logger = logging.getLogger(__name__)

SWEEP_S = 1.0
STRAYS_PER_SWEEP_MAX = 20


class BacklogMonitor:
    """Wakes lanes. State: `waiting`, what was stored at the last look. news: called after a lane was woken."""

    def __init__(
        self, lanes: FairQueue, worker: str, numbers: WorkerMetrics, clock: Clock, news: Callable[[], None]
    ) -> None:
        self._lanes = lanes
        self._worker = worker
        self._numbers = numbers
        self._clock = clock
        self._news = news
        self._repeats = LogThrottle(logger, clock)
        self.stored = stream_setup.StoredEscalations({}, ())

    async def on_message(self, message: Msg) -> None:
        """A question passed by: JetStream's subjects are ordinary ones, too. Its copy is not looked at."""
        lane = stream_setup.site_and_priority(message.subject)
        if lane is not None:
            self._lanes.announce(*lane, self._clock.monotonic())
            self._news()

    async def run(self, jetstream: JetStreamContext) -> None:
        """See what is stored: what was there before, was given back, or came over another server without a bell.

        For as long as one connection lasts. Raises UplinkError.
        """
        while True:
            self.stored = await stream_setup.stored_escalations(jetstream)
            if self.stored.counts:
                self._lanes.mark_stored(self.stored.counts, self._clock.monotonic())
                self._news()
            for subject in self.stored.strays[:STRAYS_PER_SWEEP_MAX]:
                letter = await dead_letters.move_stray(jetstream, subject, self._worker)
                if letter is not None:
                    self._numbers.dead.add(letter.kind)
                    self._repeats.report(f"moved a question on {subject} to the dead letters: {letter.reason}")
            await asyncio.sleep(SWEEP_S)
