"""Sends the outbox's escalations: parallel workers build the next message, publish it, and record the answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, UplinkError
from appliance.broker.nats_link import NatsLink, end_tasks
from appliance.store.escalations import EscalationRow, MediaRow
from appliance.store.outbox import Outbox
from appliance.store.outbox_queue import QueuedEscalation, SendQueue
from appliance.uplink.jetstream_publisher import (
    JetStreamPublisher,
    NatsMessage,
    PublishRefused,
    chunk_message,
    escalation_message,
    read_chunk,
)
from appliance.uplink.send_limits import CloudBreaker, RateLimiter
from appliance.wire import CHUNK_BYTES, PRIORITIES, STREAM_ESCALATION, STREAM_MEDIA, TRACEPARENT, Escalation

CHECKED_MAX = 4096  # escalations of one connection of which it is known that the broker has their chunks
FLIGHT_BYTES_MAX = CHUNK_BYTES + 1024  # one chunk with its headers
SEND_WORKERS = 8  # so that a long way to the broker does not slow small messages down
GIVE_WAY_S = 0.1  # less than the slack of the rate, so that the backlog makes up for it
POLL_S = 1.0  # `wake` comes first
RUN_S_MAX = 10.0  # of one run, however much waits: what is due besides (expiry, the quota, resending) has its turn
UNACKED_MAX = 4096  # messages whose acknowledgement is awaited
REFUSED_S = 600.0  # before a message that the broker refused as such is tried again: a person may have raised the limit
REFUSED_MAX = 64  # that rest at a time; with more it is no matter of single messages

logger = logging.getLogger(__name__)


class EgressPolicy(Protocol):
    """The owner's present privacy rules; waiting escalations may have been made under earlier ones."""

    def forbids(self, escalation: Escalation) -> bool:
        """Nothing of it may leave."""
        ...

    def withholds(self, camera: str, path: str) -> bool:
        """Return True if this image (a file of the storage folder) may not leave."""
        ...


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """media: the file that it is a chunk of; None: it is the escalation itself."""

    message: NatsMessage
    media: MediaRow | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """Messages of one escalation that are sent together: its own message, or the next chunks of different files."""

    queued: QueuedEscalation
    parts: tuple[OutgoingMessage, ...]

    @property
    def size(self) -> int:
        return sum(each.message.size for each in self.parts)


class UnreadableMedia(EvidenceError):
    """A file of an escalation cannot be read any more; `media` is its row."""

    def __init__(self, media: MediaRow, why: str) -> None:
        super().__init__(why)
        self.media = media


class OutboxCheck:
    """Corrects an escalation in the outbox before it is sent.

    Images of a camera that is `image_free` (made before the site file said so) are withheld here, at the one place from
    which images leave. Owner: the uplink's task. State: the escalations whose earlier media are known, on this
    connection, to be still at the broker.
    """

    def __init__(self, link: NatsLink, publisher: JetStreamPublisher, outbox: Outbox, policy: EgressPolicy) -> None:
        self._link = link
        self._publisher = publisher
        self._outbox = outbox
        self._policy = policy
        self._checked: tuple[int, set[str]] = (0, set())

    async def prepare(self, row: EscalationRow) -> list[MediaRow] | None:
        """Return the files that the escalation carries.

        None: the outbox had to be put right; pick again. Raise UplinkError, StoreError.
        """
        media = self._outbox.media_of(row.id)
        return None if self.apply_egress_policy(row, media) or await self._reopen_lost(row, media) else media

    def apply_egress_policy(self, row: EscalationRow, media: Sequence[MediaRow]) -> bool:
        """Return True if the policy changed the escalation.

        Either the escalation may not leave and is ended, or its images may not leave and are removed.
        """
        if self._policy.forbids(row.body):
            logger.info("escalation %s ends: the privacy rules forbid it", row.id)
            self._outbox.drop([row], "the privacy rule of this camera forbids it")
            return True
        if not any(self._policy.withholds(row.camera, each.path) for each in media):
            return False
        logger.info("escalation %s goes without its images: they may not leave (any more)", row.id)
        self._outbox.withhold(row)
        return True

    def drop_unreadable(self, row: EscalationRow, error: UnreadableMedia) -> None:
        """Let the escalation go without that file. Raise StoreError."""
        logger.warning("escalation %s goes without a file: %s", row.id, error)
        self._outbox.media_lost(row, error.media, str(error))

    async def _reopen_lost(self, row: EscalationRow, media: Sequence[MediaRow]) -> bool:
        """Send chunks again that an earlier connection sent and the broker has lost; return True if there were any."""
        connects, checked = self._link.state.connects, self._checked[1]
        if self._checked[0] != connects or len(checked) > CHECKED_MAX:
            self._checked = (connects, checked := set())
        if row.id in checked:
            return False
        lost = await self._publisher.find_lost(row.site, [each for each in media if each.chunks_acked])
        checked.add(row.id)
        if lost:
            self._outbox.reopen(row, lost)
        return bool(lost)


