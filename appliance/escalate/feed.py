"""The messages of a durable consumer, each as soon as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import TracebackType

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from appliance.broker import Link
from appliance.errors import UplinkError

BATCH = 64
TOGETHER_MAX = 16
ASKED_S = 28.0  # for so long a request stands at the broker
LOST_S = 30.0  # a request that the broker has not ended by then did not get there

_REQUEST = json.dumps({"batch": BATCH, "expires": int(ASKED_S * 1e9)}).encode()
_ENDED = frozenset({"404", "408"})  # nothing came, or not as many


class Feed:
    """One standing request for up to BATCH messages, and another one when it is used up.

    nats-py's own `fetch` returns a batch when it is full or when its time is over: a message that came first would wait
    for others. State: how many messages the request may still bring. Owner: one task, for one connection.
    """

    def __init__(self, link: Link, client: Client, stream: str, consumer: str) -> None:
        self._link = link
        self._client = client
        self._consumer = consumer
        self._ask = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._left = 0

    async def __aenter__(self) -> Feed:
        self._subscription = await self._client.subscribe(self._inbox)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()

    async def next(self) -> list[Msg]:
        """The next message, whenever it comes, and those that have come with it, at most TOGETHER_MAX.

        Raises UplinkError when the connection or the consumer is gone.
        """
        assert self._subscription is not None
        try:
            while True:
                message = await self._link.while_up(self._next())
                if message is None:
                    continue
                found = [message]
                while len(found) < TOGETHER_MAX and self._left > 0 and self._subscription.pending_msgs:
                    message = await self._next()
                    if message is None:
                        break
                    found.append(message)
                return found
        except (nats.errors.Error, OSError) as error:
            raise UplinkError(f"{self._consumer} cannot be read: {type(error).__name__}") from None

    async def _next(self) -> Msg | None:
        """A message, or None: the request has ended."""
        assert self._subscription is not None
        if self._left <= 0:
            await self._client.publish(self._ask, _REQUEST, self._inbox)
            self._left = BATCH
        try:
            message = await self._subscription.next_msg(LOST_S)
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            self._left = 0
            return None
        status = (message.headers or {}).get("Status")
        if status is None or message.reply:
            self._left -= 1
            return message
        self._left = 0
        if status not in _ENDED:
            said = (message.headers or {}).get("Description", "")
            raise UplinkError(f"{self._consumer} cannot be read: {status} {said}".rstrip())
        return None
