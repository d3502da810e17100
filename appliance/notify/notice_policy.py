"""Decides which targets get a notice of an alert, and whether it is sent now, held, dropped or sent again. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from appliance.config import Target
from appliance.store.notices import NewNotice, Standing
from appliance.store.rows import Delivery
from appliance.types import SEVERITIES, AlertChange, Event, Severity

PRIVACY_FORBIDS = "the privacy rules of this camera forbid it"


@dataclass(frozen=True, slots=True)
class Recipient:
    """A target by its name. armed: whether it wants to be told of what happens at a time (`schedule`)."""

    name: str
    target: Target
    armed: Callable[[float], bool]

    def wants(self, change: AlertChange) -> bool:
        alert, wish = change.alert, self.target
        return (
            wish.enabled
            and alert.severity in wish.severities
            and (not wish.cameras or alert.camera in wish.cameras)
            and (not wish.rules or any(rule in wish.rules for rule in alert.rules))
            and self.armed(change.event.t if change.event else alert.t_start)
        )


class NoticePlanner:
    """Pure: a change of an alert and the time decide.

    An alert that has become graver, or is about a further rule, may concern a target that the beginning did not. The
    same alert and target have the same id, whenever and however often it is planned.
    """

    def __init__(self, site: str, targets: Mapping[str, Recipient], forbids: Callable[[Event], bool]) -> None:
        """forbids: nothing about this event leaves the site."""
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
        wish = to.target
        return NewNotice(
            id=notice_id(self._site, change.alert.id, to.name),
            alert=change.alert.id,
            target=to.name,
            camera=change.alert.camera,
            created_t=now,
            due_t=now + wish.hold_s,
            expire_t=now + wish.expire_hours * 3600,
            forbidden=PRIVACY_FORBIDS if not wish.local and self._forbids(event) else "",
        )


def notice_id(site: str, alert: str, target: str) -> str:
    """24 hexadecimal digits: fit for an ntfy sequence and for a file name."""
    return hashlib.sha256(f"notice|{site}|{alert}|{target}".encode()).hexdigest()[:24]


WITHDRAWN_REASON = "withdrawn before anybody was told: the cloud rejected it"
_ON_ITS_WAY = frozenset({"waiting", "ready", "sent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeInput:
    """What is known of one alert and one target.

    held_s: for how long it has been held; hold_s: how long it may be; due_t: until when (UTC seconds): the earlier
    counts, so that neither a restart nor a clock that is set makes anybody wait longer. answers: somebody is there to
    answer questions. told, told_severity: what the last message that arrived said; None: none did. doubtful: one may
    have arrived although nobody said so. repeated: the target was told of the same rules of this camera a moment ago.
    """

    now: float
    due_t: float
    held_s: float
    hold_s: float
    standing: Standing
    severity: Severity
    delivery: Delivery | None
    answers: bool
    told: Standing | None = None
    told_severity: Severity | None = None
    doubtful: bool = False
    repeated: str = ""


@dataclass(frozen=True, slots=True)
class NoticeDecision:
    """hold: look again later. tell: send a message. drop: never send one, ending in `state` with the reason. rest: what
    was told is still so."""

    kind: Literal["hold", "tell", "drop", "rest"]
    reason: str = ""
    state: Literal["withdrawn", "quiet"] = "withdrawn"


def decide_notice(case: NoticeInput) -> NoticeDecision:
    """What becomes of it now.

    Before anything was told: a rejected alert is dropped, unless a message may have arrived already, which is then
    taken back. While the cloud is at work and may still answer it is held, never beyond its time. Afterwards: only
    what changes a person's mind is told again.
    """
    if case.told is not None:
        return NoticeDecision("tell") if _is_news(case) else NoticeDecision("rest")
    if case.standing == "withdrawn":
        return NoticeDecision("tell") if case.doubtful else NoticeDecision("drop", WITHDRAWN_REASON)
    if _is_held(case):
        return NoticeDecision("hold", "held for the cloud's verdict")
    if case.repeated and not case.doubtful:
        return NoticeDecision("drop", case.repeated, "quiet")
    return NoticeDecision("tell")


def _is_held(case: NoticeInput) -> bool:
    if case.standing != "unverified" or case.delivery not in _ON_ITS_WAY or not case.answers or case.doubtful:
        return False
    return case.held_s < case.hold_s and 0 < case.due_t - case.now <= case.hold_s


def _is_news(case: NoticeInput) -> bool:
    """A verdict that upgrades or withdraws what was told, or a graver alert."""
    if case.standing in {"confirmed", "withdrawn"} and case.standing != case.told:
        return True
    graver = case.told_severity is not None and _rank(case.severity) > _rank(case.told_severity)
    return graver and case.standing != "withdrawn"


def _rank(severity: Severity) -> int:
    return SEVERITIES.index(severity)
