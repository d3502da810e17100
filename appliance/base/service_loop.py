"""Runs the event loop of a service that is run again after a failure; apart, as ingest never loads asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any


class ServiceLoop:
    """The event loop of one service.

    Unlike `asyncio.run` it keeps the loop when the service failed, to be run again: what is bound to it (locks, events,
    connections) stays usable. Owner: the service's thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` to its end. Raises what it raises."""
        loop = self._loop = self._loop or asyncio.new_event_loop()
        try:
            loop.run_until_complete(main)
        finally:
            loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        self._loop = None


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
