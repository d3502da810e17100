"""Plans the escalations of one camera: for each alert and each change, the router's decision and the evidence.

The core and a replay use the same class, so both decide the same.
"""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace

from appliance import wire
from appliance.base.clock import Period
from appliance.config import EscalationConfig, LineRule, Rule
from appliance.router.calibration import UNTRAINED, Calibration
from appliance.router.decide import (
    EscalationCost,
    RouterCase,
    RouterDecision,
    certainty_of,
    decide,
    expected_bytes,
)
from appliance.router.escalation_budget import EscalationBudget
from appliance.router.track_stats import CameraTrackStats, RecentEscalations, TrackStats
from appliance.types import (
    EVIDENCE_STEPS,
    Alert,
    AlertChange,
    CalibratedChance,
    CascadeAnswer,
    Event,
    FrameBoxes,
    PrivacyLevel,
    Route,
    RouteCost,
    RouteInputs,
    Severity,
    StreamHeader,
    SystemLoad,
    TrackStability,
)

TEXT_CHARS_MAX = 2000  # of the rule's text for the model: some 500 tokens
_CLAIM = {
    "enter": "entering the zone",
    "exit": "leaving the zone",
    "dwell": "staying in the zone",
    "line": "crossing the line",
}
TRACKS_JUDGED_MAX = 4  # the newest; a crowd's alert is no more real for its tenth member
OPEN_MAX = 64  # a camera has one open alert at a time; more are those of a caller that ends none
_DIGITS, _MONEY_DIGITS = 4, 6  # decimals in the row of the decision
API_RULE = "api"  # stands for the rule of what was asked through the API
WAITING_MAX = 16  # a person asks for one at a time
ANSWER_S = 5.0  # the core looks once a second
WRITING_S_MAX = 60.0  # of an answer that has begun: a disk that takes longer is broken


