"""One camera's questions: for each alert, and each change of it, what the router decides and what it would ask.

The core and a replay use this very class, so that both decide the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance import wire
from appliance.config import Rule, SiteConfig
from appliance.escalate.calibration import Chance, Stability
from appliance.escalate.router.case import Case, Decision, Limit
from appliance.escalate.router.decide import decide
from appliance.escalate.router.novelty import AskedPlaces
from appliance.escalate.router.outlook import Outlook
from appliance.escalate.router.question import build
from appliance.escalate.router.sightings import Sighting, Sightings
from appliance.types import Alert, AlertChange, Event, FrameBoxes, Route, RouteInputs, StreamHeader

TRACKS_JUDGED_MAX = 4
OPEN_MAX = 64  # a camera has one open alert at a time; more are those of a caller that ends none
_DIGITS, _MONEY_DIGITS = 4, 6


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about an alert: the decision as it is logged, and the question, if there is one.

    event: which was decided about. again: the question was put off before, and is now let go.
    """

    route: Route
    event: Event
    escalation: wire.Escalation | None = None
    again: bool = False


@dataclass(slots=True)
class _Open:
    """An alert that lasts: its last event, and what was decided last."""

    event: Event
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class _Subject:
    """The object by which an alert is judged: of its tracks the one that is most likely real."""

    seen: Stability
    seconds: float
    chance: Chance


