"""Decides which health events a target gets, and when: once while each lasts, and once when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.base.clock import Clock
from appliance.broker.nats_connection import LinkState
from appliance.config import Target
from appliance.notify.message import MessageBuilder, NotificationMessage
from appliance.store.health_events import HealthEventRow, HealthEventStore
from appliance.types import OF_NEIGHBOURS

SENT_MAX = 500  # events that are remembered until they are over
OVER_AFTER_S = 60.0  # a fault that returns sooner is the same event, and nobody is told of each turn
LINK_GRACE_S = 3.0  # a link that has just begun to connect, after a start say, may be up in a moment
_DEGRADED_MAX = 4  # sentences in a message; the page System has all


@dataclass(frozen=True, slots=True)
class HealthNotice:
    """A message that is due about a health event."""

    event: HealthEventRow
    message: NotificationMessage


class HealthNotices:
    """The health events of one target.

    State: which events it was told of that are not over. Owner: the notifier's loop. It is kept in memory alone: a
    start ends every event, and what is still wrong then begins a new one. An event that was over before the target
    could be reached is not told.
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
        self._sent: dict[str, None] = {}  # in the order of telling

    def follow(self, before: HealthNotices) -> None:
        """Go on from those of the same target, which share what the target was told of until they end."""
        self._sent = before._sent

    def due(self) -> HealthNotice | None:
        """Return the next message, the oldest event first; None if there is nothing new. Raise StoreError."""
        if not self._target.health:
            return None
        lasting = self._events.open()
        for event in lasting:
            if event.id not in self._sent and self._wants(event):
                message = self._messages.health(event, local=self._target.local)
                if message is not None:
                    return HealthNotice(event, message)
        return self._over()

    def _over(self) -> HealthNotice | None:
        """Return the message about an event that was sent and has ended for good; None if there is none."""
        for name in tuple(self._sent):
            event = self._events.get(name)
            if event is None:  # only the newest are kept
                del self._sent[name]
            elif event.t_end is not None and not 0 <= self._clock.now() - event.t_end < OVER_AFTER_S:
                message = self._messages.health(event, local=self._target.local)
                if message is not None:
                    return HealthNotice(event, message)
                del self._sent[name]
        return None

    def delivered(self, notice: HealthNotice) -> None:
        """Note that the target took the message, or never will."""
        if notice.event.t_end is not None:
            self._sent.pop(notice.event.id, None)
            return
        if len(self._sent) >= SENT_MAX:
            del self._sent[next(iter(self._sent))]
        self._sent[notice.event.id] = None

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
    ) -> None:
        """link: None: the site has no uplink. warning: what is wrong with the appliance itself, or ''."""
        self._link = link
        self._health = health
        self._warning = warning
        self._clock = clock

    @property
    def cloud_answers(self) -> bool:
        """An escalation that was sent may be answered soon."""
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
