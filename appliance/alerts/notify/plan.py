"""Which targets are to be told of an alert, decided when it is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance.config import Target
from appliance.store.notices import NewNotice
from appliance.types import AlertChange, Event

FORBIDDEN = "the privacy rules of this camera forbid it"


@dataclass(frozen=True, slots=True)
class Addressee:
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

    def __init__(self, site: str, targets: Mapping[str, Addressee], forbids: Callable[[Event], bool]) -> None:
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

    def _new(self, to: Addressee, change: AlertChange, event: Event, now: float) -> NewNotice:
        wish = to.target
        return NewNotice(
            id=notice_id(self._site, change.alert.id, to.name),
            alert=change.alert.id,
            target=to.name,
            camera=change.alert.camera,
            created_t=now,
            due_t=now + wish.hold_s,
            expire_t=now + wish.expire_hours * 3600,
            forbidden=FORBIDDEN if not wish.local and self._forbids(event) else "",
        )


def notice_id(site: str, alert: str, target: str) -> str:
    """24 hexadecimal digits: fit for an ntfy sequence and for a file name."""
    return hashlib.sha256(f"notice|{site}|{alert}|{target}".encode()).hexdigest()[:24]
