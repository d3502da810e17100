"""A circuit breaker: keeps calls away from a service that fails, and lets one at a time try whether it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from appliance.backoff import Backoff
from appliance.clock import Clock
from appliance.errors import EngineUnavailable

Result = TypeVar("Result")


class CircuitBreaker:
    """A circuit breaker: shut by EngineUnavailable, opened by the first call that is not refused.

    While it is shut one call at a time goes through, each after a longer pause, and not before the judge asked us
    back (Retry-After). `why`: what the judge said when it was last asked in vain; empty while it is open.
    """

    def __init__(self, clock: Clock, first_s: float = 1.0, last_s: float = 60.0) -> None:
        self._clock = clock
        self._backoff = Backoff(first_s, last_s)
        self._probe = asyncio.Lock()
        self._not_before = 0.0
        self.why = ""

    async def call(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `ask()`, as soon as it may be asked. Raises what it raises."""
        if not self.why:
            return await self._ask(ask)
        async with self._probe:
            if self.why:
                await asyncio.sleep(max(0.0, self._not_before - self._clock.monotonic()))
                return await self._ask(ask, probe=True)
        return await self._ask(ask)

    async def _ask(self, ask: Callable[[], Awaitable[Result]], *, probe: bool = False) -> Result:
        try:
            result = await ask()
        except EngineUnavailable as error:
            burst = bool(self.why) and not probe  # it was on its way already when another call shut this
            pause_s = max(0.0 if burst else self._backoff.next_s(), error.after_s or 0.0)
            self._not_before = max(self._not_before, self._clock.monotonic() + pause_s)
            self.why = str(error)
            raise
        self.why = ""
        self._backoff.reset()
        return result
