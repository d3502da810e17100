"""Decides whether, when and with which evidence the cloud is asked about an alert. Pure.

The rules have this order, and a later one never overrides an earlier one: privacy; the site file; earlier escalations
of the same object; alerts that are hardly ever real, or worth less than their bytes; alerts of which the appliance is
sure. Of all these except the first two an audit sample is escalated nevertheless. The last rule names the reasons to
wait: budget, appliance, queue, workers, price, off-peak hours. So it is a cascade: sure alerts stay on the appliance on
both sides, and what is in between goes to the larger model.

The value is `weight of the severity x chance of being real / 100 kB of the evidence it begins with`: in a budget of
bytes, escalating in the order of falling value brings the most real incidents to the cloud (the greedy solution of the
fractional knapsack, G. Dantzig, 1957). The weights differ little, so that sure nonsense of a grave rule comes after a
sure person of a lesser one. A question in the owner's own words is worth more, for its answer says more than yes or no.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance import wire
from appliance.config import EscalationConfig, RouterConfig
from appliance.router.calibration import SURE_MIN
from appliance.types import (
    EVIDENCE_STEPS,
    AuditSide,
    EdgeAnswer,
    EvidenceStep,
    RouteInputs,
    SendTiming,
    Severity,
    SystemLoad,
    Tier,
)


@dataclass(frozen=True, slots=True)
class RouterTuning:
    """Constants of the router's reckoning. Sizes and fills are those of our own encoder; values are set by hand."""

    facts_bytes: int = 1500
    """An escalation with subject and headers."""
    crop_fill: float = 0.8
    clip_fill: float = 0.9
    """Shares of the allowed bytes that crops and a clip take."""
    jpeg_bytes_per_pixel: float = 0.12
    """Bytes a pixel of whole frames at full quality."""
    judge_s: float = 1.0
    """GPU seconds of an escalation, until the first verdict tells."""
    alert_value: float = 1.0
    warning_value: float = 0.8
    info_value: float = 0.6
    own_text_factor: float = 1.25
    repeat_factor: float = 0.1
    """Factor for a stationary object that was escalated before."""
    value_bytes: int = 100_000
    """Values are per so many bytes: a round number that makes them about 1."""

    def value_of(self, severity: Severity) -> float:
        return {"alert": self.alert_value, "warning": self.warning_value, "info": self.info_value}[severity]


