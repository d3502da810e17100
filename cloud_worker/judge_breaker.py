"""Pauses and probes while calls of the judge (the VLM) fail; escalation_handler asks again or gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from appliance.base.backoff import CircuitBreaker
from appliance.base.clock import Clock
from appliance.base.errors import EngineUnavailable

Result = TypeVar("Result")


class JudgeBreaker:
    """A circuit breaker around calls of the judge: opened by EngineUnavailable, closed by the first call that succeeds.

    While it is open one call at a time goes through, each after a longer pause, and not before the service asked us
    back (Retry-After). State: its circuit. Owner: one event loop.
    """

    def __init__(self, clock: Clock, probe_first_s: float = 1.0, probe_last_s: float = 60.0) -> None:
        self._circuit = CircuitBreaker(clock, probe_first_s, probe_last_s)
        self._probe = asyncio.Lock()

    @property
    def why(self) -> str:
        """Return what the service reported when it last failed; empty while the circuit is closed."""
        return self._circuit.state.why

    async def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `work()`, as soon as it may be called. Raise what it raises."""
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
