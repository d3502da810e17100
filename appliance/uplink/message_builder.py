"""Builds the next message of an escalation (a chunk of its evidence, or the escalation itself) under the egress
policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance import wire
from appliance.broker import NatsLink
from appliance.errors import EvidenceError
from appliance.store.rows import EscalationRow, MediaRow
from appliance.uplink.jetstream_publisher import JetStreamPublisher
from appliance.uplink.nats_messages import NatsMessage, chunk_message, escalation_message, read_chunk
from appliance.uplink.outbox import Outbox
from appliance.uplink.send_queue import QueuedEscalation

logger = logging.getLogger(__name__)


class EgressPolicy(Protocol):
    """The owner's rules as they stand now; what waits in the outbox may have been made under others."""

    def forbids(self, question: wire.Escalation) -> bool:
        """Nothing of it may leave."""
        ...

    def withholds(self, camera: str, path: str) -> bool:
        """This picture (a file of the storage folder) may not leave."""
        ...


class AllowAll:
    """No rules."""

    def forbids(self, question: wire.Escalation) -> bool:
        return False

    def withholds(self, camera: str, path: str) -> bool:
        return False


CHECKED_MAX = 4096


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message that goes now, and what becomes of it. media None: it is the question itself."""

    queued: QueuedEscalation
    message: NatsMessage
    media: MediaRow | None = None


class EscalationMessageBuilder:
    """Packs what a question carries, message by message, and puts the outbox right where that cannot be.

    Pictures of a camera that is `image_free` (made before the site file said so) are withheld here, at the one place
    from which pictures leave. Owner: the uplink's task. State: of which questions it is known, on this connection,
    that the broker still has what went before.
    """

    def __init__(
        self, link: NatsLink, courier: JetStreamPublisher, outbox: Outbox, root: Path, border: EgressPolicy
    ) -> None:
        self._link = link
        self._courier = courier
        self._outbox = outbox
        self._root = root
        self._border = border
        self._at_hand: tuple[int, set[str]] = (0, set())

    async def next_message(self, turn: QueuedEscalation) -> OutgoingMessage | None:
        """The next message of a question: a chunk, or, when all are there, the question itself.

        None: the outbox had to be put right first; look again what is next. Raises UplinkError, StoreError.
        """
        row = turn.row
        pictures = self._outbox.media_of(row.id)
        if self.apply_egress_policy(row, pictures) or await self._begun_elsewhere(row, pictures):
            return None
        for media in pictures:
            if media.chunks_acked < media.ref.chunks:
                return await self._chunk(turn, media)
        return OutgoingMessage(turn, escalation_message(row, live=turn.live))

    def apply_egress_policy(self, row: EscalationRow, pictures: Sequence[MediaRow]) -> bool:
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

    async def _chunk(self, turn: QueuedEscalation, media: MediaRow) -> OutgoingMessage | None:
        row, n = turn.row, media.chunks_acked
        try:
            if turn.live:  # it has just been written: it is in memory
                payload = read_chunk(self._root, media.path, media.ref, n)
            else:
                payload = await asyncio.to_thread(read_chunk, self._root, media.path, media.ref, n)
        except EvidenceError as error:
            logger.warning("escalation %s goes without a picture: %s", row.id, error)
            self._outbox.media_lost(row, media, str(error))
            return None
        return OutgoingMessage(turn, chunk_message(row.site, media.ref, n, payload), media)

    async def _begun_elsewhere(self, row: EscalationRow, pictures: Sequence[MediaRow]) -> bool:
        """Whether chunks went over an earlier connection and the broker has lost them since: they go again."""
        connects = self._link.state.connects
        if self._at_hand[0] != connects or len(self._at_hand[1]) > CHECKED_MAX:
            self._at_hand = (connects, set())
        if row.id in self._at_hand[1]:
            return False
        lost = await self._courier.find_lost(row.site, [media for media in pictures if media.chunks_acked])
        self._at_hand[1].add(row.id)
        if lost:
            self._outbox.reopen(row, lost)
        return bool(lost)
