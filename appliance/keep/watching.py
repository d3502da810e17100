"""Who watched when an alert was raised: the camera's section of today, with the rules that were armed then."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.clock import local_weekday_minute
from appliance.config import Camera, DwellRule, LineRule, Rule
from appliance.errors import NotYet
from appliance.rules.schedule import Hours
from appliance.rules.settle import SETTLE_S
from appliance.types import Event


def frozen(name: str, camera: Camera, events: Iterable[Event], t: float) -> Camera:
    """The camera without the rules that were not armed at `t`: in a scenario every rule is always armed.

    Raises NotYet when one of the events could not be reported by the rules as they stand today.
    """
    wanted = {event.rule for event in events}
    for event in events:
        _must_be_reportable(name, camera, event)
    armed = tuple(rule for rule in camera.rules if rule.name in wanted or _armed(rule, t))
    return camera.model_copy(update={"rules": armed})


def lead_s(camera: Camera, event: Event) -> float:
    """How long before an event its rule must have watched to report it."""
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    return rule.seconds if isinstance(rule, DwellRule) else SETTLE_S


def _armed(rule: Rule, t: float) -> bool:
    return rule.schedule is None or Hours(rule.schedule).armed(*local_weekday_minute(t))


def _must_be_reportable(name: str, camera: Camera, event: Event) -> None:
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    if rule is None:
        there = ", ".join(each.name for each in camera.rules) or "none"
        raise NotYet(
            f"camera {name} has no rule `{event.rule}` any more (there is: {there}), so no scenario could ask for it: "
            "put the rule back, or keep the alert with the site file of that time"
        )
    zone, line = ("", rule.line) if isinstance(rule, LineRule) else (rule.zone, "")
    if (event.zone, event.line) != (zone, line) or event.label not in rule.labels:
        raise NotYet(
            f"the rule `{event.rule}` of camera {name} watches something else today than when it reported a "
            f"{event.label} {f'at line {event.line}' if event.line else f'in zone {event.zone}'}: "
            "keep the alert with the site file of that time"
        )
