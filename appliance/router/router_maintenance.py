"""Upkeep of the router once a second: learns, counts spending, releases or expires postponed escalations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from appliance.base.clock import Clock, ClockStepDetector
from appliance.base.errors import StoreUnavailable
from appliance.config import EscalationConfig
from appliance.router.calibration import UNTRAINED
from appliance.router.decide import Postponement, SystemLoad, must_wait
from appliance.router.escalation_planner import RouterContext
from appliance.store.decisions import DecisionStore
from appliance.store.escalations import EscalationStore
from appliance.store.rows import EscalationRow
from appliance.types import EVIDENCE_STEPS, EvidenceStep, RouteInputs

logger = logging.getLogger(__name__)

LEARN_EVERY_S = 3600.0  # reviews come by hand; a fit takes some 100 ms
COUNT_EVERY_S = 10.0  # open alerts for the metrics
RELEASES_PER_RUN = 32  # a run is one of the core's seconds: what is left is released in the next
UNTIL_CHANGE_S = 60.0  # a later end of the wait is written when it differs by more than this
CLOCK_SETTLE_S = 120.0  # after a start, or a step of the clock, until the uplink has moved what waits with it

Write = Callable[[Callable[[], object]], None]


class RouterMaintenance:
    """Owner: the core, which calls `run_once` about once a second, in the thread in which its planners decide.

    Invariant: an escalation that was postponed is released once, when nothing is left that it must wait for, or given
    up when it is as old as any may become. State: when it learns and counts next, from when on ages are believed.
    """

    def __init__(
        self,
        decisions: DecisionStore,
        escalations: EscalationStore,
        context: RouterContext,
        clock: Clock,
        system_load: Callable[[], SystemLoad] = SystemLoad,
    ) -> None:
        """system_load: how link and appliance are doing now."""
        self._decisions = decisions
        self._escalations = escalations
        self._context = context
        self._clock = clock
        self._system_load = system_load
        self._learn_at = self._count_at = float("-inf")
        self._steps = ClockStepDetector(clock)
        self._trusted_at = clock.monotonic() + CLOCK_SETTLE_S

    def run_once(self, write: Write) -> None:
        """`write` does a job that the store may refuse for a while. Raises StoreError."""
        try:
            if self._steps.step_s():
                self._trusted_at = self._clock.monotonic() + CLOCK_SETTLE_S
            self._context.system_load = load = self._system_load()
            self._context.budget.gpu_hour = load.gpu_hour
            now = self._clock.monotonic()
            if now >= self._learn_at:
                self._learn_at = now + LEARN_EVERY_S
                self._learn()
            if now >= self._count_at:
                self._count_at = now + COUNT_EVERY_S
                self._count()
            for row in self._escalations.postponed(RELEASES_PER_RUN):
                self._release_or_expire(row, write)
        except StoreUnavailable as error:
            logger.info("the router tries again later: %s", error)

    def _learn(self) -> None:
        router = self._context.settings.router
        rows = self._decisions.outcomes()
        if not rows:  # a fit would be what it is without one
            self._context.calibration = replace(UNTRAINED, recall=router.recall_min)
            return
        from appliance.router.calibration_fit import decided_of, fit, outcomes_of  # numpy: where there is to learn

        outcomes = outcomes_of(rows)
        self._context.calibration = fit(
            outcomes, router.recall_min, router.error_max, decided_of(self._decisions.decided())
        )
        real = sum(each.real for each in outcomes)
        logger.info("the router learnt from %d alerts, %d of them real", len(outcomes), real)

    def _count(self) -> None:
        budget, now = self._context.budget, self._clock.now()
        if budget.is_limited:
            at = budget.period(now)
            budget.gpu_s = self._decisions.gpu_s_mean() or budget.gpu_s
            budget.set_spent(self._decisions.spent(at.day, at.day_t, at.month_t), now)
            if budget.counts_tokens:
                budget.set_tokens(self._decisions.tokens(at.day_t, at.month_t))

    def _release_or_expire(self, row: EscalationRow, write: Write) -> None:
        now, settings = self._clock.now(), self._context.settings
        old = now - row.created_t > settings.expire_hours * 3600
        if old and self._clock.monotonic() >= self._trusted_at:
            why = f"given up after {settings.expire_hours:g} h: it waited for {_WAITED[row.wait]}"
            write(lambda: self._escalations.expire_postponed(row, why))
            return
        wait = self._wait(row, settings, now)
        if wait is None:
            self._context.budget.spend(self._context.costs(row.camera)[_step(row, settings)], now)
            write(lambda: self._escalations.release(row))
            logger.info("escalation %s has waited for %s and is released", row.id, _WAITED[row.wait])
        elif (wait.why, wait.until_t) != (row.wait, row.until_t):
            until_t = wait.until_t
            if wait.why != row.wait or until_t is None or abs(until_t - (row.until_t or 0)) > UNTIL_CHANGE_S:
                write(lambda: self._escalations.postpone(row, wait.why, until_t))

    def _wait(self, row: EscalationRow, settings: EscalationConfig, now: float) -> Postponement | None:
        """Return the reason for which a stored escalation still waits: the rules of `decide`, with what is known now.

        One that waited for the queue waits until it is half as long, lest the queue be filled by what waited for it.
        """
        context, urgent = self._context, row.body.severity == "alert" and row.priority != "low"
        load = context.system_load
        queue = load.queue_age_s
        if queue is not None and row.wait == "queue":
            queue *= 2
        hours = settings.off_peak
        known = hours is not None and row.body.severity in hours.severities and context.off_peak_in_s is not None
        inputs = RouteInputs(
            severity=row.body.severity,
            queue_age_s=queue,
            load=load.load,
            temperature_c=load.temperature_c,
            off_peak_in_s=context.off_peak_in_s(now) if known and context.off_peak_in_s else None,
            pool_wait_s=load.pool_wait_s,
            gpu_hour=load.gpu_hour,
            offload=load.offload,
        )
        cost = context.costs(row.camera)[_step(row, settings)]
        return must_wait(inputs, cost, context.budget.limits(now), settings, now, urgent)


_WAITED = {
    "budget": "the budget to be renewed",
    "box": "the appliance to be less loaded",
    "queue": "the queue to be shorter",
    "pool": "the workers to answer in time",
    "price": "a lower price of the workers",
    "off-peak": "the off-peak hours",
}


def _step(row: EscalationRow, settings: EscalationConfig) -> int:
    first: EvidenceStep = row.evidence or settings.first
    return EVIDENCE_STEPS.index(first)
