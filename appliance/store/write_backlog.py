"""Writes that the disk refused wait in memory, in order, until the disk takes them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.base.telemetry import LogThrottle

logger = logging.getLogger(__name__)

WAITING_MAX = 20_000  # some 20 MB: alerts and states of a camera for days; boxes are dropped and do not wait
RETRY_S = 1.0  # a full disk is freed by retention, which runs each ten seconds

WriteJob = Callable[[], object]


class WriteBacklog:
    """Jobs that wait while the database cannot be written.

    State: the jobs that wait, oldest first. Owner: the one thread that writes with it; others read `waiting`,
    `dropped`, `refused` and `warning`. Invariant: jobs are done in the order in which they were given, each once (a job
    is all or nothing, such as one transaction); a later job of a key takes the place of the one that waits. Bounded:
    beyond `WAITING_MAX` the process must end.
    """

    def __init__(self, clock: Clock, *, most: int = WAITING_MAX) -> None:
        self._clock = clock
        self._most = most
        self._jobs: dict[str, WriteJob] = {}
        self._number = 0
        self._retry_at = float("-inf")
        self._repeats = LogThrottle(logger, clock)
        self._why = ""
        self.dropped = 0

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def refused(self) -> str:
        """Why the database was last not written, as long as something waits for it; or ''."""
        return self._why if self._jobs else ""

    @property
    def warning(self) -> str:
        """A sentence for a person, or ''."""
        if not self._jobs:
            return ""
        held = f"{len(self._jobs)} changes wait in memory, {self.dropped} examined frames were not kept"
        return f"the database cannot be written: {self._why} ({held})"

    def write(self, job: WriteJob, key: str = "") -> None:
        """Do `job` now, or once those before it are done; a later job of the same `key` replaces one that waits.

        Raises StoreError when waiting does not help, or when too much waits.
        """
        if self._may_write():
            try:
                job()
                return
            except StoreUnavailable as error:
                self._refused(error)
        if len(self._jobs) >= self._most and key not in self._jobs:
            raise StoreError(f"{len(self._jobs)} changes wait for the disk, and no more can be held: {self._why}")
        self._number += 1
        self._jobs[key or f"#{self._number}"] = job

    def write_or_drop(self, job: WriteJob, amount: int) -> None:
        """Do `job` now or never; `amount` is what is counted as dropped. Raises StoreError as `write` does."""
        if self._may_write():
            try:
                job()
                return
            except StoreUnavailable as error:
                self._refused(error)
        self.dropped += amount

    def retry(self) -> None:
        """Try what waits, at most once a second; call it now and then. Raises StoreError as `write` does."""
        self._may_write()

    def _may_write(self) -> bool:
        """Return True if no job is left that must be written before."""
        if not self._jobs:
            return True
        if self._clock.monotonic() < self._retry_at:
            return False
        done = 0
        try:
            for key, job in tuple(self._jobs.items()):
                job()
                del self._jobs[key]
                done += 1
        except StoreUnavailable as error:
            self._refused(error)
            return False
        logger.info("the database can be written again: %d changes that waited are stored", done)
        return True

    def _refused(self, error: StoreUnavailable) -> None:
        self._why = str(error)
        self._retry_at = self._clock.monotonic() + RETRY_S
        self._repeats.report(f"changes wait in memory: {error}")
