"""Pulls escalations from JetStream, one at a time, and acknowledges them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import datetime

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from appliance.broker import NATS_ERRORS, NatsLink, broker_errors
from appliance.wire import STREAM_ESCALATION
from cloud_worker.stream_setup import consumer_name

ACK_S_MAX = 5.0  # after that it is delivered again, and answered from memory
PULL_S_MAX = 2.0  # a server that has the consumer answers in a round trip
_PULL = json.dumps({"batch": 1, "no_wait": True}).encode()


class NoConsumer(Exception):
    """The broker has no consumer of this name any more: it must be created again."""


class Delivery:
    """One delivered escalation. Its acknowledgements go over whichever connection is up then, as JetStream allows."""

    def __init__(self, message: Msg, link: NatsLink, priority: str) -> None:
        self._link = link
        self._reply = message.reply
        self.priority = priority
        self.subject = message.subject
        self.data = message.data
        self.headers = dict(message.headers or {})
        self.count: int = message.metadata.num_delivered or 1
        self.seq: int = message.metadata.sequence.stream
        self.stored: datetime = message.metadata.timestamp

    async def ack(self) -> None:
        """Return when the broker knows (double ack). Raise UplinkError."""
        client = await self._link.client()
        with broker_errors("an acknowledgement was not answered"):
            await client.request(self._reply, b"+ACK", timeout=ACK_S_MAX)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Ask the broker to deliver it once more, after `delay_s`."""
        await self._publish(b'-NAK {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    async def in_progress(self) -> None:
        await self._publish(b"+WPI")

    async def _publish(self, what: bytes) -> None:
        """Send the answer; without a connection nothing is sent.

        The broker then delivers again after ack_wait, which is right.
        """
        client = self._link.connected
        if client is not None:
            with contextlib.suppress(*NATS_ERRORS):
                await client.publish(self._reply, what)


async def pull_next(client: Client, link: NatsLink, site: str, priority: str) -> Delivery | None:
    """Return an escalation of this site and priority that no worker has in hand, or None.

    Raise NoConsumer, UplinkError. A plain request takes the place of nats-py's subscription: no request is left waiting
    at the broker. With `old_style` the answer keeps the escalation's own subject; the newer style would not know it.
    """
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM_ESCALATION}.{consumer_name(site, priority)}"
    with broker_errors(f"the escalations of {site} cannot be pulled"):
        try:
            message = await link.while_up(client.request(subject, _PULL, timeout=PULL_S_MAX, old_style=True))
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError, asyncio.TimeoutError):
            raise NoConsumer from None  # nats-server 2.9 does not answer for a consumer that is not there
        status = (message.headers or {}).get("Status")
        if status is None:
            return Delivery(message, link, priority)
    if status == "409":  # deleted meanwhile, or a limit of the server
        raise NoConsumer
    return None
