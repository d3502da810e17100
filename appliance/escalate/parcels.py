"""The next message of a question: a chunk of one of its pictures or, when the broker has them all, the question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.broker import Link
from appliance.errors import EvidenceError
from appliance.escalate.border import Border
from appliance.escalate.courier import Courier
from appliance.escalate.media import Message, chunk_message, question_message, read_chunk
from appliance.escalate.outbox import Outbox
from appliance.escalate.turns import Turn
from appliance.store.rows import EscalationRow, MediaRow

AT_HAND_MAX = 4096

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """A message that goes now, and what becomes of it. media None: it is the question itself."""

    turn: Turn
    message: Message
    media: MediaRow | None = None


class Parcels:
    """Packs what a question carries, message by message, and puts the outbox right where that cannot be.

    Pictures of a camera that is `image_free` (made before the site file said so) are withheld here, at the one place
    from which pictures leave. Owner: the uplink's task. State: of which questions it is known, on this connection,
    that the broker still has what went before.
    """

    def __init__(self, link: Link, courier: Courier, outbox: Outbox, root: Path, border: Border) -> None:
        self._link = link
        self._courier = courier
        self._outbox = outbox
        self._root = root
        self._border = border
        self._at_hand: tuple[int, set[str]] = (0, set())

    async def next_of(self, turn: Turn) -> Due | None:
        """The next message of a question: a chunk, or, when all are there, the question itself.

        None: the outbox had to be put right first; look again what is next. Raises UplinkError, StoreError.
        """
        row = turn.row
        pictures = self._outbox.media_of(row.id)
        if self.stopped_at_border(row, pictures) or await self._begun_elsewhere(row, pictures):
            return None
        for media in pictures:
            if media.chunks_acked < media.ref.chunks:
                return await self._chunk(turn, media)
        return Due(turn, question_message(row, live=turn.live))

    def stopped_at_border(self, row: EscalationRow, pictures: Sequence[MediaRow]) -> bool:
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

    async def _chunk(self, turn: Turn, media: MediaRow) -> Due | None:
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
        return Due(turn, chunk_message(row.site, media.ref, n, payload), media)

    async def _begun_elsewhere(self, row: EscalationRow, pictures: Sequence[MediaRow]) -> bool:
        """Whether chunks went over an earlier connection and the broker has lost them since: they go again."""
        connects = self._link.state.connects
        if self._at_hand[0] != connects or len(self._at_hand[1]) > AT_HAND_MAX:
            self._at_hand = (connects, set())
        if row.id in self._at_hand[1]:
            return False
        lost = await self._courier.lost(row.site, [media for media in pictures if media.chunks_acked])
        self._at_hand[1].add(row.id)
        if lost:
            self._outbox.reopen(row, lost)
        return bool(lost)
