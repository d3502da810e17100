"""Labelled incidents: what the alert policy makes of a scenario's true events under the site's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from appliance.alerts.merge_policy import AlertPolicy
from appliance.config import CameraConfig, LineRule, Rule, SiteConfig
from appliance.lab.curve.ranking import LabelledIncident
from appliance.lab.replay.replay_report import format_time
from appliance.lab.scenario.expectations import Expectation
from appliance.rules.engine import RulesEngine
from appliance.types import Alert, AlertChange, Event, FrameBoxes, StreamHeader, TrackedObject

BEFORE_S, AFTER_S = 1.0, 3.0  # as the windows of true events have, see sections.Derived


@dataclass(frozen=True, slots=True)
class IncidentLabels:
    """Alerts as a perfect detector and tracker would have raised them; untimed: entries of `expect` that say no moment
    and so cannot be found or missed."""

    alerts: tuple[Alert, ...]
    untimed: int

    def incidents(self, footage: int) -> tuple[LabelledIncident, ...]:
        """Each with the window in which a picture shows it."""
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
class _Written:
    """An entry of `expect` as an event that lasts from `event.t` to `end`."""

    event: Event
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraTruth:
    """What is known of a camera's footage. header: camera and picture size; looks: the true objects at the frames that
    were examined, with nobody in them where there are no true boxes; wanted: the entries of `expect`; derived: every
    event of the true boxes must be reported as well (`truth.events`)."""

    header: StreamHeader
    frames: Sequence[FrameBoxes]
    expectations: Sequence[Expectation]
    derived: bool


def label_incidents(config: SiteConfig, truth: CameraTruth) -> IncidentLabels:
    """The incidents of one camera.

    An entry takes the time and the object of the true event that it speaks of, where the boxes hold one, so that its
    incident lasts as long as whoever it is stays in view; otherwise it lasts as long as the entry says.
    """
    camera = truth.header.camera
    site = config.cameras[camera]
    true_events = _events(site, truth)
    written = [
        _written(number, each, camera, site, true_events) for number, each in enumerate(truth.expectations) if each.min
    ]
    entries = [each for each in written if each is not None]
    # An entry and the true boxes may speak of the same event.
    events = {event.id: event for event in (*(each.event for each in entries), *(true_events if truth.derived else ()))}
    alerts = _alerts(config, truth, sorted(events.values(), key=lambda event: event.t), entries)
    return IncidentLabels(tuple(alert for alert in alerts if may_escalate(alert, config)), len(written) - len(entries))


def _events(site: CameraConfig, truth: CameraTruth) -> tuple[Event, ...]:
    rules = RulesEngine(truth.header.camera, site)
    rules.feed(truth.header)
    return tuple(event for look in truth.frames for event in rules.feed(look))


def _written(
    number: int, wanted: Expectation, camera: str, site: CameraConfig, true_events: Sequence[Event]
) -> _Written | None:
    """None: it says no moment, or a span in which several are meant, which could be anywhere in it."""
    pattern = wanted.pattern
    fitting = [event for event in true_events if pattern.matches(event)]
    if wanted.min == 1 and fitting and pattern.end != inf:
        at = pattern.start if wanted.at is None else wanted.at
        event = min(fitting, key=lambda each: abs(each.t - at))
        return _Written(event, event.t)
    if wanted.at is None and (pattern.end == inf or wanted.min > 1):
        return None
    t, end = (pattern.start, pattern.end) if wanted.at is None else (wanted.at, wanted.at)
    alike = next(event for event in _possible(camera, site, t) if pattern.matches_except_time(event))
    return _Written(replace(alike, track=-1 - number, id=f"expect {number}"), end)


def _possible(camera: str, site: CameraConfig, t: float) -> Iterable[Event]:
    """An event of each rule and label."""
    for rule in site.rules:
        for label in rule.labels:
            line, zone = (rule.line, "") if isinstance(rule, LineRule) else ("", rule.zone)
            yield Event(
                camera=camera,
                rule=rule.name,
                kind=rule.kind,
                track=0,
                label=label,
                t=t,
                zone=zone,
                line=line,
                severity=rule.severity,
            )


def could_come(camera: str, site: CameraConfig, wanted: Expectation) -> bool:
    """Whether the camera has a rule that reports what is wanted."""
    return any(wanted.pattern.matches_except_time(event) for event in _possible(camera, site, 0.0))


def _alerts(
    config: SiteConfig, truth: CameraTruth, events: Sequence[Event], entries: Sequence[_Written]
) -> list[Alert]:
    """What the alert policy makes of the events; whoever they are about is seen for as long as is known."""
    camera = truth.header.camera
    policy = AlertPolicy(camera, config.alerts, config.cameras[camera].rules)
    changes: list[AlertChange] = [*policy.begin(truth.header).changes]
    waiting, last = list(events), 0.0
    for look in truth.frames:
        due = [event for event in waiting if event.t <= look.t]
        waiting = waiting[len(due) :]
        changes += policy.feed(_with_written(look, entries), due).changes
        last = look.t
    if waiting:  # they come after the last look
        last = waiting[-1].t
        end = FrameBoxes(camera=camera, seq=len(truth.frames), frame=0, t=last, looked=True)
        changes += policy.feed(end, waiting).changes
    changes += policy.close(last, "end of clip").changes
    return [change.alert for change in changes if change.kind == "ended"]


def _with_written(look: FrameBoxes, entries: Sequence[_Written]) -> FrameBoxes:
    seen = tuple(
        TrackedObject(track=each.event.track, label=each.event.label, score=0.9, box=(0.0, 0.0, 1.0, 1.0))
        for each in entries
        if each.event.track < 0 and each.event.t <= look.t <= each.end
    )
    return replace(look, objects=(*look.objects, *seen)) if seen else look


def may_escalate(alert: Alert, config: SiteConfig) -> bool:
    """What the site keeps to itself is nobody's miss."""
    rules: dict[str, Rule] = {rule.name: rule for rule in config.cameras[alert.camera].rules}
    return alert.severity in config.escalation.severities and any(rules[name].escalate for name in alert.rules)
