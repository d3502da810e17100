"""Records packets into short segments on disk, without decoding anything. Segments begin at key frames."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import av

from appliance.base.clock import Clock
from appliance.base.errors import SourceLost
from appliance.base.telemetry import LogThrottle
from appliance.media.nal import announced_parameter_sets, keyframe_parameter_sets, keyframe_size
from appliance.media.segment_writer import SegmentFile, SegmentHead, SegmentWriter, SoundPacket, SoundTrack, suffix_for
from appliance.media.source import SECOND_US, StreamInfo, VideoPacket
from appliance.types import PAUSED, Gap, SegmentKind, SegmentRow

logger = logging.getLogger(__name__)

RETRY_S = 5.0  # after the disk refused
REPORT_S = 1.0  # of a growing segment to the core: its fragments are shorter, and each report is a write
HELD_S_MAX = 2.5  # from the last sound to the picture that a segment begins with: above `SOUND_OFF_US_MAX`
HOLE_S_MAX = 120.0
"""Frames that go on after a jump of their clock are kept, unless time went on by more than this many seconds.

A jump comes with a hole where the camera was silent, or where a slow link delayed frames until the camera dropped some:
half a minute of a trickling link was seen. A longer hole ends the segment. Frames up to the next key frame are then
lost although detection goes on with them: an alert of these seconds has no still.
"""
KEY_FRAME_S_MAX = 300.0  # a stream without one for so long is connected anew: a segment ends only at a key frame
RING_FULL = 2  # times its bytes: the core, which deletes the oldest, does not run or must keep them


@dataclass(frozen=True, slots=True)
class RecordTarget:
    """Where a camera's segments go."""

    root: Path  # the storage folder
    camera: str  # a safe name
    segment_s: float  # usual length
    free_min_bytes: int  # left on the disk; with less, recording pauses
    ring_bytes: int | None = None  # of a pre-roll ring, whose segments the core deletes and moves; None: continuous
    folder: str = ""  # of a sub-stream's ring, beneath which its segments lie by camera; "": as the kind says
    sound: bool = False  # kept where the camera sends any


