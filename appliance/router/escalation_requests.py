"""Escalations that a person asks for: handed from the dashboard's threads to the core's, which answers each."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

WAITING_MAX = 16  # a person asks for one at a time
ANSWER_S = 5.0  # the core looks once a second


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """Answer to a request to escalate an alert: yes (now, or once there is a budget) or no, and why."""

    accepted: bool
    reason: str


class EscalationRequests:
    """Requests that wait for the core. Bounded: one too many, and one that nobody answers in time, is refused.

    Any thread asks; the core answers, in the thread in which it decides.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._waiting: queue.Queue[tuple[str, Future[RequestAnswer]]] = queue.Queue(WAITING_MAX)
        self._answer_s = answer_s

    def ask(self, alert: str) -> RequestAnswer:
        """Ask for the escalation of an alert, and wait for the answer."""
        answer: Future[RequestAnswer] = Future()
        try:
            self._waiting.put_nowait((alert, answer))
            return answer.result(self._answer_s)
        except queue.Full:
            return RequestAnswer(False, "too many are asked for at once")
        except FutureTimeout:
            answer.cancel()
            return RequestAnswer(False, "the appliance is too busy to decide; try again")

    def answer_all(self, decide: Callable[[str], RequestAnswer]) -> None:
        """Decide about all that wait."""
        for _ in range(self._waiting.qsize()):
            alert, answer = self._waiting.get_nowait()
            if answer.set_running_or_notify_cancel():  # else whoever asked has gone
                answer.set_result(decide(alert))
