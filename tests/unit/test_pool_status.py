"""What workers announce of themselves, what an appliance believes of it, and what follows for the router."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import ManualClock, footage_period
from appliance.broker.nats_link import NatsLink
from appliance.config import BudgetConfig, PricesConfig
from appliance.router.escalation_budget import EscalationBudget
from appliance.types import SystemLoad
from appliance.uplink.worker_announcements import WORKERS_MAX, PoolMonitor, PoolState
from appliance.wire import PoolStatus
from cloud_worker.config import PoolConfig
from cloud_worker.metrics import PoolAnnouncer, WorkerMetrics
from tests.support.core_harness import CoreHarness, site

KNOWN = {"worker": "w1", "ready": True, "waiting": 40, "slots": 4, "judge_s": 2.0, "gpu_hour": 0.8, "ttl_s": 60.0}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def monitor(clock: ManualClock) -> PoolMonitor:
    return PoolMonitor(NatsLink(BrokerConfig(url="nats://127.0.0.1:1"), "test", clock), clock)


def announced(**changes: Any) -> bytes:
    return json.dumps({**KNOWN, **changes}).encode()


def test_without_an_announcement_nothing_is_known(monitor: PoolMonitor) -> None:
    assert monitor.state == PoolState()


def test_the_wait_is_the_shared_queue_over_all_slots(monitor: PoolMonitor) -> None:
    monitor.take(announced())
    monitor.take(announced(worker="w2", waiting=38, gpu_hour=1.2))
    assert monitor.state == PoolState(workers=2, ready=2, wait_s=10.0, gpu_hour=0.8)


def test_a_cold_pool_needs_what_is_left_of_the_quickest_cold_start(monitor: PoolMonitor) -> None:
    monitor.take(announced(ready=False, waiting=0, cold_start_s=45.0))
    monitor.take(announced(worker="w2", ready=False, waiting=0, cold_start_s=90.0))
    assert (monitor.state.ready, monitor.state.wait_s) == (0, 45.0)
    monitor.take(announced(worker="w2", waiting=0))
    assert (monitor.state.ready, monitor.state.wait_s) == (1, 0.0)


def test_what_is_older_than_its_time_to_live_is_as_if_it_had_never_come(
    monitor: PoolMonitor, clock: ManualClock
) -> None:
    monitor.take(announced(ttl_s=30.0))
    clock.advance(29.0)
    assert monitor.state.workers == 1
    clock.advance(2.0)
    assert monitor.state == PoolState()


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"{", b"null", b"[]", b"\xff" * 40,
        announced(waiting=-1), announced(waiting=10**12), announced(slots=0), announced(judge_s=1e308),
        announced(cold_start_s=-5), announced(gpu_hour=1e9), announced(ttl_s=86400.0), announced(ttl_s=0),
        announced(worker="a b"), announced(worker="x" * 100), announced(worker=None), announced(ready="perhaps"),
        announced().replace(b"0.8", b"NaN"), announced().replace(b"2.0", b"Infinity"), announced(more="x" * 5000),
    ],
)  # fmt: skip
def test_an_announcement_out_of_bounds_changes_nothing_and_is_counted(monitor: PoolMonitor, hostile: bytes) -> None:
    monitor.take(announced(worker="honest"))
    before = monitor.state
    monitor.take(hostile)
    assert (monitor.state, monitor.refused) == (before, 1)


def test_a_flood_of_names_is_bounded(monitor: PoolMonitor, clock: ManualClock) -> None:
    for n in range(WORKERS_MAX + 36):
        monitor.take(announced(worker=f"w{n}"))
    assert (monitor.state.workers, monitor.refused) == (WORKERS_MAX, 36)
    clock.advance(61.0)
    monitor.take(announced(worker="late"))
    assert monitor.state.workers == 1


# The worker's side


def announcer(clock: ManualClock, ready: bool = True, waiting: int = 3, **settings: Any) -> PoolAnnouncer:
    metrics = WorkerMetrics()
    for seconds in (1.0, 3.0):
        metrics.stages.labels("model", "high").observe(seconds)
    metrics.stages.labels("fetch", "high").observe(99.0)
    return PoolAnnouncer(
        PoolConfig(**settings), "w1", 4, metrics, clock, ready=lambda: ready, waiting=lambda: waiting
    )  # fmt: skip


def test_a_worker_says_what_waits_how_long_one_takes_and_what_is_left_of_its_cold_start(clock: ManualClock) -> None:
    cold = announcer(clock, ready=False, cold_start_s=60.0, gpu_hour=2.5)
    clock.advance(20.0)
    assert cold.status() == PoolStatus(
        worker="w1", ready=False, waiting=3, slots=4, judge_s=2.0, cold_start_s=40.0, gpu_hour=2.5, ttl_s=60.0
    )
    assert announcer(clock).status().cold_start_s == 0.0
    assert announcer(clock, waiting=10**9).status().waiting == 10_000_000


@pytest.mark.parametrize(
    ("text", "price"), [("0.83\n", 0.83), ("nan", None), ("-1", None), ("1e9", None), ("much", None), ("", None)]
)
def test_a_spot_price_comes_from_a_file_or_is_not_announced(
    clock: ManualClock, tmp_path: Path, text: str, price: float | None
) -> None:
    (tmp_path / "price").write_text(text)
    assert announcer(clock, gpu_hour=9.0, gpu_hour_file=tmp_path / "price").status().gpu_hour == price
    assert announcer(clock, gpu_hour_file=tmp_path / "none").status().gpu_hour is None


def test_a_worker_file_without_bounds_is_refused() -> None:
    with pytest.raises(ValidationError):
        PoolConfig(every_s=0)


# What follows


def test_an_escalation_waits_for_the_workers_and_goes_when_they_can_answer_in_time(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, site(router={"answer_s": 30}), ManualClock())
    box.system_load = SystemLoad(pool_wait_s=120.0)
    box.second()
    alert = box.walk()
    row = box.escalated(alert)
    assert row is not None
    assert (row.wait, box.decided(alert)[-1][0]) == ("pool", "later")
    with box.db.read() as connection:
        flagged = connection.execute("SELECT flagged FROM decision WHERE alert = ?", (alert,)).fetchone()[0]
    assert flagged.startswith("the workers cannot answer in time")
    box.system_load = SystemLoad(pool_wait_s=None)  # nobody announces anything any more: that holds nothing up
    box.second()
    row = box.escalated(alert)
    assert row is not None
    assert row.wait == ""


def test_an_announced_price_stands_in_for_that_of_the_site_file() -> None:
    budget = EscalationBudget(BudgetConfig(money_day=1.0), PricesConfig(gpu_hour=3600.0), footage_period)
    assert budget.cost(0).money == pytest.approx(1.0)
    budget.gpu_hour = 720.0
    assert budget.cost(0).money == pytest.approx(0.2)
