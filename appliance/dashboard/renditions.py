"""H.264 copies of stretches and clips, for browsers that cannot play what a camera sends: made while the page waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.dashboard.recordings import KeptFiles, RecordingCuts, TooBusy
from appliance.media.atomic_file import WrittenFile
from appliance.media.recorded import PERCENT, progress_path
from appliance.media.recording_reader import RecordingReader
from appliance.sandbox.sandbox import SandboxError
from appliance.store.paths import CUTS
from appliance.web.visitor import visitor_keys

logger = logging.getLogger(__name__)

SPAN_S_MAX = 120.0  # of a stretch that is converted: what a player asks for at a time, also when it plays fast
WAITING_MAX = 8  # conversions that wait for the one under way; more are refused
WAITING_EACH_MAX = 3  # begun for one account or address, the one under way among them
ASKED_S_MAX = 10.0  # one that nobody asked about for so long is not begun


@dataclass(frozen=True, slots=True)
class Rendition:
    """A finished H.264 copy of a clip."""

    path: Path
    written: WrittenFile

    @property
    def etag(self) -> str:
        return f'"{self.written.sha256}"'


@dataclass(slots=True)
class _Job:
    source: Callable[[], Awaitable[Path]]
    path: Path
    asked: float
    begun_for: tuple[str, ...]
    error: Exception | None = None


class Renditions:
    """Makes H.264 copies, one at a time for all viewers, and keeps them while somebody plays them.

    State: the copies in the folder `cuts` (see `KeptFiles`), the job under way and those that wait, oldest first.
    `made` counts them, `bytes_made` their size, `seconds` how long they took, `failed` what could not be converted.
    Owner: the event loop's thread; it converts in another one. Invariant: a job that waits and that nobody asks about
    is dropped; one that runs ends within the sandbox's limits.
    """

    def __init__(self, cuts: RecordingCuts, root: Path, reader: RecordingReader, clock: Clock) -> None:
        """root: the storage folder. reader: one that nothing else waits for."""
        self._cuts = cuts
        self._folder = root / CUTS
        self._reader = reader
        self._clock = clock
        self._kept: KeptFiles[Rendition] = KeptFiles(clock)
        self._jobs: dict[Hashable, _Job] = {}
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self.made = self.failed = self.bytes_made = 0
        self.seconds = 0.0

    def expect(self, camera: str) -> None:
        """Prepare for a page of this camera: where its recording may be converted, start the child now. Any thread."""
        if self._cuts.codec(camera) not in ("", "h264"):
            self._reader.begin()

    def kept(self, key: Hashable) -> Rendition | None:
        """Return the copy, if it is there."""
        return self._kept.take(key)

    def empty(self) -> None:
        """Delete all copies."""
        self._kept.empty()

    async def ask(self, key: Hashable, source: Callable[[], Awaitable[Path]]) -> Rendition | float:
        """Return the copy of `source`, or how much of it is done (0..1). Call it repeatedly until the copy is there.

        source: called when its turn comes. Raise TooBusy, and what `source` and the reader raise, once.
        """
        if (kept := self._kept.take(key)) is not None:
            return kept
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) > WAITING_MAX:
                raise TooBusy("too many wait for a recording to be converted; try again in a moment")
            keys = visitor_keys()
            if any(sum(key in each.begun_for for each in self._jobs.values()) >= WAITING_EACH_MAX for key in keys):
                raise TooBusy("you wait for too many recordings to be converted already; try again in a moment")
            self._number += 1
            path = self._folder / f"h264-{self._number}.mp4"
            job = self._jobs[key] = _Job(source, path, self._clock.monotonic(), keys)
            if self._task is None:
                self._task = asyncio.create_task(self._work(), name="dashboard renditions")
        if job.error is not None:
            del self._jobs[key]
            raise job.error
        job.asked = self._clock.monotonic()
        return _done_of(job.path)

    async def _work(self) -> None:
        try:
            while waiting := [key for key, job in self._jobs.items() if job.error is None]:
                key = waiting[0]
                job = self._jobs[key]
                if self._clock.monotonic() - job.asked > ASKED_S_MAX:
                    del self._jobs[key]
                else:
                    await self._make(key, job)
                self._forget_failures()
        finally:
            self._task = None

    async def _make(self, key: Hashable, job: _Job) -> None:
        began = self._clock.monotonic()
        try:
            source = await job.source()
            self._cuts.check_room(source.stat().st_size)
            written = await asyncio.to_thread(self._reader.rendition, source, job.path)
        except OSError as error:
            job.error = EvidenceError(f"the clip cannot be read: {error.strerror}")
        except (EvidenceError, SandboxError, StoreError) as error:
            job.error = error
        else:
            self._kept.keep(key, Rendition(job.path, written), job.path, written.bytes)
            del self._jobs[key]
            self.made += 1
            self.bytes_made += written.bytes
        self.seconds += self._clock.monotonic() - began
        if job.error is not None:
            self.failed += 1
            logger.warning("a recording cannot be converted: %s", job.error)
            with contextlib.suppress(OSError):  # of a child that was killed
                progress_path(job.path).unlink()

    def _forget_failures(self) -> None:
        """Those that nobody came back for."""
        now = self._clock.monotonic()
        for key, job in list(self._jobs.items()):
            if job.error is not None and now - job.asked > ASKED_S_MAX:
                del self._jobs[key]


def _done_of(path: Path) -> float:
    with contextlib.suppress(OSError):
        return min(PERCENT, progress_path(path).stat().st_size) / PERCENT
    return 0.0
