"""The circuit breaker of the uplink: while broker or workers do not answer, escalations wait and one at a time is
tried.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from appliance.backoff import Backoff
from appliance.clock import Clock

logger = logging.getLogger(__name__)

PROBE_FIRST_S = 30.0
PROBE_LAST_S = 900.0
ANSWER_S = 60.0  # in which the one that is tried should be answered
FAILURES_MAX = 3


@dataclass(frozen=True, slots=True)
class BreakerState:
    """closed: the cloud answers; open: it does not, questions wait; half_open: one is tried. since: UTC seconds."""

    name: Literal["closed", "open", "half_open"] = "closed"
    since: float = 0.0
    why: str = ""
    trips: int = 0


class CloudBreaker:
    """Opens when the broker fails again and again, or when no worker says anything for `silent_s` though it was asked.

    A broker that failed is tried by the uplink at its own pace, and the first message it takes closes the breaker. A
    silent worker is tried with one question after 30 s, then after twice as long each time, up to 15 minutes; any
    verdict closes it. Owner: the uplink's event loop; any thread reads `state`.
    """

    def __init__(self, silent_s: float, clock: Clock) -> None:
        self._silent_s = silent_s
        self._clock = clock
        self._backoff = Backoff(PROBE_FIRST_S, PROBE_LAST_S)
        self._failures = 0
        self._silent = False
        self._heard_at = clock.monotonic()
        self._try_at = 0.0
        self._tried = False
        self.state = BreakerState(since=clock.now())

    @property
    def blocks(self) -> bool:
        """No further question may be sent now."""
        return self._silent and (self.state.name == "open" or self._tried)

    @property
    def one_at_a_time(self) -> bool:
        return self.state.name != "closed"

    def publish_failed(self, why: str) -> None:
        """The broker did not take a message, or is not there."""
        self._failures += 1
        if self._failures >= FAILURES_MAX and not self._silent:
            self._turn("open", why)

    def link_lost(self, why: str) -> None:
        """The link is down."""
        if not self._silent:
            self._turn("open", why)

    def link_restored(self) -> None:
        """The link is up again; whether anybody answers is not known yet. Silence counts from here."""
        self._heard_at = self._clock.monotonic()
        if self.state.name == "open" and not self._silent:
            self._turn("half_open", self.state.why)

    def message_stored(self) -> None:
        """The broker stored a message."""
        self._failures = 0
        if not self._silent and self.state.name != "closed":
            self._turn("closed", "")

    def escalation_stored(self) -> None:
        """The broker stored a question."""
        if self._silent and not self._tried:
            self._try_at = self._clock.monotonic() + ANSWER_S
        self._tried = True

    def verdict_received(self) -> bool:
        """A verdict came; returns whether that opens the way for what waited."""
        self._heard_at = self._clock.monotonic()
        self._backoff.reset()
        if not self._silent:
            return False
        self._silent = False
        self._turn("closed", "")
        logger.info("the cloud answers again: what waited is sent")
        return True

    def check_silence(self, oldest_s: float | None) -> None:
        """Call it now and then. oldest_s: for how long the oldest question at the cloud waits; None: there is none."""
        now = self._clock.monotonic()
        if not self._silent:
            quiet_s = now - self._heard_at
            if oldest_s is not None and min(oldest_s, quiet_s) > self._silent_s and self.state.name == "closed":
                self._silent = True
                self._try_again_later(now, f"no worker has answered for {quiet_s / 60:.0f} min")
            return
        if self.state.name == "open" and now >= self._try_at:
            self._tried = False
            self._turn("half_open", self.state.why)
        elif self.state.name == "half_open" and self._tried and now >= self._try_at:
            self._try_again_later(now, f"no worker has answered for {(now - self._heard_at) / 60:.0f} min")

    def _try_again_later(self, now: float, why: str) -> None:
        self._try_at = now + self._backoff.next_s()
        self._turn("open", why)
        logger.warning("%s: questions wait on this box, and one at a time is tried", why)

    def _turn(self, name: Literal["closed", "open", "half_open"], why: str) -> None:
        before = self.state
        if (name, why) == (before.name, before.why):
            return
        trips = before.trips + (name == "open" and before.name == "closed")
        since = before.since if name == before.name else self._clock.now()
        self.state = BreakerState(name, since, why, trips)
