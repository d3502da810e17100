"""Whether anybody will answer a question now, and what is not well, for those who are told of an alert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from appliance.clock import Clock
from appliance.store.health import HealthEvents

LINK_GRACE_S = 3.0  # a link that has just begun to connect, after a start say, may be up in a moment
_DEGRADED_MAX = 4


class LinkState(Protocol):
    """The uplink now; see appliance.broker."""

    @property
    def up(self) -> bool: ...

    @property
    def since(self) -> float: ...

    @property
    def breaker(self) -> str: ...


class Around:
    """Owner: the notifier's thread. link None: there is no uplink."""

    def __init__(
        self,
        link: Callable[[], LinkState] | None,
        health: HealthEvents,
        warning: Callable[[], str],
        clock: Clock,
    ) -> None:
        """warning: what is not well with the box itself, or ''."""
        self._link = link
        self._health = health
        self._warning = warning
        self._clock = clock

    @property
    def answers(self) -> bool:
        """A question that is on its way may be answered soon."""
        if self._link is None:
            return False
        link = self._link()
        if link.breaker != "closed":
            return False
        return link.up or 0 <= self._clock.now() - link.since < LINK_GRACE_S

    def degraded(self, camera: str, *, unverified: bool) -> tuple[str, ...]:
        """What a person should know beside the alert, one sentence each, at most 4. Raises StoreError."""
        found = [self._warning()]
        if unverified and self._link is not None and not self.answers:
            down = "the cloud cannot be reached" if not self._link().up else "the cloud does not answer"
            found.append(f"{down} now, so nobody has checked it")
        found += [
            f"{'the camera' if event.camera else 'the box'} is not well: {event.reason}"
            for event in self._health.open()
            if event.camera in {camera, ""}
        ]
        return tuple(text.rstrip(".") for text in found if text)[:_DEGRADED_MAX]
