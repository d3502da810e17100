"""H.264 for browsers that cannot play what a camera sends: of stretches and clips, and of live video.

`Renditions` converts a stretch or clip while the page waits. `LiveConversion` converts a camera's live video to small
H.264, once for all viewers. Each camera that is converted has a sandbox of its own, which ends some seconds after the
last one who needed it. It has no folder, network or secret: fragments go in, fragments come out, and those are read as
strictly as our own files. The processor's time is counted; a camera that takes too much of it is shown by its key
frames alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from appliance.base.child_processes import LIVE_FUNCTIONS
from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.base.local_files import WrittenFile
from appliance.dashboard.recordings import KeptFiles, RecordingCuts, TooBusy
from appliance.media.fragmented_mp4 import Fragment, FragmentReader, InitSegment
from appliance.media.recorded import PERCENT, progress_path
from appliance.media.recording_reader import RecordingReader
from appliance.sandbox.sandbox import Sandbox, SandboxError, SandboxLimits
from appliance.store.paths import CUTS
from appliance.web.visitor import visitor_keys

logger = logging.getLogger(__name__)

SPAN_S_MAX = 120.0  # of a stretch that is converted: what a player asks for at a time, also when it plays fast
WAITING_MAX = 8  # conversions that wait for the one under way; more are refused
WAITING_EACH_MAX = 3  # begun for one account or address, the one under way among them
ASKED_S_MAX = 10.0  # one that nobody asked about for so long is not begun
LINGER_S = 5.0  # after the last viewer: who goes from page to page finds it running
SHARE_MAX = 0.5  # of a core, for one camera: then key frames alone are decoded
KEYS_ONLY_S = 300.0  # until it is tried with all frames again
COUNTED_S = 10.0  # over which the share is counted
COUNTED_S_MIN = 3.0  # the first pieces hold a whole group of pictures
COST_S_MAX = 60.0  # processor's seconds of a piece: more than its limit of time allows is no answer
DELAY_S_MAX = 30.0  # of a frame in the decoder, which a sane stream is far below
MORE_BYTES_MAX = 1024 * 1024  # by which a small copy of a piece may be larger than the piece
_PLAYED = 'video/mp4; codecs="avc1'
_FULL = "this browser cannot play what the camera sends, and as many others are converted as this appliance takes on"
_LIMITS = SandboxLimits(
    wall_s=20.0,  # of a piece; the first one holds a group of pictures, of up to ten seconds
    idle_s=20.0,  # of one that was expected for a page and not needed
    memory_bytes=512 * 1024 * 1024,  # H.265 of 4K: 17 reference frames of 12 MB, and the encoder
    reply_bytes_max=32 * 1024 * 1024,
)


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
        """Prepare for a page of this camera: where it may be converted, start the children now. Any thread."""
        if self._cuts.codec(camera) not in ("", "h264"):
            self._cuts.expect()
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
            self._forget_failures()
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
        began, emptied = self._clock.monotonic(), self._kept.emptied
        try:
            source = await job.source()
            self._cuts.check_room(source.stat().st_size)
            written = await asyncio.to_thread(self._reader.rendition, source, job.path)
            self._kept.keep(key, Rendition(job.path, written), job.path, written.bytes, emptied)
        except OSError as error:
            job.error = EvidenceError(f"the clip cannot be read: {error.strerror}")
        except (EvidenceError, SandboxError, StoreError) as error:
            job.error = error
        else:
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


class Conversions:
    """How many cameras are converted at once: one for two cores, at least one.

    State: those at work, a sandbox for the next one, and the processor's seconds of all there ever were. Owner: the
    event loop's thread reads it, conversions change it in theirs, each its own entry.
    """

    def __init__(self, clock: Clock) -> None:
        self.most = max(1, (os.cpu_count() or 1) // 2)
        self.clock = clock
        self.running: set[LiveConversion] = set()
        self.cpu_s = 0.0
        self._spare: Sandbox | None = None
        self._lock = threading.Lock()  # of the spare

    def begin(self, conversion: LiveConversion) -> None:
        """Give it a place. Raise EvidenceError."""
        if conversion not in self.running and len(self.running) >= self.most:
            raise EvidenceError(_FULL)
        self.running.add(conversion)

    def expect(self) -> None:
        """Start a child while the page loads that may ask for it; it ends by itself where none does."""
        with self._lock:
            if len(self.running) < self.most:
                self._spare = self._spare or _new_sandbox()
                self._spare.begin()

    def sandbox(self) -> Sandbox:
        """Return a sandbox for one camera, which has its child already where one was expected."""
        with self._lock:
            sandbox, self._spare = self._spare, None
        return sandbox or _new_sandbox()

    def close(self) -> None:
        """End all."""
        for conversion in list(self.running):
            conversion.close()
        self.sandbox().close()


def _new_sandbox() -> Sandbox:
    return Sandbox(LIVE_FUNCTIONS, _LIMITS, raises=(EvidenceError,))


class LiveConversion:
    """The conversion of one camera, while it is needed.

    State: the sandbox, the file that is converted, what it cost lately, and whether nothing but key frames is decoded
    (`keys_only`), as more would cost too much. Owner: one thread at a time.
    """

    def __init__(self, conversions: Conversions) -> None:
        self._all = conversions
        self._clock = conversions.clock
        self._sandbox: Sandbox | None = None
        self._reader: FragmentReader | None = None
        self._source: InitSegment | None = None
        self._init: InitSegment | None = None
        self._costs: deque[tuple[float, float]] = deque()  # when, processor's seconds since the one before
        self._used_at = -math.inf
        self._keys_only_until = -math.inf
        self.keys_only = False

    @property
    def is_running(self) -> bool:
        return self._sandbox is not None

    @property
    def codec(self) -> str:
        """The codec that is converted, as MP4 names it; '': none."""
        source = self._source  # the conversion's thread may end it meanwhile
        return source.media_type.partition('"')[2][:4] if source is not None else ""

    @property
    def share(self) -> float | None:
        """The share of a core that it takes; None: it does not run, or has not for long enough to tell."""
        costs = list(self._costs)  # the conversion's thread may clear them meanwhile
        if not costs or (lasted := costs[-1][0] - costs[0][0]) < COUNTED_S_MIN:
            return None
        return sum(cost for _, cost in costs[1:]) / lasted

    def convert(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """Return fragments in H.264 for these, which are as they are where they are H.264. Raise EvidenceError."""
        found: list[Fragment] = []
        for init, group in groupby(fragments, lambda each: each.init):
            some = list(group)
            found += some if init.media_type.startswith(_PLAYED) else self._convert(init, some)
        return found

    def end_if_idle(self) -> None:
        """End it where nobody has needed it for `LINGER_S`."""
        if self.is_running and self._clock.monotonic() - self._used_at > LINGER_S:
            self.close()

    def close(self) -> None:
        """End it, also in the middle of a call; `convert` begins anew."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()
        self._all.running.discard(self)
        self._costs.clear()
        self._source = self._init = None
        self._read_no_more()

    def _convert(self, init: InitSegment, fragments: Sequence[Fragment]) -> list[Fragment]:
        self._all.begin(self)
        self._used_at = self._clock.monotonic()
        sandbox = self._sandbox = self._sandbox or self._all.sandbox()
        if begins := init is not self._source:
            self._source, self.keys_only = init, self._spares()
        data = b"".join(each.data for each in fragments)
        try:
            answer = sandbox.call("convert", init.data, data, begins, self.keys_only)
            return self._read(answer, fragments[0].t, len(data) + MORE_BYTES_MAX, begins)
        except (EvidenceError, SandboxError) as error:
            self.close()
            raise EvidenceError(f"the live video cannot be converted: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise EvidenceError(f"the sandbox answered what makes no sense ({type(error).__name__})") from None

    def _read(self, answer: dict[str, bytes], begin: float, bytes_max: int, begins: bool) -> list[Fragment]:
        """Read what the child answered, which may have been taken over."""
        before, data, cpu_s = bytes(answer["before"]), bytes(answer["data"]), float(answer["cpu_s"])
        if len(before) + len(data) > bytes_max or not 0 <= cpu_s < COST_S_MAX:
            raise ValueError("too much")
        self._count(cpu_s)
        found = self._take(before) if before else []
        if begins:
            self._read_no_more()
        if data and self._reader is None:
            t = float(answer["t"])
            if not abs(t - begin) <= DELAY_S_MAX:
                raise ValueError("of another time")
            self._reader = FragmentReader.of_memory(t)
        return found + (self._take(data) if data else [])

    def _take(self, data: bytes) -> list[Fragment]:
        """Return the child's fragments, which are of one frame each, joined up to the next key frame."""
        if self._reader is None:
            raise ValueError("of no file")
        self._reader.append(data)
        groups: list[list[Fragment]] = []
        while some := self._reader.read():
            for each in some:
                if each.keyframe or not groups:
                    groups.append([])
                groups[-1].append(each)
        if groups and groups[0][0].init != self._init:
            self._init = groups[0][0].init
        return [
            replace(group[0], data=b"".join(each.data for each in group), init=self._init or group[0].init)
            for group in groups
        ]

    def _read_no_more(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _count(self, cpu_s: float) -> None:
        now = self._clock.monotonic()
        self._all.cpu_s += cpu_s
        self._costs.append((now, cpu_s))
        while now - self._costs[0][0] > COUNTED_S:
            self._costs.popleft()

    def _spares(self) -> bool:
        """Return whether the next file's key frames alone are decoded."""
        now, share = self._clock.monotonic(), self.share
        if not self.keys_only and share is not None and share > SHARE_MAX:
            self._keys_only_until = now + KEYS_ONLY_S
        return now < self._keys_only_until
