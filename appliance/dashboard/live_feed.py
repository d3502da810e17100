"""Live video for the dashboard: reads the segment that is being written as it grows, once for all viewers of a camera.

The ingest process writes the recording and knows of no viewer. `LiveFeed` reads one camera into a ring of fragments and
boxes. `LiveViewer` has a position in each ring and makes the messages for one connection. A viewer that falls behind
goes on at the newest key frame, so a slow or hostile one costs only what waits in its socket. `LiveHub` owns the feeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.base.telemetry import LogThrottle
from appliance.dashboard.event_stream import StillMay, StreamViewer, TooManyViewers, within
from appliance.dashboard.live_conversion import LINGER_S, Conversions, LiveConversion
from appliance.dashboard.live_files import RECORDING, LiveChoice, LiveFile, LiveFiles
from appliance.media.fragmented_mp4 import Fragment, FragmentReader, InitSegment
from appliance.store.boxes import BoxStore
from appliance.store.paths import SEGMENTS, SUBSTREAMS, inside
from appliance.store.segments import SegmentStore
from appliance.types import Box, FrameBoxes
from appliance.web.texts import tell
from appliance.web.visitor import VisitorSlots

logger = logging.getLogger(__name__)

POLL_S = 0.1  # between two checks whether a file has grown; one feed checks for all its viewers
STORE_EVERY_S = 0.25  # between two questions for a newer file and for boxes
BOXES_BACK_S = 4.0  # of those who join, and of those who write late
BOXES_BEFORE_S = 1.0  # before the first picture: live_buffer.js shows a box so long after its frame (STALE_S)
RING_BYTES_MAX = 32 * 1024 * 1024  # of a camera: 20 s of 12 Mbit/s
PIECES_MAX = 1024  # fragments kept of a camera: 8 minutes of 0.5 s
TURN_BYTES_MAX = 512 * 1024  # of a camera, before the next camera's turn and the next check of the viewer's rights
LAG_S_MAX = 4.0  # a viewer that is further behind goes on at the newest key frame
VIEWERS_MAX = 32  # each may have a turn of each of its cameras waiting in its socket, 0.5 MB a camera
VIEWERS_EACH_MAX = 8  # of one account or address
_FULL, _OWN = "too many watch live; close some pages", "you watch live on too many pages; close some"
PING_S = 5.0  # a page without video knows that the appliance lives
ACTIVE_S = 10.0  # a camera stays live so long after the last movement
MOVED_MIN = 0.02  # of the frame's size; parked cars tremble by less
TRACKS_MAX = 500  # remembered of a camera; detect.output_head.DETECTIONS_MAX is 300 a frame
_MESSAGE = struct.Struct(">cBI")


NewestBoxes = Callable[[str], Sequence[FrameBoxes]]


def message(kind: bytes, index: int, content: bytes = b"") -> bytes:
    """Return one message of the stream: kind, camera, length of the content (32 bits, network order), content.

    index: the number of the camera among those requested. See docs/http-api.md.
    """
    return _MESSAGE.pack(kind, index, len(content)) + content


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
        self.viewers: set[LiveViewer] = set()
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
                if self.viewers and self._converts:
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

    @property
    def _converts(self) -> bool:
        return self.conversion is not None and self.conversion.is_running

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


@dataclass(slots=True)
class _Position:
    """How far a viewer has come with one camera. playing: it got the key frame that the next fragment builds on."""

    feed: LiveFeed
    at: int
    playing: bool = False
    init: InitSegment | None = None
    note: dict[str, object] | None = None


class LiveViewer:
    """A viewer of some cameras over one connection.

    State: a position in each feed, and how many fragments were `skipped`. Owner: the event loop.
    """

    def __init__(self, feeds: Sequence[LiveFeed], *, only_active: bool, still: StillMay, hub: LiveHub) -> None:
        self.wake = asyncio.Event()
        self._positions = [_Position(feed, feed.ring.end) for feed in feeds]
        self._only_active = only_active
        self._still = still
        self._hub = hub

    def wants_video(self, feed: LiveFeed) -> bool:
        return feed.active or not self._only_active

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the visitor loses the right to watch, or the dashboard ends."""
        yield message(b"p", 0)
        while not self._hub.closed and (who := self._still()) is not None:
            self.wake.clear()
            parts: list[bytes] = []
            for index, position in enumerate(self._positions):
                if who.sees(position.feed.camera):
                    parts += self._next(index, position)
            if parts:
                data = b"".join(parts)
                self._hub.bytes_sent += len(data)
                yield data
            elif not await within(self.wake, PING_S):
                yield message(b"p", 0)

    def _next(self, index: int, position: _Position) -> list[bytes]:
        """Return the next messages of one camera for this viewer, about `TURN_BYTES_MAX` in all."""
        feed, parts, size = position.feed, [], 0
        if (note := feed.note) != position.note:
            position.note = note
            parts.append(message(b"n", index, json.dumps(note).encode()))
        wants = self.wants_video(feed)
        self._catch_up(position, wants)
        while position.at < feed.ring.end and size < TURN_BYTES_MAX:
            piece = feed.ring[position.at]
            position.at += 1
            if piece.fragment is None:
                parts.append(message(b"b", index, piece.boxes))
            elif wants and position.playing:
                if piece.fragment.init is not position.init:
                    position.init = piece.fragment.init
                    parts.append(message(b"c", index, position.init.media_type.encode()))
                    parts.append(message(b"v", index, position.init.data))
                parts.append(message(b"v", index, piece.fragment.data))
            size += piece.bytes
        return parts

    def _catch_up(self, position: _Position, wants: bool) -> None:
        """Move a viewer that begins, or is too late, to the newest key frame; count the fragments that it misses."""
        feed, key = position.feed, position.feed.ring.newest_key
        if not wants:
            position.playing = False
        elif position.playing and self._is_late(position):
            self._hub.skipped += (key if key is not None else feed.ring.end) - position.at
            position.playing = False
        if not position.playing and wants and key is not None:
            position.at, position.playing = key, True
        position.at = max(position.at, feed.ring.first)

    @staticmethod
    def _is_late(position: _Position) -> bool:
        feed, key = position.feed, position.feed.ring.newest_key
        if position.at < feed.ring.first:
            return True
        if key is None or key <= position.at:
            return False
        fragment = feed.ring[position.at].fragment
        return fragment is not None and feed.newest_t - fragment.t > LAG_S_MAX


