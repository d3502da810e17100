"""Sends what the outbox holds: the pictures in chunks, then the question, each until the broker has stored it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy

from appliance.backoff import Backoff
from appliance.broker import Link
from appliance.clock import Clock, StepWatch
from appliance.errors import EvidenceError, StoreUnavailable, UplinkError, VedetteError
from appliance.escalate.media import Message, chunk_message, read_chunk
from appliance.escalate.outbox import Outbox
from appliance.store.rows import EscalationRow, MediaRow
from appliance.wire import (
    STREAM_ESCALATION,
    STREAM_MEDIA,
    escalation_subject,
    media_subject,
    question_message_id,
)

# A chunk over a 32 kbit/s uplink takes half a minute; a lost connection is noticed at once, not by this.
PUBLISH_S_MAX = 90.0
LOOK_S_MAX = 10.0
POLL_S = 1.0  # `wake` comes first
EXPIRE_EVERY_S = 60.0
AGAIN_AT_ONCE = 16
_TOO_LARGE = 10054

logger = logging.getLogger(__name__)


class Meter(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...


class Refused(VedetteError):
    """The broker will never take this message; the others go on."""


class Uplink:
    """Owner of the sending side: one task, one message at a time, the most urgent first.

    Between two chunks it looks again what is the most urgent, so that an alarm does not wait for another's clip.
    Pictures of a camera that is `image_free` (made before the site file said so) are withheld here, at the one place
    from which pictures leave.
    Invariant: the outbox is told of what the broker acknowledged, after that and before anything else is sent; a cut
    costs one chunk sent twice at most. All bytes put on the link are counted, also those of failed attempts.
    While the database cannot be written nothing is sent, for it could not be noted.
    """

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        root: Path,
        meter: Meter,
        clock: Clock,
        image_free: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """image_free: whether no pixels of a camera may leave the site."""
        self._link = link
        self._image_free = image_free
        self._outbox = outbox
        self._root = root
        self._meter = meter
        self._clock = clock
        self._more = asyncio.Event()
        self._said = ""
        self._doubt = False
        self._noted = True
        self._at_hand = ("", 0)
        self._steps = StepWatch(clock)
        self._counted = 0
        self._expire_at = float("-inf")
        self.waits_for = ""

    def wake(self) -> None:
        """There may be something to send (call it in the loop's thread); without it, it is seen within POLL_S."""
        self._more.set()

    async def run(self) -> None:
        """Send until cancelled. Raises StoreError when the database refuses."""
        backoff = Backoff(0.5, 30.0)
        while True:
            self._count_overhead()
            try:
                self._look_at_the_clock()
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
                await asyncio.sleep(backoff.next_s())

    async def run_once(self) -> int:
        """Send all that is ready, and again what was not answered for long; return how many questions went out.

        Raises UplinkError when the link or the streams are not there, StoreUnavailable when the disk is full: nothing
        is lost, the outbox waits.
        """
        self._more.clear()
        if not self._noted:
            self._outbox.probe()
            self._noted = True
        count = 0
        while ready := self._outbox.next_ready(1):
            count += await self._step(ready[0])
        for row in self._outbox.next_again(self._clock.now(), AGAIN_AT_ONCE):
            count += await self._ask_again(row)
        return count

    async def _step(self, row: EscalationRow) -> int:
        """The next chunk of one question, or, when all are there, the question itself (1)."""
        if self._withheld(row):
            return 0
        if await self._begun_elsewhere(row):
            return 0
        for media in self._outbox.media_of(row.id):
            if media.chunks_acked < media.ref.chunks:
                await self._send_chunk(row, media)
                return 0
        return await self._ask(row)

    def _withheld(self, row: EscalationRow) -> bool:
        """Whether the question had pictures that must not leave, and has none now."""
        if not row.body.media or not self._image_free(row.camera):
            return False
        logger.info("escalation %s goes without its pictures: this site sends none", row.id)
        self._outbox.withhold(row)
        return True

    async def _begun_elsewhere(self, row: EscalationRow) -> bool:
        """Whether chunks went over an earlier connection and the broker has lost them since: they go again."""
        at_hand = (row.id, self._link.state.connects)
        if at_hand == self._at_hand:
            return False
        begun = [media for media in self._outbox.media_of(row.id) if media.chunks_acked]
        lost = await self._lost(row, begun)
        self._at_hand = at_hand
        if lost:
            self._outbox.reopen(row, lost)
        return bool(lost)

    async def _lost(self, row: EscalationRow, begun: Sequence[MediaRow]) -> list[MediaRow]:
        """Those of `begun` of which the broker no longer has every chunk that it acknowledged."""
        if not begun:
            return []
        jetstream = (await self._link.client()).jetstream(timeout=LOOK_S_MAX)
        lost = [each for each in begun if not await self._link.while_up(_is_stored(jetstream, row.site, each))]
        if lost:
            logger.warning("escalation %s: the broker lost %d pictures; they are sent again", row.id, len(lost))
        return lost

    async def _send_chunk(self, row: EscalationRow, media: MediaRow) -> None:
        n = media.chunks_acked
        try:
            payload = await asyncio.to_thread(read_chunk, self._root, media.path, media.ref, n)
        except EvidenceError as error:
            logger.warning("escalation %s goes without a picture: %s", row.id, error)
            self._outbox.media_lost(row, media, str(error))
            return
        message = chunk_message(row.site, media.ref, n, payload)
        if await self._send(row, message, STREAM_MEDIA):
            self._outbox.chunk_acked(row, media, n + 1, message.size)

    async def _ask_again(self, row: EscalationRow) -> int:
        """Send an unanswered question again, and before it the pictures that the broker no longer has."""
        if self._withheld(row):
            self._outbox.reopen(row, ())
            self._more.set()
            return 0
        lost = await self._lost(row, self._outbox.media_of(row.id))
        if lost:
            self._outbox.reopen(row, lost)
            self._more.set()
            return 0
        return await self._ask(row)

    async def _ask(self, row: EscalationRow) -> int:
        message = Message(
            escalation_subject(row.site, row.priority),
            row.body.to_json(),
            {"Nats-Msg-Id": question_message_id(row.site, row.id, row.step)},
            "facts",
        )
        if not await self._send(row, message, STREAM_ESCALATION):
            return 0
        self._outbox.sent(row, self._clock.now(), message.size)
        return 1

    async def _send(self, row: EscalationRow, message: Message, stream: str) -> bool:
        """Publish and wait for the acknowledgement; False when this very message is refused for good."""
        self._meter.add(row.camera, "uplink_bytes", message.size)
        self._meter.add(row.camera, f"uplink_bytes_{message.kind}", message.size)
        self._counted += message.size
        try:
            await self._link.while_up(self._publish(message, stream))
            return True
        except Refused as error:
            self._waits(f"escalation {row.id} was refused: {error}")
            self._outbox.failed(row, str(error), message.size)
            return False
        except UplinkError as error:
            self._outbox.failed(row, str(error), message.size)
            raise

    async def _publish(self, message: Message, stream: str) -> None:
        client = await self._link.client()
        try:
            if self._doubt:
                await _look(client.jetstream(timeout=LOOK_S_MAX), stream, message.size)
            jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
            await jetstream.publish(message.subject, message.payload, stream=stream, headers=dict(message.headers))
            self._doubt = False
        except (nats.js.errors.NoStreamResponseError, nats.js.errors.NotFoundError):
            self._doubt = True
            raise UplinkError("no worker has made the streams yet, or JetStream is off") from None
        except nats.errors.MaxPayloadError:
            raise Refused(f"{len(message.payload)} bytes are over the broker's max_payload") from None
        except nats.js.errors.APIError as error:
            if error.err_code == _TOO_LARGE:
                raise Refused(f"{len(message.payload)} bytes are over the stream's limit") from None
            self._doubt = True
            raise UplinkError(f"the broker refuses: {error.description}") from None
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            raise UplinkError(f"not acknowledged: {type(error).__name__}") from None

    async def _has_link(self) -> bool:
        """Wait for the link, but not so long that nothing expires meanwhile."""
        try:
            await asyncio.wait_for(self._link.client(), EXPIRE_EVERY_S)
            return True
        except asyncio.TimeoutError:
            return False

    def _look_at_the_clock(self) -> None:
        step_s = self._steps.step_s()
        if step_s:
            logger.warning("the clock was stepped by %+.0f s: open questions are no older for that", step_s)
            self._outbox.clock_stepped(step_s)
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self._outbox.expire(self._clock.now())
            self._expire_at = now + EXPIRE_EVERY_S

    def _count_overhead(self) -> None:
        """What the socket sent beyond our messages (hand-shakes, keep-alive, acknowledgements) belongs to no camera."""
        beyond = self._link.state.sent - self._counted
        if beyond > 0:  # below zero: the link has not looked at its socket since the last message
            self._meter.add("", "uplink_bytes", beyond)
            self._counted += beyond

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)

    def _waits(self, why: str) -> None:
        self.waits_for = why
        if why != self._said:
            logger.warning("the outbox waits: %s", why)
            self._said = why

    def _is_fine(self) -> None:
        if self.waits_for:
            logger.info("the outbox is being sent again")
        self.waits_for = self._said = ""


