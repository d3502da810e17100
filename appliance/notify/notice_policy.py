"""Decides which alerts and health events a target is told of, and when.

A notice of an alert is sent now, held, dropped or sent again; that decision is pure. A health event is told once while
it lasts, and once when it is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from appliance.base.clock import Clock
from appliance.broker.nats_connection import LinkState
from appliance.config import Target
from appliance.notify.message import MessageBuilder, NotificationMessage
from appliance.store.alert_rows import Standing
from appliance.store.escalations import Delivery
from appliance.store.health_events import HealthEventRow, HealthEventStore
from appliance.store.notices import NewNotice
from appliance.types import OF_NEIGHBOURS, SEVERITIES, AlertChange, Event, Severity

PRIVACY_FORBIDS = "the privacy rules of this camera forbid it"
WITHDRAWN_REASON = "withdrawn before anybody was told: the cloud rejected it"
_IN_FLIGHT: frozenset[Delivery] = frozenset({"waiting", "ready", "sent"})
SENT_MAX = 500  # events that are remembered until they are over
PUT_OFF_S = 60.0  # until an event that nobody wanted at its hour is offered again
OVER_AFTER_S = 60.0  # a fault that returns sooner is the same event, and nobody is told of each turn
LINK_GRACE_S = 3.0  # a link that has just begun to connect, after a start say, may be up in a moment
_DEGRADED_MAX = 4  # sentences in a message; the page System has all


@dataclass(frozen=True, slots=True)
class Recipient:
    """A target by its name. armed: whether its `schedule` covers a time (UTC seconds)."""

    name: str
    target: Target
    armed: Callable[[float], bool]

    def wants(self, change: AlertChange) -> bool:
        alert, target = change.alert, self.target
        return (
            target.enabled
            and alert.severity in target.severities
            and (not target.cameras or alert.camera in target.cameras)
            and (not target.rules or any(rule in target.rules for rule in alert.rules))
            and self.armed(change.event.t if change.event else alert.t_start)
        )


class NoticePlanner:
    """Plans which targets get a notice when an alert is written. Pure: a change of an alert and the time decide.

    An alert that becomes more severe, or concerns a further rule, may reach a target that its first event did not.
    The same alert and target give the same notice id, however often they are planned.
    """

    def __init__(self, site: str, targets: Mapping[str, Recipient], forbids: Callable[[Event], bool]) -> None:
        """forbids: whether nothing about an event may leave the site."""
        self._site = site
        self._targets = targets
        self._forbids = forbids

    def plan(self, change: AlertChange, now: float) -> tuple[NewNotice, ...]:
        if change.kind == "ended" or change.event is None:
            return ()
        return tuple(
            self._new(each, change, change.event, now) for each in self._targets.values() if each.wants(change)
        )

    def _new(self, to: Recipient, change: AlertChange, event: Event, now: float) -> NewNotice:
        target = to.target
        return NewNotice(
            id=notice_id(self._site, change.alert.id, to.name),
            alert=change.alert.id,
            target=to.name,
            camera=change.alert.camera,
            created_t=now,
            due_t=now + target.hold_s,
            expire_t=now + target.expire_hours * 3600,
            forbidden=PRIVACY_FORBIDS if not target.local and self._forbids(event) else "",
        )


def notice_id(site: str, alert: str, target: str) -> str:
    """24 hexadecimal digits: fit for an ntfy sequence and for a file name."""
    return hashlib.sha256(f"notice|{site}|{alert}|{target}".encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeInput:
    """The facts about one alert and one target; times are UTC seconds, durations seconds.

    Attributes:
        due_t: until when the notice may be held.
        held_s: for how long it has been held, on a clock that never jumps. The earlier of `due_t` and
            `held_s >= hold_s` counts, so that neither a restart nor a clock that is set prolongs the hold.
        standing, severity, delivery: how the alert and its escalation stand now.
        cloud_answers: an escalation that was sent may be answered soon.
        sent_standing, sent_severity: what the last message that arrived stated; None: no message arrived.
        maybe_delivered: a message may have arrived although nobody confirmed it.
        quiet_reason: why the target is not to be notified now (a repetition, a snooze, its quiet hours …), or ''.
    """

    now: float
    due_t: float
    held_s: float
    hold_s: float
    standing: Standing
    severity: Severity
    delivery: Delivery | None
    cloud_answers: bool
    sent_standing: Standing | None = None
    sent_severity: Severity | None = None
    maybe_delivered: bool = False
    quiet_reason: str = ""


@dataclass(frozen=True, slots=True)
class NoticeDecision:
    """The next step for a notice.

    hold: decide again later. send: send a message now. drop: never send one; the notice ends in `state` with the
    reason. keep: what was sent is still true.
    """

    kind: Literal["hold", "send", "drop", "keep"]
    reason: str = ""
    state: Literal["withdrawn", "quiet"] = "withdrawn"


def decide_notice(notice: NoticeInput) -> NoticeDecision:
    """Decide what to do with a notice now.

    Before the first message: a withdrawn alert is dropped, unless a message may have arrived already, which is then
    withdrawn by another. While the cloud works on it and may still answer, the notice is held, never beyond its time. A
    rejection that is not firm, and a re-check by a detector, end the hold: nothing better is on its way. Afterwards
    only what changes a person's mind is sent again.
    """
    if notice.sent_standing is not None:
        changed = is_news(notice.standing, notice.severity, notice.sent_standing, notice.sent_severity)
        return NoticeDecision("send" if changed else "keep")
    if notice.standing == "withdrawn":
        return NoticeDecision("send") if notice.maybe_delivered else NoticeDecision("drop", WITHDRAWN_REASON)
    if _is_held(notice):
        return NoticeDecision("hold", "held for the cloud's verdict")
    if notice.quiet_reason and not notice.maybe_delivered:
        return NoticeDecision("drop", notice.quiet_reason, "quiet")
    return NoticeDecision("send")


def is_news(
    standing: Standing, severity: Severity, sent_standing: Standing | None, sent_severity: Severity | None
) -> bool:
    """Return True if a verdict confirms or withdraws what was sent, or the alert became more severe.

    sent_standing None: no message arrived yet, so anything but a withdrawal is news.
    """
    if sent_standing is None:
        return standing != "withdrawn"
    if standing in {"confirmed", "withdrawn"} and standing != sent_standing:
        return True
    escalated = sent_severity is not None and SEVERITIES.index(severity) > SEVERITIES.index(sent_severity)
    return escalated and standing != "withdrawn"


def _is_held(notice: NoticeInput) -> bool:
    if notice.standing != "unverified" or notice.delivery not in _IN_FLIGHT:
        return False
    if not notice.cloud_answers or notice.maybe_delivered:
        return False
    return notice.held_s < notice.hold_s and 0 < notice.due_t - notice.now <= notice.hold_s


@dataclass(frozen=True, slots=True)
class HealthNotice:
    """A message that is due about a health event."""

    event: HealthEventRow
    message: NotificationMessage


class HealthNotices:
    """The health events of one target.

    State: which events it was told of, or refused, that are not over, and which are put off. Owner: the notifier's
    loop. It is kept in memory alone: a start ends every event, and what is still wrong then begins a new one. An event
    that was over before the target could be reached is not told.
    """

    def __init__(
        self,
        target: Target,
        events: HealthEventStore,
        messages: MessageBuilder,
        armed: Callable[[float], bool],
        clock: Clock,
    ) -> None:
        """armed: whether the target's `schedule` covers a time (UTC seconds)."""
        self._target = target
        self._events = events
        self._messages = messages
        self._armed = armed
        self._clock = clock
        self._sent: dict[str, bool] = {}  # true: told; false: refused. In that order
        self._put_off: dict[str, float] = {}

    def follow(self, before: HealthNotices) -> None:
        """Go on from those of the same target, which share what the target was told of until they end."""
        self._sent = before._sent

    def due(self) -> HealthNotice | None:
        """Return the next message, the oldest event first; None if there is nothing new. Raise StoreError."""
        if not self._target.health:
            return None
        lasting = self._events.open()
        for event in lasting:
            if event.id not in self._sent and not self._is_put_off(event) and self._wants(event):
                message = self._messages.health(event, local=self._target.local)
                if message is not None:
                    return HealthNotice(event, message)
        return self._over()

    def _over(self) -> HealthNotice | None:
        """Return the message about an event that was sent and has ended for good; None if there is none."""
        for name, told in tuple(self._sent.items()):
            event = self._events.get(name)
            if event is None:  # only the newest are kept
                del self._sent[name]
            elif self._is_put_off(event):
                continue
            elif event.t_end is not None and not 0 <= self._clock.now() - event.t_end < OVER_AFTER_S:
                message = self._messages.health(event, local=self._target.local) if told else None
                if message is not None:
                    return HealthNotice(event, message)
                del self._sent[name]
        return None

    def put_off(self, notice: HealthNotice) -> None:
        """Note that the target does not take the message at this hour: it is due again in PUT_OFF_S."""
        now = self._clock.monotonic()
        self._put_off = {name: until for name, until in self._put_off.items() if until > now}
        self._put_off[notice.event.id] = now + PUT_OFF_S

    def _is_put_off(self, event: HealthEventRow) -> bool:
        return self._clock.monotonic() < self._put_off.get(event.id, 0.0)

    def concluded(self, notice: HealthNotice, *, told: bool) -> None:
        """Note that the target took the message (told), or never will: then it does not hear of the end either."""
        if notice.event.t_end is not None:
            self._sent.pop(notice.event.id, None)
            return
        if len(self._sent) >= SENT_MAX:
            del self._sent[next(iter(self._sent))]
        self._sent[notice.event.id] = told

    def _wants(self, event: HealthEventRow) -> bool:
        target = self._target
        return (
            event.kind in target.health
            and (not target.cameras or event.camera in ("", *target.cameras))
            and self._armed(event.t_start)
        )


