"""A few lanes that send at the same time, and the one gate at which it is chosen what goes next."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from appliance.broker import end_tasks
from appliance.clock import Clock
from appliance.escalate.breaker import Breaker
from appliance.escalate.parcels import Due, Parcels
from appliance.escalate.sender import Sender
from appliance.escalate.toll import Toll
from appliance.escalate.turns import Turn, Turns
from appliance.wire import CHUNK_BYTES

LANES = 8
FLIGHT_BYTES_MAX = CHUNK_BYTES + 1024
GIVE_WAY_S = 0.1  # less than the slack of the rate, so that the backlog makes up for it
POLL_S = 1.0  # `wake` comes first


class Lanes:
    """What goes next is chosen for each message anew, so that an alarm does not wait for another's clip.

    One question is in one lane at a time, and its own message leaves when the broker has all its pictures. Together
    the lanes have at most a chunk's bytes on the way: that is what a cut costs. While a message of what is live is on
    its way the backlog begins none, for a moment: they would be in each other's way, here and on the link.
    Owner: the uplink's task. State: which questions are in a lane, and how many bytes are on the way.
    """

    def __init__(
        self, turns: Turns, parcels: Parcels, sender: Sender, toll: Toll, breaker: Breaker, clock: Clock
    ) -> None:
        self._turns = turns
        self._parcels = parcels
        self._sender = sender
        self._toll = toll
        self._breaker = breaker
        self._clock = clock
        self._more = asyncio.Event()
        self._gate = asyncio.Lock()
        self._busy: set[str] = set()
        self._live = 0
        self._give_way_until = 0.0
        self._behind = False
        self._resting = False
        self._flight = 0
        self._ending = False

    def wake(self) -> None:
        """There may be something to send (call it in the loop's thread); without it, it is seen within POLL_S."""
        self._more.set()

    def clear(self) -> None:
        """What there is to send is looked at now."""
        self._more.clear()

    async def pause(self, seconds: float) -> None:
        """Until `wake`, at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        self._more.clear()

    async def run_once(self) -> int:
        """All lanes until there is nothing more to send, or one of them failed; the others then end what they do.

        Returns how many questions went. Raises UplinkError, StoreError.
        """
        self._ending = False
        tasks = [asyncio.create_task(self._lane(), name=f"uplink lane {n}") for n in range(LANES)]
        try:
            done = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await end_tasks(*tasks)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return sum(each for each in done if isinstance(each, int))

    async def _lane(self) -> int:
        """One message after the other, whichever is next; returns how many questions went."""
        count = 0
        try:
            while True:
                async with self._gate:
                    due = await self._next()
                if due is None:
                    return count
                try:
                    count += await self._sender.deliver(due)
                finally:
                    self._release(due)
        except BaseException:
            self._ending = True
            self._more.set()
            raise

    async def _next(self) -> Due | None:
        """Wait until a message may go, and claim it; None: there is none, and no other lane is busy either."""
        while not self._ending and not self._breaker.holds:
            self._toll.pay_overhead()
            if self._busy and (self._sender.doubts or self._breaker.one_at_a_time):
                await self.pause(POLL_S)
                continue
            turn = await self._turn()
            if turn is None:
                if not self._busy:
                    return None
                await self.pause(POLL_S)
                continue
            wait_s = max(self._toll.wait_s(live=turn.live), self._gives_way_s(turn))
            if wait_s > 0:
                await self.pause(wait_s)
                continue
            due = await self._parcels.next_of(turn)
            if due is None:
                continue
            if self._flight and self._flight + due.message.size > FLIGHT_BYTES_MAX:
                await self.pause(POLL_S)
                continue
            if self._toll.today.fits(due.message.size, turn.row.priority):
                self._claim(due)
                return due
        return None

    async def _turn(self) -> Turn | None:
        """Whose turn it is. While the rate lets nothing of the backlog go, only what is live is looked for."""
        while True:
            rest_s = self._toll.wait_s(live=False) if self._behind else 0.0
            priorities = self._toll.today.priorities()
            turn = self._turns.pick(self._clock.now(), priorities, self._busy, live_only=rest_s > 0)
            if rest_s <= 0:
                self._behind = turn is not None and (turn.contested or not turn.live)
            if turn is not None or rest_s <= 0:
                return turn
            self._resting = True
            await self.pause(rest_s)
            self._resting = False
            if self._ending:
                return None

    def _gives_way_s(self, turn: Turn) -> float:
        """For how long one of the backlog waits for what is live and on its way."""
        if turn.live or not self._live or self._turns.owes:
            return 0.0
        return self._give_way_until - self._clock.monotonic()

    def _claim(self, due: Due) -> None:
        turn, size = due.turn, due.message.size
        if turn.live:
            self._live += 1
            self._give_way_until = self._clock.monotonic() + GIVE_WAY_S
        elif self._live:
            turn = replace(turn, contested=True)
        self._busy.add(turn.row.id)
        self._flight += size
        self._turns.took(turn, size)

    def _release(self, due: Due) -> None:
        self._live -= int(due.turn.live)
        self._busy.discard(due.turn.row.id)
        self._flight -= due.message.size
        if due.turn.live or not self._resting:  # who rests waits for the rate, or for what is live
            self._more.set()
