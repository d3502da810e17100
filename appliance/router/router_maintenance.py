"""Maintains the router once a second, and takes frames in which nothing was reported for the audit."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from appliance import wire
from appliance.base.clock import Clock, ClockStepDetector
from appliance.base.errors import StoreUnavailable
from appliance.base.machine import load_per_core
from appliance.broker.nats_connection import LinkState
from appliance.config import EscalationConfig, Rule
from appliance.router.calibration import UNTRAINED
from appliance.router.decide import Postponement, is_drawn, must_wait
from appliance.router.escalation_planner import RouterContext, escalation_id
from appliance.store.decisions import DecisionStore
from appliance.store.escalations import EscalationRow, EscalationStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.types import EVIDENCE_STEPS, EvidenceStep, FrameBoxes, SystemLoad

logger = logging.getLogger(__name__)

LEARN_EVERY_S = 3600.0  # reviews come by hand; a fit takes some 100 ms
COUNT_EVERY_S = 10.0  # open alerts for the metrics
RELEASES_PER_RUN = 32  # a run is one of the core's seconds: what is left is released in the next
UNTIL_CHANGE_S = 60.0  # a later end of the wait is written when it differs by more than this
CLOCK_SETTLE_S = 120.0  # after a start, or a step of the clock, until the uplink has moved what waits with it
SILENT_RULE = "silent-audit"
SLOT_S = 60.0  # of each slot at most one frame is drawn
_DAY_S = 86400.0  # seconds
READ_EVERY_S = 10.0  # a one-minute mean moves no faster

Write = Callable[[Callable[[], object]], None]


class RouterMaintenance:
    """Owner: the core, which calls `run_once` about once a second, in the thread in which its planners decide.

    Invariant: a postponed escalation is released once, when no reason to wait is left, or given up at the maximum age.
    State: the times of the next calibration and count, and the time from which ages are reliable.
    """

    def __init__(
        self,
        decisions: DecisionStore,
        escalations: EscalationStore,
        context: RouterContext,
        meter: Meter,
        clock: Clock,
        system_load: Callable[[], SystemLoad] = SystemLoad,
    ) -> None:
        """system_load: how link and appliance are doing now."""
        self._decisions = decisions
        self._escalations = escalations
        self._context = context
        self._meter = meter
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
                self._learn()
                self._learn_at = now + LEARN_EVERY_S
            if now >= self._count_at:
                self._count()
                self._count_at = now + COUNT_EVERY_S
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
        old = now - row.times.created_t > settings.expire_hours * 3600
        if old and self._clock.monotonic() >= self._trusted_at:
            why = f"given up after {settings.expire_hours:g} h: it waited for {_WAITED[row.wait]}"
            write(lambda: self._expire(row, why))
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

    def _expire(self, row: EscalationRow, why: str) -> None:
        if self._escalations.expire_postponed(row, why):
            self._meter.add(row.camera, Metric(MetricName.OUTBOX_EXPIRED), 1)

    def _wait(self, row: EscalationRow, settings: EscalationConfig, now: float) -> Postponement | None:
        """Return the reason why a stored escalation still waits, by the rules of `decide` with present inputs.

        One that waited for the queue waits until the queue is half as long; otherwise the released ones would fill it
        at once.
        """
        # That priority is for alerts of the gravest severity, and for what a person asks; an audit sample never has it.
        context, urgent = self._context, row.priority == wire.PRIORITY_OF["alert"]
        load = context.system_load
        if load.queue_age_s is not None and row.wait == "queue":
            load = replace(load, queue_age_s=2 * load.queue_age_s)
        load = replace(load, off_peak_in_s=context.off_peak_left_s(row.body.severity, now))
        cost = context.costs(row.camera)[_step(row, settings)]
        return must_wait(load, cost, context.budget.limits(now), settings, now, urgent)


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


@dataclass(frozen=True, slots=True)
class SilentFrame:
    """A frame to be sent although nothing was reported in it. labels: those of the camera's rules."""

    escalation: wire.Escalation
    labels: tuple[str, ...]
    run: str


