"""Answers workers that ask whether an escalation is still wanted: another region may have answered it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib

from nats.aio.msg import Msg

from appliance.base.errors import StoreError, UplinkError
from appliance.broker import NATS_ERRORS, NatsLink
from appliance.uplink.outbox import Outbox
from appliance.wire import wanted_subject

PENDING_BYTES_MAX = 64 * 1024  # requests that wait to be answered
RETRY_S = 0.2  # sooner than verdicts are read again: a worker takes a site that reads and does not answer to want all


class WantedResponder:
    """Owner of one subscription, one task. State: none."""

    def __init__(self, link: NatsLink, site: str, outbox: Outbox) -> None:
        self._link = link
        self._subject = wanted_subject(site)
        self._outbox = outbox

    async def run(self) -> None:
        """Answer until cancelled. Where the broker does not let us, workers judge without asking."""
        while True:
            client = await self._link.client()
            try:
                requests = await client.subscribe(self._subject, cb=self._answer, pending_bytes_limit=PENDING_BYTES_MAX)
                try:
                    await self._link.while_up(asyncio.Event().wait())
                finally:
                    with contextlib.suppress(*NATS_ERRORS):
                        await requests.unsubscribe()
            except UplinkError:
                continue  # the connection was lost: there is another one when `client` returns
            except NATS_ERRORS:
                await asyncio.sleep(RETRY_S)

    async def _answer(self, message: Msg) -> None:
        with contextlib.suppress(StoreError, UnicodeDecodeError, *NATS_ERRORS):  # no answer: it is judged
            wanted = self._outbox.queue.is_open(message.data.decode("ascii"))
            await message.respond(b"yes" if wanted else b"no")