class Planner:
    """Decides about the alerts of one camera. Owner: the core or a replay, in one thread.

    State: how its tracks were seen, which places were asked about, and of each open alert what was decided. An alert is
    decided about with each of its events, and when its best view improves, until it is asked about; it is asked once. A
    question that was put off is let go when a later event makes it urgent.
    """

    def __init__(self, config: SiteConfig, camera: str, outlook: Outlook, places: AskedPlaces | None = None) -> None:
        """places: what was asked about before (`recall`); None: nothing."""
        self._config = config
        self._camera = camera
        self._rules = {rule.name: rule for rule in config.cameras[camera].rules}
        self._outlook = outlook
        self._asks = config.uplink is not None and config.escalation.enabled
        self._sightings = Sightings()
        self._places = AskedPlaces(config.escalation.router.repeat_s) if places is None else places
        self._open: dict[str, _Open] = {}
        self._run = self._model = ""

    def begin(self, header: StreamHeader) -> None:
        """A run begins: its tracks are others. The same run again: nothing changes."""
        if header.run and header.run == self._run:
            return
        self._run, self._model = header.run, header.model
        self._sightings.begin(header.size)

    def look(self, boxes: FrameBoxes) -> None:
        """What was seen, before what it decides is handed to `plan`. Nothing is held for a site that never asks."""
        if self._asks and boxes.looked:
            self._sightings.look(boxes)
            self._places.look(boxes, self._sightings)

    def plan(self, change: AlertChange, now: float) -> Plan | None:
        """What is to be done; None: nothing that was not decided before. `now`: see Case."""
        open_ = self._open.get(change.alert.id)
        if change.kind == "ended":
            self._open.pop(change.alert.id, None)
        if change.event is not None:
            open_ = self._open[change.alert.id] = _Open(change.event, open_.decision if open_ else None)
            while len(self._open) > OPEN_MAX:
                del self._open[next(iter(self._open))]
        if open_ is None or change.kind == "ended" or (open_.decision is not None and open_.decision.when == "now"):
            return None
        return self._decide(change.alert, open_, now)

    def _decide(self, alert: Alert, open_: _Open, now: float) -> Plan | None:
        told, case = open_.decision, self._case(alert, open_.event, now)
        decision = decide(case, self._config.escalation)
        if told is not None and not _changes(told, decision):
            return None
        open_.decision = decision
        rule, event = self._rules[case.rule], open_.event
        route = self._route(alert, event, decision, case.inputs)
        if not decision.ask:
            return Plan(route, event)
        if decision.when == "now":
            self._outlook.purse.spend(decision.cost, now)
        for seen in self._tracks(alert, event):
            self._places.note(rule.name, alert.severity, seen)
        asked = build(alert, event, rule, site=self._config.site.name, model=self._model, now=now)
        return Plan(replace(route, question=asked.question), event, asked, again=told is not None and told.ask)

    def _case(self, alert: Alert, event: Event, now: float) -> Case:
        rule, limits = self._rules[event.rule], self._outlook.purse.limits(now)
        return Case(
            alert=alert.id,
            rule=rule.name,
            escalate=rule.escalate,
            uplink=self._config.uplink is not None,
            inputs=self._inputs(alert, event, rule, now, limits),
            costs=self._outlook.costs(alert.camera),
            limits=limits,
            now=now,
        )

    def _route(self, alert: Alert, event: Event, decision: Decision, inputs: RouteInputs) -> Route:
        cost, facts, wait = decision.cost, self._outlook.bytes_[0], decision.wait
        route = Route(
            camera=alert.camera,
            alert=alert.id,
            event=event.id,
            t=event.t,
            ask=decision.ask,
            when=decision.when,
            priority=decision.priority,
            reason=decision.reason,
            evidence=decision.evidence,
            value=decision.value,
            wait=wait.why if wait else "",
            until_t=wait.until_t if wait else None,
            inputs=replace(inputs, audit_share=decision.audit_share),
        )
        if not decision.ask:
            return route
        return replace(
            route,
            bytes=cost.bytes,
            message_bytes=facts,
            picture_bytes=cost.bytes - facts,
            gpu_s=round(cost.gpu_s, _DIGITS),
            money=round(cost.money, _MONEY_DIGITS),
        )

    def _inputs(self, alert: Alert, event: Event, rule: Rule, now: float, limits: tuple[Limit, ...]) -> RouteInputs:
        tracks = self._tracks(alert, event)
        subject = self._subject(event, tracks)
        around = self._outlook.around
        left = [max(0.0, 1 - limit.spent / limit.amount) if limit.amount else 0.0 for limit in limits]
        return RouteInputs(
            label=event.label,
            severity=alert.severity,
            own_question=bool(rule.ask),
            privacy=self._outlook.privacy(event),
            score=subject.seen.score,
            spread=subject.seen.spread,
            looks=subject.seen.looks,
            seconds=subject.seconds,
            moved=subject.seen.moved,
            chance=round(subject.chance.p, _DIGITS),
            chance_n=subject.chance.n,
            chance_min=round(subject.chance.p_min, _DIGITS),
            repeat=bool(tracks) and all(self._places.knows(rule.name, alert.severity, seen) for seen in tracks),
            link_up=around.link_up,
            queue_age_s=around.queue_age_s,
            load=around.load,
            temperature_c=around.temperature_c,
            off_peak_in_s=self._off_peak_in_s(alert, now),
            budget_left=round(min(left), _DIGITS) if left else None,
        )

    def _tracks(self, alert: Alert, event: Event) -> list[Sighting]:
        """The alert's newest tracks as they were seen, that of the event first."""
        numbers = dict.fromkeys((event.track, *reversed(alert.tracks[1 - TRACKS_JUDGED_MAX :])))
        return [seen for seen in map(self._sightings.of, numbers) if seen is not None]

    def _subject(self, event: Event, tracks: list[Sighting]) -> _Subject:
        calibration = self._outlook.calibration
        judged = [(seen.stability, seen.seconds, seen.label) for seen in tracks]
        if not judged:
            judged = [(Stability(score=round(event.score, 3)), 0.0, event.label)]
        if len(judged) > 1:
            judged.sort(key=lambda each: -calibration.probability(self._camera, each[2], each[0]))
        stability, seconds, label = judged[0]
        return _Subject(stability, seconds, calibration.chance(self._camera, label, stability))

    def _off_peak_in_s(self, alert: Alert, now: float) -> float | None:
        hours = self._config.escalation.off_peak
        if hours is None or self._outlook.off_peak_in_s is None or alert.severity not in hours.severities:
            return None
        return self._outlook.off_peak_in_s(now)


def _changes(told: Decision, decision: Decision) -> bool:
    """Whether a later decision is another: one that was put off is only ever let go, or made more urgent."""
    if told.when == "later":
        order = wire.PRIORITIES.index
        return decision.when == "now" and order(decision.priority) <= order(told.priority)
    return (told.when, told.reason, told.priority) != (decision.when, decision.reason, decision.priority)
