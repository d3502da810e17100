"""Workers announce themselves over a real nats-server; a site hears them and cannot speak for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

from appliance import wire
from tests.servers.nats import NatsBinary, NatsServer, find_nats_servers
from tests.servers.site import site
from tests.servers.worker import worker
from tests.support.waiting import until
from tests.system.test_escalation_nats import quiet, second_look, users_of_the_example

BINARIES = find_nats_servers()
FORGED = wire.PoolStatus(worker="forged", ready=True, gpu_hour=0.0).to_json()


@pytest.mark.parametrize("binary", BINARIES, ids=str)
def test_a_site_hears_the_workers_and_cannot_speak_for_them(binary: NatsBinary, tmp_path: Path) -> None:
    server = NatsServer(binary, tmp_path / "nats", extra=users_of_the_example()).start()
    engine, _ = second_look(0.9)
    mine, workers = server.url_of("depot-7", "secret-DEPOT_7"), server.url_of("worker", "secret-WORKER")
    try:
        with site(tmp_path / "site", mine) as here, worker(workers, engine):
            until(lambda: here.service.pool.ready == 1, 30)
            assert here.service.pool.wait_s == 0.0
            asyncio.run(announce(mine, inbox="_INBOX.depot-7"))
            asyncio.run(announce(workers, name="second"))  # after it, on the same way: so the forged one did not come
            until(lambda: here.service.pool.workers == 2, 30)
            assert here.service.pool.gpu_hour is None  # the forged one would have been free of charge
    finally:
        server.stop()


def test_a_site_that_may_not_listen_works_all_the_same(tmp_path: Path) -> None:
    rights = users_of_the_example().replace(
        '"vedette_pool.status", "vedette.depot-7.wanted"]', '"vedette.depot-7.wanted"]'
    )
    assert rights != users_of_the_example()
    server = NatsServer(BINARIES[0], tmp_path / "nats", extra=rights).start()
    engine, _ = second_look(0.9)
    try:
        mine, workers = server.url_of("depot-7", "secret-DEPOT_7"), server.url_of("worker", "secret-WORKER")
        with site(tmp_path / "site", mine) as here, worker(workers, engine):
            here.ask(1)
            until(lambda: here.settled(1), 30)
            assert here.service.pool.wait_s is None
    finally:
        server.stop()


async def announce(url: str, name: str = "", inbox: str = "_INBOX") -> None:
    client = await nats.connect(url, allow_reconnect=False, inbox_prefix=inbox, error_cb=quiet)
    try:
        data = wire.PoolStatus(worker=name, ready=True).to_json() if name else FORGED
        await client.publish(wire.POOL_SUBJECT, data)
        await client.flush(5)
    finally:
        await client.close()