class SegmentRecorder:
    """Writes one camera's segments and emits a row of each that begins, grows or ends (with 0 frames: it is gone).

    State: at most one open segment; whether the disk refuses, and since when. Owner: the camera's reading thread.
    Invariant: every packet between the first key frame and the end is on disk within about a second or counted in
    `lost`, and a pause is emitted as a gap, with its reason, when it begins, at each try, and when it ends.
    """

    def __init__(
        self,
        target: RecordTarget,
        clock: Clock,
        emit: Callable[[SegmentRow | Gap], None],
        *,
        open_file: Callable[[Path], SegmentFile] | None = None,
    ) -> None:
        self.lost = 0
        self.warning = ""
        self._target = target
        self._clock = clock
        self._emit = emit
        self._open_file = open_file or SegmentFile
        self._repeats = LogThrottle(logger, clock)
        self._info: StreamInfo | None = None
        self._session_id = ""
        self._size = self._stored_size = (0, 0)
        self._sets = b""
        self._segment: SegmentWriter | None = None
        self._cut = self._broken = False
        self._retry_at = 0.0
        self._key_t: float | None = None
        self._kept_t: float | None = None
        self._reported_t = 0.0
        self._pause: Gap | None = None
        self._sound: SoundTrack | None = None
        self._held: SoundPacket | None = None

    @property
    def is_paused(self) -> bool:
        """Return True while the disk takes nothing."""
        return self._pause is not None

    def begin(self, info: StreamInfo, session_id: str) -> None:
        """Begin a connection: the next key frame begins a new segment."""
        self.end()
        self._info, self._session_id, self._size, self._stored_size = info, session_id, info.size, info.size
        self._sets, self._broken, self._key_t = announced_parameter_sets(info), False, None
        self._sound = self._held = None
        if self._target.sound:
            self.warning = ""  # of a connection before
            self._begin_sound(info)
        if suffix_for(info.codec) is None:
            self._warn(f"{info.codec} video cannot be recorded without transcoding; set the camera to H.264 or H.265")

    def on_session(self, session_id: str, size: tuple[int, int]) -> None:
        """Note that a session begins; if its frames have another size, the next key frame begins a new segment."""
        self._cut = self._cut or sorted(size) != sorted(self._size)
        self._session_id, self._size = session_id, size

    def take(self, packet: VideoPacket) -> None:
        """Record one packet; raise no error of the disk, but SourceLost if no key frame comes any more.

        A packet that the disk refuses is counted in `lost`, and `warning` has the reason.
        """
        if self._info is None or suffix_for(self._info.codec) is None:
            return
        if packet.keyframe or self._key_t is None:
            self._key_t = packet.t
        elif packet.t - self._key_t > KEY_FRAME_S_MAX and not self._target.folder:
            raise SourceLost(
                f"camera {self._target.camera}: no key frame came for {KEY_FRAME_S_MAX:g} s; connecting again; set a "
                "shorter interval of key frames (GOP) at the camera"
            )
        try:
            self._take(packet, self._info)
        except (OSError, av.error.FFmpegError, ValueError) as error:
            self._refused(error, packet.t)

    def take_sound(self, packet: av.Packet[av.AudioStream], us: int) -> None:
        """Record a packet of sound, of camera time `us` in microseconds; as `take`.

        One frame is held back: it is the first of the next segment, whose header waits for it.
        """
        for heard in self._frames_of(packet, us):
            before, self._held = self._held, heard
            segment = self._segment
            if segment is None or before is None:
                continue
            if not segment.has_sound:
                continue  # the camera has begun to send it: from the next key frame on
            try:
                if segment.write_sound(before):
                    self._report_growth(segment)
            except (OSError, av.error.FFmpegError, ValueError) as error:
                self._refused(error, us / SECOND_US)

    def _frames_of(self, packet: av.Packet[av.AudioStream], us: int) -> list[SoundPacket]:
        """Decode a packet of sound; if that fails, the sound is lost, never the video."""
        if self._sound is None:
            return []
        try:
            return list(self._sound.frames(packet, us))
        except av.error.InvalidDataError as error:
            self._repeats.report(f"camera {self._target.camera}: sound cannot be decoded: {error.strerror}")
        except (av.error.FFmpegError, ValueError) as error:
            self._sound = self._held = None
            self._warn(f"its sound is not recorded: {error}")
        return []

    def _begin_sound(self, info: StreamInfo) -> None:
        try:
            if info.sound is None:
                raise ValueError("it sends no sound (`audio: true`); switch it on at the camera")
            self._sound = SoundTrack(info.sound)
        except ValueError as error:
            self._warn(str(error))

    def end(self) -> None:
        """Close what is open: the source ended or was lost."""
        segment, self._segment, self._cut = self._segment, None, False
        if segment is None:
            return
        try:
            segment.close()
        except (OSError, av.error.FFmpegError) as error:
            segment.rescue()
            self.lost += segment.frames - segment.frames_on_disk
            self._emit_row(segment, complete=True)
            self._refused(error, self._kept_t or segment.t_start)
            return
        self._emit_row(segment, complete=True)
        if segment.frames:
            self._recovered(segment.t_start)  # a segment as short as a fragment is on disk only now

    def _take(self, packet: VideoPacket, info: StreamInfo) -> None:
        if packet.keyframe:
            self._read_header(packet, info)
        if self._segment is not None and self._must_end(packet, self._segment):
            self.end()
            self._broken = not packet.keyframe
        if self._segment is None:
            if not packet.keyframe or self._clock.monotonic() < self._retry_at:
                self.lost += self._retry_at > 0 or self._broken
                return
            self._broken = False
            self._segment = self._new_segment(packet, info)
            self._emit_row(self._segment, complete=False)
        if self._segment.write(packet):
            self._report_growth(self._segment)
            self._recovered(self._segment.t_start)

    def _read_header(self, packet: VideoPacket, info: StreamInfo) -> None:
        """Read parameter sets and size from a key frame.

        The stream may have changed unannounced, or have announced no size.
        """
        sets = keyframe_parameter_sets(info, packet)
        changed = bool(sets) and sets != self._sets
        if changed or not all(self._stored_size):
            size = keyframe_size(info, packet)
            if all(size):
                self._stored_size = size
                self._size = size if sorted(size) != sorted(self._size) else self._size
        self._cut, self._sets = self._cut or changed, sets or self._sets

    def _must_end(self, packet: VideoPacket, segment: SegmentWriter) -> bool:
        """Return True if the segment ends before this packet.

        Frames that go on over a jump of their clock are kept, up to the next key frame; a hole is not bridged.
        """
        self._cut = self._cut or packet.jump
        if not packet.keyframe:
            return packet.jump and packet.t - segment.t_end > HOLE_S_MAX
        has_begun = not segment.has_sound and self._sound_at(packet) is not None
        return self._cut or has_begun or packet.t - segment.t_start >= self._target.segment_s - segment.frame_s / 2

    def _sound_at(self, packet: VideoPacket) -> SoundTrack | None:
        """Return the sound that a segment which begins with this packet holds; None if there is none now."""
        held, info = self._held, self._info
        if held is None or info is None or suffix_for(info.codec) != ".mp4":
            return None
        return self._sound if abs(packet.t - held.us / SECOND_US) < HELD_S_MAX else None

    def _new_segment(self, packet: VideoPacket, info: StreamInfo) -> SegmentWriter:
        self._cut = False
        if not all(self._stored_size):
            raise ValueError("the camera does not say how large its pictures are")
        begin = datetime.fromtimestamp(packet.t, tz=timezone.utc)
        stamp = begin.strftime("%H%M%S.%f")[:-3]
        name = f"{begin:%Y%m%dT}{stamp}Z-{self._session_id}{suffix_for(info.codec)}"
        ring = self._target.ring_bytes is not None
        folder = f"preroll/{self._target.camera}" if ring else f"segments/{self._target.camera}/{begin:%Y-%m-%d}"
        if self._target.folder:
            folder = f"{self._target.folder}/{self._target.camera}"
        path = self._target.root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._check_room(path.parent)
        kind: SegmentKind = "pre_roll" if ring else "continuous"
        held = self._held
        head = SegmentHead(
            camera=self._target.camera,
            path=f"{folder}/{name}",
            t_start=packet.t,
            codec=info.codec,
            size=self._size,
            kind=kind,
            stored_size=self._stored_size,
            parameter_sets=self._sets,
            sound=self._sound_at(packet),
        )
        segment = SegmentWriter(self._open_file(path), path.suffix, head, info, packet)
        if segment.has_sound and held is not None:
            self._held = None
            segment.write_sound(held)
        return segment

    def _check_room(self, folder: Path) -> None:
        """Raise OSError (ENOSPC) before the disk does: what is left is for the database and for evidence."""
        ring_bytes = self._target.ring_bytes
        stats = os.statvfs(folder)
        if stats.f_bavail * stats.f_frsize < self._target.free_min_bytes:
            what = "the disk has" if ring_bytes is None else "the place of the pre-roll rings has"
            raise OSError(errno.ENOSPC, f"{what} less than {self._target.free_min_bytes / 1e6:g} MB free")
        if ring_bytes is not None and _bytes_in(folder) > RING_FULL * ring_bytes:
            raise OSError(errno.ENOSPC, "the pre-roll ring is full of what alerts need and the disk does not take")

    def _refused(self, error: Exception, t: float) -> None:
        """Give up this segment, because the disk or the muxer refused it; retry after RETRY_S.

        Keep what is readable. t: the time of the packet that was refused.
        """
        segment, self._segment = self._segment, None
        self.lost += 1 + (segment.frames - segment.frames_on_disk if segment is not None else 0)
        # A fault of the stream may pass with its next key frame; a disk needs time.
        of_stream = isinstance(error, ValueError)
        self._retry_at = self._clock.monotonic() + (0.0 if of_stream else RETRY_S)
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self._warn(f"{PAUSED}: {why[0].lower()}{why[1:]}")
        if segment is not None:
            segment.rescue()
            self._emit_row(segment, complete=True)
        if self._pause is None:
            begin = min(t, self._kept_t) if self._kept_t is not None and segment is not None else t
            reason = self.warning.removeprefix(f"camera {self._target.camera}: ")
            self._pause = Gap(camera=self._target.camera, t_start=begin, t_end=None, reason=reason)
        self._emit(self._pause)  # again at each try: a camera that comes back live ends what gap there is

    def _emit_row(self, segment: SegmentWriter, *, complete: bool) -> None:
        row = segment.row(complete=complete)
        self._reported_t = row.t_end
        if row.frames:
            self._kept_t = row.t_end
        self._emit(row)

    def _report_growth(self, segment: SegmentWriter) -> None:
        if segment.row(complete=False).t_end - self._reported_t > REPORT_S - segment.frame_s / 2:
            self._emit_row(segment, complete=False)
            if segment.t_end - segment.t_start > self._target.segment_s:  # its key frame is late
                self._check_room((self._target.root / segment.path).parent)

    def _recovered(self, t: float) -> None:
        """End the pause: a fragment is on disk, of a segment that began at `t`."""
        if self._pause is not None:
            pause, self._pause = self._pause, None
            self._emit(replace(pause, t_end=max(pause.t_start, t)))
        if self._retry_at:
            self._retry_at = 0.0
            logger.info("camera %s: recording again after losing %d packets", self._target.camera, self.lost)
            self.warning = ""

    def _warn(self, text: str) -> None:
        self.warning = f"camera {self._target.camera}: {text}"
        self._repeats.report(self.warning)


def _bytes_in(folder: Path) -> int:
    """Return the bytes of all files in the folder; a ring has some dozens of files."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # the core deletes meanwhile
                total += entry.stat(follow_symlinks=False).st_size
    return total