class EscalationMessageBuilder:
    """Builds what an escalation carries, from the files below `root`."""

    def __init__(self, root: Path, elsewhere_s: float = 0.0) -> None:
        """elsewhere_s: see wire.Escalation."""
        self._root = root
        self._elsewhere_s = elsewhere_s

    async def build(self, queued: QueuedEscalation, media: Sequence[MediaRow]) -> Flight:
        """Return the next messages: chunks or, once the broker has them all, the escalation. Raise UnreadableMedia.

        The next chunks of several files of a live escalation are sent together as far as they fit into one flight,
        since each saved round trip matters. The backlog is sent chunk by chunk, since other escalations use the link
        meanwhile.
        """
        row, parts, size, ids = queued.row, list[OutgoingMessage](), 0, set[str]()
        for each in media:
            n = each.chunks_acked
            left = min(CHUNK_BYTES, each.ref.bytes - n * CHUNK_BYTES)
            if n >= each.ref.chunks or each.ref.id in ids:  # the same image twice: the broker would refuse one of them
                continue
            if parts and (not queued.live or size + left > CHUNK_BYTES):
                break
            message = await self._chunk(queued, each)
            parts.append(OutgoingMessage(message, each))
            size += message.size
            ids.add(each.ref.id)
        if parts:
            return Flight(queued, tuple(parts))
        # Backlog goes to the workers as the least urgent: there, too, it must not delay what is live.
        priority = row.priority if queued.live else PRIORITIES[-1]
        return Flight(queued, (OutgoingMessage(self.escalation(row, priority)),))

    async def _chunk(self, queued: QueuedEscalation, media: MediaRow) -> NatsMessage:
        n, row = media.chunks_acked, queued.row
        try:
            if queued.live:  # it has just been written: it is in memory
                payload = read_chunk(self._root, media.path, media.ref, n)
            else:
                payload = await asyncio.to_thread(read_chunk, self._root, media.path, media.ref, n)
        except EvidenceError as error:
            raise UnreadableMedia(media, str(error)) from None
        return chunk_message(row.site, media.ref, n, payload)

    def escalation(self, row: EscalationRow, priority: str) -> NatsMessage:
        """Return the escalation's own message, the same bytes whenever it is sent."""
        return escalation_message(row.body.model_copy(update={"elsewhere_s": self._elsewhere_s}), priority)


