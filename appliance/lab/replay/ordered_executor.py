"""Runs slow calls ahead on worker threads and handles their results in the order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

QUEUED_PER_WORKER = 2  # questions that wait for each thread: one in hand, one so that it need not stand still

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Step(Generic[Result]):
    answer: Future[Result]
    then: Callable[[Result], None]


class OrderedExecutor(Generic[Result]):
    """Does things one after the other, in the order in which they were handed in, always in the caller's thread.

    State: what waits for an answer, or for something before it. Invariants: `then` of a question is called once its
    answer is there and all that was handed in before is done; at most AHEAD questions a thread wait. hands: threads
    that answer; with one, everything is done at once in the caller's thread. Use as a context manager: on leaving,
    what waits is done, or dropped when an error leaves with us (a killed replay goes on from what its log holds).
    """

    def __init__(self, hands: int = 1) -> None:
        self._pool = ThreadPoolExecutor(hands, thread_name_prefix="replay-look") if hands > 1 else None
        self._ahead_max = QUEUED_PER_WORKER * hands
        self._waiting: deque[_Step[Result] | Callable[[], None]] = deque()
        self._asked = 0

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

    def submit(self, question: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Have `question` answered, and hand its answer to `then`. What it raises is raised when its turn comes."""
        if self._pool is None:
            then(question())
            return
        self._waiting.append(_Step(self._pool.submit(question), then))
        self._asked += 1
        while self._asked > self._ahead_max:
            self._next()
        self._collect()

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` when its turn comes."""
        self._waiting.append(action)
        self._collect()

    def drain(self) -> None:
        """Wait until everything that was handed in is done."""
        while self._waiting:
            self._next()

    def _collect(self) -> None:
        """What need not wait any more, so that a replay in real time writes its log in real time."""
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, _Step) and not first.answer.done():
                return
            self._next()

    def _next(self) -> None:
        first = self._waiting.popleft()
        if isinstance(first, _Step):
            self._asked -= 1
            first.then(first.answer.result())
        else:
            first()
