"""Waiting for what other threads and processes do: on a condition, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

Found = TypeVar("Found")

# Deadlines are written for a quiet machine. A busy one may be so many times slower, and nothing is wrong then.
PATIENCE = 4.0
FAIL_S = 60.0  # by then a wait has failed on a machine that does the tests alone, unless it asks for more
RUN_LOAD = 2.0  # tasks a core of `make test`, which starts two processes a core
ANSWER_S = 20.0 * PATIENCE  # of an HTTP client, whose own limit is five seconds
PAUSES = 30.0  # times what a look took, so that looking takes 3 % of a core at most: over HTTP it is 5 ms of CPU
PAUSE_S_MAX = 0.25
LATER, LATER_S_MAX = 0.02, 0.05  # share of what was waited so far: who waits for seconds looks twenty times a second


def until(
    condition: Callable[[], Found | None],
    seconds: float = 20.0,
    what: str | Callable[[], object] = "",
    *,
    every_s: float = 0.01,
) -> Found:
    """Return what `condition()` returns once that is true, or fail after `seconds`, times PATIENCE, FAIL_S at most.

    Beside other work, which the load average tells, FAIL_S grows with it. what: was to happen, or finds out what is so
    instead. every_s: the pause between two looks, at least; see PAUSES and LATER.
    """
    pauses = _pauses(seconds, what or repr(condition), every_s)
    while not (found := condition()):
        threading.Event().wait(next(pauses))
    return found


async def until_async(
    condition: Callable[[], Found | Awaitable[Found | None] | None],
    seconds: float = 20.0,
    what: str | Callable[[], object] = "",
    *,
    every_s: float = 0.01,
) -> Found:
    """Wait as `until` does, but let the event loop run meanwhile. `condition` may return an awaitable."""
    pauses = _pauses(seconds, what or repr(condition), every_s)
    while not (found := await each if inspect.isawaitable(each := condition()) else each):
        await asyncio.sleep(next(pauses))
    return found


def holds(condition: Callable[[], object], seconds: float, what: str | Callable[[], object] = "") -> None:
    """Return after `seconds` during which `condition()` was always true; fail as soon as it is not."""
    ends = time.monotonic() + seconds
    while True:
        assert condition(), f"it did not last for {seconds:g} s: {what() if callable(what) else what or condition}"
        if time.monotonic() >= ends:
            return
        threading.Event().wait(0.05)


def _pauses(seconds: float, what: str | Callable[[], object], every_s: float) -> Iterator[float]:
    """Yield the pause after each look in vain; fail when the time is over."""
    given_s = min(seconds * PATIENCE, max(seconds, FAIL_S * max(1.0, tasks_a_core() / RUN_LOAD)))
    began = time.monotonic()
    deadline = began + given_s
    looked = began
    while (now := time.monotonic()) < deadline:
        later_s = min(LATER * (now - began), LATER_S_MAX)
        pause_s = max(every_s, later_s, min(PAUSES * (now - looked), PAUSE_S_MAX))
        looked = now + pause_s
        yield pause_s
    raise AssertionError(f"it did not happen within {given_s:.0f} s: {what() if callable(what) else what}")


def tasks_a_core() -> float:
    """Return how many tasks share a core, by the load average of the last minute; 1 at least.

    What takes a second alone takes about so many beside them: a bound on a wall time is multiplied by it.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Gate:
    """Stands open until it is shut: `wait()` in any event loop, `open()` and `shut()` from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def shut(self) -> None:
        with self._lock:
            self._open = False

    def open(self) -> None:
        with self._lock:
            self._open = True
            waiting, self._waiting = self._waiting, []
        for loop, passes in waiting:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(_let_through, passes)

    async def wait(self) -> None:
        with self._lock:
            if self._open:
                return
            loop = asyncio.get_running_loop()
            passes: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, passes))
        await passes


def _let_through(passes: asyncio.Future[None]) -> None:
    if not passes.done():
        passes.set_result(None)
