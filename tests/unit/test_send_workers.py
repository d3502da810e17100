"""The send workers with scripted parts: the backlog gives way to what is live and on its way, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import nats.js.errors

from appliance.base.clock import SystemClock
from appliance.store.escalations import MediaRow
from appliance.store.outbox_queue import QueuedEscalation
from appliance.uplink.jetstream_publisher import ASKED_TOGETHER, JetStreamPublisher, NatsMessage
from appliance.uplink.send_workers import FLIGHT_BYTES_MAX, Flight, OutgoingMessage, SendWorkers
from tests.servers.site import ref_of
from tests.support.waiting import until_async


class Script:
    """All parts of the workers in one: escalations of one message each, sent when the test says."""

    last_refused = blocks = one_at_a_time = backlog_due = False

    def __init__(self, live: Sequence[str], backlog: Sequence[str], size: int = 100) -> None:
        self.live, self.backlog, self.size = list(live), list(backlog), size
        self.begun: list[str] = []
        self.arrived = asyncio.Event()
        self.daily_cap = SimpleNamespace(priorities=lambda: ("high",), fits=lambda size, priority: True)
        self.flight = self.flight_max = 0
        self.in_flight: Callable[[str], bool] = lambda name: False

    def pick(
        self, now: float, priorities: object, busy: Collection[str], *, live_only: bool = False
    ) -> QueuedEscalation | None:
        for names, live in ((self.live, True), ((), False) if live_only else (self.backlog, False)):
            for name in names:
                if name not in busy:
                    return QueuedEscalation(
                        cast(Any, SimpleNamespace(id=name, priority="high")), live, contested=bool(self.backlog)
                    )
        return None

    def record_sent(self, queued: QueuedEscalation, size: int) -> None: ...

    def refused(self) -> set[str]:
        return set()

    def wait_s(self, *, live: bool) -> float:
        return 0.0

    def charge_overhead(self) -> None: ...

    async def prepare(self, row: object) -> list[Any]:
        return []

    async def build(self, queued: QueuedEscalation, media: Sequence[Any]) -> Flight:
        return Flight(queued, (OutgoingMessage(NatsMessage("", b"x" * self.size, {}, "facts")),))

    async def deliver(self, flight: Flight) -> int:
        name = flight.queued.row.id
        self.begun.append(name)
        self.flight += flight.size
        self.flight_max = max(self.flight_max, self.flight)
        if self.in_flight(name):
            await self.arrived.wait()
        (self.live if flight.queued.live else self.backlog).remove(name)
        self.flight -= flight.size
        return 1


def workers(script: Script) -> SendWorkers:
    part = cast(Any, script)
    return SendWorkers(part, part, part, part, part, part, SystemClock())


def test_the_backlog_begins_nothing_while_what_is_live_is_in_flight() -> None:
    async def main() -> list[str]:
        script = Script(["live"], ["old 1", "old 2"])
        script.in_flight = lambda name: name == "live"
        sending = asyncio.create_task(workers(script).run_once())
        for _ in range(20):
            await asyncio.sleep(0)
        begun = list(script.begun)
        script.arrived.set()
        assert await sending == 3
        return begun

    assert asyncio.run(main()) == ["live"]


def test_it_gives_way_for_a_moment_only() -> None:
    async def main() -> list[str]:
        script = Script(["live"], ["old 1"])
        script.in_flight = lambda name: name == "live" and not script.arrived.is_set()
        sending = asyncio.create_task(workers(script).run_once())
        await until_async(lambda: script.begun == ["live", "old 1"])
        script.arrived.set()
        await sending
        return script.begun

    assert asyncio.run(asyncio.wait_for(main(), 60)) == ["live", "old 1"]


def test_together_they_have_a_chunk_in_flight_at_most() -> None:
    async def main() -> Script:
        script = Script([], [f"old {n}" for n in range(30)], size=FLIGHT_BYTES_MAX // 3)
        script.in_flight = lambda name: name == "old 0"
        sending = asyncio.create_task(workers(script).run_once())
        await until_async(lambda: len(script.begun) >= 20)
        script.arrived.set()
        assert await sending == 30
        return script

    assert asyncio.run(asyncio.wait_for(main(), 60)).flight_max <= FLIGHT_BYTES_MAX


class LossyStream:
    """Link, connection and JetStream in one: says that it lacks the chunks of `lost`, after a round trip."""

    def __init__(self, *lost: int) -> None:
        self.lost = lost
        self.asked = self.flight = self.flight_max = 0

    async def client(self) -> LossyStream:
        return self

    async def while_up(self, work: Awaitable[Any]) -> Any:
        return await work

    def jetstream(self, timeout: float) -> LossyStream:
        return self

    async def publish(self, subject: str, payload: bytes, **given: Any) -> None:
        self.asked, self.flight = self.asked + 1, self.flight + 1
        self.flight_max = max(self.flight_max, self.flight)
        await asyncio.sleep(0.01)
        self.flight -= 1
        last = 0 if int(subject.rsplit(".", 1)[1]) in self.lost else 7
        raise nats.js.errors.BadRequestError(code=400, err_code=10071, description=f"wrong last sequence: {last}")


def test_a_clip_that_is_half_sent_costs_few_round_trips_after_a_reconnection() -> None:
    """While the broker is asked what it has of one, nothing else is sent, live alerts included."""

    async def found(stream: LossyStream) -> list[MediaRow]:
        return await JetStreamPublisher(cast(Any, stream)).find_lost("s", [clip])

    clip = MediaRow(escalation="e", n=0, path="", ref=ref_of(b"clip"), chunks_acked=40)
    whole, holed = LossyStream(), LossyStream(20)
    assert asyncio.run(found(whole)) == []
    assert (whole.asked, whole.flight_max) == (40, ASKED_TOGETHER)
    assert asyncio.run(found(holed)) == [clip]
    assert holed.asked == 2 * ASKED_TOGETHER
