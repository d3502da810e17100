"""What the router does once a second: learns, counts what was spent, releases or expires postponed escalations."""

from __future__ import annotations

import logging
from collections.abc import Callable

from appliance.clock import Clock
from appliance.config import EscalationConfig
from appliance.errors import StoreUnavailable
from appliance.router.calibration_fit import fit, outcomes_of
from appliance.router.decide import Postponement, SystemLoad, must_wait
from appliance.router.escalation_planner import RouterContext
from appliance.store.decisions import DecisionStore
from appliance.store.rows import EscalationRow
from appliance.types import EVIDENCE_STEPS, EvidenceStep, RouteInputs

logger = logging.getLogger(__name__)

LEARN_EVERY_S = 3600.0
COUNT_EVERY_S = 10.0
RELEASES_PER_RUN = 32

Write = Callable[[Callable[[], object]], None]


class RouterMaintenance:
    """Owner: the core, which calls `run_once` about once a second, in the thread in which its planners decide.

    Invariant: a question that was put off is let go once, when nothing is left that it must wait for, or given up
    when it is as old as any question may become. `around` says how link and box are doing.
    """

    def __init__(
        self,
        decisions: DecisionStore,
        outlook: RouterContext,
        clock: Clock,
        around: Callable[[], SystemLoad] = SystemLoad,
    ) -> None:
        self._decisions = decisions
        self._outlook = outlook
        self._clock = clock
        self._around = around
        self._learn_at = self._count_at = float("-inf")

    def run_once(self, write: Write) -> None:
        """`write` does a job that the store may refuse for a while. Raises StoreError."""
        try:
            self._outlook.system_load = self._around()
            now = self._clock.monotonic()
            if now >= self._learn_at:
                self._learn_at = now + LEARN_EVERY_S
                self._learn()
            if now >= self._count_at:
                self._count_at = now + COUNT_EVERY_S
                self._count()
            for asked in self._decisions.deferred(RELEASES_PER_RUN):
                self._look_at(asked, write)
        except StoreUnavailable as error:
            logger.info("the router looks again later: %s", error)

    def _learn(self) -> None:
        recall = self._outlook.settings.router.recall_min
        outcomes = outcomes_of(self._decisions.outcomes())
        self._outlook.calibration = fit(outcomes, recall)
        if outcomes:
            real = sum(each.real for each in outcomes)
            logger.info("the router learnt from %d alerts, %d of them real", len(outcomes), real)

    def _count(self) -> None:
        purse, now = self._outlook.budget, self._clock.now()
        if purse.is_limited:
            at = purse.period(now)
            purse.gpu_s = self._decisions.gpu_s_mean() or purse.gpu_s
            purse.set_spent(self._decisions.spent(at.day, at.day_t, at.month_t), now)
            if purse.counts_tokens:
                purse.set_tokens(self._decisions.tokens(at.day_t, at.month_t))

    def _look_at(self, asked: EscalationRow, write: Write) -> None:
        now, settings = self._clock.now(), self._outlook.settings
        if now - asked.created_t > settings.expire_hours * 3600:
            why = f"given up after {settings.expire_hours:g} h: it waited for {_WAITED[asked.wait]}"
            write(lambda: self._decisions.expire(asked, why))
            return
        wait = self._wait(asked, settings, now)
        if wait is None:
            self._outlook.budget.spend(self._outlook.costs(asked.camera)[_step(asked, settings)], now)
            write(lambda: self._decisions.release(asked))
            logger.info("escalation %s has waited for %s and is let go", asked.id, _WAITED[asked.wait])
        elif (wait.why, wait.until_t) != (asked.wait, asked.until_t):
            until_t = wait.until_t
            if wait.why != asked.wait or until_t is None or abs(until_t - (asked.until_t or 0)) > 60:
                write(lambda: self._decisions.postpone(asked, wait.why, until_t))

    def _wait(self, asked: EscalationRow, settings: EscalationConfig, now: float) -> Postponement | None:
        """What a question of the store still waits for: the rules of `decide`, with what is known now.

        One that waited for the queue waits until it is half as long, lest the queue be filled by what waited for it.
        """
        outlook, urgent = self._outlook, asked.body.severity == "alert" and asked.priority != "low"
        around = outlook.system_load
        queue = around.queue_age_s
        if queue is not None and asked.wait == "queue":
            queue *= 2
        hours = settings.off_peak
        known = hours is not None and asked.body.severity in hours.severities and outlook.off_peak_in_s is not None
        inputs = RouteInputs(
            severity=asked.body.severity,
            queue_age_s=queue,
            load=around.load,
            temperature_c=around.temperature_c,
            off_peak_in_s=outlook.off_peak_in_s(now) if known and outlook.off_peak_in_s else None,
        )
        cost = outlook.costs(asked.camera)[_step(asked, settings)]
        return must_wait(inputs, cost, outlook.budget.limits(now), settings, now, urgent)


_WAITED = {
    "budget": "the budget to be renewed",
    "box": "the box to be less loaded",
    "queue": "the queue to be shorter",
    "off-peak": "the off-peak hours",
}


def _step(asked: EscalationRow, settings: EscalationConfig) -> int:
    first: EvidenceStep = asked.evidence or settings.first
    return EVIDENCE_STEPS.index(first)
