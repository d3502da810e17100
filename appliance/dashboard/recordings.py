"""Cuts pictures and playable stretches out of the recording, on request and within limits."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.base.local_files import DiskWriteError
from appliance.dashboard.snapshots import Snapshot, jpeg_snapshot
from appliance.media.recorded import ClipFile, RecordedSegment
from appliance.media.recording_reader import RecordingReader
from appliance.store.paths import CUTS, SEGMENTS, inside
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow
from appliance.web.visitor import VisitorSlots

FRAME_OFF_S_MAX = 5.0  # a key frame further from the moment asked for is not of that moment
SLOT_S = 1.0  # moments of a file this near share a picture
FRAMES_BYTES_MAX = 24 * 1024 * 1024  # some 2,000 thumbnails of 320 pixels
SPAN_S_MAX = 900.0  # of a recording that is cut
CUTS_MAX = 24  # files; each may be asked for in parts for a while
CUTS_BYTES_MAX = 1024 * 1024 * 1024  # two of the longest
CUT_S_MAX = 600.0  # a cut that nobody asked for in so long is deleted
WAITING_MAX = 16  # requests for one of the two; more are refused, for each holds a connection
WAITING_EACH_MAX = 8  # of one account or address; a browser asks for six at a time
_FULL = "too many wait for the recording; try again in a moment"
_OWN = "you wait for too much of the recording already; try again in a moment"
FreeBytes = Callable[[Path], int]
Kept = TypeVar("Kept")


class TooBusy(EvidenceError):
    """More people wait for pictures than can be served."""


class _Turn:
    """One at a time, and no more than `WAITING_MAX` that wait. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._slots = VisitorSlots(WAITING_MAX, WAITING_EACH_MAX, TooBusy, _FULL, _OWN)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raise TooBusy if too many wait."""
        give_back = self._slots.take()
        try:
            async with self._lock:
                yield
        finally:
            give_back()


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A JPEG of a key frame, its camera time, and a tag that changes with its bytes."""

    snapshot: Snapshot
    etag: str


