"""Builds the next message of an escalation, a chunk of its media or the escalation itself, under the egress policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance import wire
from appliance.base.errors import EvidenceError
from appliance.broker import NatsLink
from appliance.store.rows import EscalationRow, MediaRow
from appliance.uplink.jetstream_publisher import JetStreamPublisher
from appliance.uplink.nats_messages import NatsMessage, chunk_message, escalation_message, read_chunk
from appliance.uplink.outbox import Outbox
from appliance.uplink.send_queue import QueuedEscalation

CHECKED_MAX = 4096  # escalations of one connection of which it is known that the broker has their chunks

logger = logging.getLogger(__name__)


class EgressPolicy(Protocol):
    """The owner's privacy rules as they stand now; what waits in the outbox may have been made under others."""

    def forbids(self, escalation: wire.Escalation) -> bool:
        """Nothing of it may leave."""
        ...

    def withholds(self, camera: str, path: str) -> bool:
        """Return True if this image (a file of the storage folder) may not leave."""
        ...


class AllowAll:
    """No rules."""

    def forbids(self, escalation: wire.Escalation) -> bool:
        return False

    def withholds(self, camera: str, path: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message that goes now. media: the file that it is a chunk of; None: it is the escalation itself."""

    queued: QueuedEscalation
    message: NatsMessage
    media: MediaRow | None = None


class EscalationMessageBuilder:
    """Builds what an escalation carries, message by message, and puts the outbox right where that cannot be.

    Images of a camera that is `image_free` (made before the site file said so) are withheld here, at the one place
    from which images leave. Owner: the uplink's task. State: of which escalations it is known, on this connection,
    that the broker still has what was sent before.
    """

    def __init__(
        self, link: NatsLink, publisher: JetStreamPublisher, outbox: Outbox, root: Path, policy: EgressPolicy
    ) -> None:
        self._link = link
        self._publisher = publisher
        self._outbox = outbox
        self._root = root
        self._policy = policy
        self._checked: tuple[int, set[str]] = (0, set())

    async def next_message(self, queued: QueuedEscalation) -> OutgoingMessage | None:
        """Return the next message of an escalation: a chunk, or, once the broker has them all, the escalation.

        None: the outbox had to be put right first; pick again. Raise UplinkError, StoreError.
        """
        row = queued.row
        media = self._outbox.media_of(row.id)
        if self.apply_egress_policy(row, media) or await self._reopen_lost(row, media):
            return None
        for each in media:
            if each.chunks_acked < each.ref.chunks:
                return await self._chunk(queued, each)
        # What waited goes to the workers as the least urgent: there, too, it must not delay what is live.
        priority = row.priority if queued.live else wire.PRIORITIES[-1]
        return OutgoingMessage(queued, escalation_message(row.body, priority))

    def apply_egress_policy(self, row: EscalationRow, media: Sequence[MediaRow]) -> bool:
        """Return True if the policy changed the escalation.

        Either it may not leave, and is ended, or it had images that may not leave, and has none now.
        """
        if self._policy.forbids(row.body):
            logger.info("escalation %s ends: the privacy rules forbid it", row.id)
            self._outbox.drop(row, "the privacy rule of this camera forbids it")
            return True
        if not any(self._policy.withholds(row.camera, each.path) for each in media):
            return False
        logger.info("escalation %s goes without its images: they may not leave (any more)", row.id)
        self._outbox.withhold(row)
        return True

    async def _chunk(self, queued: QueuedEscalation, media: MediaRow) -> OutgoingMessage | None:
        row, n = queued.row, media.chunks_acked
        try:
            if queued.live:  # it has just been written: it is in memory
                payload = read_chunk(self._root, media.path, media.ref, n)
            else:
                payload = await asyncio.to_thread(read_chunk, self._root, media.path, media.ref, n)
        except EvidenceError as error:
            logger.warning("escalation %s goes without a file: %s", row.id, error)
            self._outbox.media_lost(row, media, str(error))
            return None
        return OutgoingMessage(queued, chunk_message(row.site, media.ref, n, payload), media)

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
