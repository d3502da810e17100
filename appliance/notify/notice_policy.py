"""Decides which targets get a notice of an alert, and whether it is sent now, held, dropped or sent again. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from appliance.config import Target
from appliance.store.alert_rows import Standing
from appliance.store.escalations import Delivery
from appliance.store.notices import NewNotice
from appliance.types import SEVERITIES, AlertChange, Event, Severity

PRIVACY_FORBIDS = "the privacy rules of this camera forbid it"
WITHDRAWN_REASON = "withdrawn before anybody was told: the cloud rejected it"
_IN_FLIGHT: frozenset[Delivery] = frozenset({"waiting", "ready", "sent"})


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
