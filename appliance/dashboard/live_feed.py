"""Live video for the dashboard: reads the segment that is being written as it grows, once for all viewers of a camera.

The ingest process writes the recording and knows of no viewer. `LiveFiles` finds the file that is being written: of the
recording, of the detect stream, or of a substitute. `LiveFeed` reads one camera into a ring of fragments and boxes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.base.local_files import live_memory
from appliance.base.telemetry import LogThrottle
from appliance.dashboard.renditions import LINGER_S, Conversions, LiveConversion
from appliance.media.fragmented_mp4 import Fragment, FragmentReader
from appliance.store.boxes import BoxStore
from appliance.store.paths import SEGMENTS, SUBSTREAMS, inside
from appliance.store.segments import SegmentStore
from appliance.types import Box, FrameBoxes
from appliance.web.texts import tell

logger = logging.getLogger(__name__)

POLL_S = 0.1  # between two checks whether a file has grown; one feed checks for all its viewers
STORE_EVERY_S = 0.25  # between two questions for a newer file and for boxes
BOXES_BACK_S = 4.0  # of those who join, and of those who write late
BOXES_BEFORE_S = 1.0  # before the first picture: live_buffer.js shows a box so long after its frame (STALE_S)
RING_BYTES_MAX = 32 * 1024 * 1024  # of a camera: 20 s of 12 Mbit/s
PIECES_MAX = 1024  # fragments kept of a camera: 8 minutes of 0.5 s
ACTIVE_S = 10.0  # a camera stays live so long after the last movement
MOVED_MIN = 0.02  # of the frame's size; parked cars tremble by less
TRACKS_MAX = 500  # remembered of a camera; detect.output_head.DETECTIONS_MAX is 300 a frame
RECORDED_S_MAX = 4.0  # a camera that is recorded reports each second, and a segment begins within a second or two
STALE_S = 20.0  # what was recorded last is no live picture any more


NewestBoxes = Callable[[str], Sequence[FrameBoxes]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """An entry of the ring: a fragment, or the boxes of some frames as JSON."""

    fragment: Fragment | None
    boxes: bytes = b""

    @property
    def bytes(self) -> int:
        return len(self.fragment.data) if self.fragment is not None else len(self.boxes)


class Movement:
    """Finds out when something last moved in a camera's view, from the boxes of its tracks.

    State: where each of the latest tracks was when it had last moved by `MOVED_MIN`.
    """

    def __init__(self) -> None:
        self._places: dict[int, Box] = {}
        self.moved_t = float("-inf")

    def note(self, frame: FrameBoxes) -> None:
        for each in frame.objects:
            place = self._places.get(each.track)
            moved = place is not None and max(abs(a - b) for a, b in zip(place, each.box, strict=True)) >= MOVED_MIN
            if moved or (place is None and each.stood_s is None):
                self.moved_t = max(self.moved_t, frame.t)
            if moved or place is None:
                self._places[each.track] = each.box
        while len(self._places) > TRACKS_MAX:
            del self._places[next(iter(self._places))]


class PieceRing:
    """The newest pieces of a feed: at most two groups of pictures, `RING_BYTES_MAX` and `PIECES_MAX`.

    Pieces are numbered; `first` is the oldest one kept, `end` the number of the next one.
    """

    def __init__(self) -> None:
        self.first = 0
        self._pieces: deque[_Piece] = deque()
        self._bytes = 0
        self._keys: deque[int] = deque()  # numbers of the key frames

    @property
    def end(self) -> int:
        return self.first + len(self._pieces)

    @property
    def newest_key(self) -> int | None:
        """The number of the newest key frame that is kept."""
        return self._keys[-1] if self._keys else None

    def __getitem__(self, number: int) -> _Piece:
        return self._pieces[number - self.first]

    def add(self, piece: _Piece) -> None:
        if piece.fragment is not None and piece.fragment.keyframe:
            self._keys.append(self.end)
        self._pieces.append(piece)
        self._bytes += piece.bytes
        while len(self._keys) > 2 or self._bytes > RING_BYTES_MAX or len(self._pieces) > PIECES_MAX:
            self._drop_oldest()

    def clear(self) -> None:
        while self._pieces:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._bytes -= self._pieces.popleft().bytes
        self.first += 1
        while self._keys and self._keys[0] < self.first:
            self._keys.popleft()


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
        memory = live_memory(self._root)  # the disk takes nothing: the camera is seen all the same
        standby = None if memory is None else self._of_substream(memory)
        if standby is not None or row is None or self._clock.now() - row.t_end > STALE_S:
            return standby
        return LiveFile(row.path, row.t_start, row.codec)

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


class FeedViewer(Protocol):
    """A viewer of some feeds. wake: set when one of them has something new."""

    wake: asyncio.Event

    def wants_video(self, feed: LiveFeed) -> bool:
        """Return whether it takes this camera's video now."""