class SystemStatus:
    """The state of the appliance for messages: if the cloud may still answer, and which parts are degraded.

    Owner: the notifier's thread.
    """

    def __init__(
        self,
        link: Callable[[], LinkState] | None,
        health: HealthEventStore,
        warning: Callable[[], str],
        clock: Clock,
        judged_here: Callable[[], bool] = lambda: False,
    ) -> None:
        """link: None: the site has no uplink. warning: what is wrong with the appliance itself, or ''.

        judged_here: whether the appliance's own judge is at work now.
        """
        self._link = link
        self._health = health
        self._warning = warning
        self._clock = clock
        self._judged_here = judged_here

    @property
    def cloud_answers(self) -> bool:
        """An escalation that was sent, or waits for the appliance's own judge, may be answered soon."""
        if self._judged_here():
            return True
        if self._link is None:
            return False
        link = self._link()
        if link.breaker != "closed":
            return False
        return link.up or 0 <= self._clock.now() - link.since < LINK_GRACE_S

    def degraded(self, camera: str, *, unverified: bool) -> tuple[str, ...]:
        """Return what a person should know beside the alert, one sentence each, at most 4. Raise StoreError."""
        found = [self._warning()]
        if unverified and self._link is not None and not self.cloud_answers:
            down = "the cloud cannot be reached" if not self._link().up else "the cloud does not answer"
            found.append(f"{down} now, so nobody has checked it")
        found += [
            f"{'the camera' if event.camera else 'the appliance'} is not well: {event.reason}"
            for event in self._health.open()
            if event.camera in {camera, ""} and event.kind not in OF_NEIGHBOURS
        ]
        return tuple(text.rstrip(".") for text in found if text)[:_DEGRADED_MAX]
