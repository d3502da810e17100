"""Budgets of escalations, today and this month: bytes, GPU seconds, money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from appliance.base.clock import Period
from appliance.config import BudgetConfig, PricesConfig
from appliance.router.decide import TUNING, BudgetLimit, EscalationCost
from appliance.store.decisions import CloudSpend
from appliance.store.verdict_stats import TokenCount, TokenUsage

_GB, _MB, _HOUR_S, _MILLION = 1e9, 1e6, 3600.0, 1e6  # bytes, bytes, seconds, tokens of a price


class EscalationBudget:
    """The budgets of a site and what is spent of them. Owner: the core, or a replay; one thread.

    State: what was spent in the day and month of the last count, the mean tokens of an escalation, and the expected
    money of escalations that are not judged yet. period: which those are (see clock.py).
    """

    def __init__(self, budget: BudgetConfig, prices: PricesConfig, period: Callable[[float], Period]) -> None:
        self._budget = budget
        self._prices = prices
        self.period = period
        """Returns the day and month that budgets go by at a time."""
        self._period: Period | None = None
        self._spent = CloudSpend()
        self._tokens = TokenUsage()
        self._reckoned = 0.0
        self.gpu_s = TUNING.judge_s
        """Seconds of the judge that one escalation is expected to take."""
        self.gpu_hour: float | None = None
        """The price that the workers announce, in place of the site file's; None: they announce none."""

    @property
    def is_limited(self) -> bool:
        amounts = self._budget.model_dump(exclude={"alert_reserve"}).values()
        return any(amount is not None for amount in amounts)

    @property
    def counts_tokens(self) -> bool:
        """Tokens have a price, and there is a budget of money."""
        prices, budget = self._prices, self._budget
        priced = prices.tokens_in_million or prices.tokens_out_million
        return bool(priced) and (budget.money_day is not None or budget.money_month is not None)

    def cost(self, bytes_: int, camera: str = "", evidence: str = "") -> EscalationCost:
        """Return the cost of an escalation of this camera with these bytes and this first evidence."""
        tokens = self._price(self._mean(camera, evidence))
        return EscalationCost(bytes_, self.gpu_s, self._money(bytes_, self.gpu_s) + tokens)

    def spend(self, cost: EscalationCost, now: float) -> None:
        """Add the cost of an escalation that goes out."""
        self._roll(now)
        had = self._spent
        self._spent = CloudSpend(
            bytes_day=had.bytes_day + cost.bytes,
            bytes_month=had.bytes_month + cost.bytes,
            gpu_s_day=had.gpu_s_day + cost.gpu_s,
            gpu_s_month=had.gpu_s_month + cost.gpu_s,
        )
        self._reckoned += cost.money - self._money(cost.bytes, cost.gpu_s)

    def set_spent(self, spent: CloudSpend, now: float) -> None:
        """Replace the reckoned spending by what the store has."""
        self._roll(now)
        self._spent = spent

    def set_tokens(self, tokens: TokenUsage) -> None:
        """Replace the reckoned tokens of the judge by what the store has."""
        self._tokens = tokens
        self._reckoned = sum(self._price(self._mean(*which)) * count for which, count in tokens.due.items())

    def limits(self, now: float) -> tuple[BudgetLimit, ...]:
        """Return the budgets that the site file sets, as they stand."""
        if not self.is_limited:
            return ()
        at, budget, spent = self._roll(now), self._budget, self._spent
        day = self._money(spent.bytes_day, spent.gpu_s_day) + self._price(self._tokens.day) + self._reckoned
        month = self._money(spent.bytes_month, spent.gpu_s_month) + self._price(self._tokens.month) + self._reckoned
        rows = (
            ("mb_day", "bytes", budget.mb_day, _MB, spent.bytes_day, at.day_end_t),
            ("mb_month", "bytes", budget.mb_month, _MB, spent.bytes_month, at.month_end_t),
            ("gpu_s_day", "gpu_s", budget.gpu_s_day, 1.0, spent.gpu_s_day, at.day_end_t),
            ("gpu_s_month", "gpu_s", budget.gpu_s_month, 1.0, spent.gpu_s_month, at.month_end_t),
            ("money_day", "money", budget.money_day, 1.0, day, at.day_end_t),
            ("money_month", "money", budget.money_month, 1.0, month, at.month_end_t),
        )
        return tuple(
            BudgetLimit(name, what, amount * unit, gone, renew_t)
            for name, what, amount, unit, gone, renew_t in rows
            if amount is not None
        )

    def _money(self, bytes_: float, gpu_s: float) -> float:
        gpu_hour = self._prices.gpu_hour if self.gpu_hour is None else self.gpu_hour
        return bytes_ / _GB * self._prices.uplink_gb + gpu_s / _HOUR_S * gpu_hour

    def _mean(self, camera: str, evidence: str) -> TokenCount:
        """Return the mean tokens of an escalation of this camera with this first evidence; 0: not known yet.

        If none is known, use those of any camera with this evidence, else of all escalations.
        """
        mean = self._tokens.mean
        if not mean or (camera, evidence) in mean:
            return mean.get((camera, evidence), TokenCount())
        alike = [each for (_, began), each in mean.items() if began == evidence] or list(mean.values())
        return TokenCount(
            sum(each.read for each in alike) / len(alike), sum(each.written for each in alike) / len(alike)
        )

    def _price(self, tokens: TokenCount) -> float:
        prices = self._prices
        return (tokens.read * prices.tokens_in_million + tokens.written * prices.tokens_out_million) / _MILLION

    def _roll(self, now: float) -> Period:
        """Begin a new day, or a new month, with nothing spent."""
        if self._period is not None and self._period.day_t <= now < self._period.day_end_t:
            return self._period
        at, before = self.period(now), self._period
        if before is not None and at.month_t != before.month_t:
            self._spent, self._tokens = CloudSpend(), replace(self._tokens, day=TokenCount(), month=TokenCount())
        elif before is not None:
            self._spent = replace(self._spent, bytes_day=0.0, gpu_s_day=0.0)
            self._tokens = replace(self._tokens, day=TokenCount())
        if before is not None:
            self._reckoned = 0.0
        self._period = at
        return at
