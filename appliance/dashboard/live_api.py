"""`/api/v1/live`: live video of several cameras over one connection, taken from the recording as it is written.

`LiveViewer` has a position in the ring of each feed and makes the messages for one connection. A viewer that falls
behind goes on at the newest key frame, so a slow or hostile one costs only what waits in its socket. `LiveHub` owns the
feeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, Query, Request
from starlette.responses import StreamingResponse

from appliance.base.clock import Clock
from appliance.base.errors import StoreError
from appliance.dashboard.access_rights import tell_view
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.live_feed import RECORDING, LiveChoice, LiveFeed, LiveFiles, NewestBoxes
from appliance.dashboard.renditions import Conversions
from appliance.dashboard.schemas import API
from appliance.dashboard.stream_api import StillMay, StreamViewer, TooManyViewers, ViewerResponse, within
from appliance.media.fragmented_mp4 import InitSegment
from appliance.store.boxes import BoxStore
from appliance.store.segments import SegmentStore
from appliance.web.auth import AccessPart
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import VisitorSlots, visitor

CAMERAS_MAX = 64  # of one wall
MEDIA_TYPE = "application/vnd.vedette.live"
TURN_BYTES_MAX = 512 * 1024  # of a camera, before the next camera's turn and the next check of the viewer's rights
LAG_S_MAX = 4.0  # a viewer that is further behind goes on at the newest key frame
VIEWERS_MAX = 32  # each may have a turn of each of its cameras waiting in its socket, 0.5 MB a camera
VIEWERS_EACH_MAX = 8  # of one account or address
_FULL, _OWN = "too many watch live; close some pages", "you watch live on too many pages; close some"
PING_S = 5.0  # a page without video knows that the appliance lives
_MESSAGE = struct.Struct(">cBI")

router = RouteList(prefix=API, tags=["cameras"])


def message(kind: bytes, index: int, content: bytes = b"") -> bytes:
    """Return one message of the stream: kind, camera, length of the content (32 bits, network order), content.

    index: the number of the camera among those requested. See docs/http-api.md.
    """
    return _MESSAGE.pack(kind, index, len(content)) + content


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
        h264: Collection[str] = (),
    ) -> StreamViewer:
        """Return a viewer of these cameras; call its `leave`. Raise TooManyViewers.

        still: see `StreamHub.join`. only_active: video of each camera only while something moves before it. h264: the
        cameras that are wanted in H.264 whatever the choice of the others.
        """
        if self.closed:
            raise TooManyViewers(_FULL)
        give_back = self._slots.take()
        feeds = [self._feed(each, replace(choice, h264=choice.h264 or each in h264)) for each in cameras]
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


class _Wanted:
    """Which video, and when."""

    def __init__(
        self,
        when: Literal["always", "active"] = "always",
        stream: Literal["main", "sub"] = "main",
        codec: Literal["as_recorded", "h264"] = "as_recorded",
        h264: Annotated[Sequence[str], Query(max_length=CAMERAS_MAX)] = (),
    ) -> None:
        self.only_active = when == "active"
        self.choice = LiveChoice(substream=stream == "sub", h264=codec == "h264")
        self.h264 = h264


@router.get("/live", response_class=StreamingResponse, responses={200: {"content": {MEDIA_TYPE: {}}}})
async def live_video(
    request: Request,
    access: AccessPart,
    cameras: Cameras,
    hub: Annotated[LiveHub, Depends(provided(LiveHub))],
    camera: Annotated[list[str], Query(min_length=1, max_length=CAMERAS_MAX)],
    wanted: Annotated[_Wanted, Depends()],
) -> StreamingResponse:
    """H.264 or H.265 as it is recorded, about a second behind, and the boxes of it.

    A stream without end of messages: one byte of kind, one of which `camera` (from 0), a length (32 bits, big endian)
    and so many bytes. `c`: the media type with its codecs, then `v`: bytes of a fragmented MP4 of that type, whose
    times are camera time (UTC seconds); `b`: boxes of examined frames as JSON; `n`: JSON, whether something moves
    (`active`) and why there is no video (`problem`); `p`: nothing, every 5 s of silence. `when=active`: of each camera,
    video only while something moves before it; `stream=sub`: of its second stream, where it has one for detection.
    `codec=h264`: of a camera that sends something else, its second stream where that is H.264, else a small copy of at
    most ten frames a second, which costs the appliance's processor; `n` says `instead`, which of the two.
    `h264=gate`: the same of one camera; it may be given several times.
    A client that reads too slowly goes on at the newest key frame. A camera that is named twice is refused.
    """
    if any(name not in cameras.configured or not visitor().sees(name) for name in camera):
        raise Problem(404, "There is no such camera among yours.")
    if len(set(camera)) < len(camera):  # a message says by its number which camera it is of
        raise Problem(422, "Name each camera once.")
    try:
        viewer = hub.join(
            camera, access.still(request), only_active=wanted.only_active, choice=wanted.choice, h264=wanted.h264
        )
    except TooManyViewers as error:
        raise Problem(503, sentence(error), {"Retry-After": "10"}) from None
    tell_view(request, cameras=camera)
    return ViewerResponse(viewer, MEDIA_TYPE)
