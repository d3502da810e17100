"""Tells whether a moment of a camera is recorded, will be, or never will be; and spaces the retries of a failed cut."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.base.local_files import DiskWriteError
from appliance.config import CameraConfig
from appliance.media.recorded import RecordedSegment
from appliance.media.recording_reader import RecordingReader
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import SEGMENTS, inside
from appliance.store.segments import SegmentStore

logger = logging.getLogger(__name__)

Coverage = Literal["ready", "later", "never"]
Outcome = Literal["nothing", "made", "missing"]
# How long evidence waits, in seconds.
FRAMES_WAIT_S = 20.0  # for frames: a fragment is on disk one GOP after its first frame, and some cameras send 10 s GOPs
BOXES_WAIT_S = 2.0  # for boxes: the core flushes them once a second
ENDED_GRACE_S = 2.0  # a source that ended may still close its last segment
DISK_WAIT_S = 600.0  # retention frees space meanwhile, and keeps the segments that waiting evidence needs
GIVE_UP_LAG_S = 1.0  # how far the recording must have gone on before a moment that it lacks is given up
FIRST_RETRY_S, RETRY_S_MAX = 0.25, 5.0  # a fragment is written each 0.5 s; a torn file is not mended sooner by asking


class RecordingIndex:
    """The recorded segments of all cameras, as the evidence maker needs them, and their reader. No state of its own."""

    def __init__(self, db: Database, root: Path, cameras: Mapping[str, CameraConfig], reader: RecordingReader) -> None:
        self.reader = reader
        self._segments = SegmentStore(db)
        self._cameras = CameraStore(db)
        self._root = root
        self._configured = cameras

    def segments(self, camera: str, t0: float, t1: float) -> list[RecordedSegment]:
        """Return the segments that overlap t0..t1, oldest first."""
        found = []
        for row in self._segments.covering(camera, t0, t1):
            try:
                found.append(RecordedSegment(inside(self._root, row.path, SEGMENTS), row.t_start, row.t_end))
            except StoreError as error:
                logger.warning("a segment is skipped: %s", error)
        return found

    def coverage(self, camera: str, t: float) -> Coverage:
        """Say if the moment `t` can be read from disk: now, perhaps later, or never."""
        if any(each.t_start <= t < each.t_end for each in self._segments.covering(camera, t, t)):
            return "ready"
        until = self._segments.covered_until(camera)
        if until is not None and until > t + GIVE_UP_LAG_S:
            return "never"
        return "never" if self.is_disabled(camera) else "later"

    def covered_until(self, camera: str) -> float:
        """Return the camera's time up to which packets are on disk; minus infinity if there are none."""
        until = self._segments.covered_until(camera)
        return float("-inf") if until is None else until

    def is_disabled(self, camera: str) -> bool:
        """Return True if the site file switches recording off for this camera."""
        known = self._configured.get(camera)
        return known is not None and not known.record

    def missing_reason(self, camera: str) -> str:
        """Why the recording holds no frame, for a person."""
        if self.is_disabled(camera):
            return "recording is off for this camera"
        return "the recording does not hold this moment"

    def has_ended(self, camera: str) -> bool:
        """Return True if the source has ended, so nothing more will be recorded."""
        row = self._cameras.get(camera)
        return row is None or row.state == "ended"


@dataclass(slots=True)
class _RetryState:
    since: float
    next_try: float
    delay_s: float = FIRST_RETRY_S


class RetryTracker:
    """Tracks the wait of each item, and the time of the next attempt after a failure.

    State: a wait for each key, measured from its first use on a clock that never jumps. Owner: the evidence maker's
    thread. Bounded: `keep` forgets all keys but those still wanted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, _RetryState] = {}

    def age_s(self, key: str) -> float:
        """Seconds since `key` was first used."""
        return self._clock.monotonic() - self._state(key).since

    def may_try(self, key: str) -> bool:
        """Return False for a while after `failed`."""
        return self._clock.monotonic() >= self._state(key).next_try

    def failed(self, key: str) -> None:
        """Double the wait before the next attempt: this one brought nothing."""
        state = self._state(key)
        state.next_try = self._clock.monotonic() + state.delay_s
        state.delay_s = min(state.delay_s * 2, RETRY_S_MAX)

    def keep(self, keys: set[str]) -> None:
        """Forget all other keys."""
        self._states = {key: state for key, state in self._states.items() if key in keys}

    def _state(self, key: str) -> _RetryState:
        now = self._clock.monotonic()
        return self._states.setdefault(key, _RetryState(now, now))


def disk_may_recover(error: EvidenceError, age_s: float) -> bool:
    """Return True to keep waiting: the disk refused the file, but not for DISK_WAIT_S yet."""
    return isinstance(error, DiskWriteError) and age_s < DISK_WAIT_S
