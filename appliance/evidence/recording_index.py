"""Which of a camera's time is on disk, may still come or never will, and when a failed cut is tried again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.errors import EvidenceError, StoreError
from appliance.media.atomic_file import DiskWriteError
from appliance.media.segment_reader import RecordedSegment
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import SEGMENTS, inside
from appliance.store.segments import SegmentStore

logger = logging.getLogger(__name__)

Coverage = Literal["ready", "later", "never"]
Outcome = Literal["nothing", "made", "missing"]
FRAMES_WAIT_S = 20.0  # a fragment is on disk one GOP after its first frame, and some cameras send 10 s GOPs
BOXES_WAIT_S = 2.0  # the core flushes boxes once a second
ENDED_GRACE_S = 2.0  # a source that ended may still close its last segment
DISK_WAIT_S = 600.0  # retention makes room meanwhile, and keeps the segments that waiting evidence needs
GIVE_UP_LAG_S = 1.0  # how far the recording must have gone on before a moment that it lacks is given up
FIRST_RETRY_S = 0.25
RETRY_S_MAX = 5.0


class RecordingIndex:
    """The recorded segments as the evidence maker sees them. Holds no state but its parts."""

    def __init__(self, db: Database, root: Path, config: SiteConfig) -> None:
        self._segments = SegmentStore(db)
        self._cameras = CameraStore(db)
        self._root = root
        self._config = config

    def segments(self, camera: str, t0: float, t1: float) -> list[RecordedSegment]:
        """The segments that hold anything of t0..t1, oldest first."""
        found = []
        for row in self._segments.covering(camera, t0, t1):
            try:
                found.append(RecordedSegment(inside(self._root, row.path, SEGMENTS), row.t_start, row.t_end))
            except StoreError as error:
                logger.warning("passed over a segment: %s", error)
        return found

    def coverage(self, camera: str, t: float) -> Coverage:
        """Whether the moment `t` can be read from disk: now, perhaps later, or never."""
        if any(each.t_start <= t < each.t_end for each in self._segments.covering(camera, t, t)):
            return "ready"
        until = self._segments.covered_until(camera)
        if until is not None and until > t + GIVE_UP_LAG_S:
            return "never"
        return "never" if self.is_disabled(camera) else "later"

    def covered_until(self, camera: str) -> float:
        """The camera's time up to which packets are on disk; minus infinity if there are none."""
        until = self._segments.covered_until(camera)
        return float("-inf") if until is None else until

    def is_disabled(self, camera: str) -> bool:
        """The owner switched recording off for this camera."""
        known = self._config.cameras.get(camera)
        return known is not None and not known.record

    def missing_reason(self, camera: str) -> str:
        """Why the recording cannot give a picture, for a person."""
        if self.is_disabled(camera):
            return "recording is off for this camera"
        return "the recording does not hold this moment"

    def has_ended(self, camera: str) -> bool:
        """The source has ended, so nothing more will be recorded."""
        row = self._cameras.get(camera)
        return row is None or row.state == "ended"


@dataclass(slots=True)
class _RetryState:
    since: float
    next_try: float
    delay_s: float = FIRST_RETRY_S


class RetryTracker:
    """How long each piece has been waited for, and when a failed one is tried again.

    Measured from when it was first seen, on the clock that never jumps. Owner: the evidence maker's thread. Bounded:
    `keep` forgets all but what is still wanted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[str, _RetryState] = {}

    def age_s(self, key: str) -> float:
        """Seconds since this was first asked of `key`."""
        return self._clock.monotonic() - self._of(key).since

    def may_try(self, key: str) -> bool:
        """False for a while after `failed`."""
        return self._clock.monotonic() >= self._of(key).next_try

    def failed(self, key: str) -> None:
        """A try cost work and brought nothing: wait twice as long before the next."""
        wait = self._of(key)
        wait.next_try = self._clock.monotonic() + wait.delay_s
        wait.delay_s = min(wait.delay_s * 2, RETRY_S_MAX)

    def keep(self, keys: set[str]) -> None:
        """Forget all others."""
        self._waits = {key: wait for key, wait in self._waits.items() if key in keys}

    def _of(self, key: str) -> _RetryState:
        now = self._clock.monotonic()
        return self._waits.setdefault(key, _RetryState(now, now))


def disk_may_recover(error: EvidenceError, age_s: float) -> bool:
    """Whether to keep waiting: the disk refused the file, and not for long yet."""
    return isinstance(error, DiskWriteError) and age_s < DISK_WAIT_S
