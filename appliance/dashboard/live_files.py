"""Finds the files of a camera that are being written: its recording, its detect stream, or a substitute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.local_files import live_memory
from appliance.store.paths import SUBSTREAMS
from appliance.store.segments import SegmentStore

RECORDED_S_MAX = 4.0  # a camera that is recorded reports each second, and a segment begins within a second or two
STALE_S = 20.0  # what was recorded last is no live picture any more


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A segment: its path under the storage folder, camera time of its first frame, and its codec for people.

    instead_of: the codec of the recording, in place of which this is taken.
    """

    path: str
    t_start: float
    codec: str = ""
    root: Path | None = None  # where it lies, if not in the storage folder
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class LiveChoice:
    """The stream that is wanted of a camera.

    Attributes:
        substream: the detect stream, where it has one of its own.
        h264: nothing else is played: where the camera sends something else, its detect stream, or a small copy.
    """

    substream: bool = False
    h264: bool = False


RECORDING = LiveChoice()


class LiveFiles:
    """Finds the files of a camera that are being written. Called in threads; holds no state."""

    def __init__(self, camera: str, segments: SegmentStore, root: Path, clock: Clock, choice: LiveChoice) -> None:
        self._camera = camera
        self._segments = segments
        self._root = root
        self._clock = clock
        self._choice = choice

    def newest(self) -> LiveFile | None:
        """Return the one that is being written; None if there is none. Raise StoreError."""
        if self._choice.substream and (found := self._of_substream()) is not None:
            return found
        found = self._recorded()
        if not self._choice.h264 or found is None or found.codec == "h264":
            return found
        second = self._of_substream()  # smaller, should it have to be converted, too
        return found if second is None else replace(second, instead_of=found.codec)

    def _recorded(self) -> LiveFile | None:
        row = self._segments.latest(self._camera)
        if row is not None and self._clock.now() - row.t_end < RECORDED_S_MAX:
            return LiveFile(row.path, row.t_start, row.codec)
        standby = self._in_memory()  # the disk takes nothing: the camera is seen all the same
        if standby is not None or row is None or self._clock.now() - row.t_end > STALE_S:
            return standby
        return LiveFile(row.path, row.t_start, row.codec)

    def _in_memory(self) -> LiveFile | None:
        memory = live_memory(self._root)
        return None if memory is None else self._of_substream(memory)

    def _of_substream(self, root: Path | None = None) -> LiveFile | None:
        folder = (root or self._root) / SUBSTREAMS / self._camera
        try:
            newest = max(folder.iterdir())  # they are named by the time at which they begin
            if self._clock.now() - newest.stat().st_mtime > STALE_S:
                return None
            begin = datetime.strptime(newest.name.partition("Z")[0], "%Y%m%dT%H%M%S.%f").replace(tzinfo=timezone.utc)
        except (OSError, ValueError):
            return None
        path = f"{SUBSTREAMS}/{self._camera}/{newest.name}"
        return LiveFile(path, begin.timestamp(), "such", root or self._root)
