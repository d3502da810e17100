"""Tasks that are told to end, and one that did not hear it the first time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from appliance.broker import nats_link
from appliance.broker.nats_link import end_tasks, until_set


def test_a_cancellation_that_is_swallowed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "CANCEL_RETRY_S", 0.05)

    async def never() -> None:
        await asyncio.Event().wait()

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` does when its result comes that moment
            await never()
        await never()

    async def fails() -> None:
        try:
            await never()
        finally:
            raise OSError("the socket was gone already")

    async def main() -> list[bool]:
        tasks = [asyncio.create_task(each()) for each in (deaf, fails)]
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(*tasks), 60)
        return [task.done() for task in tasks]

    assert asyncio.run(main()) == [True, True]


def test_work_that_needs_a_task_which_died_does_not_wait_for_it_for_ever() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def bug() -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        await until_set(asyncio.Event(), never(), asyncio.create_task(never()), asyncio.create_task(bug()))

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(asyncio.wait_for(main(), 20))
