"""Sends what the outbox holds: of each question the pictures in chunks, then itself, until the broker has them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from appliance.backoff import Backoff
from appliance.broker import Link
from appliance.clock import Clock, StepWatch
from appliance.errors import StoreUnavailable, UplinkError
from appliance.escalate.border import Border, Open
from appliance.escalate.breaker import Breaker
from appliance.escalate.courier import Courier
from appliance.escalate.lanes import POLL_S, Lanes
from appliance.escalate.limits import Limits
from appliance.escalate.notary import Notary
from appliance.escalate.outbox import Outbox
from appliance.escalate.parcels import Parcels
from appliance.escalate.room import Room
from appliance.escalate.sender import Sender
from appliance.escalate.toll import Meter, Toll
from appliance.escalate.turns import Turns
from appliance.store.rows import EscalationRow

EXPIRE_EVERY_S = 60.0
LOOK_AFTER_S = 10.0
AGAIN_AT_ONCE = 16

logger = logging.getLogger(__name__)


class Uplink:
    """Owner of the sending side: one task with a few lanes, so that a long way to the broker does not slow it down.

    See lanes.py for what goes when, parcels.py for what it consists of, toll.py for what it may weigh, sender.py for
    what is noted of it. Questions that nobody answers are asked again. While the database cannot be written nothing is
    sent, for it could not be noted.
    """

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        root: Path,
        meter: Meter,
        clock: Clock,
        limits: Limits | None = None,
        border: Border | None = None,
        *,
        notary: Notary | None = None,
    ) -> None:
        """border: what may leave; None: all. notary: shared with who else writes in this loop."""
        limits = limits or Limits()
        self._link = link
        self._outbox = outbox
        self._clock = clock
        self._courier = Courier(link)
        self._toll = Toll(limits, meter, clock, lambda: link.state)
        self._room = Room(outbox, root, limits.outbox_mb_max, meter.add)
        self.breaker = Breaker(limits.silent_s, clock)
        self._parcels = Parcels(link, self._courier, outbox, root, border or Open())
        self._sender = Sender(
            self._courier, outbox, notary or Notary(outbox.db), self._toll, self.breaker, clock, self._waits
        )
        self._lanes = Lanes(Turns(outbox.db), self._parcels, self._sender, self._toll, self.breaker, clock)
        self._said = ""
        self._noted = True
        self._steps = StepWatch(clock)
        self._step_s = 0.0
        self._began = False
        self._expire_at = self._room_at = float("-inf")
        self.waits_for = ""

    def wake(self) -> None:
        """There may be something to send (call it in the loop's thread); without it, it is seen within POLL_S."""
        self._lanes.wake()

    def heard(self) -> None:
        """A verdict came: somebody is there. Call it in the loop's thread."""
        if self.breaker.heard():
            self._lanes.wake()

    async def run(self) -> None:
        """Send until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 30.0)
        while True:
            self._toll.pay_overhead()
            try:
                self._look_after()
                if await self._has_link():
                    await self.run_once()
                    self._is_fine()
                    backoff.forgive()
                    await self._lanes.pause(POLL_S)
            except StoreUnavailable as error:
                self._noted = False
                self._waits(str(error))
                await asyncio.sleep(backoff.next_s())
            except UplinkError as error:
                self._waits(str(error))
                self.breaker.failed(str(error))
                await asyncio.sleep(backoff.next_s())

    async def run_once(self) -> int:
        """Send all that is ready and may go, and again what was not answered for long; return how many questions went.

        Raises UplinkError when the link or the streams are not there, StoreUnavailable when the disk is full: nothing
        is lost, the outbox waits.
        """
        self._lanes.clear()
        if not self._noted:
            self._outbox.probe()
            self._noted = True
        count = await self._lanes.run_once()
        if not self.breaker.holds:
            for row in self._outbox.next_again(self._clock.now(), AGAIN_AT_ONCE):
                count += await self._ask_again(row)
        return count

    async def _ask_again(self, row: EscalationRow) -> int:
        """Send an unanswered question again, and before it the pictures that the broker no longer has."""
        pictures = self._outbox.media_of(row.id)
        if self._parcels.stopped_at_border(row, pictures):
            self._outbox.reopen(row, ())
            self._lanes.wake()
            return 0
        lost = await self._courier.lost(row.site, pictures)
        if lost:
            self._outbox.reopen(row, lost)
            self._lanes.wake()
            return 0
        return await self._sender.ask_again(row)

    async def _has_link(self) -> bool:
        """Wait for the link, but not so long that nothing expires meanwhile."""
        try:
            await asyncio.wait_for(self._link.client(), LOOK_AFTER_S)
        except asyncio.TimeoutError:
            self.breaker.lost(self._link.state.error or "the link is down")
            return False
        if self.breaker.state.name != "closed":
            self.breaker.found()
        return True

    def _look_after(self) -> None:
        """What is due now and then, link or not."""
        self._see_to_the_clock()
        self.breaker.look(self._outbox.unanswered_s(self._clock.now()))
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self._outbox.expire(self._clock.now())
            self._expire_at = now + EXPIRE_EVERY_S
        if now >= self._room_at:
            self._room.run_once()
            self._room_at = now + LOOK_AFTER_S

    def _see_to_the_clock(self) -> None:
        """A step is seen to once, before anything expires by it: one that could not be noted is seen to again."""
        self._step_s += self._steps.step_s()
        if not self._began:  # what was missed has in it what was seen since
            self._step_s = self._outbox.clock_missed_s() or self._step_s
        if self._began and not self._step_s:
            return
        self._outbox.clock_stepped(self._step_s)
        if self._step_s:
            logger.warning("the clock was stepped by %+.0f s: open questions are no older for that", self._step_s)
        self._step_s, self._began = 0.0, True

    def close(self) -> None:
        """The link has ended: count the last of what it sent."""
        self._toll.pay_overhead()

    def _waits(self, why: str) -> None:
        self.waits_for = why
        if why != self._said:
            logger.warning("the outbox waits: %s", why)
            self._said = why

    def _is_fine(self) -> None:
        why = self._toll.today.why
        if why:
            self._waits(why)
            return
        if self.waits_for:
            logger.info("the outbox is being sent again")
        self.waits_for = self._said = ""
