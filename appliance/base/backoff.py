"""Computes when to try again: exponential delays with jitter, and a circuit breaker for a service that fails."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from appliance.base.clock import Clock


class Backoff:
    """Delays that double from `first_s` to `last_s`, each spread by ±`jitter`.

    State: the next delay. Owner: one loop. `reset()` after things went well starts from the beginning.
    """

    def __init__(self, first_s: float = 0.5, last_s: float = 8.0, *, jitter: float = 0.25) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._jitter = jitter
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the seconds to wait now; the following wait is twice as long, up to `last_s`."""
        delay_s, self._next_s = self._next_s, min(self._next_s * 2, self._last_s)
        return min(delay_s * random.uniform(1 - self._jitter, 1 + self._jitter), self._last_s)

    def reset(self) -> None:
        """Begin with short delays, as things went well."""
        self._next_s = self._first_s


CircuitName = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class CircuitState:
    """closed: calls go through; open: they wait; half_open: one of them is tried.

    since: when `name` last changed, UTC seconds. why: what was reported when it opened. trips: how often it opened.
    """

    name: CircuitName = "closed"
    since: float = 0.0
    why: str = ""
    trips: int = 0


class CircuitBreaker:
    """The three states of a circuit breaker (M. Nygard, Release It!), with probes that are spaced by a backoff.

    State: `state`, and when the next probe is due. Owner: one thread or event loop; any thread reads `state`.
    Invariant: after `open` no probe is due before the backoff's pause is over, nor before the service asked us back.
    """

    def __init__(self, clock: Clock, probe_first_s: float, probe_last_s: float) -> None:
        self._clock = clock
        self._backoff = Backoff(probe_first_s, probe_last_s)
        self._probe_at = 0.0
        self.state = CircuitState(since=clock.now())

    def is_closed(self) -> bool:
        return self.state.name == "closed"

    @property
    def probe_in_s(self) -> float:
        """Seconds until the next probe is due; 0: it is."""
        return max(0.0, self._probe_at - self._clock.monotonic())

    def open(self, why: str) -> None:
        """Make calls wait from here on. Spaces no probe: see `delay_probe`."""
        self._turn("open", why)

    def half_open(self) -> None:
        """Let one call through to try the service."""
        self._turn("half_open", self.state.why)

    def close(self) -> None:
        """Let calls through, as the service answers; the next outage begins with short pauses."""
        self._backoff.reset()
        self._turn("closed", "")

    def delay_probe(self, at_least_s: float = 0.0, *, lengthen: bool = True) -> None:
        """Put the next probe off by `at_least_s`, or by the backoff's pause if that is longer.

        lengthen: the pause after this one is longer still; False: only `at_least_s` counts.
        """
        pause_s = max(self._backoff.next_s() if lengthen else 0.0, at_least_s)
        self._probe_at = max(self._probe_at, self._clock.monotonic() + pause_s)

    def forgive(self) -> None:
        """Begin with short pauses, whatever the state, as the service gave a sign of life."""
        self._backoff.reset()

    def _turn(self, name: CircuitName, why: str) -> None:
        before = self.state
        if (name, why) == (before.name, before.why):
            return
        trips = before.trips + (name == "open" and before.name == "closed")
        since = before.since if name == before.name else self._clock.now()
        self.state = CircuitState(name, since, why, trips)
