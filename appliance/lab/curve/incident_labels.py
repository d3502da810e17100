"""Labelled incidents: what the alert policy makes of a scenario's true events under the site's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from appliance.alerts.merge_policy import AlertPolicy
from appliance.config import CameraConfig, DecisionConfig, Rule
from appliance.lab.curve.ranking import LabelledIncident
from appliance.replay.replay_report import format_time
from appliance.rules.engine import RulesEngine
from appliance.rules.reportable import rule_event
from appliance.scenario.expectations import Expectation
from appliance.types import Alert, AlertChange, Event, FrameBoxes, StreamHeader, TrackedObject

BEFORE_S, AFTER_S = 1.0, 3.0  # seconds around an alert; as the windows of true events, see DerivedEvents


@dataclass(frozen=True, slots=True)
class IncidentLabels:
    """Alerts as a perfect detector and tracker would have raised them.

    untimed: entries of `expect` without a moment, which can be neither found nor missed.
    """

    alerts: tuple[Alert, ...]
    untimed: int

    def incidents(self, footage: int) -> tuple[LabelledIncident, ...]:
        """Each with the window in which an image shows it."""
        return tuple(
            LabelledIncident(
                footage=footage,
                start=alert.t_start - BEFORE_S,
                end=(alert.t_start if alert.t_end is None else alert.t_end) + AFTER_S,
                t=alert.t_start,
                text=f"{', '.join(alert.rules)} at {format_time(alert.t_start)}",
            )
            for alert in self.alerts
        )


@dataclass(frozen=True, slots=True)
class _EntryEvent:
    """An entry of `expect` as an event that lasts from `event.t` to `end`."""

    event: Event
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraTruth:
    """The truth about a camera's footage.

    header: camera and frame size. looks: the true objects at the frames that were examined, empty where there are no
    true boxes. expectations: the entries of `expect`. derived: every event of the true boxes must be reported as well
    (`truth.events`).
    """

    header: StreamHeader
    frames: Sequence[FrameBoxes]
    expectations: Sequence[Expectation]
    derived: bool


def label_incidents(config: DecisionConfig, truth: CameraTruth) -> IncidentLabels:
    """Return the incidents of one camera.

    An entry takes the time and the object of the true event that matches it, where the boxes hold one, so that its
    incident lasts as long as the object stays in view; otherwise it lasts as long as the entry says.
    """
    camera = truth.header.camera
    site = config.cameras[camera]
    true_events = _events(site, truth)
    required = [(number, each) for number, each in enumerate(truth.expectations) if each.min]
    found = [_entry_event(number, each, camera, site, true_events) for number, each in required]
    entries = [each for each in found if each is not None]
    # An entry and the true boxes may describe the same event.
    events = {event.id: event for event in (*(each.event for each in entries), *(true_events if truth.derived else ()))}
    alerts = _alerts(config, truth, sorted(events.values(), key=lambda event: event.t), entries)
    return IncidentLabels(tuple(alert for alert in alerts if may_escalate(alert, config)), len(required) - len(entries))


def _events(site: CameraConfig, truth: CameraTruth) -> tuple[Event, ...]:
    rules = RulesEngine(truth.header.camera, site)
    rules.feed(truth.header)
    return tuple(event for boxes in truth.frames for event in rules.feed(boxes))


def _entry_event(
    number: int, expectation: Expectation, camera: str, site: CameraConfig, true_events: Sequence[Event]
) -> _EntryEvent | None:
    """None: the entry has no moment, or expects several events anywhere in a span."""
    pattern = expectation.pattern
    matching_events = [event for event in true_events if pattern.matches(event)]
    if expectation.min == 1 and matching_events and pattern.end != inf:
        at = pattern.start if expectation.at is None else expectation.at
        event = min(matching_events, key=lambda each: abs(each.t - at))
        return _EntryEvent(event, event.t)
    if expectation.at is None and (pattern.end == inf or expectation.min > 1):
        return None
    t, end = (pattern.start, pattern.end) if expectation.at is None else (expectation.at, expectation.at)
    matching = next(event for event in _possible_events(camera, site, t) if pattern.matches_except_time(event))
    return _EntryEvent(replace(matching, track=-1 - number, id=f"expect {number}"), end)


def _possible_events(camera: str, site: CameraConfig, t: float) -> Iterable[Event]:
    """Return an event of each rule and label."""
    for rule in site.rules:
        for label in rule.labels:
            yield rule_event(camera, rule, TrackedObject(track=0, label=label, score=0.0, box=(0.0, 0.0, 0.0, 0.0)), t)


def could_come(camera: str, site: CameraConfig, expectation: Expectation) -> bool:
    """Return whether the camera has a rule that can report the expected event."""
    return any(expectation.pattern.matches_except_time(event) for event in _possible_events(camera, site, 0.0))


def _alerts(
    config: DecisionConfig, truth: CameraTruth, events: Sequence[Event], entries: Sequence[_EntryEvent]
) -> list[Alert]:
    """Return the alerts that the policy makes of the events; their objects are in view for as long as is known."""
    camera = truth.header.camera
    policy = AlertPolicy(camera, config.alerts, config.cameras[camera].rules)
    changes: list[AlertChange] = [*policy.begin(truth.header).changes]
    pending, last = list(events), 0.0
    for boxes in truth.frames:
        due = [event for event in pending if event.t <= boxes.t]
        pending = pending[len(due) :]
        changes += policy.feed(_with_entries(boxes, entries), due).changes
        last = boxes.t
    if pending:  # they come after the last frame
        last = pending[-1].t
        end = FrameBoxes(camera=camera, seq=len(truth.frames), frame=0, t=last, looked=True)
        changes += policy.feed(end, pending).changes
    changes += policy.close(last, "end of clip").changes
    return [change.alert for change in changes if change.kind == "ended"]


def _with_entries(boxes: FrameBoxes, entries: Sequence[_EntryEvent]) -> FrameBoxes:
    seen = tuple(
        TrackedObject(track=each.event.track, label=each.event.label, score=0.9, box=(0.0, 0.0, 1.0, 1.0))
        for each in entries
        if each.event.track < 0 and each.event.t <= boxes.t <= each.end
    )
    return replace(boxes, objects=(*boxes.objects, *seen)) if seen else boxes


def may_escalate(alert: Alert, config: DecisionConfig) -> bool:
    """Return whether the site may escalate the alert at all; otherwise the router cannot miss it."""
    rules: dict[str, Rule] = {rule.name: rule for rule in config.cameras[alert.camera].rules}
    return alert.severity in config.escalation.severities and any(rules[name].escalate for name in alert.rules)