class SendWorkers:
    """Selects the next escalation again for each flight, so that an alert does not wait for another's clip.

    One worker at a time has an escalation, and its own message is sent after the broker has all its media. Together the
    workers have at most the bytes of one chunk in flight; a cut costs no more than that. While a live message is in
    flight, the backlog starts none for a short time, since both would delay each other here and on the link. Owner: the
    uplink's task. State: the escalation of each worker, and the number of bytes in flight.
    """

    def __init__(
        self,
        queue: SendQueue,
        check: OutboxCheck,
        builder: EscalationMessageBuilder,
        sender: EscalationSender,
        limiter: RateLimiter,
        breaker: CloudBreaker,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._check = check
        self._builder = builder
        self._sender = sender
        self._limiter = limiter
        self._breaker = breaker
        self._clock = clock
        self._more = asyncio.Event()
        self._choosing = asyncio.Lock()
        self._busy: set[str] = set()
        self._live = 0
        self._give_way_until = 0.0
        self._limited = False
        self._resting = False
        self._flight_bytes = 0
        self._ending = False
        self._until = float("inf")

    def wake(self) -> None:
        """Look for work at once (call it in the loop's thread); without this call within POLL_S."""
        self._more.set()

    @property
    def busy(self) -> bool:
        """A message is being sent."""
        return bool(self._busy)

    def end(self) -> None:
        """Let `run_once` return after the messages that are being sent (call it in the loop's thread)."""
        self._ending = True
        self._more.set()

    def clear(self) -> None:
        """Forget earlier calls of `wake`: what there is to send is looked up now."""
        self._more.clear()

    async def pause(self, seconds: float) -> None:
        """Until `wake`, at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        self._more.clear()

    async def run_once(self) -> int:
        """Send until nothing is left, RUN_S_MAX is over, or one worker failed; return how many escalations went.

        The other workers then finish their message. Raise UplinkError, StoreError.
        """
        self._ending, self._until = False, self._clock.monotonic() + RUN_S_MAX
        tasks = [asyncio.create_task(self._work(), name=f"send worker {n}") for n in range(SEND_WORKERS)]
        try:
            done = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await end_tasks(*tasks)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return sum(each for each in done if isinstance(each, int))

    async def _work(self) -> int:
        """One flight after the other, whichever is next; returns how many escalations went."""
        count = 0
        try:
            while True:
                async with self._choosing:
                    flight = await self._next()
                if flight is None:
                    return count
                try:
                    count += await self._sender.deliver(flight)
                finally:
                    self._release(flight)
        except BaseException:
            self.end()
            raise

    async def _next(self) -> Flight | None:
        """Wait until a flight may be sent, and claim it; None: there is none, and no other worker is busy."""
        while not self._ending and not self._breaker.blocks:
            self._limiter.charge_overhead()
            if self._clock.monotonic() >= self._until:
                self._more.set()
                return None
            if self._busy and (self._sender.last_refused or self._breaker.one_at_a_time):
                await self.pause(POLL_S)
                continue
            queued = await self._pick()
            if queued is None:
                if not self._busy:
                    return None
                await self.pause(POLL_S)
                continue
            wait_s = max(self._limiter.wait_s(live=queued.live), self._gives_way_s(queued))
            if wait_s > 0:
                await self.pause(wait_s)
                continue
            media = await self._check.prepare(queued.row)
            if media is None:
                continue
            try:
                flight = await self._builder.build(queued, media)
            except UnreadableMedia as error:
                self._check.drop_unreadable(queued.row, error)
                continue
            size = flight.size
            if self._flight_bytes and self._flight_bytes + size > FLIGHT_BYTES_MAX:
                await self.pause(POLL_S)
                continue
            if self._limiter.daily_cap.fits(size, queued.row.priority):
                self._claim(flight)
                return flight
        return None

    async def _pick(self) -> QueuedEscalation | None:
        """Return the next escalation. While the rate limit holds the backlog, look up only live ones."""
        while True:
            rest_s = self._limiter.wait_s(live=False) if self._limited else 0.0
            priorities = self._limiter.daily_cap.priorities()
            busy = self._busy | self._sender.refused()
            queued = self._queue.pick(self._clock.now(), priorities, busy, live_only=rest_s > 0)
            if rest_s <= 0:
                self._limited = queued is not None and (queued.contested or not queued.live)
            if queued is not None or rest_s <= 0:
                return queued
            self._resting = True
            await self.pause(rest_s)
            self._resting = False
            if self._ending:
                return None

    def _gives_way_s(self, queued: QueuedEscalation) -> float:
        """For how long one of the backlog waits for what is live and in flight."""
        if queued.live or not self._live or self._queue.backlog_due:
            return 0.0
        return self._give_way_until - self._clock.monotonic()

    def _claim(self, flight: Flight) -> None:
        queued, size = flight.queued, flight.size
        if queued.live:
            self._live += 1
            self._give_way_until = self._clock.monotonic() + GIVE_WAY_S
        elif self._live:
            queued = replace(queued, contested=True)
        self._busy.add(queued.row.id)
        self._flight_bytes += size
        self._queue.record_sent(queued, size)

    def _release(self, flight: Flight) -> None:
        self._live -= int(flight.queued.live)
        self._busy.discard(flight.queued.row.id)
        self._flight_bytes -= flight.size
        if flight.queued.live or not self._resting:  # a resting worker waits for the rate, or for what is live
            self._more.set()


class EscalationSender:
    """Sends the messages of a flight, charges them to the limits, and records the result of each in the outbox.

    Invariant: a message is recorded in the outbox after the broker has acknowledged it. All bytes put on the link are
    charged, also those of failed attempts. Owner: the uplink's task. State: the ids of messages that were sent and not
    acknowledged (at most FLIGHT_BYTES_MAX at a cut); a message with such an id is counted as `again`. Also the
    escalations of which the broker refused a message, at most REFUSED_MAX, and how long each waits.
    """

    def __init__(
        self,
        publisher: JetStreamPublisher,
        outbox: Outbox,
        limiter: RateLimiter,
        breaker: CloudBreaker,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        """report: called with the reason when the broker will never take a message."""
        self._publisher = publisher
        self._outbox = outbox
        self._limiter = limiter
        self._breaker = breaker
        self._clock = clock
        self._report = report
        self._unacked: set[str] = set()
        self._refused_until: dict[str, float] = {}

    @property
    def last_refused(self) -> bool:
        """The broker refused the last message: one at a time until it takes one."""
        return self._publisher.last_refused

    def refused(self) -> set[str]:
        """Return the escalations that wait because the broker refused a message of theirs and would refuse it again."""
        now = self._clock.monotonic()
        self._refused_until = {name: until for name, until in self._refused_until.items() if until > now}
        return set(self._refused_until)

    async def deliver(self, flight: Flight) -> int:
        """Send the messages and record which were stored; returns how many escalations went (1 or 0)."""
        row, (first, *_) = flight.queued.row, flight.parts
        if not await self._send(row, flight.parts) or first.media is not None:
            return 0
        await self._record_sent(row, first.message.size)
        self._breaker.escalation_stored()
        logger.info("escalation %s is with the broker, %s", row.id, first.message.headers[TRACEPARENT])
        return 1

    async def resend(self, row: EscalationRow, message: NatsMessage) -> int:
        """Send the escalation again without media; return how many were sent (0: daily cap, or refused)."""
        if row.id in self.refused():
            return 0
        if not self._limiter.daily_cap.fits(message.size, row.priority):
            return 0
        if not await self._send(row, [OutgoingMessage(message)], resent=True):
            return 0
        await self._record_sent(row, message.size)
        return 1

    async def _record_sent(self, row: EscalationRow, size: int) -> None:
        await self._outbox.commits.commit(lambda: self._outbox.sent(row, self._clock.now(), size))

    async def _send(self, row: EscalationRow, parts: Sequence[OutgoingMessage], *, resent: bool = False) -> bool:
        """Publish all and wait for every acknowledgement; False when one of them is refused for good.

        A stored chunk is recorded even if other messages fail. Failures of one flight count as one failed attempt.
        Raise UplinkError, also if the broker refuses one message after the other, and StoreError.
        """
        outcomes = await asyncio.gather(*(self._publish(row, each, resent) for each in parts), return_exceptions=True)
        failures = [(each.message.size, outcome) for each, outcome in zip(parts, outcomes, strict=True) if outcome]
        if not failures:
            return True
        error = next((each for _, each in failures if not isinstance(each, PublishRefused)), failures[0][1])
        if not isinstance(error, (PublishRefused, UplinkError)):
            raise error
        self._outbox.failed(row, str(error), sum(size for size, _ in failures))
        if not isinstance(error, PublishRefused):
            raise error
        self._report(f"escalation {row.id} was refused: {error}")
        if len(self.refused()) >= REFUSED_MAX:
            raise UplinkError(f"the broker refuses one message after the other: {error}")
        self._refused_until[row.id] = self._clock.monotonic() + REFUSED_S
        return False

    async def _publish(self, row: EscalationRow, part: OutgoingMessage, resent: bool) -> None:
        """Publish one message, and record a chunk that was stored."""
        message, media = part.message, part.media
        name = message.headers["Nats-Msg-Id"]
        self._limiter.charge(row.camera, "again" if resent or name in self._unacked else message.kind, message.size)
        if len(self._unacked) > UNACKED_MAX:
            self._unacked.clear()
        self._unacked.add(name)
        try:
            await self._publisher.publish(message, STREAM_ESCALATION if media is None else STREAM_MEDIA)
        except PublishRefused:
            self._unacked.discard(name)
            raise
        self._unacked.discard(name)
        self._breaker.message_stored()
        if media is not None:
            change = partial(self._outbox.chunk_acked, row, media, media.chunks_acked + 1, message.size)
            await self._outbox.commits.commit(change, durable=False)
