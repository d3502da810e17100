"""Decides whether, when and with which evidence the cloud is asked about an alert. Pure.

Rules come in this order, and an earlier one is never outweighed by a later one: privacy; what the site file rules out;
what was asked before; what is hardly ever real, or worth less than its bytes (of these an audit sample is asked all the
same); then what must wait: for the budget, for the box, for the queue, for off-peak hours.

value is `worth of the severity x chance of being real / 100 kB of the evidence it begins with`: in a budget of bytes,
asking in the order of falling value brings the most real incidents to the cloud (the greedy solution of the
fractional knapsack, G. Dantzig, 1957). The worths differ little, so that sure nonsense of a grave rule comes after a
sure person of a lesser one. A question of the owner's own is worth more, for its answer says more than yes or no.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from appliance import wire
from appliance.config import Escalation
from appliance.config import Router as Settings
from appliance.escalate.router.case import Case, Cost, Decision, Limit, Wait
from appliance.types import EVIDENCE_STEPS, EvidenceStep, RouteInputs, Severity

WORTH: dict[Severity, float] = {"alert": 1.0, "warning": 0.8, "info": 0.6}
OWN_QUESTION_WORTH = 1.25
REPEAT_WORTH = 0.1
VALUE_BYTES = 100_000
_WAITS = {
    "budget": "waits until the budget is renewed",
    "box": "waits until the box is less loaded",
    "queue": "waits until fewer questions are in the queue",
    "off-peak": "waits for the off-peak hours",
}


def decide(case: Case, settings: Escalation) -> Decision:
    """Ask the cloud about this alert? Depends on nothing but its arguments."""
    inputs = case.inputs
    refused = _refused(case, settings)
    if refused:
        return Decision("never", refused)
    first: EvidenceStep = "facts" if inputs.privacy == "image_free" else settings.first
    value = worth(inputs, case.cost(first))
    left_out = _left_out(inputs, value, settings.router)
    audit_share = settings.router.audit_share if left_out else 0.0
    if left_out and not in_sample(case.alert, audit_share):
        return Decision("never", left_out, evidence=first, value=value, cost=case.cost(first))
    urgent = inputs.severity == "alert" and not left_out
    evidence = _affordable(case, first, settings, urgent)
    priority = "low" if left_out else wire.PRIORITY_OF[inputs.severity]
    reason = f"severity {inputs.severity} is asked about with {priority} priority"
    asked = Decision(
        "now",
        f"audit sample: {left_out}" if left_out else reason,
        priority,
        evidence,
        worth(inputs, case.cost(evidence)),
        case.cost(evidence),
        audit_share=audit_share,
    )
    return _postponed(asked, case, settings, urgent)


def must_wait(
    inputs: RouteInputs, cost: Cost, limits: Sequence[Limit], settings: Escalation, now: float, urgent: bool
) -> Wait | None:
    """What a question that costs this much waits for now; None: for nothing. Urgent ones wait for the budget alone."""
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    short = [limit.renew_t for limit in limits if not limit.has_room(cost, reserve)]
    if short:
        return Wait("budget", max(short))
    if urgent:
        return None
    if _strained(inputs, settings.router):
        return Wait("box")
    if inputs.queue_age_s is not None and inputs.queue_age_s > settings.router.queue_age_max_s:
        return Wait("queue")
    if inputs.off_peak_in_s:
        return Wait("off-peak", now + inputs.off_peak_in_s)
    return None


def worth(inputs: RouteInputs, cost: Cost) -> float:
    """The value of asking; see above."""
    grave = WORTH[inputs.severity] * (OWN_QUESTION_WORTH if inputs.own_question else 1.0)
    new = REPEAT_WORTH if inputs.repeat else 1.0
    return round(grave * new * inputs.chance * VALUE_BYTES / max(1, cost.bytes), 4)


def in_sample(alert: str, share: float) -> bool:
    """Whether the alert is one of a sample of this share. By its id, so that a replay draws the same ones."""
    drawn = int.from_bytes(hashlib.sha256(f"audit|{alert}".encode()).digest()[:8], "big")
    return drawn < share * 2.0**64


def _refused(case: Case, settings: Escalation) -> str:
    """Why it is out of the question, or ''."""
    inputs = case.inputs
    if inputs.privacy == "never":
        return "the privacy rule of this camera forbids it"
    if not case.uplink:
        return "this site has no uplink"
    if not settings.enabled:
        return "escalation is switched off"
    if not case.escalate:
        return f"the rule {case.rule} is not to be escalated"
    if inputs.severity not in settings.severities:
        return f"alerts of severity {inputs.severity} are not escalated"
    return ""


def _left_out(inputs: RouteInputs, value: float, settings: Settings) -> str:
    """Why the answer is not worth having, or ''. These are the router's own opinions, and so they are audited."""
    if inputs.repeat:
        return f"this {inputs.label} stands where it was asked about before"
    if inputs.chance < inputs.chance_min:
        return "such alerts are hardly ever real"
    if value < settings.value_min:
        return "the answer is worth less than its bytes"
    return ""


def _affordable(case: Case, first: EvidenceStep, settings: Escalation, urgent: bool) -> EvidenceStep:
    """The evidence to begin with: less than usual where box, queue or budget are short and it cannot or need not wait.

    A question of the owner's own is never asked without a picture for want of money: facts do not answer it.
    """
    index = EVIDENCE_STEPS.index(first)
    crops = EVIDENCE_STEPS.index("crops")
    inputs = case.inputs
    late = inputs.queue_age_s is not None and inputs.queue_age_s > settings.router.queue_age_max_s
    if index > crops and urgent and (late or inputs.link_up is False or _strained(inputs, settings.router)):
        index = crops
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    least = min(index, crops if inputs.own_question else 0)
    for step in range(index, least - 1, -1):
        if all(limit.has_room(case.costs[step], reserve) for limit in case.limits):
            return EVIDENCE_STEPS[step]
    return EVIDENCE_STEPS[index]


def _postponed(asked: Decision, case: Case, settings: Escalation, urgent: bool) -> Decision:
    wait = must_wait(case.inputs, asked.cost, case.limits, settings, case.now, urgent)
    if wait is None:
        return asked
    never = ""
    reserve = 0.0 if urgent else settings.budget.alert_reserve
    if any(not limit.ever_has_room(asked.cost, reserve) for limit in case.limits):
        never = "one question costs more than the budget allows"
    elif wait.until_t is not None and wait.until_t - case.now > settings.expire_hours * 3600:
        never = "it would expire before its time came: it " + _WAITS[wait.why]
    if never:
        return Decision("never", never, evidence=asked.evidence, value=asked.value, cost=asked.cost)
    reason = f"{asked.reason}; it {_WAITS[wait.why]}"
    return Decision("later", reason, asked.priority, asked.evidence, asked.value, asked.cost, wait, asked.audit_share)


def _strained(inputs: RouteInputs, settings: Settings) -> bool:
    """Whether the box has more to do than the site file wants it to have."""
    hot = inputs.temperature_c is not None and settings.temperature_max_c is not None
    busy = inputs.load is not None and settings.load_max is not None
    return bool(
        (hot and (inputs.temperature_c or 0.0) > (settings.temperature_max_c or 0.0))
        or (busy and (inputs.load or 0.0) > (settings.load_max or 0.0))
    )
