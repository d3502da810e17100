"""Calls on worker threads whose results are handled in the order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

QUEUED_PER_WORKER = 2  # calls for each thread: one running, one so that it need not wait
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Step(Generic[Result]):
    result: Future[Result]
    then: Callable[[Result], None]


class OrderedExecutor(Generic[Result]):
    """Runs calls on worker threads and handles their results in the order of submission, in the caller's thread.

    State: what waits for a result, or for something before it. Invariants: `then` of a call runs once its result is
    there and all that was submitted before is handled; at most QUEUED_PER_WORKER calls a worker wait. With one worker
    everything runs at once in the caller's thread. Use as a context manager: on leaving, what waits is handled, or
    dropped when an exception leaves (a killed replay is resumed from what its log holds).
    """

    def __init__(self, workers: int = 1) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="replay-worker") if workers > 1 else None
        self._running_max = QUEUED_PER_WORKER * workers
        self._waiting: deque[_Step[Result] | Callable[[], None]] = deque()
        self._running = 0

    def __enter__(self) -> OrderedExecutor[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def submit(self, call: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run `call` on a worker, and hand its result to `then`. Raise its exception when its turn comes."""
        if self._pool is None:
            then(call())
            return
        self._waiting.append(_Step(self._pool.submit(call), then))
        self._running += 1
        while self._running > self._running_max:
            self._next()
        self._collect()

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` when its turn comes."""
        self._waiting.append(action)
        self._collect()

    def drain(self) -> None:
        """Wait until everything that was submitted is handled."""
        while self._waiting:
            self._next()

    def _collect(self) -> None:
        """Handle what need not wait any more, so that a replay in real time writes its log in real time."""
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, _Step) and not first.result.done():
                return
            self._next()

    def _next(self) -> None:
        first = self._waiting.popleft()
        if isinstance(first, _Step):
            self._running -= 1
            first.then(first.result.result())
        else:
            first()
