"""The facts about the appliance that a message must mention."""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.broker.nats_connection import LinkState
from appliance.store.health_events import HealthEventStore

LINK_GRACE_S = 3.0  # a link that has just begun to connect, after a start say, may be up in a moment
_DEGRADED_MAX = 4  # sentences in a message; the page System has all


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
            f"{'the camera' if event.camera else 'the box'} is not well: {event.reason}"
            for event in self._health.open()
            if event.camera in {camera, ""}
        ]
        return tuple(text.rstrip(".") for text in found if text)[:_DEGRADED_MAX]