class FrameCache:
    """Key frames of the recording as JPEG.

    State: the pictures used last, at most `FRAMES_BYTES_MAX` of them, and `cuts`, how many were made. Owner: the event
    loop's thread; it decodes in another one, one picture at a time.
    """

    def __init__(self, segments: SegmentStore, root: Path, reader: RecordingReader) -> None:
        """root: the storage folder."""
        self._segments = segments
        self._root = root
        self._reader = reader
        self._turn = _Turn()
        self._kept: OrderedDict[tuple[str, int, int], RecordedFrame] = OrderedDict()
        self._bytes = 0
        self.cuts = 0

    async def at(self, camera: str, t: float, side_max: int) -> RecordedFrame:
        """Return the key frame of `t` (the last before it in its file), its longer side at most `side_max` pixels.

        Raise EvidenceError if nothing is recorded within `FRAME_OFF_S_MAX` of `t`, and TooBusy.
        """
        row = await asyncio.to_thread(self._nearest, camera, t)
        key = (row.path, int((t - row.t_start) // SLOT_S), side_max)
        if (kept := self._take(key)) is not None:
            return kept
        async with self._turn.take():
            if (kept := self._take(key)) is not None:  # another viewer had it cut meanwhile
                return kept
            made = await asyncio.to_thread(self._cut, row, t, side_max)
        self.cuts += 1
        self._keep(key, made)
        return made

    def empty(self) -> None:
        """Forget all pictures: memory is short."""
        self._kept.clear()
        self._bytes = 0

    def _nearest(self, camera: str, t: float) -> SegmentRow:
        rows = self._segments.covering(camera, t - FRAME_OFF_S_MAX, t + FRAME_OFF_S_MAX)
        if not rows:
            raise EvidenceError("nothing is recorded at this time")
        return min(rows, key=lambda row: (max(row.t_start - t, t - row.t_end, 0.0), -row.t_start))

    def _cut(self, row: SegmentRow, t: float, side_max: int) -> RecordedFrame:
        snapshot = jpeg_snapshot(self._reader.key_frame(_on_disk(self._root, row), t, side_max))
        return RecordedFrame(snapshot, f'"{hashlib.sha256(snapshot.jpeg).hexdigest()[:32]}"')

    def _take(self, key: tuple[str, int, int]) -> RecordedFrame | None:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def _keep(self, key: tuple[str, int, int], made: RecordedFrame) -> None:
        self._kept[key] = made
        self._bytes += len(made.snapshot.jpeg)
        while self._bytes > FRAMES_BYTES_MAX:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.snapshot.jpeg)


@dataclass(frozen=True, slots=True)
class RecordingCut:
    """A playable stretch on disk."""

    path: Path
    clip: ClipFile

    @property
    def etag(self) -> str:
        return f'"{self.clip.written.sha256}"'


@dataclass(slots=True)
class _KeptFile(Generic[Kept]):
    value: Kept
    path: Path
    bytes: int
    used: float


class KeptFiles(Generic[Kept]):
    """Files made for somebody, kept while somebody uses them.

    State: at most `CUTS_MAX` files of `CUTS_BYTES_MAX` together; the one used longest ago goes first, and each after
    `CUT_S_MAX` without a request; how often they were `emptied`. Owner: the event loop's thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.emptied = 0
        self._files: OrderedDict[Hashable, _KeptFile[Kept]] = OrderedDict()
        self._drops_at = 0.0  # when the last timer ends that looks for what nobody asked for

    def take(self, key: Hashable) -> Kept | None:
        """Return what is kept under `key`, and mark it as used just now."""
        kept = self._files.get(key)
        if kept is None:
            return None
        kept.used = self._clock.monotonic()
        self._files.move_to_end(key)
        return kept.value

    def keep(self, key: Hashable, value: Kept, path: Path, size: int, emptied: int) -> None:
        """Keep a file of `size` bytes, and drop what is one too many.

        emptied: as it was when the file was begun. If it is more now, the file may show what was erased: it is deleted.
        Raise EvidenceError then.
        """
        if emptied != self.emptied:
            path.unlink(missing_ok=True)
            raise EvidenceError("something was erased while it was made; ask again")
        self._files[key] = _KeptFile(value, path, size, self._clock.monotonic())
        self.drop_old()
        self._drop_later()

    def empty(self) -> None:
        """Delete all of them: what they were made of was erased."""
        self.emptied += 1
        for each in self._files.values():
            with contextlib.suppress(OSError):
                each.path.unlink()
        self._files.clear()

    def _drop_later(self) -> None:
        def drop() -> None:
            self.drop_old()
            if self._files and self._drops_at <= self._clock.monotonic():
                self._drop_later()

        self._drops_at = self._clock.monotonic() + CUT_S_MAX
        asyncio.get_running_loop().call_later(CUT_S_MAX + 1, drop)

    def drop_old(self) -> None:
        """Delete what nobody asked for in so long, and what is too much."""
        now = self._clock.monotonic()
        size = sum(each.bytes for each in self._files.values())
        for key, each in list(self._files.items()):
            newest = len(self._files) == 1
            if now - each.used >= CUT_S_MAX or (not newest and (len(self._files) > CUTS_MAX or size > CUTS_BYTES_MAX)):
                del self._files[key]
                size -= each.bytes
                with contextlib.suppress(OSError):
                    each.path.unlink()


class RecordingCuts:
    """Stretches of the recording as MP4 files, kept while somebody plays them.

    State: the files in the folder `cuts`, see `KeptFiles`; `cuts` counts what was made, `bytes_cut` its size.
    Owner: the event loop's thread; it copies in another one, one stretch at a time.
    """

    def __init__(
        self,
        segments: SegmentStore,
        root: Path,
        reader: RecordingReader,
        clock: Clock,
        *,
        keep_free: float = 0,
        free_bytes: FreeBytes = lambda root: shutil.disk_usage(root).free,
    ) -> None:
        """root: the storage folder. keep_free: bytes of the disk that a cut must leave: retention deletes for them."""
        self._segments = segments
        self._root = root
        self._reader = reader
        self._free_bytes = free_bytes
        self.keep_free = keep_free
        self._turn = _Turn()
        self._kept: KeptFiles[RecordingCut] = KeptFiles(clock)
        self._number = 0
        self.cuts = 0
        self.bytes_cut = 0
        shutil.rmtree(root / CUTS, ignore_errors=True)  # of an earlier run

    async def get(self, camera: str, t0: float, t1: float) -> RecordingCut:
        """Return what is recorded of t0..t1, at most `SPAN_S_MAX`, from the key frame at or before `t0`.

        Raise EvidenceError if there is nothing or it cannot be read, DiskWriteError, and TooBusy.
        """
        key = (camera, t0, t1)
        if (kept := self._kept.take(key)) is not None:
            return kept
        async with self._turn.take():
            if (kept := self._kept.take(key)) is not None:
                return kept
            self._kept.drop_old()
            self._number += 1
            emptied = self._kept.emptied
            made = await asyncio.to_thread(self._cut, camera, t0, t1, self._root / CUTS / f"{self._number}.mp4")
            self.cuts += 1
            self.bytes_cut += made.clip.written.bytes
            self._kept.keep(key, made, made.path, made.clip.written.bytes, emptied)
        return made

    def expect(self) -> None:
        """Prepare for a stretch that may be asked for soon. Any thread."""
        self._reader.begin()

    def codec(self, camera: str) -> str:
        """Return the codec of what is recorded last; '': nothing is. Any thread."""
        newest = self._segments.latest(camera)
        return "" if newest is None else newest.codec

    def empty(self) -> None:
        """Delete all stretches."""
        self._kept.empty()

    def check_room(self, size: int) -> None:
        """Raise DiskWriteError if `size` bytes more would take the room that recording needs."""
        if self._free_bytes(self._root) - size < self.keep_free:
            raise DiskWriteError("the disk is too full to cut a recording; take a shorter span, or free some space")

    def _cut(self, camera: str, t0: float, t1: float, path: Path) -> RecordingCut:
        rows = self._segments.covering(camera, t0, t1)
        if not rows:
            raise EvidenceError("nothing is recorded in this time")
        self.check_room(sum(row.bytes for row in rows))
        clip = self._reader.clip([_on_disk(self._root, row) for row in rows], t0, t1, path, sound=True)
        return RecordingCut(path, clip)


def _on_disk(root: Path, row: SegmentRow) -> RecordedSegment:
    try:
        return RecordedSegment(inside(root, row.path, SEGMENTS), row.t_start, row.t_end)
    except StoreError as error:
        raise EvidenceError(str(error)) from None
