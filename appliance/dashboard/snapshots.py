"""The latest frame of a camera as JPEG, cut from its newest segment.

One is cut at a time, however many viewers there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, StoreError
from appliance.media.recorded import FrameImages, ImageOrder, RecordedSegment
from appliance.media.recording_reader import RecordingReader
from appliance.sandbox.sandbox import SandboxError
from appliance.store.boxes import BoxStore
from appliance.store.paths import SEGMENTS, inside
from appliance.store.segments import SegmentStore
from appliance.types import SegmentRow

INTERVAL_S_MIN = 0.5  # between two cuts of one camera
SIDE_MAX = 1280  # pixels
# A cut decodes up to a whole GOP: at most a quarter of one core may go into snapshots, however slow it is.
REST_PER_WORK = 3.0
BOXES_AGE_S_MAX = 3.0  # an older examined frame is too long ago for a latest frame: then the newest one counts
BEGINNING_S_MAX = 60.0  # a segment without a frame on disk is younger than the one before it by at most this


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A JPEG and the camera's time of its frame (UTC seconds)."""

    jpeg: bytes
    t: float


CutSnapshot = Callable[[Path, SegmentRow, float], Snapshot]
"""Cut the frame at camera time t from a segment under the storage folder. Raises EvidenceError."""


def cut_snapshot(reader: RecordingReader, root: Path, segment: SegmentRow, t: float) -> Snapshot:
    """Return the frame at `t` as JPEG, at most `SIDE_MAX` wide. Raise EvidenceError if it cannot be cut."""
    try:
        path = inside(root, segment.path, SEGMENTS)
    except StoreError as error:
        raise EvidenceError(str(error)) from None
    source = [RecordedSegment(path, segment.t_start, segment.t_end)]
    return jpeg_snapshot(reader.images(source, [(t, [ImageOrder(side_max=SIDE_MAX)])])[0])


def jpeg_snapshot(made: FrameImages) -> Snapshot:
    """Return the one image that was made of a frame. Raise EvidenceError if it could not be made."""
    image = made.images[0]
    if image.problem:
        raise EvidenceError(image.problem)
    return Snapshot(image.data, made.t)


@dataclass(slots=True)
class _Last:
    snapshot: Snapshot | None = None
    asked_t: float = float("nan")
    error: str = ""
    fresh_until: float = field(default=float("-inf"))


def newest_readable(segments: SegmentStore, camera: str) -> SegmentRow | None:
    """Return the newest segment with a frame on disk; None: nothing is recorded.

    A segment that has just begun has no frame yet.
    """
    newest = segments.latest(camera)
    if newest is None or newest.frames:
        return newest
    before = segments.covering(camera, newest.t_start - BEGINNING_S_MAX, newest.t_start)
    return before[-1] if before else None


class SnapshotCache:
    """The newest frame of each camera as JPEG.

    State: one snapshot a camera (cameras are configured, so bounded), and a lock that lets one cut run at a time.
    Owner: the event loop's thread. The moment is that of the newest *examined* frame that is on disk, so that its
    boxes belong to the very frame they are drawn on.
    """

    def __init__(self, segments: SegmentStore, boxes: BoxStore, root: Path, clock: Clock, cut: CutSnapshot) -> None:
        self._segments = segments
        self._boxes = boxes
        self._root = root
        self._clock = clock
        self._cut = cut
        self._one_at_a_time = asyncio.Lock()
        self._last: dict[str, _Last] = {}
        self.cuts = 0

    async def latest(self, camera: str) -> Snapshot | None:
        """Return the newest frame of `camera`, a known camera's name; None: nothing is recorded of it yet.

        Raise EvidenceError if the recording cannot be read.
        """
        last = self._last.setdefault(camera, _Last())
        if self._clock.monotonic() >= last.fresh_until:
            async with self._one_at_a_time:
                if self._clock.monotonic() >= last.fresh_until:  # another viewer may have had it cut meanwhile
                    await asyncio.to_thread(self._renew, camera, last)
        if last.error:
            raise EvidenceError(last.error)
        return last.snapshot

    def _renew(self, camera: str, last: _Last) -> None:
        began = self._clock.monotonic()
        last.error = ""
        try:
            self._take_newest(camera, last)
        except (EvidenceError, SandboxError) as error:
            last.snapshot, last.error = None, str(error)
        ended = self._clock.monotonic()
        last.fresh_until = ended + max(INTERVAL_S_MIN, (ended - began) * REST_PER_WORK)

    def _take_newest(self, camera: str, last: _Last) -> None:
        segment = newest_readable(self._segments, camera)
        if segment is None:
            last.snapshot = None
            return
        t = self._moment(camera, segment)
        if last.snapshot is None or last.asked_t != t:
            self.cuts += 1
            last.snapshot, last.asked_t = self._cut(self._root, segment, t), t

    def _moment(self, camera: str, segment: SegmentRow) -> float:
        frame_s = (segment.t_end - segment.t_start) / max(1, segment.frames)
        newest = max(segment.t_start, segment.t_end - frame_s)
        since = max(segment.t_start, newest - BOXES_AGE_S_MAX)
        examined = self._boxes.span(camera, since, newest)
        return examined[-1].t if examined else newest
