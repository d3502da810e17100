"""Budgets of money reckon with the judge's tokens: what a question of a camera took in the mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import config, wire
from appliance.base.clock import ManualClock, Period
from appliance.router.decide import EscalationCost
from appliance.router.escalation_budget import EscalationBudget
from appliance.store.decisions import CloudSpend, DecisionStore
from appliance.store.verdict_stats import TokenCount, TokenUsage
from tests.servers.site import Site

DAY_S = 86400.0
PRICES = config.PricesConfig(tokens_in_million=1.0, tokens_out_million=10.0)


def period(now: float) -> Period:
    day_t = now // DAY_S * DAY_S
    return Period("2026-11-21", day_t, day_t + DAY_S, day_t, day_t + 30 * DAY_S)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, "nats://127.0.0.1:1", clock=ManualClock())
    yield made
    made.close()


def judge(site: Site, n: int, tokens_in: int, tokens_out: int, began: str = "crops") -> None:
    """Alert `n` is asked about with this evidence and answered at that expense."""
    asked = site.ask(n)
    with site.db.transaction() as connection:
        connection.execute("UPDATE escalation SET evidence = ? WHERE id = ?", (began, asked))
    verdict = wire.Verdict(
        escalation=asked, site=site.name, alert=f"alert-{n}", decision="confirmed", reason="There.", kind="vlm",
        engine="e", model="m", seconds=0.0, judged_t=site.clock.now(), tokens_in=tokens_in, tokens_out=tokens_out,
    )  # fmt: skip
    assert site.alerts.apply_verdict(verdict, site.clock.now())


def test_an_escalation_costs_what_those_before_it_took(site: Site) -> None:
    judge(site, 1, 1000, 100)
    judge(site, 2, 3000, 300)
    judge(site, 3, 9000, 0, "clip")
    purse = EscalationBudget(config.BudgetConfig(money_day=1.0), PRICES, period)
    assert purse.counts_tokens
    assert purse.cost(0, "gate", "crops").money == 0.0, "nobody knows yet"
    now = site.clock.now()
    purse.set_tokens(DecisionStore(site.db).tokens(period(now).day_t, period(now).month_t))
    assert purse.cost(0, "gate", "crops").money == pytest.approx(0.004)
    assert purse.cost(0, "gate", "clip").money == pytest.approx(0.009)
    assert purse.cost(0, "yard", "crops").money == pytest.approx(0.004), "of another camera, until it has its own"


def test_what_is_gone_of_the_money_has_the_tokens_in_it(site: Site) -> None:
    judge(site, 1, 1000, 100)
    site.ask(2)
    with site.db.transaction() as connection:
        connection.execute("UPDATE escalation SET evidence = 'crops' WHERE alert = 'alert-2'")
    now = site.clock.now()
    purse = EscalationBudget(config.BudgetConfig(money_day=1.0), PRICES, period)
    purse.set_spent(CloudSpend(), now)
    taken = DecisionStore(site.db).tokens(period(now).day_t, period(now).month_t)
    assert (taken.day, dict(taken.due)) == (TokenCount(1000, 100), {("gate", "crops"): 1})
    purse.set_tokens(taken)
    assert purse.limits(now)[0].spent == pytest.approx(0.004), "what was judged, and what is to be"
    purse.spend(purse.cost(0, "gate", "crops"), now)
    assert purse.limits(now)[0].spent == pytest.approx(0.006)
    assert purse.limits(now + DAY_S)[0].spent == 0.0


def test_what_is_counted_after_midnight_is_of_the_new_day() -> None:
    purse = EscalationBudget(config.BudgetConfig(mb_day=5.0, gpu_s_day=60.0), PRICES, period)
    purse.set_spent(CloudSpend(bytes_day=4e6, gpu_s_day=50.0), 100.0)
    assert [each.spent for each in purse.limits(100.0)] == [4e6, 50.0]
    purse.set_spent(CloudSpend(bytes_day=1e6, gpu_s_day=2.0), DAY_S + 100.0)
    assert [each.spent for each in purse.limits(DAY_S + 100.0)] == [1e6, 2.0], "and is not forgotten with the old one"
    purse.spend(EscalationCost(3_000, 4.0, 0.0), 2 * DAY_S + 100.0)
    assert [each.spent for each in purse.limits(2 * DAY_S + 100.0)] == [3_000, 4.0]
    assert [each.renew_t for each in purse.limits(2 * DAY_S + 100.0)] == [3 * DAY_S] * 2


def test_the_announced_price_of_a_gpu_hour_counts_before_and_after_the_verdict() -> None:
    """A count of the store replaces what was expected of an escalation; its price stays the announced one."""
    purse = EscalationBudget(config.BudgetConfig(money_day=1.0), config.PricesConfig(gpu_hour=2.0), period)
    purse.gpu_hour = 36.0
    cost = purse.cost(0)
    assert cost.money == pytest.approx(purse.gpu_s / 100)
    for spent in (1, 2):
        purse.spend(cost, 100.0)
        assert purse.limits(100.0)[0].spent == pytest.approx(spent * cost.money)
    purse.set_tokens(TokenUsage())
    purse.set_spent(CloudSpend(gpu_s_day=2 * purse.gpu_s, gpu_s_month=2 * purse.gpu_s), 100.0)
    assert purse.limits(100.0)[0].spent == pytest.approx(2 * cost.money)


def test_without_a_budget_of_money_nobody_counts_tokens() -> None:
    assert not EscalationBudget(config.BudgetConfig(mb_day=1.0), PRICES, period).counts_tokens
    assert not EscalationBudget(
        config.BudgetConfig(money_day=1.0), config.PricesConfig(gpu_hour=2.0), period
    ).counts_tokens
