"""Sends the outbox's escalations: parallel workers take the next message, publish it, and record the
acknowledgement.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from appliance.broker import end_tasks
from appliance.clock import Clock
from appliance.errors import UplinkError
from appliance.store.rows import EscalationRow
from appliance.uplink.cloud_breaker import CloudBreaker
from appliance.uplink.commit_batcher import CommitBatcher
from appliance.uplink.jetstream_publisher import JetStreamPublisher, PublishRefused
from appliance.uplink.message_builder import EscalationMessageBuilder, OutgoingMessage
from appliance.uplink.nats_messages import NatsMessage, escalation_message
from appliance.uplink.outbox import Outbox
from appliance.uplink.rate_limiter import RateLimiter
from appliance.uplink.send_queue import QueuedEscalation, SendQueue
from appliance.wire import CHUNK_BYTES, STREAM_ESCALATION, STREAM_MEDIA

UNACKED_MAX = 4096


class EscalationSender:
    """Invariant: the outbox is told of what the broker acknowledged, after that. All bytes put on the link are paid
    for, also those of failed attempts. Owner: the uplink's task. State: the ids of messages that left and were not
    acknowledged, a lane's worth at a cut; what has one of them goes `again`.
    """

    def __init__(
        self,
        courier: JetStreamPublisher,
        outbox: Outbox,
        notary: CommitBatcher,
        toll: RateLimiter,
        breaker: CloudBreaker,
        clock: Clock,
        waits: Callable[[str], None],
    ) -> None:
        """waits: told why a question was refused."""
        self._courier = courier
        self._outbox = outbox
        self._notary = notary
        self._toll = toll
        self._breaker = breaker
        self._clock = clock
        self._waits = waits
        self._unsure: set[str] = set()

    @property
    def last_refused(self) -> bool:
        """The broker refused the last message: one at a time until it takes one."""
        return self._courier.last_refused

    async def deliver(self, due: OutgoingMessage) -> int:
        """Send one message and note that it was stored; returns how many questions went (1 or 0)."""
        row, media = due.queued.row, due.media
        stream = STREAM_ESCALATION if media is None else STREAM_MEDIA
        if not await self._send(row, due.message, stream):
            return 0
        if media is not None:
            acked, size = media.chunks_acked + 1, due.message.size
            await self._notary.commit(lambda: self._outbox.chunk_acked(row, media, acked, size), durable=False)
            return 0
        await self._sent(row, due.message.size)
        self._breaker.escalation_stored()
        return 1

    async def resend(self, row: EscalationRow) -> int:
        """Send the question alone once more; returns how many went (1, or 0: not today, or it is refused)."""
        message = escalation_message(row, live=False)
        if not self._toll.daily_cap.fits(message.size, row.priority):
            return 0
        if not await self._send(row, message, STREAM_ESCALATION, again=True):
            return 0
        await self._sent(row, message.size)
        return 1

    async def _sent(self, row: EscalationRow, size: int) -> None:
        await self._notary.commit(lambda: self._outbox.sent(row, self._clock.now(), size))

    async def _send(self, row: EscalationRow, message: NatsMessage, stream: str, *, again: bool = False) -> bool:
        """Publish and wait for the acknowledgement; False when this very message is refused for good."""
        name = message.headers["Nats-Msg-Id"]
        self._toll.charge(row.camera, "again" if again or name in self._unsure else message.kind, message.size)
        if len(self._unsure) > UNACKED_MAX:
            self._unsure.clear()
        self._unsure.add(name)
        try:
            await self._courier.publish(message, stream)
            self._unsure.discard(name)
            self._breaker.message_stored()
            return True
        except PublishRefused as error:
            self._waits(f"escalation {row.id} was refused: {error}")
            self._unsure.discard(name)
            self._outbox.failed(row, str(error), message.size)
            return False
        except UplinkError as error:
            self._outbox.failed(row, str(error), message.size)
            raise


SEND_WORKERS = 8
FLIGHT_BYTES_MAX = CHUNK_BYTES + 1024
GIVE_WAY_S = 0.1  # less than the slack of the rate, so that the backlog makes up for it
POLL_S = 1.0  # `wake` comes first


class SendWorkers:
    """What goes next is chosen for each message anew, so that an alarm does not wait for another's clip.

    One question is in one lane at a time, and its own message leaves when the broker has all its pictures. Together
    the lanes have at most a chunk's bytes on the way: that is what a cut costs. While a message of what is live is on
    its way the backlog begins none, for a moment: they would be in each other's way, here and on the link.
    Owner: the uplink's task. State: which questions are in a lane, and how many bytes are on the way.
    """

    def __init__(
        self,
        turns: SendQueue,
        parcels: EscalationMessageBuilder,
        sender: EscalationSender,
        toll: RateLimiter,
        breaker: CloudBreaker,
        clock: Clock,
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
        tasks = [asyncio.create_task(self._lane(), name=f"uplink lane {n}") for n in range(SEND_WORKERS)]
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

    async def _next(self) -> OutgoingMessage | None:
        """Wait until a message may go, and claim it; None: there is none, and no other lane is busy either."""
        while not self._ending and not self._breaker.blocks:
            self._toll.charge_overhead()
            if self._busy and (self._sender.last_refused or self._breaker.one_at_a_time):
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
            due = await self._parcels.next_message(turn)
            if due is None:
                continue
            if self._flight and self._flight + due.message.size > FLIGHT_BYTES_MAX:
                await self.pause(POLL_S)
                continue
            if self._toll.daily_cap.fits(due.message.size, turn.row.priority):
                self._claim(due)
                return due
        return None

    async def _turn(self) -> QueuedEscalation | None:
        """Whose turn it is. While the rate lets nothing of the backlog go, only what is live is looked for."""
        while True:
            rest_s = self._toll.wait_s(live=False) if self._behind else 0.0
            priorities = self._toll.daily_cap.priorities()
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

    def _gives_way_s(self, turn: QueuedEscalation) -> float:
        """For how long one of the backlog waits for what is live and on its way."""
        if turn.live or not self._live or self._turns.backlog_due:
            return 0.0
        return self._give_way_until - self._clock.monotonic()

    def _claim(self, due: OutgoingMessage) -> None:
        turn, size = due.queued, due.message.size
        if turn.live:
            self._live += 1
            self._give_way_until = self._clock.monotonic() + GIVE_WAY_S
        elif self._live:
            turn = replace(turn, contested=True)
        self._busy.add(turn.row.id)
        self._flight += size
        self._turns.record_sent(turn, size)

    def _release(self, due: OutgoingMessage) -> None:
        self._live -= int(due.queued.live)
        self._busy.discard(due.queued.row.id)
        self._flight -= due.message.size
        if due.queued.live or not self._resting:  # who rests waits for the rate, or for what is live
            self._more.set()
