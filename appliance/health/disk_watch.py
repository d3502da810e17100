"""Notices that the disk of the storage folder is short, read-only, refuses writes, or takes too long for one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from appliance.base.clock import Clock

PROBE = ".disk-probe"
PROBE_BYTES = 4096  # one block: less would be written back with others, more wears an SD card
PROBE_EVERY_S = 30.0  # a person is told within a minute, and a day's probes write 12 MB
SLOW_S = 2.0  # a segment's fragment is on disk within a second; slower, and recording falls behind
SLOW_PROBES = 2  # one after the other: a single slow write is what a disk that spins up does


class DiskWatch:
    """Tries the disk now and then by a small write that is flushed.

    State: what the last probe found, and since when a write has not returned. Owner: the thread that calls `run_once`,
    which does nothing else; `fault` may be read by any, also while a write hangs.
    """

    def __init__(self, root: Path, free_min_bytes: float, clock: Clock) -> None:
        """root: the storage folder. free_min_bytes: with less, recording pauses."""
        self._free_min_bytes = free_min_bytes
        self._root = root
        self._clock = clock
        self._probe_at = float("-inf")
        self._began: float | None = None
        self._slow = 0
        self._fault = ""

    @property
    def fault(self) -> str:
        """A sentence for a person that stays the same as long as the fault does; '': all is well."""
        began = self._began
        if began is not None and self._clock.monotonic() - began > SLOW_PROBES * SLOW_S:
            return "the disk is slow: a small write does not return"
        return self._fault

    def configure(self, free_min_bytes: float) -> None:
        """Use this bound from the next probe on."""
        self._free_min_bytes = free_min_bytes

    def run_once(self) -> None:
        """Look at the room, and write when it is time to."""
        short = self._shortage()
        if short or self._fault:
            self._probe_at = float("-inf")  # what is wrong is looked at each time: it is over within seconds of its end
        if self._clock.monotonic() - self._probe_at < PROBE_EVERY_S:
            return
        self._probe_at = self._clock.monotonic()
        self._fault = self._probe() or short

    def _shortage(self) -> str:
        try:
            stats = os.statvfs(self._root)
        except OSError as error:
            return f"the storage folder cannot be reached: {(error.strerror or 'it is gone').lower()}"
        if stats.f_flag & os.ST_RDONLY:
            return "the disk is read-only: nothing can be recorded or stored"
        if stats.f_bavail * stats.f_frsize < self._free_min_bytes:
            return (
                f"the disk is nearly full: less than {self._free_min_bytes / 1e6:.0f} MB are free, so recording pauses"
            )
        return ""

    def _probe(self) -> str:
        path, began = self._root / PROBE, self._clock.monotonic()
        self._began = began
        try:
            with path.open("wb", buffering=0) as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())
        except OSError as error:
            return f"the disk refuses writes: {(error.strerror or type(error).__name__).lower()}"
        finally:
            self._began = None
            with contextlib.suppress(OSError):
                path.unlink()
        self._slow = self._slow + 1 if self._clock.monotonic() - began > SLOW_S else 0
        return f"the disk is slow: a small write takes over {SLOW_S:g} s" if self._slow >= SLOW_PROBES else ""