async def _look(jetstream: JetStreamContext, stream: str, size: int) -> None:
    """Ask, in some hundred bytes, whether the stream is there and has room, before a chunk is sent in vain again.

    Raises UplinkError or NotFoundError. A broker that does not let us ask gets the chunk.
    """
    try:
        info = await jetstream.stream_info(stream)
    except nats.errors.TimeoutError:
        return
    bytes_max = info.config.max_bytes or -1
    if 0 < bytes_max < info.state.bytes + size and info.config.discard == DiscardPolicy.NEW:
        raise UplinkError(f"the stream {stream} is full ({info.state.bytes} of {bytes_max} bytes)")


async def _is_stored(jetstream: JetStreamContext, site: str, media: MediaRow) -> bool:
    """Whether the broker has every chunk that it took, asked in some hundred bytes; yes when it does not let us ask."""
    every = media_subject(site, media.ref.id, 0).removesuffix("0") + "*"
    try:
        info = await jetstream.stream_info(STREAM_MEDIA, subjects_filter=every)
    except (nats.errors.TimeoutError, nats.js.errors.APIError):
        return True
    except (nats.errors.Error, OSError) as error:
        raise UplinkError(f"the media stream cannot be read: {type(error).__name__}") from None
    return len(info.state.subjects or {}) >= media.chunks_acked
