"""Sends one message, pays for it, and tells the outbox what became of it."""

from __future__ import annotations

from collections.abc import Callable

from appliance.clock import Clock
from appliance.errors import UplinkError
from appliance.escalate.breaker import Breaker
from appliance.escalate.courier import Courier, Refused
from appliance.escalate.media import Message, question_message
from appliance.escalate.notary import Notary
from appliance.escalate.outbox import Outbox
from appliance.escalate.parcels import Due
from appliance.escalate.toll import Toll
from appliance.store.rows import EscalationRow
from appliance.wire import STREAM_ESCALATION, STREAM_MEDIA

UNSURE_MAX = 4096


class Sender:
    """Invariant: the outbox is told of what the broker acknowledged, after that. All bytes put on the link are paid
    for, also those of failed attempts. Owner: the uplink's task. State: the ids of messages that left and were not
    acknowledged, a lane's worth at a cut; what has one of them goes `again`.
    """

    def __init__(
        self,
        courier: Courier,
        outbox: Outbox,
        notary: Notary,
        toll: Toll,
        breaker: Breaker,
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
    def doubts(self) -> bool:
        """The broker refused the last message: one at a time until it takes one."""
        return self._courier.doubts

    async def deliver(self, due: Due) -> int:
        """Send one message and note that it was stored; returns how many questions went (1 or 0)."""
        row, media = due.turn.row, due.media
        stream = STREAM_ESCALATION if media is None else STREAM_MEDIA
        if not await self._send(row, due.message, stream):
            return 0
        if media is not None:
            acked, size = media.chunks_acked + 1, due.message.size
            await self._notary.note(lambda: self._outbox.chunk_acked(row, media, acked, size), durable=False)
            return 0
        await self._sent(row, due.message.size)
        self._breaker.asked()
        return 1

    async def ask_again(self, row: EscalationRow) -> int:
        """Send the question alone once more; returns how many went (1, or 0: not today, or it is refused)."""
        message = question_message(row, live=False)
        if not self._toll.today.fits(message.size, row.priority):
            return 0
        if not await self._send(row, message, STREAM_ESCALATION, again=True):
            return 0
        await self._sent(row, message.size)
        return 1

    async def _sent(self, row: EscalationRow, size: int) -> None:
        await self._notary.note(lambda: self._outbox.sent(row, self._clock.now(), size))

    async def _send(self, row: EscalationRow, message: Message, stream: str, *, again: bool = False) -> bool:
        """Publish and wait for the acknowledgement; False when this very message is refused for good."""
        name = message.headers["Nats-Msg-Id"]
        self._toll.pay(row.camera, "again" if again or name in self._unsure else message.kind, message.size)
        if len(self._unsure) > UNSURE_MAX:
            self._unsure.clear()
        self._unsure.add(name)
        try:
            await self._courier.publish(message, stream)
            self._unsure.discard(name)
            self._breaker.took()
            return True
        except Refused as error:
            self._waits(f"escalation {row.id} was refused: {error}")
            self._unsure.discard(name)
            self._outbox.failed(row, str(error), message.size)
            return False
        except UplinkError as error:
            self._outbox.failed(row, str(error), message.size)
            raise
