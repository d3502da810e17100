"""What is not done: wake-ups, writes and questions that nobody needs, counted."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from pathlib import Path
from typing import cast

import av
import pytest

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard import stream_api
from appliance.dashboard.stream_api import StreamHub
from appliance.evidence import evidence_maker as evidence
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.ingest.core_channel import BATCH_MAX, IngestChannel
from appliance.ingest.timestamps import SenderReports
from appliance.store.database import Database
from appliance.types import CameraState
from appliance.web import server
from appliance.web.server import WebServer
from tests.support.waiting import until, until_async

DEADLINE_S = 80.0
T0_US = 1_700_000_000_000_000


def state(n: int) -> CameraState:
    return CameraState(camera=f"cam{n}", state="live", t=float(n), reason="")


def test_the_core_wakes_once_for_all_that_sixteen_cameras_say_in_a_second() -> None:
    reading, writing = os.pipe()
    channel = IngestChannel(writing)
    for n in range(17):
        channel.put(state(n))
    channel.close()
    channel.run(lambda: None)
    os.close(writing)
    assert channel.writes == 1
    with os.fdopen(reading, "rb") as lines:
        assert len(lines.readlines()) == 17


def test_one_write_is_never_larger_than_a_batch() -> None:
    reading, writing = os.pipe()
    channel = IngestChannel(writing)
    for n in range(2 * BATCH_MAX + 1):
        channel.put(state(n))
    channel.close()
    channel.run(lambda: None)
    os.close(writing)
    os.close(reading)
    assert channel.writes == 3


class Told:
    """A packet to which libavformat has attached when it was taken."""

    def __init__(self, utc_us: int) -> None:
        self._data = struct.pack("=qiI", utc_us, 0, 0)

    def has_sidedata(self, kind: str) -> bool:
        return kind == "prft"

    def get_sidedata(self, kind: str) -> bytes:
        return self._data


def reported(utc_us: int) -> av.Packet[av.VideoStream]:
    return cast("av.Packet[av.VideoStream]", Told(utc_us))


def test_sender_s_reports_are_read_once_a_second_and_count_on_between() -> None:
    reports = SenderReports()
    told = [reports.utc_us(reported(T0_US + n * 66_667), n * 66_667) for n in range(60 * 15)]
    assert reports.reads == 60
    assert told == [T0_US + n * 66_667 for n in range(60 * 15)]
    assert reports.utc_us(reported(T0_US), 0) == T0_US  # stamps that jump back are read anew
    assert reports.reads == 61
    assert SenderReports().utc_us(reported(5), 0) == 5, "another connection"


class Naps(ManualClock):
    """Counts sleeps, and ends the story when time is up."""

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self.end = self.monotonic() + until_s
        self.naps: list[float] = []
        self.over = lambda: None

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        self.naps.append(seconds)
        if self.monotonic() >= self.end:
            self.over()
        return super().sleep(seconds, stop)


@pytest.fixture
def quiet(tmp_path: Path) -> tuple[EvidenceMaker, Naps]:
    clock = Naps(until_s=60.0)
    config = SiteConfig.model_validate({"cameras": {"yard": {"url": "file:clip.mp4"}}})
    maker = EvidenceMaker(Database(tmp_path / "vedette.db", clock), tmp_path, config.for_decisions(), clock)
    clock.over = maker.stop
    return maker, clock


def test_nobody_asks_for_evidence_ten_times_a_second_while_none_waits(quiet: tuple[EvidenceMaker, Naps]) -> None:
    maker, clock = quiet
    maker.run()
    assert len(clock.naps) <= 60 / evidence.IDLE_S + 2


def test_an_alert_wakes_who_makes_its_evidence(quiet: tuple[EvidenceMaker, Naps]) -> None:
    maker, clock = quiet
    woken: list[bool] = []

    def sleep(seconds: float, stop: threading.Event | None = None) -> bool:
        assert stop is not None
        maker.wake()
        woken.append(stop.is_set())
        maker.stop()
        return True

    clock.sleep = sleep  # type: ignore[method-assign]
    maker.run()
    assert woken == [True]


def test_a_hub_without_viewers_sleeps_until_the_first_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_api, "UNWATCHED_S", DEADLINE_S)

    async def story() -> tuple[int, bytes]:
        rounds = 0

        class Counting(StreamHub):
            async def run_once(self) -> None:
                nonlocal rounds
                rounds += 1
                await super().run_once()

        hub = Counting(lambda: 7, lambda after, limit: [], ManualClock())
        watching = asyncio.create_task(hub.run())
        for _ in range(50):  # the loop's turns, not time
            await asyncio.sleep(0)
        before = rounds
        viewer = aiter(hub.join(None))
        first = await asyncio.wait_for(anext(viewer), DEADLINE_S)
        await until_async(lambda: rounds > before)
        hub.close()
        await asyncio.wait_for(watching, DEADLINE_S)
        return before, first

    before, first = asyncio.run(asyncio.wait_for(story(), DEADLINE_S))
    assert before == 1
    assert first.startswith(b"retry")


def test_a_server_that_nobody_visits_ticks_once_a_second_and_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import FastAPI

    monkeypatch.setattr(server, "TICK_S", DEADLINE_S)  # were it waited for, the story would not end in time
    app = FastAPI()
    app.state.streams = (StreamHub(lambda: 0, lambda after, limit: [], ManualClock()),)
    site = WebServer(app, "127.0.0.1", 0)
    thread = threading.Thread(target=site.run)
    thread.start()
    until(lambda: site.started)
    site.stop()
    thread.join(DEADLINE_S / 2)
    assert not thread.is_alive()