class LiveHub:
    """The feeds that are watched now.

    It counts viewers, bytes, conversions and what late viewers were not sent. `newest_boxes` knows of frames that are
    not in the store yet.

    Invariant: at most `VIEWERS_MAX` viewers, one feed a camera and stream, one open file a feed. Owner: the event loop.
    """

    def __init__(self, segments: SegmentStore, boxes: BoxStore, root: Path, clock: Clock) -> None:
        self.bytes_sent = self.skipped = 0
        self._slots = VisitorSlots(VIEWERS_MAX, VIEWERS_EACH_MAX, TooManyViewers, _FULL, _OWN)
        self.closed = False
        self.newest_boxes: NewestBoxes = lambda camera: ()
        self.conversions = Conversions(clock)
        self._new_feed: Callable[[str, LiveChoice], LiveFeed] = lambda camera, choice: LiveFeed(
            camera, segments, boxes, self.newest_boxes, root, choice, self.conversions
        )
        self._files_of: Callable[[str], LiveFiles] = lambda camera: LiveFiles(
            camera, segments, root, clock, LiveChoice(h264=True)
        )
        self._feeds: dict[tuple[str, LiveChoice], tuple[LiveFeed, asyncio.Task[None]]] = {}

    @property
    def viewers(self) -> int:
        return self._slots.taken

    def join(
        self,
        cameras: Sequence[str],
        still: StillMay,
        *,
        only_active: bool = False,
        choice: LiveChoice = RECORDING,
    ) -> StreamViewer:
        """Return a viewer of these cameras; call its `leave`. Raise TooManyViewers.

        still: see `StreamHub.join`. only_active: video of each camera only while something moves before it.
        """
        if self.closed:
            raise TooManyViewers(_FULL)
        give_back = self._slots.take()
        feeds = [self._feed(camera, choice) for camera in cameras]
        viewer = LiveViewer(feeds, only_active=only_active, still=still, hub=self)
        for feed in feeds:
            feed.viewers.add(viewer)
        return StreamViewer(viewer.messages(), lambda: self._left(viewer, feeds, give_back))

    def expect(self, *cameras: str) -> None:
        """Prepare for a page of these cameras, in its thread: where one may be converted, start a child now."""
        if self.closed:
            return
        with contextlib.suppress(StoreError):
            if any(self._may_be_converted(camera) for camera in cameras):
                self.conversions.expect()

    def _may_be_converted(self, camera: str) -> bool:
        newest = self._files_of(camera).newest()
        return newest is not None and newest.codec != "h264" and not newest.instead_of

    def close(self) -> None:
        """End all streams. Called in the event loop's thread."""
        self.closed = True
        for feed, _ in self._feeds.values():
            for viewer in feed.viewers:
                viewer.wake.set()

    async def finish(self) -> None:
        """Wait until no file is read any more."""
        self.close()
        for feed, _ in self._feeds.values():
            feed.viewers.clear()
        self.conversions.close()
        await asyncio.gather(*(task for _, task in self._feeds.values()), return_exceptions=True)

    def _feed(self, camera: str, choice: LiveChoice) -> LiveFeed:
        key = (camera, choice)
        feed, _ = self._feeds.get(key, (None, None))
        if feed is None or feed.ended:
            feed = self._new_feed(camera, choice)
            self._feeds[key] = feed, asyncio.get_running_loop().create_task(self._run(key, feed))
        return feed

    async def _run(self, key: tuple[str, LiveChoice], feed: LiveFeed) -> None:
        try:
            await feed.run()
        finally:
            if self._feeds.get(key, (None,))[0] is feed:
                del self._feeds[key]

    @staticmethod
    def _left(viewer: LiveViewer, feeds: Sequence[LiveFeed], give_back: Callable[[], None]) -> None:
        give_back()
        for feed in feeds:
            feed.viewers.discard(viewer)