@dataclass(frozen=True, slots=True)
class ApiEscalation:
    """A question about pictures that came through the API; the core decides about it as about an alert.

    id: of the row, as of an alert. label, score: what the appliance itself detected, 0: nothing. images: what would be
    sent, each with its path below the storage folder; all are on disk. requested: a person or program wants the cloud
    model's answer, whatever value the router computes.
    """

    id: str
    camera: str
    label: str
    text: str
    score: float
    t: float
    images: tuple[tuple[wire.MediaRef, str], ...]
    requested: bool
    model: str = ""

    @property
    def bytes(self) -> int:
        return sum(ref.bytes for ref, _ in self.images)


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Plan for an alert: the decision as it is logged, and the escalation, if there is one.

    event: the event of the decision. released: the escalation was postponed before, and is sent now.
    """

    route: Route
    event: Event
    escalation: wire.Escalation | None = None
    released: bool = False


@dataclass(slots=True)
class RouterContext:
    """Knowledge of the router beyond one camera: the calibration, the budgets, the state of link and appliance.

    One for all cameras of a site. Owner: the core, which renews it, or a replay, in which the load is unknown; one
    thread. uplink: the site has one. off_peak_in_s: returns the seconds until off-peak hours, 0 inside them; None:
    there are none. bytes_: expected bytes of an escalation for each first evidence. privacy: returns what of an event's
    alert may leave.
    """

    site: str
    settings: EscalationConfig
    uplink: bool
    budget: EscalationBudget
    off_peak_in_s: Callable[[float], float] | None = None
    calibration: Calibration = UNTRAINED
    system_load: SystemLoad = field(default_factory=SystemLoad)
    bytes_: tuple[int, ...] = ()
    privacy: Callable[[Event], PrivacyLevel] = lambda event: "free"

    @classmethod
    def of(
        cls,
        site: str,
        settings: EscalationConfig,
        period: Callable[[float], Period],
        privacy: Callable[[Event], PrivacyLevel],
        *,
        uplink: bool,
        off_peak_in_s: Callable[[float], float] | None = None,
    ) -> RouterContext:
        """With nothing learnt and nothing spent. privacy: see `appliance.evidence.privacy`."""
        budget = EscalationBudget(settings.budget, settings.prices, period)
        sizes = expected_bytes(settings)
        return cls(site, settings, uplink, budget, off_peak_in_s, bytes_=sizes, privacy=privacy)

    def costs(self, camera: str) -> tuple[EscalationCost, ...]:
        """Return the cost of an escalation of this camera that begins with each evidence step."""
        steps = zip(self.bytes_, EVIDENCE_STEPS, strict=False)
        return tuple(self.budget.cost(bytes_, camera, step) for bytes_, step in steps)

    def off_peak_left_s(self, severity: Severity, now: float) -> float | None:
        """Return the seconds until the off-peak hours for which alerts of this severity wait; None: they do not."""
        hours = self.settings.off_peak
        if hours is None or self.off_peak_in_s is None or severity not in hours.severities:
            return None
        return self.off_peak_in_s(now)


class EscalationPlanner:
    """Decides about the alerts of one camera. Owner: the core or a replay, in one thread.

    State: statistics of its tracks, recent escalations, and the decision on each open alert. The planner decides with
    each event of an alert, and when its best view improves, until the alert is escalated; that happens once. A
    postponed escalation is released when a later event makes it urgent.
    """

    def __init__(
        self, camera: str, rules: Sequence[Rule], context: RouterContext, recent: RecentEscalations | None = None
    ) -> None:
        """rules: of the camera. recent: what was escalated before (`restore_recent`); None: nothing."""
        settings = context.settings
        self._camera = camera
        self._rules = {rule.name: rule for rule in rules}
        self._context = context
        self._enabled = context.uplink and settings.enabled
        self._tracks = CameraTrackStats()
        self._recent = RecentEscalations(settings.router.repeat_s) if recent is None else recent
        self._open: dict[str, _Open] = {}
        self._run = self._model = ""

    def take_over(self, old: EscalationPlanner) -> None:
        """Continue from `old`, a planner with the same rules: take over its tracks and its decisions."""
        self._tracks, self._recent, self._open = old._tracks, old._recent, old._open
        self._run, self._model = old._run, old._model

    def begin(self, header: StreamHeader) -> None:
        """Begin a run: its tracks are others. The same run as before changes nothing."""
        if header.run and header.run == self._run:
            return
        self._run, self._model = header.run, header.model
        self._tracks.begin(header.size)

    def observe(self, boxes: FrameBoxes) -> None:
        """Note a frame's detections; call it before `plan` gets the alert changes of the frame.

        Nothing is kept for a site that never escalates.
        """
        if self._enabled and boxes.looked:
            self._tracks.observe(boxes)
            self._recent.observe(boxes, self._tracks)

    def plan(self, change: AlertChange, now: float) -> RoutePlan | None:
        """Return the plan for an alert change; None: the decision did not change. `now`: see RouterCase."""
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

    @property
    def is_quiet(self) -> bool:
        """No alert is open."""
        return not self._open

    def reconsider(
        self, alert: Alert, event: Event, known: RouteInputs, now: float, *, requested: bool = False
    ) -> RoutePlan | None:
        """Return a new plan for an alert that stays at the edge, by the inputs `known`; None: its rule is gone.

        `known`: the inputs of the first decision, with the result of the appliance's own second detection since. Its
        privacy and its load are not taken from there: those of now hold. requested: a person asks for it.
        """
        rule = self._rules.get(event.rule)
        if rule is None:
            return None
        load = _system_load(self._context, alert, now)
        inputs = replace(known, privacy=self._context.privacy(event), system_load=load, audit_share=0.0, audit_of="")
        case = self._case(alert, rule, inputs, now, requested=requested)
        decision = decide(case, self._context.settings)
        open_ = self._open.get(alert.id)
        if open_ is not None:
            open_.decision = decision
        return self._planned(alert, event, rule, decision, case)

    def ask(self, asked: ApiEscalation, now: float) -> RoutePlan:
        """Return a plan for a question that came with its pictures."""
        event = Event(
            camera=self._camera, rule=API_RULE, kind="enter", track=-1, label=asked.label, t=asked.t,
            score=asked.score,
        )  # fmt: skip
        alert = Alert(
            camera=self._camera, id=asked.id, rules=(API_RULE,), severity="warning", t_start=asked.t,
            t_end=asked.t, tracks=(),
        )  # fmt: skip
        context = self._context
        cost = context.budget.cost(context.bytes_[0] + asked.bytes, self._camera, "frames")
        case = RouterCase(
            alert=asked.id, rule=API_RULE, escalate=True, uplink=context.uplink, now=now,
            inputs=self._inputs(alert, event, API_RULE, now, own_words=bool(asked.text)),
            costs=(cost,) * len(EVIDENCE_STEPS), limits=context.budget.limits(now), requested=asked.requested,
        )  # fmt: skip
        decision = decide(case, context.settings)
        route = replace(self._route(alert, event, decision, case.inputs), evidence="frames")
        if not decision.ask:
            return RoutePlan(route, event)
        if decision.when == "now":
            context.budget.spend(decision.cost, now)
        escalation = wire.Escalation(
            id=escalation_id(context.site, asked.id), site=context.site, camera=self._camera, alert=asked.id,
            rule=API_RULE, kind="other", label=asked.label, severity="warning",
            question=asked.text or f"Is there a {asked.label} in this picture?", t=asked.t, created_t=now,
            score=asked.score, model=asked.model,
        )  # fmt: skip
        return RoutePlan(replace(route, question=escalation.question), event, escalation)

    def _decide(self, alert: Alert, open_: _Open, now: float) -> RoutePlan | None:
        before, rule, event = open_.decision, self._rules[open_.event.rule], open_.event
        case = self._case(alert, rule, self._inputs(alert, event, rule.name, now, own_words=bool(rule.ask)), now)
        decision = decide(case, self._context.settings)
        if before is not None and not _changes(before, decision):
            return None
        open_.decision = decision
        planned = self._planned(alert, event, rule, decision, case)
        return replace(planned, released=decision.ask and before is not None and before.ask)

    def _planned(self, alert: Alert, event: Event, rule: Rule, decision: RouterDecision, case: RouterCase) -> RoutePlan:
        """Return the plan by a decision, and count what it spends."""
        route = self._route(alert, event, decision, case.inputs)
        if not decision.ask:
            return RoutePlan(route, event)
        if decision.when == "now":
            self._context.budget.spend(decision.cost, case.now)
        for seen in self._tracks_of(alert, event):
            if seen.t_first <= event.t:  # else it is a track of a later run with the same number
                self._recent.record(rule.name, alert.severity, seen)
        escalation = build_escalation(alert, event, rule, site=self._context.site, model=self._model, now=case.now)
        return RoutePlan(replace(route, question=escalation.question), event, escalation)

    def _case(
        self, alert: Alert, rule: Rule, inputs: RouteInputs, now: float, *, requested: bool = False
    ) -> RouterCase:
        context = self._context
        return RouterCase(
            alert=alert.id, rule=rule.name, escalate=rule.escalate, uplink=context.uplink, inputs=inputs,
            costs=context.costs(alert.camera), limits=context.budget.limits(now), now=now, requested=requested,
        )  # fmt: skip

    def _route(self, alert: Alert, event: Event, decision: RouterDecision, inputs: RouteInputs) -> Route:
        cost, facts, wait = decision.cost, self._context.bytes_[0], decision.wait
        costs = RouteCost(value=decision.value)
        if decision.ask:
            costs = replace(
                costs, bytes=cost.bytes, message_bytes=facts, picture_bytes=cost.bytes - facts,
                gpu_s=round(cost.gpu_s, _DIGITS), money=round(cost.money, _MONEY_DIGITS),
            )  # fmt: skip
        return Route(
            camera=alert.camera,
            alert=alert.id,
            event=event.id,
            t=event.t,
            ask=decision.ask,
            when=decision.when,
            priority=decision.priority,
            reason=decision.reason,
            cost=costs,
            evidence=decision.evidence,
            wait=wait.why if wait else "",
            until_t=wait.until_t if wait else None,
            cascade=CascadeAnswer(
                tier=decision.tier,
                edge=decision.edge,
                certainty=certainty_of(decision.edge, inputs.calibrated.chance),
                flagged=decision.flagged,
            ),
            inputs=replace(inputs, audit_share=decision.audit_share, audit_of=decision.audit_of),
        )

    def _inputs(self, alert: Alert, event: Event, rule: str, now: float, *, own_words: bool) -> RouteInputs:
        tracks = self._tracks_of(alert, event)
        label, stability = self._subject(event, tracks)
        return RouteInputs(
            label=event.label,
            severity=alert.severity,
            own_question=own_words,
            privacy=self._context.privacy(event),
            stability=stability,
            calibrated=_calibrated(self._context, self._camera, label, stability),
            repeat=bool(tracks) and all(self._recent.is_repeat(rule, alert.severity, seen) for seen in tracks),
            system_load=_system_load(self._context, alert, now),
            crowd=self._tracks.crowd,
        )

    def _tracks_of(self, alert: Alert, event: Event) -> list[TrackStats]:
        """Return the alert's newest tracks as they were seen, that of the event first."""
        numbers = dict.fromkeys((event.track, *reversed(alert.tracks[1 - TRACKS_JUDGED_MAX :])))
        return [seen for seen in map(self._tracks.of, numbers) if seen is not None]

    def _subject(self, event: Event, tracks: list[TrackStats]) -> tuple[str, TrackStability]:
        """Return label and stability of the object by which an alert is judged: its track that is most likely real."""
        if not tracks:
            return event.label, TrackStability(score=round(event.score, 3), looks=1)
        chance = self._context.calibration.probability
        best = max(tracks, key=lambda each: chance(self._camera, each.label, each.stability))
        return best.label, best.stability


