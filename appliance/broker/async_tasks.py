"""Ends asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

CANCEL_RETRY_S = 3.0  # longer than closing a connection takes


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    They are asked again: before Python 3.12 `wait_for` swallows a cancellation that comes together with its result
    (python/cpython issue 86296), and a connection that is just being made would then live for ever.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised has been seen


async def until_set(stop: asyncio.Event, work: Coroutine[Any, Any, None], *keepers: asyncio.Task[None]) -> None:
    """Await `work`; cancel it when `stop` is set, or when one of the `keepers` ends.

    Without that keeper the work would wait for ever. Raise the keeper's error.
    """
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        for each in (*keepers, task):
            if each.done():
                each.result()
    finally:
        await end_tasks(task, stopping)
