"""Whether a target is told now, later, never, or once more. Pure: what is known decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.store.notices import Standing
from appliance.store.rows import Delivery
from appliance.types import SEVERITIES, Severity

WITHDRAWN = "withdrawn before anybody was told: the cloud rejected it"
_ON_ITS_WAY = frozenset({"waiting", "ready", "sent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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
class Move:
    """hold: look again later. tell: send a message. drop: never send one, ending in `state` with the reason. rest: what
    was told is still so."""

    kind: Literal["hold", "tell", "drop", "rest"]
    reason: str = ""
    state: Literal["withdrawn", "quiet"] = "withdrawn"


def decide(case: Case) -> Move:
    """What becomes of it now.

    Before anything was told: a rejected alert is dropped, unless a message may have arrived already, which is then
    taken back. While the cloud is at work and may still answer it is held, never beyond its time. Afterwards: only
    what changes a person's mind is told again.
    """
    if case.told is not None:
        return Move("tell") if _is_news(case) else Move("rest")
    if case.standing == "withdrawn":
        return Move("tell") if case.doubtful else Move("drop", WITHDRAWN)
    if _is_held(case):
        return Move("hold", "held for the cloud's verdict")
    if case.repeated and not case.doubtful:
        return Move("drop", case.repeated, "quiet")
    return Move("tell")


def _is_held(case: Case) -> bool:
    if case.standing != "unverified" or case.delivery not in _ON_ITS_WAY or not case.answers or case.doubtful:
        return False
    return case.held_s < case.hold_s and 0 < case.due_t - case.now <= case.hold_s


def _is_news(case: Case) -> bool:
    """A verdict that upgrades or withdraws what was told, or a graver alert."""
    if case.standing in {"confirmed", "withdrawn"} and case.standing != case.told:
        return True
    graver = case.told_severity is not None and _rank(case.severity) > _rank(case.told_severity)
    return graver and case.standing != "withdrawn"


def _rank(severity: Severity) -> int:
    return SEVERITIES.index(severity)
