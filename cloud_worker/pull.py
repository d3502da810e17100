"""Takes questions from the broker: the urgent ones first, the others not never, and no more than can be judged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from appliance.broker import Link
from appliance.errors import UplinkError
from appliance.wire import PRIORITIES

PULL_S = 10.0
ACK_S_MAX = 5.0
WEIGHTS = {"high": 8, "normal": 3, "low": 1}


class Shares:
    """Which priority goes next: smooth weighted round robin (nginx's) among those that have something waiting.

    State: one credit per priority. Invariant: over 12 picks with all waiting, 8 are high, 3 normal and 1 low.
    """

    def __init__(self) -> None:
        self._credit = dict.fromkeys(PRIORITIES, 0)

    def pick(self, waiting: Collection[str]) -> str:
        """One of `waiting`, which is not empty."""
        for priority in waiting:
            self._credit[priority] += WEIGHTS[priority]
        chosen = max((p for p in PRIORITIES if p in waiting), key=lambda p: self._credit[p])
        self._credit[chosen] -= sum(WEIGHTS[priority] for priority in waiting)
        return chosen


class Delivery:
    """One delivered question. Its acknowledgements go over whichever connection is up then, as JetStream allows."""

    def __init__(self, message: Msg, link: Link) -> None:
        self._link = link
        self._reply = message.reply
        self.subject = message.subject
        self.data = message.data
        self.headers = dict(message.headers or {})
        self.count: int = message.metadata.num_delivered or 1
        self.stored: datetime = message.metadata.timestamp

    async def ack(self) -> None:
        """Return when the broker knows (double ack). Raises UplinkError."""
        client = await self._link.client()
        try:
            await client.request(self._reply, b"+ACK", timeout=ACK_S_MAX)
        except (nats.errors.Error, OSError) as error:
            raise UplinkError(f"an acknowledgement was not answered: {type(error).__name__}") from None

    async def again(self, delay_s: float = 0.0) -> None:
        """Have it delivered once more, after `delay_s`."""
        await self._say(b'-NAK {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    async def end(self) -> None:
        """Never deliver it again."""
        await self._say(b"+TERM")

    async def in_progress(self) -> None:
        await self._say(b"+WPI")

    async def _say(self, what: bytes) -> None:
        """Without a connection nothing is said: the broker then delivers again after ack_wait, which is right."""
        client = self._link.connected
        if client is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await client.publish(self._reply, what)


class Hand:
    """Owner of at most one delivered question of each priority that nobody judges yet.

    Invariant: questions are asked of the broker only while somebody waits in `take()`; those that arrive
    after that stay here, kept alive by the worker's heartbeat, and go first the next time.
    """

    def __init__(self) -> None:
        self._shares = Shares()
        self._places: dict[str, Delivery] = {}
        self._filled = asyncio.Event()
        self._wanted = asyncio.Event()

    def deliveries(self) -> list[Delivery]:
        return list(self._places.values())

    async def take(self) -> Delivery:
        """The next question to judge."""
        while not self._places:
            self._filled.clear()
            self._wanted.set()
            await self._filled.wait()
        return self._places.pop(self._shares.pick(self._places.keys()))

    async def pull(self, subscription: JetStreamContext.PullSubscription, priority: str, link: Link) -> None:
        """Fill the place of one priority for as long as the connection lasts. Raises UplinkError when it does not."""
        while True:
            await self._wanted.wait()
            try:
                message = (await link.while_up(subscription.fetch(1, timeout=PULL_S)))[0]
            except (nats.errors.TimeoutError, asyncio.TimeoutError):
                continue
            except (nats.errors.Error, OSError) as error:
                raise UplinkError(f"the questions ({priority}) cannot be pulled: {type(error).__name__}") from None
            self._wanted.clear()
            self._places[priority] = Delivery(message, link)
            self._filled.set()

    def empty(self) -> list[Delivery]:
        """Take out everything, to be given back."""
        found = self.deliveries()
        self._places.clear()
        return found