class LiveFeed:
    """One camera's live video, of its recording or its detect stream, read by one task while somebody watches.

    State: the file that is read; a ring of pieces. Owner: the event loop; files and store are read in threads, one at a
    time.
    """

    def __init__(
        self,
        camera: str,
        segments: SegmentStore,
        boxes: BoxStore,
        newest_boxes: NewestBoxes,
        root: Path,
        choice: LiveChoice,
        conversions: Conversions,
    ) -> None:
        self.camera = camera
        self.conversion = LiveConversion(conversions) if choice.h264 else None
        self._files = LiveFiles(camera, segments, root, conversions.clock, choice)
        self.ring = PieceRing()
        self.newest_t = float("-inf")  # of the newest fragment
        self.active = False
        self.problem = ""  # why there is no video, in words; '': there is
        self.viewers: set[FeedViewer] = set()
        self.ended = False
        self._boxes = boxes
        self._newest_boxes = newest_boxes
        self._root = root
        self._clock = conversions.clock
        self._reader: FragmentReader | None = None
        self._path = self._instead_of = ""  # the file; the codec that it is shown in place of
        self._boxes_t: float | None = None
        self._movement = Movement()
        self._repeats = LogThrottle(logger, conversions.clock)

    @property
    def note(self) -> dict[str, object]:
        """Return the state of the feed that viewers get beside pictures: see docs/http-api.md."""
        conversion, note = self.conversion, {"active": self.active, "problem": tell(self.problem)}
        if conversion is not None and conversion.is_running:
            share = None if conversion.share is None else round(conversion.share, 2)
            codec = self._instead_of or conversion.codec
            return {**note, "instead": "converted", "codec": codec, "share": share, "keys_only": conversion.keys_only}
        return {**note, "instead": "second", "codec": self._instead_of} if self._instead_of else note

    async def run(self) -> None:
        """Follow the camera until nobody watches. A conversion goes on for `LINGER_S` more."""
        asked_at = watched_at = float("-inf")
        try:
            while self.viewers or self._clock.monotonic() - watched_at < LINGER_S:
                if self.viewers and self.conversion is not None and self.conversion.is_running:
                    watched_at = self._clock.monotonic()
                try:
                    if self._clock.monotonic() - asked_at >= STORE_EVERY_S:
                        asked_at = self._clock.monotonic()
                        await self._ask_store()
                    if self._reader is not None and self._reader.has_grown:
                        self._push(await self._read(self._reader.read))
                except (EvidenceError, StoreError, OSError) as error:
                    self._repeats.report(f"camera {self.camera}: no live video: {error}")
                    self._close_file(str(error))
                await asyncio.sleep(POLL_S)
        finally:
            self.ended = True
            self._close_file("")
            if self.conversion is not None:
                self.conversion.close()

    async def _read(self, read: Callable[[], list[Fragment]]) -> list[Fragment]:
        return await self._converted(await asyncio.to_thread(read))

    async def _converted(self, fragments: list[Fragment]) -> list[Fragment]:
        return await asyncio.to_thread(self.conversion.convert, fragments) if self.conversion is not None else fragments

    async def _ask_store(self) -> None:
        boxes = await asyncio.to_thread(self._new_boxes)
        if boxes:
            self.ring.add(_Piece(None, boxes))
        now, before = self._clock.now(), (self.active, self.problem)
        self.active = now - self._movement.moved_t < ACTIVE_S
        if not self.viewers or any(viewer.wants_video(self) for viewer in self.viewers):
            newest = await asyncio.to_thread(self._files.newest)
            if newest is None:
                self.problem = "nothing is being recorded of this camera now"
            elif newest.path != self._path:
                await self._go_on_to(newest)
            elif self._reader is not None:  # of a file that is read, the store was only late
                self.problem = ""
        else:
            self._close_file("")
            self._path = self._instead_of = ""
            if self.conversion is not None:
                self.conversion.end_if_idle()
        if boxes or before != (self.active, self.problem):
            self._wake()

    async def _go_on_to(self, newest: LiveFile) -> None:
        """Read the present file to its end, then open the newer one."""
        joins = self._reader is None
        if self._reader is not None:
            self._push(await self._read(self._reader.read))
        self._close_file("")
        self._path, self._instead_of = newest.path, newest.instead_of  # one that is damaged is not tried again
        if not newest.path.endswith(".mp4"):
            raise EvidenceError(f"{newest.codec} video cannot be shown live")
        folder = SEGMENTS if not newest.path.startswith(SUBSTREAMS) else SUBSTREAMS
        reader = self._reader = FragmentReader(inside(newest.root or self._root, newest.path, folder), newest.t_start)
        if not joins:
            self._push(await self._read(reader.read))
            return
        self.ring.clear()
        found = await asyncio.to_thread(reader.newest)
        for some in (found[:1], found[1:]):  # a picture is there once the first piece is converted
            self._push(await self._converted(some))
        if found:  # a viewer begins at this key frame: boxes that were sent before it are lost to it
            self._boxes_t = found[0].t - BOXES_BEFORE_S

    def _new_boxes(self) -> bytes:
        """Return the boxes that were stored since the last call, as JSON; b'': none. Called in a thread."""
        now = self._clock.now()
        since = now - BOXES_BACK_S if self._boxes_t is None else self._boxes_t
        stored = self._boxes.span(self.camera, since, now + BOXES_BACK_S)
        by_time = {each.t: each for each in (*stored, *self._newest_boxes(self.camera)) if each.t > since}
        frames = [by_time[t] for t in sorted(by_time) if t <= now + BOXES_BACK_S]
        for frame in frames:
            self._movement.note(frame)
        if not frames:
            return b""
        self._boxes_t = frames[-1].t
        boxes = [{"t": each.t, "objects": [asdict(found) for found in each.objects]} for each in frames]
        return json.dumps(boxes, separators=(",", ":")).encode()

    def _push(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            self.newest_t = fragment.t
            self.ring.add(_Piece(fragment))
        if fragments:
            self._wake()

    def _close_file(self, problem: str) -> None:
        reader, self._reader, self.problem = self._reader, None, problem
        if reader is not None:
            reader.close()
            self._wake()

    def _wake(self) -> None:
        for viewer in self.viewers:
            viewer.wake.set()