def _calibrated(context: RouterContext, camera: str, label: str, seen: TrackStability) -> CalibratedChance:
    """Return the chance rounded, as it is logged."""
    router = context.settings.router
    found = context.calibration.chance(camera, label, seen, router.error_max, router.cold_share)
    chance, least = round(found.chance, _DIGITS), round(found.chance_min, _DIGITS)
    return replace(found, chance=chance, chance_min=least, learn_share=round(found.learn_share, _DIGITS))


def _system_load(context: RouterContext, alert: Alert, now: float) -> SystemLoad:
    """Return the load of now, with the off-peak hours of the alert's severity and what is left of the budget."""
    left = [max(0.0, 1 - each.spent / each.amount) if each.amount else 0.0 for each in context.budget.limits(now)]
    return replace(
        context.system_load,
        off_peak_in_s=context.off_peak_left_s(alert.severity, now),
        budget_left=round(min(left), _DIGITS) if left else None,
    )


def build_escalation(
    alert: Alert, event: Event, rule: Rule, *, site: str, now: float, model: str = ""
) -> wire.Escalation:
    """Return the escalation, still without media. The same alert of the same site always makes the same id."""
    return wire.Escalation(
        id=escalation_id(site, alert.id),
        site=site,
        camera=alert.camera,
        alert=alert.id,
        rule=rule.name,
        kind=event.kind,
        label=event.label[: wire.TEXT_CHARS_MAX],
        severity=alert.severity,
        question=(rule.ask or _default_text(event, rule))[:TEXT_CHARS_MAX],
        t=event.t,
        created_t=now,
        score=event.score,
        zone=(event.zone or event.line)[: wire.TEXT_CHARS_MAX],
        model=model[: wire.TEXT_CHARS_MAX],
    )