TUNING = RouterTuning()
_NOT_DOUBTED = (None, "rechecked", "confirmed")
"""The appliance's own second detection did not look, or found the object again."""
WAITS = {
    "budget": "waits until the budget is renewed",
    "box": "waits until the appliance is less loaded",
    "queue": "waits until fewer questions are in the queue",
    "pool": "waits for the workers, which cannot answer in time",
    "price": "waits for a lower price of the workers",
    "off-peak": "waits for the off-peak hours",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCase:
    """One alert, and all that the decision may depend on.

    requested: a person asks for it, which overrides the rules' `escalate` and the value, but neither privacy nor
    budget. uplink: the site file has one, connected or not. costs: of each evidence step, in their order. now: UTC
    seconds live, of the footage in a replay.
    """

    alert: str
    rule: str
    escalate: bool
    uplink: bool
    inputs: RouteInputs
    costs: tuple[EscalationCost, ...]
    limits: tuple[BudgetLimit, ...] = ()
    now: float = 0.0
    requested: bool = False

    def cost(self, evidence: EvidenceStep) -> EscalationCost:
        return self.costs[EVIDENCE_STEPS.index(evidence)]


@dataclass(frozen=True, slots=True)
class EscalationCost:
    """Expected cost of an escalation: bytes on the uplink, seconds of the GPU, money in the site's currency."""

    bytes: int
    gpu_s: float
    money: float

    def of(self, what: str) -> float:
        """bytes, gpu_s or money."""
        return float(getattr(self, what))


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """One budget of the site file.

    name: its key there. what: bytes, gpu_s or money. amount, spent: in that unit. renew_t: UTC seconds.
    """

    name: str
    what: str
    amount: float
    spent: float
    renew_t: float

    def has_room(self, cost: EscalationCost, reserve: float) -> bool:
        """For an escalation that must leave the share `reserve` of it."""
        return self.spent + cost.of(self.what) <= self.amount * (1 - reserve)

    def ever_has_room(self, cost: EscalationCost, reserve: float) -> bool:
        """Return True if the budget would have room once it is renewed."""
        return cost.of(self.what) <= self.amount * (1 - reserve)


@dataclass(frozen=True, slots=True)
class Postponement:
    """Reason for which an escalation waits. until_t: it waits at least until then.

    The reasons are budget, box (the appliance's load), queue, pool (of workers), price or off-peak.
    """

    why: str
    until_t: float | None = None


@dataclass(frozen=True, slots=True)
class RouterDecision:
    """Decision about an alert, with its reason for a person.

    priority: one of wire.PRIORITIES; empty when never. value: expected value of the verdict per 100 kB: a rank, to be
    compared with others of the same settings. cost: of the evidence it begins with. audit_share: above 0 it is
    escalated only as one of a sample of what stays at the edge, on the side audit_of. edge: the appliance's own answer;
    flagged: why it is used for now although the cloud is asked.
    """

    when: SendTiming
    reason: str
    priority: str = ""
    evidence: EvidenceStep = "facts"
    value: float = 0.0
    cost: EscalationCost = EscalationCost(0, 0.0, 0.0)
    wait: Postponement | None = None
    audit_share: float = 0.0
    audit_of: AuditSide = ""
    edge: EdgeAnswer = ""
    flagged: str = ""

    @property
    def tier(self) -> Tier:
        """The tier that answers."""
        return "cloud" if self.ask else "edge"

    @property
    def ask(self) -> bool:
        return self.when != "never"


def decide(case: RouterCase, settings: EscalationConfig) -> RouterDecision:
    """Decide whether to escalate this alert. The result depends only on the arguments."""
    inputs = case.inputs
    # Where nothing is ever asked, tracks are not followed for it, and so the chance says little.
    edge = edge_answer(inputs) if case.uplink and settings.enabled else ""
    refused = _refused(case, settings)
    if refused:
        return RouterDecision("never", refused, edge=edge)
    first = _first_evidence(inputs, settings, edge)
    value = value_of(inputs, case.cost(first))
    kept = _Kept() if case.requested else _kept(inputs, value, settings.router)
    if kept.reason and not is_drawn(f"audit|{case.alert}", kept.share):
        return RouterDecision("never", kept.reason, evidence=first, value=value, cost=case.cost(first), edge=edge)
    audited = bool(kept.reason) and not kept.learning
    urgent = case.requested or (inputs.severity == "alert" and not audited)
    evidence = _affordable(case, first, settings, urgent)
    priority = "low" if audited else wire.PRIORITY_OF["alert" if case.requested else inputs.severity]
    reason = (
        "a person asks" if case.requested else f"severity {inputs.severity} is asked about with {priority} priority"
    )
    decided = RouterDecision(
        "now",
        f"audit sample: {kept.reason}" if audited else reason,
        priority,
        evidence,
        value_of(inputs, case.cost(evidence)),
        case.cost(evidence),
        audit_share=kept.share,
        audit_of=kept.side,
        edge=edge,
        flagged=_flagged(inputs.system_load, case.cost(evidence), settings.router),
    )
    return _postponed(decided, case, settings, urgent)


def edge_answer(inputs: RouteInputs) -> EdgeAnswer:
    """Return the appliance's own answer about an alert."""
    known = inputs.calibrated
    if inputs.rechecked in _NOT_DOUBTED and known.chance >= known.chance_max:
        return "sure"
    return "doubtful" if inputs.rechecked is None and known.chance < known.chance_min else "between"


def certainty_of(edge: EdgeAnswer, chance: float) -> float:
    """Return the probability that the appliance's own answer about an alert of this chance is right; 0: it has none.

    An alert can be `doubtful` at a chance above 0.5: while all alerts are escalated, the threshold may be there.
    """
    return round({"sure": chance, "doubtful": 1 - chance}.get(edge, max(chance, 1 - chance)), 4) if edge else 0.0


def must_wait(
    load: SystemLoad,
    cost: EscalationCost,
    limits: Sequence[BudgetLimit],
    settings: EscalationConfig,
    now: float,
    urgent: bool,
) -> Postponement | None:
    """Return the reason for which an escalation of this cost waits now; None: it need not wait.

    An urgent one waits for the budget alone.
    """
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    short = [limit.renew_t for limit in limits if not limit.has_room(cost, reserve)]
    if short:
        return Postponement("budget", max(short))
    if urgent:
        return None
    if _strained(load, settings.router):
        return Postponement("box")
    if load.queue_age_s is not None and load.queue_age_s > settings.router.queue_age_max_s:
        return Postponement("queue")
    if _too_late(load, cost, settings.router):
        return Postponement("pool")
    price_max = settings.prices.gpu_hour_max
    if load.gpu_hour is not None and price_max is not None and load.gpu_hour > price_max:
        return Postponement("price")
    if load.off_peak_in_s:
        return Postponement("off-peak", now + load.off_peak_in_s)
    return None


def value_of(inputs: RouteInputs, cost: EscalationCost) -> float:
    """Return the value of asking; see above."""
    grave = TUNING.value_of(inputs.severity) * (TUNING.own_text_factor if inputs.own_question else 1.0)
    new = TUNING.repeat_factor if inputs.repeat else 1.0
    return round(grave * new * inputs.calibrated.chance * TUNING.value_bytes / max(1, cost.bytes), 4)


def is_drawn(what: str, share: float) -> bool:
    """Return True if `what` is in a sample of this share. Its text decides, so a replay draws the same ones."""
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big") < share * 2.0**64


def expected_bytes(settings: EscalationConfig) -> tuple[int, ...]:
    """Return the bytes of an escalation that begins with each evidence step, in order, by the site file's sizes."""
    crops = settings.crops * settings.crop_bytes_max * TUNING.crop_fill
    frames = settings.frames * settings.frame_side_max**2 * 9 / 16 * TUNING.jpeg_bytes_per_pixel
    clip = settings.clip_bytes_max * TUNING.clip_fill
    return tuple(round(TUNING.facts_bytes + more) for more in (0, crops, frames, clip))


def _refused(case: RouterCase, settings: EscalationConfig) -> str:
    """Why it must not be escalated, or ''."""
    inputs = case.inputs
    if inputs.privacy == "never":
        return "the privacy rule of this camera forbids it"
    if not case.uplink:
        return "this site has no uplink"
    if not settings.enabled:
        return "escalation is switched off"
    if case.requested:
        return ""
    if not case.escalate:
        return f"the rule {case.rule} is not to be escalated"
    if inputs.severity not in settings.severities:
        return f"alerts of severity {inputs.severity} are not escalated"
    return ""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Why an alert stays at the edge, or ''; share: the part of such alerts that is escalated, on the side `side`.

    learning: there is no claim yet, so the share serves to learn, not to audit.
    """

    reason: str = ""
    share: float = 0.0
    side: AuditSide = ""
    learning: bool = False


def _kept(inputs: RouteInputs, value: float, settings: RouterConfig) -> _Kept:
    """Return why the verdict is not worth its cost. These are the router's own estimates, so they are audited."""
    edge = edge_answer(inputs)
    if inputs.repeat:
        return _Kept(f"this {inputs.label} stands where it was asked about before", settings.audit_share, "doubtful")
    if edge == "doubtful" and not inputs.system_load.offload:
        return _Kept("such alerts are hardly ever real", settings.audit_share, "doubtful")
    if value < settings.value_min:
        return _Kept("the answer is worth less than its bytes", settings.audit_share, "doubtful")
    # A question in the owner's own words is one that the appliance cannot answer; in a crowd its boxes are less sure.
    if inputs.own_question or inputs.crowd > settings.crowd_max or settings.error_max <= 0:
        return _Kept()
    if edge == "sure":
        return _Kept("the appliance is sure: such alerts are hardly ever wrong", settings.audit_share, "sure")
    known = inputs.calibrated
    if known.learn_share < 1 and known.chance >= SURE_MIN and inputs.rechecked in _NOT_DOUBTED:
        return _Kept("the appliance is likely sure, and is still learning", known.learn_share, "sure", learning=True)
    return _Kept()


def _flagged(load: SystemLoad, cost: EscalationCost, settings: RouterConfig) -> str:
    """Why the answer of the appliance stands for now, or ''."""
    if load.link_up is False:
        return "the cloud cannot be reached: the appliance's own answer stands until it can"
    if _too_late(load, cost, settings):
        return "the workers cannot answer in time: the appliance's own answer stands until they have"
    return ""


def _too_late(load: SystemLoad, cost: EscalationCost, settings: RouterConfig) -> bool:
    """Return True if the answer would come later than the site file allows. An unknown delay is not too late."""
    if settings.answer_s is None or load.pool_wait_s is None:
        return False
    return load.pool_wait_s + cost.gpu_s > settings.answer_s


def _affordable(case: RouterCase, first: EvidenceStep, settings: EscalationConfig, urgent: bool) -> EvidenceStep:
    """Return the evidence to begin with.

    It is less than usual if appliance, queue or budget are short and the escalation cannot wait. If it must wait for a
    new budget, it is the most that the new budget can pay. A rule in the owner's own words always has an image, even
    with a short budget: facts do not answer it.
    """
    index = EVIDENCE_STEPS.index(first)
    crops = EVIDENCE_STEPS.index("crops")
    load = case.inputs.system_load
    late = load.queue_age_s is not None and load.queue_age_s > settings.router.queue_age_max_s
    if index > crops and urgent and (late or load.link_up is False or _strained(load, settings.router)):
        index = crops
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    least = min(index, crops if case.inputs.own_question else 0)
    for fits in (BudgetLimit.has_room, BudgetLimit.ever_has_room):
        for step in range(index, least - 1, -1):
            if all(fits(limit, case.costs[step], reserve) for limit in case.limits):
                return EVIDENCE_STEPS[step]
    return EVIDENCE_STEPS[index]


def _postponed(decided: RouterDecision, case: RouterCase, settings: EscalationConfig, urgent: bool) -> RouterDecision:
    wait = must_wait(case.inputs.system_load, decided.cost, case.limits, settings, case.now, urgent)
    if wait is None:
        return decided
    never = ""
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    if any(not limit.ever_has_room(decided.cost, reserve) for limit in case.limits):
        never = "one question costs more than the budget allows"
    elif wait.until_t is not None and wait.until_t - case.now > settings.expire_hours * 3600:
        never = "it would expire before its time came: it " + WAITS[wait.why]
    if never:
        return RouterDecision(
            "never", never, evidence=decided.evidence, value=decided.value, cost=decided.cost, edge=decided.edge
        )
    return replace(decided, when="later", reason=f"{decided.reason}; it {WAITS[wait.why]}", wait=wait)


def _first_evidence(inputs: RouteInputs, settings: EscalationConfig, edge: EdgeAnswer) -> EvidenceStep:
    """Return the first evidence of an escalation: whole frames if a hot appliance is not sure."""
    if inputs.privacy == "image_free":
        return "facts"
    if inputs.system_load.offload and edge != "sure":
        return max(settings.first, "frames", key=EVIDENCE_STEPS.index)
    return settings.first


def _strained(load: SystemLoad, settings: RouterConfig) -> bool:
    """Return True if the appliance is busier or hotter than the site file allows, unless it offloads to the cloud."""
    if load.offload:
        return False
    hot = load.temperature_c is not None and settings.temperature_max_c is not None
    busy = load.load is not None and settings.load_max is not None
    return bool(
        (hot and (load.temperature_c or 0.0) > (settings.temperature_max_c or 0.0))
        or (busy and (load.load or 0.0) > (settings.load_max or 0.0))
    )
