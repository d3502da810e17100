"""How questions are noticed: they are heard as they pass, and once a second it is seen what is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from appliance.clock import Clock
from appliance.telemetry import Repeats
from cloud_worker import deadletters, layout, streams
from cloud_worker.lanes import Lanes
from cloud_worker.numbers import Numbers

SWEEP_S = 1.0
STRAYS_A_SWEEP_MAX = 20

logger = logging.getLogger(__name__)


class Lookout:
    """Wakes lanes. State: `waiting`, what was stored at the last look. news: called after a lane was woken."""

    def __init__(self, lanes: Lanes, worker: str, numbers: Numbers, clock: Clock, news: Callable[[], None]) -> None:
        self._lanes = lanes
        self._worker = worker
        self._numbers = numbers
        self._clock = clock
        self._news = news
        self._repeats = Repeats(logger, clock)
        self.waiting = streams.Waiting({}, ())

    async def rung(self, message: Msg) -> None:
        """A question passed by: JetStream's subjects are ordinary ones, too. Its copy is not looked at."""
        lane = layout.lane_of(message.subject)
        if lane is not None:
            self._lanes.ring(*lane, self._clock.monotonic())
            self._news()

    async def run(self, jetstream: JetStreamContext) -> None:
        """See what is stored: what was there before, was given back, or came over another server without a bell.

        For as long as one connection lasts. Raises UplinkError.
        """
        while True:
            self.waiting = await streams.waiting(jetstream)
            if self.waiting.lanes:
                self._lanes.wake(self.waiting.lanes, self._clock.monotonic())
                self._news()
            for subject in self.waiting.strays[:STRAYS_A_SWEEP_MAX]:
                letter = await deadletters.bury_stray(jetstream, subject, self._worker)
                if letter is not None:
                    self._numbers.dead.add(letter.kind)
                    self._repeats.report(f"moved a question on {subject} to the dead letters: {letter.reason}")
            await asyncio.sleep(SWEEP_S)
