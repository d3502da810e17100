"""Runs the long-lived services, one named thread each; stops them in reverse order, and all when one fails.

`ServiceRestarts` guards a service that only talks to others (the uplink, the notifier, MQTT): when a bug ends it,
recording goes on, and the service is run again after a while.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import StoreError, StoreUnavailable, UsageError, lacks_files
from appliance.base.telemetry import LogThrottle

logger = logging.getLogger(__name__)

STOP_S_MAX = 15.0  # half of TimeoutStopSec of deploy/systemd/vedette.service
FILES_WAIT_S = 1.0  # seconds until files may have been closed
RESTART_FIRST_S, RESTART_LAST_S = 1.0, 20.0  # s, doubled each time, so that a lasting fault costs little
WELL_AFTER_S = 60.0  # of running without a failure


@dataclass(frozen=True, slots=True)
class Service:
    """One long-lived service: a named thread runs `run` until `stop` is called, from any thread.

    resumes: `run` may be called again after it raised; those that own an event loop handle a lack of files inside it.
    """

    name: str
    run: Callable[[], None]
    stop: Callable[[], None]
    resumes: bool = True


class ServiceGroup:
    """Runs services until `stop()`, or until one fails; then all stop and the process ends with 1 (wrong use: 2).

    State: the threads, and the exit code. Owner: the main thread, which does nothing but `wait()`.
    """

    def __init__(self, clock: Clock | None = None, *, stop_s_max: float = STOP_S_MAX) -> None:
        """stop_s_max: so long each service has for its end; one that hangs is left behind with a line in the log."""
        self._clock = clock or SystemClock()
        self._stop_s_max = stop_s_max
        self._lacking = LogThrottle(logger, self._clock)
        # Not an Event: a handler that interrupts another in set(), or who waits on the event, would wait for itself.
        # Many come at once: the kernel sends PR_SET_PDEATHSIG's signal for each thread that a parent dies with. put()
        # is reentrant.
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._stopping = False
        self._code = 0
        self._running: list[tuple[Service, threading.Thread]] = []
        self._retired: list[Service] = []

    def start(self, service: Service) -> None:
        """Run `service` in a thread of its own. The last started is the first stopped."""
        thread = threading.Thread(target=self._guard, args=(service,), name=service.name, daemon=True)
        self._running.append((service, thread))
        thread.start()

    def replace(self, old: Sequence[Service], new: Sequence[Service]) -> None:
        """End the services `old`, the last of them first, and run `new` in their place. Not in a thread of theirs."""
        for service in reversed(old):
            self._end(service)
        for service in new:
            self.start(service)

    def stop(self, code: int = 0) -> None:
        """Ask everything to end, with this exit code. Any thread; a signal handler may call it."""
        self._stopping = True
        if code:
            self._code = code
        self._ended.put("")

    def wait(self) -> int:
        """Block until `stop()` or a failure, then end all services. Returns the exit code."""
        self._ended.get()
        self._stopping = True
        for service, _ in reversed(self._running):
            self._end(service)
        return self._code

    def _end(self, service: Service) -> None:
        thread = next((thread for each, thread in self._running if each is service), None)
        if thread is None:
            return
        self._retired.append(service)
        try:
            service.stop()
        except Exception:  # the others are stopped all the same
            logger.exception("%s could not be asked to stop", service.name)
        thread.join(self._stop_s_max)
        if thread.is_alive():
            logger.warning(
                "%s did not stop within %g s; it is in %s", service.name, self._stop_s_max, _position(thread)
            )
            return
        self._running = [each for each in self._running if each[0] is not service]
        self._retired.remove(service)

    def _guard(self, service: Service) -> None:
        code = 1
        try:
            self._run(service)
            if self._stopping or service in self._retired:
                return
            logger.error("%s ended by itself; the process ends so that it can be started afresh", service.name)
        except UsageError as error:
            logger.error("%s stopped: %s", service.name, error)
            code = 2
        except StoreError as error:
            logger.error("%s stopped: %s", service.name, error)
        except BaseException:
            logger.exception("%s stopped by a bug; the process ends so that it can be started afresh", service.name)
        self._code = self._code or code
        self._ended.put(service.name)

    def _run(self, service: Service) -> None:
        """Run it to its end, also past moments in which no file can be opened: they pass, and recording goes on."""
        while True:
            try:
                return service.run()
            except OSError as error:
                if not (service.resumes and lacks_files(error)) or self._stopping or service in self._retired:
                    raise
                self._lacking.report(f"{service.name} waits: too many files are open in this process or machine")
                self._clock.sleep(FILES_WAIT_S)


@dataclass(frozen=True, slots=True)
class _Failures:
    """The failures of one service in a row: how many, the kind of the last one, until when (monotonic) they count."""

    count: int
    kind: str
    until: float


class ServiceRestarts:
    """Runs guarded services again when a bug ended them; a refusal of the database or wrong use still ends all.

    State: the failures of each service, until it has run well for WELL_AFTER_S. `fault` may be read by any thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, _Failures] = {}

    @property
    def fault(self) -> str:
        """Which services failed lately, for people; '': none."""
        now, failed = self._clock.monotonic(), sorted(self._failed.items())
        which = ", ".join(f"{name} ({each.kind}, {each.count} x)" for name, each in failed if each.until > now)
        return f"a service failed and is started again, and the log says where: {which}" if which else ""

    def guard(self, service: Service) -> Service:
        """Return `service` with a `run` that is called again after it raised.

        A service that was stopped meanwhile returns at once, and closes what it still holds.
        """
        stopped = threading.Event()

        def run() -> None:
            backoff = Backoff(RESTART_FIRST_S, RESTART_LAST_S)
            while True:
                ends = stopped.is_set()
                try:
                    return service.run()
                except (UsageError, StoreError):
                    raise
                except Exception as error:
                    if ends:
                        logger.exception("%s failed while it closed", service.name)
                        return None
                    logger.exception("%s failed by a bug; it is started again, and the others go on", service.name)
                    if self._count(service.name, type(error).__name__) == 1:
                        backoff.reset()
                self._clock.sleep(backoff.next_s(), stopped)

        def stop() -> None:
            service.stop()
            stopped.set()

        return replace(service, run=run, stop=stop)

    def _count(self, name: str, kind: str) -> int:
        """Count how many in a row that makes."""
        known, now = self._failed.get(name), self._clock.monotonic()
        count = known.count + 1 if known is not None and known.until > now else 1
        self._failed[name] = _Failures(count, kind, now + RESTART_LAST_S + WELL_AFTER_S)
        return count


def _position(thread: threading.Thread) -> str:
    """Return the calls that `thread` is in now, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    calls = reversed(traceback.extract_stack(frame)) if frame is not None else ()
    return ", called by ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls) or "ended"


def periodic_service(name: str, every_s: float, job: Callable[[], object], clock: Clock) -> Service:
    """Return a service that does `job` every `every_s` seconds, also after the full disk has refused it."""
    stop = threading.Event()
    repeats = LogThrottle(logger, clock)

    def run() -> None:
        while not clock.sleep(every_s, stop):
            try:
                job()
            except StoreUnavailable as error:
                repeats.report(f"{name} waits: {error}")

    return Service(name, run, stop.set)
