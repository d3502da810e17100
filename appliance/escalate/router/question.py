"""The question that the cloud is asked about an alert, in words."""

from __future__ import annotations

import hashlib

from appliance import wire
from appliance.config import LineRule, Rule
from appliance.types import Alert, Event

QUESTION_CHARS_MAX = 2000
_CLAIM = {
    "enter": "entering the zone",
    "exit": "leaving the zone",
    "dwell": "staying in the zone",
    "line": "crossing the line",
}


def build(alert: Alert, event: Event, rule: Rule, *, site: str, now: float, model: str = "") -> wire.Escalation:
    """The question, still without pictures. The same alert of the same site always makes the same id."""
    return wire.Escalation(
        id=escalation_id(site, alert.id),
        site=site,
        camera=alert.camera,
        alert=alert.id,
        rule=rule.name,
        kind=event.kind,
        label=event.label,
        severity=alert.severity,
        question=(rule.ask or _default_question(event, rule))[:QUESTION_CHARS_MAX],
        t=event.t,
        created_t=now,
        score=event.score,
        zone=event.zone or event.line,
        model=model,
    )


def escalation_id(site: str, alert: str) -> str:
    """`esc-` and 16 hex digits. Alert ids come from content, so two sites may share one: the site goes in, too."""
    return "esc-" + hashlib.sha256(f"{site}/{alert}".encode()).hexdigest()[:16]


def _default_question(event: Event, rule: Rule) -> str:
    article = "an" if event.label[:1] in "aeiou" else "a"
    claim = f"{_CLAIM[event.kind]} `{event.zone or event.line}`"
    if rule.kind == "dwell":
        claim += f" for at least {rule.seconds:g} seconds"
    if isinstance(rule, LineRule) and rule.direction != "both":
        claim += f" ({rule.direction.replace('_', ' ')})"
    return f"Is there really {article} {event.label} {claim}?"
