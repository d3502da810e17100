"""The circuit breaker, and the one around calls: one call tries whether the judge is back; a burst is one refusal."""

from __future__ import annotations

import asyncio

import pytest

from appliance.base.backoff import CircuitBreaker
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import EngineError, EngineUnavailable
from cloud_worker.judge import JudgeBreaker


def test_probes_come_more_and_more_rarely_until_it_closes() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock, 10.0, 80.0)
    pauses = []
    for _ in range(5):
        breaker.delay_probe()
        breaker.open("away")
        pauses.append(breaker.probe_in_s)
        clock.advance(breaker.probe_in_s)
        breaker.half_open()
    assert [7.5 <= pauses[0] <= 12.5, 15 <= pauses[1] <= 25, 30 <= pauses[2] <= 50] == [True] * 3
    assert max(pauses) <= 80.0
    breaker.close()
    breaker.delay_probe()
    assert breaker.probe_in_s <= 12.5, "the next outage begins with short pauses"


def test_the_state_tells_since_when_why_and_how_often() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock, 10.0, 80.0)
    began = clock.now()
    assert (breaker.state.name, breaker.state.since, breaker.is_closed()) == ("closed", began, True)
    clock.advance(5)
    breaker.open("one reason")
    breaker.open("another reason")
    state = breaker.state
    assert (state.name, state.since, state.why, state.trips) == ("open", began + 5, "another reason", 1)
    clock.advance(5)
    breaker.half_open()
    breaker.open("it failed again")
    assert (breaker.state.since, breaker.state.trips) == (began + 10, 1), "one outage, one trip"
    breaker.close()
    breaker.open("later")
    assert breaker.state.trips == 2


def test_a_burst_of_refusals_is_one_pause_and_then_one_tries_at_a_time() -> None:
    asyncio.run(_burst())


async def _burst() -> None:
    breaker = JudgeBreaker(SystemClock(), probe_first_s=0.05, probe_last_s=60.0)
    called, at_once, most = 0, 0, 0

    async def refuse_ten_times() -> str:
        nonlocal called, at_once, most
        called += 1
        mine, at_once = called, at_once + 1
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
                return await breaker.call(refuse_ten_times)
            except EngineUnavailable:
                continue

    answers = await asyncio.wait_for(asyncio.gather(*(insist() for _ in range(8))), 60)
    assert answers == ["yes"] * 8
    assert called == 8 + 2 + 8, "eight at once, two tries in vain, and then all"
    assert breaker.why == ""


def test_the_judge_is_not_called_before_it_asked_us_back() -> None:
    async def once() -> float:
        clock = SystemClock()
        breaker = JudgeBreaker(clock, probe_first_s=0.01)

        async def busy() -> None:
            raise EngineUnavailable("overloaded", 0.3)

        async def free() -> float:
            return clock.monotonic()

        started = clock.monotonic()
        with pytest.raises(EngineUnavailable):
            await breaker.call(busy)
        assert breaker.why == "overloaded"
        return await breaker.call(free) - started

    assert asyncio.run(once()) >= 0.3


def test_a_failure_at_one_escalation_does_not_open_it() -> None:
    async def once() -> str:
        breaker = JudgeBreaker(SystemClock())

        async def broken() -> None:
            raise EngineError("it answered 500")

        with pytest.raises(EngineError):
            await breaker.call(broken)
        return breaker.why

    assert asyncio.run(once()) == ""
