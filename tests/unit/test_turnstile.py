"""One question tries whether the judge is back; a burst of refusals is one refusal."""

from __future__ import annotations

import asyncio

import pytest

from appliance.circuit_breaker import CircuitBreaker
from appliance.clock import SystemClock
from appliance.errors import EngineError, EngineUnavailable


def test_a_burst_of_refusals_is_one_pause_and_then_one_tries_at_a_time() -> None:
    asyncio.run(_burst())


async def _burst() -> None:
    turnstile = CircuitBreaker(SystemClock(), first_s=0.05, last_s=60.0)
    asked, at_once, most = 0, 0, 0

    async def refuse_ten_times() -> str:
        nonlocal asked, at_once, most
        asked += 1
        mine, at_once = asked, at_once + 1
        if mine > 8:
            most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        if mine <= 10:
            raise EngineUnavailable("away")
        return "yes"

    async def insist() -> str:
        while True:
            try:
                return await turnstile.call(refuse_ten_times)
            except EngineUnavailable:
                continue

    answers = await asyncio.wait_for(asyncio.gather(*(insist() for _ in range(8))), 60)
    assert answers == ["yes"] * 8
    assert asked == 8 + 2 + 8, "eight at once, two tries in vain, and then all"
    assert turnstile.why == ""


def test_the_judge_is_not_asked_before_it_asked_us_back() -> None:
    async def once() -> float:
        clock = SystemClock()
        turnstile = CircuitBreaker(clock, first_s=0.01)

        async def busy() -> None:
            raise EngineUnavailable("overloaded", 0.3)

        async def free() -> float:
            return clock.monotonic()

        started = clock.monotonic()
        with pytest.raises(EngineUnavailable):
            await turnstile.call(busy)
        assert turnstile.why == "overloaded"
        return await turnstile.call(free) - started

    assert asyncio.run(once()) >= 0.3


def test_a_failure_at_one_question_does_not_shut_it() -> None:
    async def once() -> str:
        turnstile = CircuitBreaker(SystemClock())

        async def broken() -> None:
            raise EngineError("it answered 500")

        with pytest.raises(EngineError):
            await turnstile.call(broken)
        return turnstile.why

    assert asyncio.run(once()) == ""
