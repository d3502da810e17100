"""Copies packets into short segments on disk, without decoding anything.

Segments begin at key frames, so a camera whose key frames are far apart makes segments that long.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import av

from appliance.clock import Clock
from appliance.ingest.segment import Segment, SegmentFile, SegmentHead, suffix_for
from appliance.ingest.source import StreamInfo, VideoPacket
from appliance.telemetry import Repeats
from appliance.types import SegmentRow

RETRY_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a camera's segments go. root: the storage folder; camera: a safe name; segment_s: their usual length."""

    root: Path
    camera: str
    segment_s: float
    free_min_bytes: int


class Recorder:
    """Writes one camera's segments and tells of each that begins, grows or ends (with 0 frames: it came to nothing).

    State: at most one open segment; whether the disk refuses. Owner: the camera's reading thread. Invariant: every
    packet between the first key frame and the end is on disk within about a second or counted in `lost`.
    """

    def __init__(
        self,
        place: Place,
        clock: Clock,
        emit: Callable[[SegmentRow], None],
        *,
        open_file: Callable[[Path], SegmentFile] | None = None,
    ) -> None:
        self.lost = 0
        self.warning = ""
        self._place = place
        self._clock = clock
        self._emit = emit
        self._open_file = open_file or SegmentFile
        self._repeats = Repeats(logger, clock)
        self._info: StreamInfo | None = None
        self._run = ""
        self._size = (0, 0)
        self._segment: Segment | None = None
        self._cut = False
        self._retry_at = 0.0

    def begin(self, info: StreamInfo, run: str) -> None:
        """A new connection: the next key frame begins a new segment."""
        self.end()
        self._info, self._run, self._size = info, run, info.size
        if suffix_for(info.codec) is None:
            self._warn(f"{info.codec} video cannot be recorded without transcoding; set the camera to H.264 or H.265")

    def cut(self, run: str, size: tuple[int, int]) -> None:
        """The picture changed its size: the next key frame begins a new segment."""
        self._cut = self._cut or sorted(size) != sorted(self._size)
        self._run, self._size = run, size

    def take(self, packet: VideoPacket) -> None:
        """Record one packet. Never raises for the disk's sake: that is counted in `lost` and told in `warning`."""
        if self._info is None or suffix_for(self._info.codec) is None:
            return
        try:
            self._take(packet, self._info)
        except (OSError, av.error.FFmpegError, ValueError) as error:
            self._refused(error)

    def end(self) -> None:
        """Close what is open: the source ended or was lost."""
        segment, self._segment, self._cut = self._segment, None, False
        if segment is None:
            return
        try:
            segment.close()
        except (OSError, av.error.FFmpegError) as error:
            segment.rescue()
            self.lost += segment.frames - segment.frames_safe
            self._refused(error)
        self._emit(segment.row(complete=True))

    def _take(self, packet: VideoPacket, info: StreamInfo) -> None:
        if packet.jump or (self._segment is not None and packet.keyframe and self._is_long(packet)):
            self.end()
        if self._segment is None:
            if not packet.keyframe or self._clock.monotonic() < self._retry_at:
                self.lost += self._retry_at > 0
                return
            self._segment = self._new_segment(packet, info)
            self._emit(self._segment.row(complete=False))
        if self._segment.write(packet):
            self._emit(self._segment.row(complete=False))
            self._recovered()

    def _is_long(self, packet: VideoPacket) -> bool:
        assert self._segment is not None
        return self._cut or packet.t - self._segment.t_start >= self._place.segment_s - self._segment.frame_s / 2

    def _new_segment(self, packet: VideoPacket, info: StreamInfo) -> Segment:
        self._cut = False
        begin = datetime.fromtimestamp(packet.t, tz=timezone.utc)
        stamp = begin.strftime("%H%M%S.%f")[:-3]
        name = f"{begin:%Y%m%dT}{stamp}Z-{self._run}{suffix_for(info.codec)}"
        relative = f"segments/{self._place.camera}/{begin:%Y-%m-%d}/{name}"
        path = self._place.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        stats = os.statvfs(path.parent)
        if stats.f_bavail * stats.f_frsize < self._place.free_min_bytes:
            raise OSError(28, "the disk has less free space than storage.disk_free_min_mb")
        head = SegmentHead(self._place.camera, relative, packet.t, info.codec, self._size)
        return Segment(self._open_file(path), path.suffix, head, info, packet)

    def _refused(self, error: Exception) -> None:
        """The disk (or the muxer) said no: give up this segment, keep what is readable, try again in a while."""
        segment, self._segment = self._segment, None
        self.lost += 1 + (segment.frames - segment.frames_safe if segment is not None else 0)
        self._retry_at = self._clock.monotonic() + RETRY_S
        why = getattr(error, "strerror", None) or type(error).__name__
        self._warn(f"recording is paused: {why[0].lower()}{why[1:]}")
        if segment is not None:
            segment.rescue()
            self._emit(segment.row(complete=True))

    def _recovered(self) -> None:
        if self._retry_at:
            self._retry_at = 0.0
            logger.info("camera %s: recording again after losing %d packets", self._place.camera, self.lost)
            self.warning = ""

    def _warn(self, text: str) -> None:
        self.warning = f"camera {self._place.camera}: {text}"
        self._repeats.report(self.warning)
