"""Sends what the outbox holds: of each question the pictures in chunks, then itself, until the broker has them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance.backoff import Backoff
from appliance.broker import Link, end_tasks
from appliance.clock import Clock, StepWatch
from appliance.errors import EvidenceError, StoreUnavailable, UplinkError
from appliance.escalate.account import Account
from appliance.escalate.allowance import DayAllowance
from appliance.escalate.border import Border, Open
from appliance.escalate.breaker import Breaker
from appliance.escalate.courier import Courier, Refused
from appliance.escalate.limits import Limits
from appliance.escalate.media import Message, chunk_message, read_chunk
from appliance.escalate.outbox import Outbox
from appliance.escalate.room import Room
from appliance.escalate.shaping import TokenBucket
from appliance.escalate.turns import Turn, Turns
from appliance.savings import ledger
from appliance.store.rows import EscalationRow, MediaRow
from appliance.wire import (
    CHUNK_BYTES,
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    escalation_subject,
    question_message_id,
)

POLL_S = 1.0  # `wake` comes first
EXPIRE_EVERY_S = 60.0
LOOK_AFTER_S = 10.0
AGAIN_AT_ONCE = 16
LANES = 8
FLIGHT_BYTES_MAX = CHUNK_BYTES + 1024
AT_HAND_MAX = 4096
UNSURE_MAX = 4096

logger = logging.getLogger(__name__)


class Meter(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...

    def of_day(self, kind: str, day: str) -> int: ...


@dataclass(frozen=True, slots=True)
class _Due:
    """A message that goes now, and what becomes of it. media None: it is the question itself."""

    turn: Turn
    message: Message
    media: MediaRow | None = None


class Uplink:
    """Owner of the sending side: one task with a few lanes, so that a long way to the broker does not slow it down.

    What goes next is chosen for each message anew, so that an alarm does not wait for another's clip; one question is
    in one lane at a time, and its own message leaves when the broker has all its pictures. Together the lanes have at
    most a chunk's bytes on the way: that is what a cut costs. Pictures of a camera that is `image_free` (made before
    the site file said so) are withheld here, at the one place from which pictures leave.
    Invariant: the outbox is told of what the broker acknowledged, after that. All bytes put on the link are counted,
    also those of failed attempts. While the database cannot be written nothing is sent, for it could not be noted.
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
    ) -> None:
        """border: what may leave; None: all."""
        limits = limits or Limits()
        self._link = link
        self._courier = Courier(link)
        self._border = border or Open()
        self._outbox = outbox
        self._root = root
        self._account = Account(meter)
        self._clock = clock
        self._turns = Turns(outbox.db)
        self._bucket = TokenBucket(limits.kbps_max, clock)
        self._today = DayAllowance(
            limits.mb_day, limits.over_mb_day, lambda day: meter.of_day(ledger.UPLINK, day), clock
        )
        self._room = Room(outbox, root, limits.outbox_mb_max, meter.add)
        self.breaker = Breaker(limits.silent_s, clock)
        self._more = asyncio.Event()
        self._gate = asyncio.Lock()
        self._busy: set[str] = set()
        self._unsure: set[str] = set()  # ids of messages that left and were not acknowledged: a lane's worth at a cut
        self._flight = 0
        self._ending = False
        self._said = ""
        self._noted = True
        self._at_hand: tuple[int, set[str]] = (0, set())
        self._steps = StepWatch(clock)
        self._expire_at = self._room_at = float("-inf")
        self.waits_for = ""

    def wake(self) -> None:
        """There may be something to send (call it in the loop's thread); without it, it is seen within POLL_S."""
        self._more.set()

    def heard(self) -> None:
        """A verdict came: somebody is there. Call it in the loop's thread."""
        self.breaker.heard()
        self._more.set()

    async def run(self) -> None:
        """Send until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 30.0)
        while True:
            self._count_overhead()
            try:
                self._look_after()
                if await self._has_link():
                    await self.run_once()
                    self._is_fine()
                    backoff.forgive()
                    await self._pause(POLL_S)
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
        self._more.clear()
        if len(self._unsure) > UNSURE_MAX:
            self._unsure.clear()
        if not self._noted:
            self._outbox.probe()
            self._noted = True
        count = await self._send_ready()
        if not self.breaker.holds:
            for row in self._outbox.next_again(self._clock.now(), AGAIN_AT_ONCE):
                count += await self._ask_again(row)
        return count

    async def _send_ready(self) -> int:
        """All lanes until there is nothing more to send, or one of them failed; the others then end what they do."""
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
                    count += await self._deliver(due)
                finally:
                    self._busy.discard(due.turn.row.id)
                    self._flight -= due.message.size
                    self._more.set()
        except BaseException:
            self._ending = True
            self._more.set()
            raise

    async def _next(self) -> _Due | None:
        """Wait until a message may go, and claim it; None: there is none, and no other lane is busy either."""
        while not self._ending and not self.breaker.holds:
            self._count_overhead()
            if self._busy and (self._courier.doubts or self.breaker.one_at_a_time):
                await self._pause(POLL_S)
                continue
            turn = self._turns.pick(self._clock.now(), self._today.priorities(), self._busy)
            if turn is None:
                if not self._busy:
                    return None
                await self._pause(POLL_S)
                continue
            wait_s = self._bucket.wait_s(live=turn.live)
            if wait_s > 0:
                await self._pause(wait_s)
                continue
            due = await self._prepare(turn)
            if due is None:
                continue
            if self._flight and self._flight + due.message.size > FLIGHT_BYTES_MAX:
                await self._pause(POLL_S)
                continue
            if self._today.fits(due.message.size, turn.row.priority):
                self._claim(due)
                return due
        return None

    def _claim(self, due: _Due) -> None:
        size = due.message.size
        self._busy.add(due.turn.row.id)
        self._flight += size
        self._turns.took(due.turn, size)

    async def _prepare(self, turn: Turn) -> _Due | None:
        """The next message of a question: a chunk, or, when all are there, the question itself.

        None: the outbox had to be put right first; look again what is next.
        """
        row = turn.row
        pictures = self._outbox.media_of(row.id)
        if self._stopped_at_border(row, pictures) or await self._begun_elsewhere(row):
            return None
        for media in pictures:
            if media.chunks_acked < media.ref.chunks:
                return await self._chunk(turn, media)
        return _Due(turn, _question(row, live=turn.live))

    async def _chunk(self, turn: Turn, media: MediaRow) -> _Due | None:
        row, n = turn.row, media.chunks_acked
        try:
            payload = await asyncio.to_thread(read_chunk, self._root, media.path, media.ref, n)
        except EvidenceError as error:
            logger.warning("escalation %s goes without a picture: %s", row.id, error)
            self._outbox.media_lost(row, media, str(error))
            return None
        return _Due(turn, chunk_message(row.site, media.ref, n, payload), media)

    async def _deliver(self, due: _Due) -> int:
        """Send one message and note that it was stored; returns how many questions went (1 or 0)."""
        row, media = due.turn.row, due.media
        stream = STREAM_ESCALATION if media is None else STREAM_MEDIA
        if not await self._send(row, due.message, stream):
            return 0
        if media is not None:
            self._outbox.chunk_acked(row, media, media.chunks_acked + 1, due.message.size)
            return 0
        self._outbox.sent(row, self._clock.now(), due.message.size)
        self.breaker.asked()
        return 1

    def _stopped_at_border(self, row: EscalationRow, pictures: Sequence[MediaRow]) -> bool:
        """Whether the question must not leave, and ended, or had pictures that must not, and has none now."""
        if self._border.forbids(row.body):
            logger.info("escalation %s ends: the privacy rules forbid it", row.id)
            self._outbox.drop(row, "the privacy rule of this camera forbids it")
            return True
        if not any(self._border.withholds(row.camera, each.path) for each in pictures):
            return False
        logger.info("escalation %s goes without its pictures: they may not leave (any more)", row.id)
        self._outbox.withhold(row)
        return True

    async def _begun_elsewhere(self, row: EscalationRow) -> bool:
        """Whether chunks went over an earlier connection and the broker has lost them since: they go again."""
        connects = self._link.state.connects
        if self._at_hand[0] != connects or len(self._at_hand[1]) > AT_HAND_MAX:
            self._at_hand = (connects, set())
        if row.id in self._at_hand[1]:
            return False
        begun = [media for media in self._outbox.media_of(row.id) if media.chunks_acked]
        lost = await self._courier.lost(row.site, begun)
        self._at_hand[1].add(row.id)
        if lost:
            self._outbox.reopen(row, lost)
        return bool(lost)

    async def _ask_again(self, row: EscalationRow) -> int:
        """Send an unanswered question again, and before it the pictures that the broker no longer has."""
        pictures = self._outbox.media_of(row.id)
        if self._stopped_at_border(row, pictures):
            self._outbox.reopen(row, ())
            self._more.set()
            return 0
        lost = await self._courier.lost(row.site, pictures)
        if lost:
            self._outbox.reopen(row, lost)
            self._more.set()
            return 0
        return await self._ask(row)

    async def _ask(self, row: EscalationRow) -> int:
        message = _question(row, live=False)
        if not self._today.fits(message.size, row.priority):
            return 0
        if not await self._send(row, message, STREAM_ESCALATION, again=True):
            return 0
        self._outbox.sent(row, self._clock.now(), message.size)
        return 1

    async def _send(self, row: EscalationRow, message: Message, stream: str, *, again: bool = False) -> bool:
        """Publish and wait for the acknowledgement; False when this very message is refused for good."""
        name = message.headers["Nats-Msg-Id"]
        self._account.message(row.camera, "again" if again or name in self._unsure else message.kind, message.size)
        self._spend(message.size)
        self._unsure.add(name)
        try:
            await self._courier.publish(message, stream)
            self._unsure.discard(name)
            self.breaker.took()
            return True
        except Refused as error:
            self._waits(f"escalation {row.id} was refused: {error}")
            self._unsure.discard(name)
            self._outbox.failed(row, str(error), message.size)
            return False
        except UplinkError as error:
            self._outbox.failed(row, str(error), message.size)
            raise

    def _spend(self, size: int) -> None:
        self._bucket.take(size)
        self._today.spend(size)

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
        step_s = self._steps.step_s()
        if step_s:
            logger.warning("the clock was stepped by %+.0f s: open questions are no older for that", step_s)
            self._outbox.clock_stepped(step_s)
        self.breaker.look(self._outbox.unanswered_s(self._clock.now()))
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self._outbox.expire(self._clock.now())
            self._expire_at = now + EXPIRE_EVERY_S
        if now >= self._room_at:
            self._room.run_once()
            self._room_at = now + LOOK_AFTER_S

    def close(self) -> None:
        """The link has ended: count the last of what it sent."""
        self._count_overhead()

    def _count_overhead(self) -> None:
        self._spend(self._account.overhead(self._link.state))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        self._more.clear()

    def _waits(self, why: str) -> None:
        self.waits_for = why
        if why != self._said:
            logger.warning("the outbox waits: %s", why)
            self._said = why

    def _is_fine(self) -> None:
        why = self._today.why
        if why:
            self._waits(why)
            return
        if self.waits_for:
            logger.info("the outbox is being sent again")
        self.waits_for = self._said = ""


def _question(row: EscalationRow, *, live: bool) -> Message:
    """What waited goes to the workers as the least urgent: there, too, it must not be in the way of what is live."""
    headers = {"Nats-Msg-Id": question_message_id(row.site, row.id, row.step)}
    priority = row.priority if live else PRIORITIES[-1]
    return Message(escalation_subject(row.site, priority), row.body.to_json(), headers, "facts")
