"""The sending side of the uplink as a whole, with a broker that answers as a test says and a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import UplinkError
from appliance.broker.nats_connection import LinkState
from appliance.broker.nats_link import end_tasks
from appliance.uplink.send_workers import REFUSED_MAX, REFUSED_S
from appliance.uplink.uplink_service import UplinkLoop
from tests.servers.site import AllowAll, Site
from tests.support.waiting import until_async

Publish = Callable[[str], Awaitable[None]]


class ScriptedLink:
    """Link, connection and JetStream in one: `publish` is called with the payload of each message."""

    state = LinkState(up=True, since=0.0, connects=1)

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    async def client(self) -> ScriptedLink:
        return self

    async def while_up(self, work: Awaitable[Any]) -> Any:
        return await work

    def jetstream(self, timeout: float) -> ScriptedLink:
        return self

    async def publish(self, subject: str, payload: bytes, **_: object) -> None:
        await asyncio.sleep(0)
        await self._publish(payload.decode())


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site", "nats://127.0.0.1:1", clock=ManualClock(), expire_s=60.0)
    yield site
    site.close()


def loop_of(site: Site, publish: Publish) -> UplinkLoop:
    return UplinkLoop(site.settings, cast(Any, ScriptedLink(publish)), site.deps, site.clock, AllowAll())


def clock_of(site: Site) -> ManualClock:
    return cast(ManualClock, site.clock)


def test_a_message_that_the_broker_never_takes_rests_and_the_others_go(here: Site) -> None:
    tried: list[str] = []

    async def publish(payload: str) -> None:
        tried.append(payload)
        if '"alert-1"' in payload:
            raise nats.errors.MaxPayloadError

    async def main() -> None:
        loop = loop_of(here, publish)
        assert await loop.run_once() == 1
        assert (len(tried), here.count("ready"), here.count("sent")) == (2, 1, 1), "once, and not again and again"
        assert await loop.run_once() == 0
        assert len(tried) == 2
        clock_of(here).advance(REFUSED_S)
        await loop.run_once()
        assert len(tried) == 3, "somebody may have raised the limit"

    here.ask(1, ())
    here.ask(2, ())
    asyncio.run(asyncio.wait_for(main(), 20))
    assert "max_payload" in (here.detail(1).escalation or here.next_ready()).error


def test_a_broker_that_takes_nothing_is_left_alone_for_a_while(here: Site) -> None:
    async def publish(payload: str) -> None:
        raise nats.errors.MaxPayloadError

    for n in range(REFUSED_MAX + 2):
        here.ask(n, ())
    with pytest.raises(UplinkError, match="one message after the other"):
        asyncio.run(asyncio.wait_for(loop_of(here, publish).run_once(), 20))


def test_what_is_due_besides_is_not_put_off_for_as_long_as_the_backlog_is_sent(here: Site) -> None:
    sent: list[str] = []

    async def publish(payload: str) -> None:
        clock_of(here).advance(5.0)
        sent.append(payload)

    async def main() -> None:
        running = asyncio.create_task(loop_of(here, publish).run())
        await until_async(lambda: not here.count("ready") or running.done())
        assert not running.done(), running.exception()
        await end_tasks(running)

    for n in range(40):
        here.ask(n, ())
    asyncio.run(asyncio.wait_for(main(), 30))
    assert 12 <= len(sent) <= 30, "for a minute, and then they are too old"
    assert here.count("expired") >= 10


async def parts_in_flight(loop: UplinkLoop, on_the_way: list[str], arrived: asyncio.Event) -> list[set[str]]:
    """Run once; return what was on the way each time that everything stood still, which arrives then."""
    flights: list[set[str]] = []
    sending = asyncio.create_task(loop.run_once())
    while not sending.done():
        before = list(on_the_way)
        for _ in range(50):
            await asyncio.sleep(0.001)
        if before and before == on_the_way:
            flights.append({"facts" if each.startswith("{") else each for each in before})
            on_the_way.clear()
            arrived.set()
            arrived.clear()
    await sending
    return flights


@pytest.mark.parametrize(
    ("live", "flights"),
    [(True, [{"one", "two"}, {"one"}, {"facts"}]), (False, [{"one"}, {"two"}, {"one"}, {"facts"}])],
)
def test_the_files_of_what_is_live_go_together_and_its_own_message_after_them(
    here: Site, live: bool, flights: list[set[str]]
) -> None:
    on_the_way: list[str] = []
    arrived = asyncio.Event()

    async def publish(payload: str) -> None:
        on_the_way.append(payload)
        await arrived.wait()

    here.ask(1, (b"one", b"two", b"one"), severity="alert" if live else "info")
    assert asyncio.run(asyncio.wait_for(parts_in_flight(loop_of(here, publish), on_the_way, arrived), 20)) == flights
    assert here.count("sent") == 1


def test_of_a_flight_only_what_was_not_stored_goes_again_and_that_is_one_failed_attempt(here: Site) -> None:
    tried: list[str] = []

    async def publish(payload: str) -> None:
        tried.append("facts" if payload.startswith("{") else payload)
        if payload in ("two", "three") and len(tried) <= 3:
            raise nats.errors.TimeoutError

    async def main() -> None:
        loop = loop_of(here, publish)
        with pytest.raises(UplinkError):
            await loop.run_once()
        row = here.next_ready()
        assert row.attempts == 1
        assert [each.chunks_acked for each in here.outbox.media_of(row.id)] == [1, 0, 0]
        await loop.run_once()

    here.ask(1, (b"one", b"two", b"three"))
    asyncio.run(asyncio.wait_for(main(), 20))
    assert sorted(tried[:3]) == ["one", "three", "two"]
    assert sorted(tried[3:]) == ["facts", "three", "two"]
    assert tried[-1] == "facts"
