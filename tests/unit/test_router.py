"""Which alerts the cloud is asked about, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance import config
from appliance.escalate import router
from appliance.types import Alert, Event

ALERT = Alert(camera="gate", id="a1", rules=("r",), severity="alert", t_start=1.0, t_end=None, tracks=(1,))
EVENT = Event(camera="gate", rule="r", kind="enter", track=1, label="person", t=1.5, score=0.8, zone="yard")
ENTER = config.EnterRule(name="r", kind="enter", zone="yard")
SETTINGS = config.Escalation()


@pytest.mark.parametrize(
    ("alert", "rule", "settings", "uplink", "reason"),
    [
        (ALERT, ENTER, SETTINGS, False, "this site has no uplink"),
        (ALERT, ENTER, config.Escalation(enabled=False), True, "escalation is switched off"),
        (ALERT, ENTER.model_copy(update={"escalate": False}), SETTINGS, True, "the rule r is not to be escalated"),
        (replace(ALERT, severity="info"), ENTER, SETTINGS, True, "alerts of severity info are not escalated"),
    ],
)
def test_when_the_cloud_is_not_asked_the_reason_is_said(
    alert: Alert, rule: config.EnterRule, settings: config.Escalation, uplink: bool, reason: str
) -> None:
    decision = router.decide(alert, rule, settings, uplink)
    assert (decision.ask, decision.priority, decision.reason) == (False, "", reason)


@pytest.mark.parametrize(("severity", "priority"), [("alert", "high"), ("warning", "normal")])
def test_severity_decides_how_urgently(severity: str, priority: str) -> None:
    decision = router.decide(replace(ALERT, severity=severity), ENTER, SETTINGS, True)  # type: ignore[arg-type]
    assert (decision.ask, decision.priority) == (True, priority)


@pytest.mark.parametrize(
    ("event", "rule", "question"),
    [
        (EVENT, ENTER, "Is there really a person entering the zone `yard`?"),
        (
            replace(EVENT, kind="exit", label="elephant"),
            config.ExitRule(name="r", kind="exit", zone="yard"),
            "Is there really an elephant leaving the zone `yard`?",
        ),
        (
            replace(EVENT, kind="dwell"),
            config.DwellRule(name="r", kind="dwell", zone="yard", seconds=20),
            "Is there really a person staying in the zone `yard` for at least 20 seconds?",
        ),
        (
            replace(EVENT, kind="line", zone="", line="door", label="car"),
            config.LineRule(name="r", kind="line", line="door", direction="left_to_right"),
            "Is there really a car crossing the line `door` (left to right)?",
        ),
        (EVENT, ENTER.model_copy(update={"ask": "Does someone climb the fence?"}), "Does someone climb the fence?"),
    ],
)
def test_the_question_is_the_owners_or_made_from_the_rule(event: Event, rule: config.Rule, question: str) -> None:
    assert router.build(ALERT, event, rule, site="s", now=2.0).question == question


def test_the_same_alert_of_the_same_site_is_the_same_question() -> None:
    first = router.build(ALERT, EVENT, ENTER, site="depot-7", now=2.0)
    assert first.id == router.build(ALERT, EVENT, ENTER, site="depot-7", now=99.0).id
    assert first.id != router.build(ALERT, EVENT, ENTER, site="depot-8", now=2.0).id
    assert first.id.startswith("esc-")
    assert len(first.id) == 20