class SilentFrameAudit:
    """Draws frames of one camera. Owner: the core, in one thread. State: the last slot that was checked.

    Only site, camera and time decide which slots are drawn. Of a drawn slot the first examined frame is used in which
    no watched object was detected and during which no alert was open. It is sent only if a rule is armed, the privacy
    rules allow a whole frame, and budget and load permit it. Otherwise it is left out.
    """

    def __init__(
        self,
        camera: str,
        rules: Sequence[Rule],
        context: RouterContext,
        armed: Callable[[Rule, float], bool],
        may_leave: Callable[[str, float], bool],
    ) -> None:
        """armed: whether a rule is, at a time; may_leave: whether a whole frame may, at a time."""
        settings = context.settings
        self._camera = camera
        self._rules = [rule for rule in rules if rule.escalate and rule.severity in settings.severities]
        self._context = context
        self._armed = armed
        self._may_leave = may_leave
        self._share = settings.router.silent_frames_day * SLOT_S / _DAY_S
        self._enabled = context.uplink and settings.enabled and self._share > 0 and bool(self._rules)
        self._slot = -1

    def draw(self, boxes: FrameBoxes, model: str, run: str, now: float) -> SilentFrame | None:
        """Return the frame as an escalation, if it is one of the sample. Call it for frames while no alert is open."""
        slot = int(boxes.t // SLOT_S)
        if not self._enabled or not boxes.looked or slot == self._slot:
            return None
        if not is_drawn(f"silent|{self._context.site}|{self._camera}|{slot}", self._share):
            return None
        watching = [rule for rule in self._rules if self._armed(rule, boxes.t)]
        labels = tuple(dict.fromkeys(label for rule in watching for label in rule.labels))
        if not watching or any(found.label in labels for found in boxes.objects):
            return None
        self._slot = slot
        if not self._may_leave(self._camera, boxes.t) or not self._has_room(now):
            return None
        return SilentFrame(self._escalation(slot, boxes, labels, model, now), labels, run)

    def _has_room(self, now: float) -> bool:
        """Return True if the budget suffices now without the reserve for alerts; an audit is never postponed."""
        context, settings = self._context, self._context.settings
        load = context.system_load
        if load.link_up is False:
            return False
        load = replace(load, offload=False, off_peak_in_s=context.off_peak_left_s("info", now))
        cost = context.budget.cost(context.bytes_[0] + settings.frame_bytes_max, self._camera, "frames")
        if must_wait(load, cost, context.budget.limits(now), settings, now, urgent=False) is not None:
            return False
        context.budget.spend(cost, now)
        return True

    def _escalation(
        self, slot: int, boxes: FrameBoxes, labels: tuple[str, ...], model: str, now: float
    ) -> wire.Escalation:
        site = self._context.site
        alert = hashlib.sha256(f"silent|{site}|{self._camera}|{slot}".encode()).hexdigest()[:16]
        named = " or ".join(labels)[:60]
        return wire.Escalation(
            id=escalation_id(site, alert),
            site=site,
            camera=self._camera,
            alert=alert,
            rule=SILENT_RULE,
            kind=wire.AUDIT,
            label=named,
            severity="info",
            question=f"Nothing was reported here. Is there a {named} in this picture that should have been noticed?",
            t=boxes.t,
            created_t=now,
            model=model,
        )


class AnnouncedPool(Protocol):
    """The workers as they announce themselves; None: nobody said."""

    @property
    def wait_s(self) -> float | None: ...

    @property
    def gpu_hour(self) -> float | None: ...


class SystemLoadMonitor:
    """Reads queue and load at most every READ_EVERY_S, all else each time. Owner: the core's thread."""

    def __init__(
        self,
        link: Callable[[], LinkState] | None,
        escalations: EscalationStore,
        clock: Clock,
        temperature_c: Callable[[], float | None] = lambda: None,
        pool: Callable[[], AnnouncedPool] | None = None,
        offload: Callable[[], bool] = bool,
    ) -> None:
        """Take the sources of the readings.

        temperature_c: of the hottest sensor. offload: True while the appliance is too hot to recheck alerts of which it
        is not sure.
        """
        self._offload = offload
        self._link = link
        self._pool = pool
        self._escalations = escalations
        self._clock = clock
        self._temperature_c = temperature_c
        self._read_at = float("-inf")
        self._last = SystemLoad()

    def read(self) -> SystemLoad:
        """Read the load. Raise StoreError."""
        now = self._clock.monotonic()
        if now >= self._read_at:
            self._read_at = now + READ_EVERY_S
            self._last = SystemLoad(
                queue_age_s=round(self._escalations.queue_age_s(self._clock.now()), 1),
                load=load_per_core(),
            )
        last, pool = self._last, self._pool() if self._pool else None
        return SystemLoad(
            link_up=self._link().up if self._link else None,
            queue_age_s=last.queue_age_s,
            load=last.load,
            temperature_c=self._temperature_c(),
            pool_wait_s=pool.wait_s if pool else None,
            gpu_hour=pool.gpu_hour if pool else None,
            offload=self._offload(),
        )