def escalation_id(site: str, alert: str) -> str:
    """`esc-` and 16 hex digits. Alert ids come from content, so two sites may share one: the site goes in, too."""
    return "esc-" + hashlib.sha256(f"{site}/{alert}".encode()).hexdigest()[:16]


def _default_text(event: Event, rule: Rule) -> str:
    article = "an" if event.label[:1] in "aeiou" else "a"
    claim = f"{_CLAIM[event.kind]} `{event.zone or event.line}`"
    if rule.kind == "dwell":
        claim += f" for at least {rule.seconds:g} seconds"
    if isinstance(rule, LineRule) and rule.direction != "both":
        claim += f" ({rule.direction.replace('_', ' ')})"
    return f"Is there really {article} {event.label} {claim}?"


@dataclass(slots=True)
class _Open:
    """An alert that lasts: its last event, and what was decided last."""

    event: Event
    decision: RouterDecision | None = None


def _changes(before: RouterDecision, decision: RouterDecision) -> bool:
    """Return True if a later decision differs. A postponed escalation can only be released or become more urgent."""
    if before.when == "later":
        order = wire.PRIORITIES.index
        return decision.when == "now" and order(decision.priority) <= order(before.priority)
    return (before.when, before.reason, before.priority) != (decision.when, decision.reason, decision.priority)


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """Answer to a request to escalate: yes (now, or once there is a budget) or no, and why; route: as decided."""

    accepted: bool
    reason: str
    route: Route | None = None


class EscalationRequests:
    """Requests that wait for the core. Bounded: refuses requests beyond the limit or without an answer in time.

    Any thread asks; the core answers, in the thread in which it decides.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._waiting: queue.Queue[tuple[str | ApiEscalation, Future[RequestAnswer]]] = queue.Queue(WAITING_MAX)
        self._answer_s = answer_s

    def ask(self, what: str | ApiEscalation) -> RequestAnswer:
        """Request the escalation of an alert, or of a question with its pictures, and wait for the answer."""
        answer: Future[RequestAnswer] = Future()
        try:
            self._waiting.put_nowait((what, answer))
            with suppress(FutureTimeout):
                return answer.result(self._answer_s)
            if not answer.cancel():  # it is being written at this moment, and what is refused leaves no row
                return answer.result(WRITING_S_MAX)
        except queue.Full:
            return RequestAnswer(False, "too many are asked for at once")
        except FutureTimeout:
            pass
        return RequestAnswer(False, "the appliance is too busy to decide; try again")

    def answer_all(
        self, decide: Callable[[str], RequestAnswer], decide_api: Callable[[ApiEscalation], RequestAnswer]
    ) -> None:
        """Decide about all that wait."""
        for _ in range(self._waiting.qsize()):
            what, answer = self._waiting.get_nowait()
            if answer.set_running_or_notify_cancel():  # else whoever asked has gone
                answer.set_result(decide(what) if isinstance(what, str) else decide_api(what))
