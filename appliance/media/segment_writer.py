"""Writes one segment: a fragmented MP4 (or Matroska) file that can be read while it grows.

Twice a second the received packets are flushed as a fragment. So live video is half a second behind, and a killed
process loses as much; a power cut also loses what the kernel had not written of the open segment. `pts` 0 of the file
is the segment's `t_start`: with B-frames a header written up front could not hold the edit list that makes this true,
hence `delay_moov`. Codecs that MP4 cannot hold go into Matroska, with the same promises. Sound is copied where it is
AAC; G.711, which MP4 cannot hold, is encoded to AAC.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.container import OutputContainer

from appliance.media.source import SECOND_US, StreamInfo, VideoPacket
from appliance.types import SegmentKind, SegmentRow

AAC = "aac"
G711 = frozenset({"pcm_mulaw", "pcm_alaw"})
KEPT = "AAC, G.711 (PCMU, PCMA)"
_RATES = range(7000, 96_001)
_BITS_G711 = 32_000  # a second, of 8000 samples
_OFF_US_MAX = SECOND_US // 10  # of the time that samples count to what the camera stamped: packets were lost


@dataclass(frozen=True, slots=True)
class SoundPacket:
    """One AAC frame. us: camera time of its first sample, in microseconds."""

    data: bytes
    us: int


class SoundTrack:
    """The sound of one connection as AAC frames. State: the encoder of G.711, and the time that its samples count from.

    Owner: the camera's reading thread.
    """

    def __init__(self, stream: av.AudioStream) -> None:
        """Begin the track of a stream. Raise ValueError, with words for people, for sound that is not kept."""
        name = stream.codec_context.name if stream.codec_context is not None else "an unknown codec"
        rate, channels = stream.rate or 0, stream.channels or 0
        if name not in {AAC, *G711} or rate not in _RATES or channels not in (1, 2):
            raise ValueError(f"its sound ({name}, {rate} Hz) is not recorded; set the camera to one of {KEPT}")
        if name == AAC and not stream.codec_context.extradata:
            raise ValueError("its sound is AAC without a description, and is not recorded")
        self.rate = rate
        self._stream = stream
        self._layout = "mono" if channels == 1 else "stereo"
        self._encoder = _encoder(rate, self._layout) if name in G711 else None
        self._samples = 0
        self._zero_us: int | None = None

    def add_to(self, container: OutputContainer) -> av.AudioStream:
        """Add a stream to the container that holds these frames, and return it."""
        if self._encoder is None:
            return container.add_stream_from_template(self._stream, opaque=True)
        made = cast("av.AudioStream", container.add_stream(AAC, rate=self.rate))
        made.codec_context.layout = self._layout
        return made

    def frames(self, packet: av.Packet[av.AudioStream], us: int) -> Iterator[SoundPacket]:
        """Return the frames that are ready with a packet of camera time `us`. Raise FFmpegError."""
        if self._encoder is None:
            yield SoundPacket(bytes(packet), us)
            return
        for heard in packet.decode():
            counted = self._samples * SECOND_US // self.rate
            if self._zero_us is None or abs(self._zero_us + counted - us) > _OFF_US_MAX:
                self._zero_us = us - counted
            heard.pts, heard.time_base = self._samples, Fraction(1, self.rate)
            self._samples += heard.samples
            for made in self._encoder.encode(heard):
                yield SoundPacket(bytes(made), self._zero_us + (made.pts or 0) * SECOND_US // self.rate)


def _encoder(rate: int, layout: str) -> av.AudioCodecContext:
    made = cast("av.AudioCodecContext", av.CodecContext.create(AAC, "w"))
    made.sample_rate, made.layout, made.format = rate, layout, "fltp"
    made.bit_rate, made.time_base = _BITS_G711, Fraction(1, rate)
    return made


FRAGMENT_S = 0.5  # live video is as far behind, and a kill loses as much
_TIME_BASE = Fraction(1, 90_000)
_MP4 = frozenset({"h264", "hevc", "av1", "mpeg4", "mjpeg", "vp9", "mpeg2video", "mpeg1video"})
_MATROSKA = frozenset({"vp8", "theora", "ffv1", "huffyuv", "rawvideo", "msmpeg4v3", "wmv2", "prores", "h263"})
FLUSH_PACKETS = 0x0200  # AVFMT_FLAG_FLUSH_PACKETS, libavformat/avformat.h
_FORMAT = {".mp4": "mp4", ".mkv": "matroska"}
_OPTIONS = {
    ".mp4": {
        "max_interleave_delta": "1",  # microseconds: a second stream holds back one packet, not up to ten seconds
        "movflags": "frag_keyframe+delay_moov+default_base_moof",
        "frag_duration": str(round(FRAGMENT_S * SECOND_US)),
    },
    ".mkv": {"cluster_time_limit": str(round(FRAGMENT_S * 1000)), "live": "1"},
}


def suffix_for(codec: str) -> str | None:
    """Return the kind of file that can hold `codec` as it is: `.mp4`, `.mkv`, or None."""
    return ".mp4" if codec in _MP4 else ".mkv" if codec in _MATROSKA else None


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """The facts that do not change while a segment is written; see `SegmentRow`.

    Where known, stored size and parameter sets go into the file instead of what the stream announced; a stream that
    announced no size cannot be written without.
    """

    camera: str
    path: str
    t_start: float
    codec: str
    size: tuple[int, int]
    kind: SegmentKind = "continuous"
    stored_size: tuple[int, int] = (0, 0)  # (width, height) before rotation
    parameter_sets: bytes = b""  # of its key frame (Annex B)
    sound: SoundTrack | None = None


class SegmentWriter:
    """One file being written. Invariant: the first `whole_bytes` of the file are whole fragments."""

    def __init__(self, file: SegmentFile, suffix: str, head: SegmentHead, info: StreamInfo, first: VideoPacket) -> None:
        self.frame_s = info.frame_s
        self.t_start = head.t_start
        self.frames = 0
        self.frames_on_disk = 0
        self._head = head
        self._frame_us = round(info.frame_s * SECOND_US)
        self._start_us = _microseconds(first.packet)[0]
        self._end_us = self._end_safe_us = self._start_us
        self._settled = 0, self._start_us  # frames, and their end, without the last one: the muxer may hold it back
        self._last_dts: int | None = None
        self._last_sound: int | None = None
        self._heard: av.AudioStream | None = None
        self._file = file
        try:
            self._muxer = av.open(file, "w", format=_FORMAT[suffix], options=_OPTIONS[suffix])
            self._muxer.flags |= FLUSH_PACKETS
            # opaque: by the decoder's codec, since there need not be an encoder for what is only copied.
            self._out = self._muxer.add_stream_from_template(info.stream, opaque=True)
            self._out.time_base = _TIME_BASE
            if all(head.stored_size):
                self._out.width, self._out.height = head.stored_size
            if head.parameter_sets:
                self._out.codec_context.extradata = head.parameter_sets
            if head.sound is not None and suffix == ".mp4":
                self._heard = head.sound.add_to(self._muxer)
                self._sound_unit = Fraction(1, head.sound.rate)
        except BaseException:
            file.discard()
            raise

    def write(self, packet: VideoPacket) -> bool:
        """Add a packet; True when a fragment reached the disk. Raises OSError or FFmpegError."""
        copy, pts, dts = packet.packet, packet.packet.pts, packet.packet.dts
        base, stream = copy.time_base, copy.stream
        start, decode = _microseconds(copy)
        before = self._file.bytes
        copy.dts = self._rising(_ticks(decode - self._start_us))
        copy.pts = max(copy.dts, _ticks(start - self._start_us))
        copy.time_base, copy.stream = _TIME_BASE, self._out
        try:
            self._muxer.mux(copy)
        finally:
            # The packet itself is not consumed; it goes on to the decoder with its camera time.
            copy.stream = stream
            copy.pts, copy.dts, copy.time_base = pts, dts, base
        grown = self._note_growth(before)
        self._settled = self.frames, self._end_us
        self.frames += 1
        self._end_us = max(self._end_us, start + self._frame_us)
        return grown

    @property
    def path(self) -> str:
        """As in its row: beneath the storage folder."""
        return self._head.path

    @property
    def has_sound(self) -> bool:
        return self._heard is not None

    def write_sound(self, sound: SoundPacket) -> bool:
        """Add a frame of sound, which may begin a little before the segment; True when a fragment reached the disk.

        The file's header waits for the first of them. Raises OSError or FFmpegError.
        """
        assert self._heard is not None, "its head has a sound track"
        ticks = round(Fraction(sound.us - self._start_us, SECOND_US) / self._sound_unit)
        if self._last_sound is not None and ticks <= self._last_sound:
            return False
        self._last_sound = ticks
        packet = av.Packet(sound.data)
        packet.pts = packet.dts = ticks
        packet.time_base, packet.stream, packet.is_keyframe = self._sound_unit, self._heard, True
        before = self._file.bytes
        self._muxer.mux(packet)
        return self._note_growth(before)

    def _note_growth(self, before: int) -> bool:
        grown = self._file.bytes > before
        if grown:
            # The fragment that was just cut ends before this packet or, beside sound, before the one before it.
            self.frames_on_disk, self._end_safe_us = (
                (self.frames, self._end_us) if self._heard is None else self._settled
            )
            self._file.whole_bytes = self._file.bytes
        return grown and self.frames_on_disk > 0

    @property
    def t_end(self) -> float:
        """The end of the last frame, whether it is on disk or not."""
        return self._end_us / SECOND_US

    def row(self, *, complete: bool) -> SegmentRow:
        head = self._head
        return SegmentRow(
            camera=head.camera,
            path=head.path,
            t_start=head.t_start,
            t_end=self._end_safe_us / SECOND_US,
            bytes=self._file.whole_bytes,
            frames=self.frames_on_disk,
            codec=head.codec,
            size=head.size,
            complete=complete,
            kind=head.kind,
        )

    def _rising(self, dts: int) -> int:
        """Muxers insist on it, and two stamps may fall on one tick."""
        self._last_dts = dts if self._last_dts is None else max(dts, self._last_dts + 1)
        return self._last_dts

    def close(self) -> None:
        """Flush the last fragment and make it survive a power cut. Raises OSError or FFmpegError."""
        self._muxer.close()
        self._file.close()
        self._file.whole_bytes = self._file.bytes
        self.frames_on_disk, self._end_safe_us = self.frames, self._end_us

    def rescue(self) -> None:
        """After a failed write: cut the file back to its last whole fragment."""
        self._file.broken = True
        if self.frames_on_disk:
            self._file.truncate()
        else:
            self._file.discard()
        with contextlib.suppress(OSError, av.error.FFmpegError):
            self._muxer.close()


class SegmentFile:
    """The file that the muxer writes into: counts bytes, and swallows what follows a failure (`broken`)."""

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self.whole_bytes = 0
        self.broken = False
        self._path = path
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> int:
        if self.broken:
            return len(data)
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            view = view[written:]
        self.bytes += len(data)
        return len(data)

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def sync(self) -> None:
        """Make it survive a power cut. Raises OSError."""
        os.fsync(self._file.fileno())

    def truncate(self) -> None:
        with contextlib.suppress(OSError):
            self._file.truncate(self.whole_bytes)
            self.close()
        self._file.close()

    def discard(self) -> None:
        self.broken = True
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def _ticks(microseconds: int) -> int:
    return round(microseconds * _TIME_BASE.denominator / SECOND_US)


def _microseconds(packet: av.Packet[av.VideoStream]) -> tuple[int, int]:
    """(pts, dts) of camera time, pts never before dts."""
    dts = packet.dts if packet.dts is not None else packet.pts
    assert dts is not None, "packets are stamped where they enter"
    return max(packet.pts if packet.pts is not None else dts, dts), dts
