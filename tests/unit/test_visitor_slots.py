"""What all visitors share has a part for each: one account or address takes its own and leaves the others theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.dashboard import live_api, recordings, renditions, stream_api
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.recordings import RecordingCuts, TooBusy, _Turn
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.stream_api import StreamHub, StreamViewer, TooManyViewers
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.web.visitor import OWNER, Visitor, set_visitor
from tests.support.dashboard_site import Site

ANNA, VIC = Visitor("anna"), Visitor("vic")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock())
    yield made
    made.close()


def live(site: Site) -> Callable[[], StreamViewer]:
    hub = LiveHub(site.segments, site.boxes, site.root, site.clock)
    return lambda: hub.join([], lambda: OWNER)


def events(site: Site) -> Callable[[], StreamViewer]:
    hub = StreamHub(lambda: 0, lambda rev, limit: [], site.clock)
    return lambda: hub.join(None)


@pytest.mark.parametrize(
    ("hub_of", "each", "total"),
    [
        (live, live_api.VIEWERS_EACH_MAX, live_api.VIEWERS_MAX),
        (events, stream_api.VIEWERS_EACH_MAX, stream_api.VIEWERS_MAX),
    ],
)
def test_one_account_and_one_address_have_a_share_of_the_streams(
    site: Site, hub_of: Callable[[Site], Callable[[], StreamViewer]], each: int, total: int
) -> None:
    async def story() -> None:
        join = hub_of(site)
        places = []
        for n in range(each):
            set_visitor(ANNA, f"10.0.0.{n}")  # from everywhere
            places.append(join())
        with pytest.raises(TooManyViewers, match="you "):
            join()
        set_visitor(VIC, "10.0.0.1")
        join().leave()
        for n in range(each):
            set_visitor(Visitor(f"user-{n}"), "10.0.1.1")  # as everybody
            join()
        with pytest.raises(TooManyViewers, match="you "):
            join()
        set_visitor(ANNA, "10.0.0.99")
        places[0].leave()
        places[0].leave()
        join()
        with pytest.raises(TooManyViewers, match="you "):
            join()
        for n in range(total - 2 * each):
            set_visitor(Visitor(f"more-{n}"), f"10.0.2.{n}")
            join()
        set_visitor(VIC, "10.0.0.1")
        with pytest.raises(TooManyViewers, match="too many "):
            join()

    asyncio.run(story())


def test_the_site_s_own_token_is_nobody_s_account(site: Site) -> None:
    """All who know it share it: counted is where they are."""

    async def story() -> None:
        join = events(site)
        for n in range(stream_api.VIEWERS_MAX):
            set_visitor(OWNER, f"10.0.0.{n}")
            join()

    asyncio.run(story())


async def as_visitor(who: Visitor, address: str, act: Callable[[], Awaitable[object]]) -> object:
    set_visitor(who, address)
    return await act()


def test_who_asks_for_much_of_the_recording_leaves_the_others_a_turn() -> None:
    async def story() -> tuple[list[object], object]:
        turn, go = _Turn(), asyncio.Event()

        async def look() -> str:
            async with turn.take():
                await go.wait()
            return "seen"

        noisy = [asyncio.create_task(as_visitor(ANNA, f"10.0.0.{n}", look)) for n in range(recordings.WAITING_MAX)]
        await asyncio.sleep(0)
        other = asyncio.create_task(as_visitor(VIC, "10.0.1.1", look))
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*noisy, return_exceptions=True), (
            await asyncio.gather(other, return_exceptions=True)
        )[0]

    noisy, other = asyncio.run(story())
    assert sum(isinstance(each, TooBusy) for each in noisy) == recordings.WAITING_MAX - recordings.WAITING_EACH_MAX
    assert other == "seen"


def test_who_has_much_converted_leaves_the_others_a_place(site: Site) -> None:
    made = Renditions(
        RecordingCuts(site.segments, site.root, READ_DIRECTLY, site.clock), site.root, READ_DIRECTLY, site.clock
    )
    go = threading.Event()

    async def absent() -> Path:
        await asyncio.to_thread(go.wait, 60)
        return site.root / "none.mp4"

    async def story() -> None:
        set_visitor(ANNA, "10.0.0.1")
        for n in range(renditions.WAITING_EACH_MAX):
            assert await made.ask(n, absent) == 0.0
        with pytest.raises(TooBusy, match="you "):
            await made.ask("one more", absent)
        assert await made.ask(0, absent) == 0.0, "to ask again takes no other place"
        set_visitor(VIC, "10.0.0.2")
        assert await made.ask("other", absent) == 0.0
        go.set()

    asyncio.run(story())
