"""A circuit breaker: keeps calls away from a service that fails, and lets one at a time try whether it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from appliance.backoff import Backoff
from appliance.clock import Clock
from appliance.errors import EngineUnavailable

Result = TypeVar("Result")
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
        """Calls wait from here on. Spaces no probe: see `delay_probe`."""
        self._turn("open", why)

    def half_open(self) -> None:
        """One call is tried."""
        self._turn("half_open", self.state.why)

    def close(self) -> None:
        """The service answers: calls go through, and the next outage begins with short pauses."""
        self._backoff.reset()
        self._turn("closed", "")

    def delay_probe(self, at_least_s: float = 0.0, *, lengthen: bool = True) -> None:
        """Put the next probe off by `at_least_s`, or by the backoff's pause if that is longer.

        lengthen: the pause after this one is longer still; False: only `at_least_s` counts.
        """
        pause_s = max(self._backoff.next_s() if lengthen else 0.0, at_least_s)
        self._probe_at = max(self._probe_at, self._clock.monotonic() + pause_s)

    def forgive(self) -> None:
        """The service gave a sign of life, whatever the state: begin with short pauses again."""
        self._backoff.reset()

    def _turn(self, name: CircuitName, why: str) -> None:
        before = self.state
        if (name, why) == (before.name, before.why):
            return
        trips = before.trips + (name == "open" and before.name == "closed")
        since = before.since if name == before.name else self._clock.now()
        self.state = CircuitState(name, since, why, trips)


class CallBreaker:
    """A circuit breaker around calls: opened by EngineUnavailable, closed by the first call that is not refused.

    While it is open one call at a time goes through, each after a longer pause, and not before the service asked us
    back (Retry-After). State: its circuit. Owner: one event loop.
    """

    def __init__(self, clock: Clock, probe_first_s: float = 1.0, probe_last_s: float = 60.0) -> None:
        self._circuit = CircuitBreaker(clock, probe_first_s, probe_last_s)
        self._probe = asyncio.Lock()

    @property
    def why(self) -> str:
        """What the service reported when it was last called in vain; empty while the circuit is closed."""
        return self._circuit.state.why

    async def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `work()`, as soon as it may be called. Raises what it raises."""
        if self._circuit.is_closed():
            return await self._call(work)
        async with self._probe:
            if not self._circuit.is_closed():
                await asyncio.sleep(self._circuit.probe_in_s)
                return await self._call(work, probe=True)
        return await self._call(work)

    async def _call(self, work: Callable[[], Awaitable[Result]], *, probe: bool = False) -> Result:
        try:
            result = await work()
        except EngineUnavailable as error:
            burst = not self._circuit.is_closed() and not probe  # it was under way when another call opened the circuit
            self._circuit.delay_probe(error.after_s or 0.0, lengthen=not burst)
            self._circuit.open(str(error))
            raise
        self._circuit.close()
        return result
