"""Runs the long-lived services side by side, one named thread each; stops them in reverse order, and all when one
fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from appliance.clock import Clock
from appliance.errors import StoreError, StoreUnavailable, UsageError
from appliance.telemetry import LogThrottle

logger = logging.getLogger(__name__)

STOP_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Service:
    """One long-lived part: a named thread runs `run` until `stop` is called, from any thread."""

    name: str
    run: Callable[[], None]
    stop: Callable[[], None]


class ServiceGroup:
    """Runs parts until told to stop, or until one fails; then all stop and the process ends with 1 (wrong use: 2).

    State: the threads, and the exit code. Owner: the main thread.
    """

    def __init__(self) -> None:
        # Not an Event: a signal handler that interrupts another in its set() would wait for itself. put() is reentrant.
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._stopping = False
        self._code = 0
        self._running: list[tuple[Service, threading.Thread]] = []

    def start(self, part: Service) -> None:
        """Run `part` in a thread of its own. The last started is the first stopped."""
        thread = threading.Thread(target=self._guard, args=(part,), name=part.name, daemon=True)
        self._running.append((part, thread))
        thread.start()

    def stop(self) -> None:
        """Ask everything to end. A signal handler may call it."""
        self._ended.put("")

    def wait(self) -> int:
        """Block until `stop()` or a failure, then end all parts. Returns the exit code."""
        self._ended.get()
        self._stopping = True
        for part, thread in reversed(self._running):
            part.stop()
            thread.join(STOP_S_MAX)
            if thread.is_alive():
                logger.warning("%s did not stop within %.0f s", part.name, STOP_S_MAX)
        return self._code

    def _guard(self, part: Service) -> None:
        code = 1
        try:
            part.run()
            if self._stopping:
                return
            logger.error("%s ended by itself; the process ends so that it can be started afresh", part.name)
        except UsageError as error:
            logger.error("%s stopped: %s", part.name, error)
            code = 2
        except StoreError as error:
            logger.error("%s stopped: %s", part.name, error)
        except BaseException:
            logger.exception("%s stopped by a bug; the process ends so that it can be started afresh", part.name)
        self._code = self._code or code
        self._ended.put(part.name)


def periodic_service(name: str, every_s: float, job: Callable[[], object], clock: Clock) -> Service:
    """A part that does `job` again and again, with `every_s` between; one that the full disk refused, too."""
    stop = threading.Event()
    repeats = LogThrottle(logger, clock)

    def run() -> None:
        while not clock.sleep(every_s, stop):
            try:
                job()
            except StoreUnavailable as error:
                repeats.report(f"{name} waits: {error}")

    return Service(name, run, stop.set)
