"""Runs the event loop of a service that is run again after a failure; apart, as ingest never loads asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

LOOKUPS_MAX = 16  # names looked up at a time: a resolver that never answers may hold so many threads


class ServiceLoop:
    """The event loop of one service.

    Unlike `asyncio.run` it keeps the loop when the service failed, to be run again: what is bound to it (locks, events,
    connections) stays usable. Owner: the service's thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` to its end. Raises what it raises."""
        loop = self._loop = self._loop or _new_loop()
        try:
            loop.run_until_complete(main)
        finally:
            loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        self._loop = None


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.getaddrinfo = _NameLookups(loop).getaddrinfo  # type: ignore[method-assign]
    return loop


class _NameLookups:
    """Looks up names for a loop in daemon threads. The end of a loop, and of Python, waits for those of asyncio.

    State: the look-ups under way, at most LOOKUPS_MAX; one more fails.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = threading.BoundedSemaphore(LOOKUPS_MAX)

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        """Return as `socket.getaddrinfo`. Raise OSError."""
        if not self._free.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "the resolver does not answer")
        answer = self._loop.create_future()
        look_up = partial(socket.getaddrinfo, host, port, **how)
        threading.Thread(target=self._look_up, args=(look_up, answer), name="name look-up", daemon=True).start()
        return await answer

    def _look_up(self, look_up: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            found = look_up()
        except Exception as error:  # noqa: BLE001 - the caller gets it
            settle: Callable[[], None] = partial(answer.set_exception, error)
        else:
            settle = partial(answer.set_result, found)
        self._free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: None if answer.done() else settle())


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
