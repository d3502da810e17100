"""Reads recorded segments as packets with the camera's time, also from a file that is still being written.

Also recovers a segment whose recording ended by a kill or a power cut: cuts the file back to its last whole fragment,
and measures it. Nothing is decoded.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.error import FFmpegError

from appliance.base.errors import EvidenceError
from appliance.media.recorded import ROUNDING_S, RecordedSegment
from appliance.media.source import PIXELS_MAX
from appliance.types import MeasuredSegment

_WITH_LENGTHS = frozenset({"h264", "hevc"})
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_TRIES_MAX = 64  # fragments are a second long, and segments some seconds


def recover_segment(path: Path) -> MeasuredSegment | None:
    """Return seconds, frames, codec and frame size of a segment file, up to where it is whole; None: it has no frame.

    After a power cut the disk may have stored the length of a file, but not all of its blocks. Its end is then random
    data, which may keep readers even from opening it. Such a file is cut back to its last whole fragment. Raise OSError
    if the process may open no more files or has no memory.
    """
    measured, sound = _read(path)
    if sound or path.suffix != ".mp4":
        return measured
    for end in sorted(_fragment_ends(path), reverse=True)[:_TRIES_MAX]:
        with contextlib.suppress(OSError):
            os.truncate(path, end)
        measured, sound = _read(path)
        if sound:
            return measured and replace(measured, bytes=end)
    return measured


def _read(path: Path) -> tuple[MeasuredSegment | None, bool]:
    """Return the measurements of the file, and whether it could be read to its end."""
    starts: list[float] = []
    sound = True
    size, name = (0, 0), ""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            codec: av.VideoCodecContext | None = stream.codec_context
            if codec is None:  # PyAV makes none without a decoder
                return None, False
            size, name = (codec.width, codec.height), codec.name
            for packet in container.demux(stream):
                # If the last fragment was cut off, its last packet is not whole.
                if not packet.size or packet.pts is None or not packet.time_base or packet.is_corrupt:
                    continue
                if path.suffix == ".mp4" and name in _WITH_LENGTHS and not _is_whole(packet):
                    break
                starts.append(float(packet.pts * packet.time_base))
    except (OSError, av.error.FFmpegError, IndexError) as error:
        short = getattr(error, "errno", 0)
        if short in _SHORTAGES:  # the process lacks something: no reason to cut the file
            raise OSError(short, os.strerror(short)) from None
        sound = False
    if not starts:
        return None, sound
    starts.sort()
    # The length of the last frame is not in the file (muxers guess it): it is as long as the others.
    frame_s = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else 0.0
    return MeasuredSegment(max(0.0, starts[-1] + frame_s), len(starts), name, size), sound


def _is_whole(packet: av.Packet[av.VideoStream]) -> bool:
    """Return whether the lengths before its NAL units lead to its end (ISO/IEC 14496-15).

    The lengths have four bytes, as our muxer writes them.
    """
    data, at = memoryview(packet), 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if not length:
            return False
        at += 4 + length
    return at == len(data)


def _fragment_ends(path: Path) -> Iterator[int]:
    """Yield the offset at which each whole fragment ends, from the file's boxes (ISO/IEC 14496-12)."""
    length = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at + 8 <= length:
            file.seek(at)
            size, kind = struct.unpack(">I4s", file.read(8))
            if size < 8 or at + size > length:
                return
            at += size
            if kind == b"mdat":
                yield at


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimedPacket:
    """A packet in decode order.

    t: when its frame is shown; order_t: its decoding time, on the same axis; pts: its time stamp in the file's own
    units.
    """

    packet: av.Packet[av.VideoStream]
    pts: int
    t: float
    order_t: float

    @property
    def is_key(self) -> bool:
        return bool(self.packet.is_keyframe)


@dataclass(frozen=True, slots=True)
class SegmentSound:
    """Describes the sound of an open segment. Segments with equal `parameters` can be played as one stream."""

    stream: av.AudioStream
    parameters: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """An open segment; valid inside `open_segment`. Segments with equal `parameters` can be played as one stream."""

    segment: RecordedSegment
    container: InputContainer
    stream: av.VideoStream
    parameters: tuple[object, ...]

    @property
    def sound(self) -> SegmentSound | None:
        """The sound of the segment; None: it has no sound."""
        stream = next(iter(self.container.streams.audio), None)
        if stream is None or stream.codec_context is None or not stream.rate:
            return None
        context = stream.codec_context
        return SegmentSound(stream, (context.name, stream.rate, stream.channels, bytes(context.extradata or b"")))

    def sound_packets(self, sound: SegmentSound) -> Iterator[tuple[av.Packet[av.AudioStream], float]]:
        """Yield the readable packets of sound, each with its camera time.

        Call either this method or `packets`: both read the file from its beginning.
        """
        with contextlib.suppress(FFmpegError):
            for packet in self.container.demux(sound.stream):
                if packet.pts is None or not packet.size or packet.is_corrupt:
                    continue
                t = self.segment.t_start + float(packet.pts * packet.time_base)
                if t > self.segment.t_end + ROUNDING_S:
                    return
                yield packet, t

    def packets(self) -> Iterator[TimedPacket]:
        """Yield the readable packets of video, up to where the file is damaged."""
        base: int | None = None
        assert self.stream.time_base is not None, "of a stream that is read"
        # Two whole numbers: a Fraction for each packet costs more than reading it.
        ticks, ticks_a_second = self.stream.time_base.numerator, self.stream.time_base.denominator
        try:
            for packet in self.container.demux(self.stream):
                if packet.pts is None or packet.dts is None or not packet.size:
                    continue
                # A fragmented file of a stream with B-frames has its times moved by the reordering delay, so time is
                # counted from the first packet (a key frame), whose time the recorder stated.
                base = packet.pts if base is None else base
                t = self.segment.t_start + (packet.pts - base) * ticks / ticks_a_second
                order_t = self.segment.t_start + (packet.dts - base) * ticks / ticks_a_second
                if order_t > self.segment.t_end + ROUNDING_S or packet.is_corrupt:
                    return
                if t <= self.segment.t_end + ROUNDING_S:
                    yield TimedPacket(packet, packet.pts, t, order_t)
        except FFmpegError as error:
            logger.debug("%s ends early: %s", self.segment.path, error)


# The recorder writes the codec's parameters into the header. Without these options FFmpeg decodes the first frames to
# guess the parameters: 23 ms at 720p instead of 1.4 ms. A clip of an alert opens its segments two or three times.
_NOT_PROBED = {"fpsprobesize": "0"}
_NOT_DECODED: list[Any] = [{"skip_frame": "all"}]  # PyAV declares a list of texts, and takes one of dictionaries


@contextlib.contextmanager
def open_segment(segment: RecordedSegment) -> Iterator[OpenSegment]:
    """Open a segment. Raises EvidenceError when it is gone, empty or no video."""
    try:
        # The recorder names its files; nothing is guessed from what stands in them.
        if segment.path.suffix == ".mkv":  # has no decoding times, which are guessed from the first frames
            container = av.open(str(segment.path), format="matroska")
        else:
            container = av.open(str(segment.path), format="mp4", options=_NOT_PROBED, stream_options=_NOT_DECODED)
    except (FFmpegError, OSError, ValueError) as error:
        raise EvidenceError(f"the segment {segment.path.name} cannot be read: {_error_text(error)}") from None
    with container:
        if not container.streams.video:
            raise EvidenceError(f"the segment {segment.path.name} holds no video")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None:  # PyAV makes none without a decoder
            raise EvidenceError(f"the segment {segment.path.name} is of a codec that cannot be decoded")
        if context.width * context.height > PIXELS_MAX:
            raise EvidenceError(f"the segment {segment.path.name} has frames of {context.width}x{context.height}")
        context.options = {"max_pixels": str(PIXELS_MAX)}  # should its frames be larger than its header says
        parameters = (context.name, context.width, context.height, bytes(context.extradata or b""))
        yield OpenSegment(segment, container, stream, parameters)


def _error_text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def longest_step_s(segment: RecordedSegment) -> float:
    """Return the longest time from one frame to the next, in decode order. Raise EvidenceError."""
    with open_segment(segment) as opened:
        times = [timed.order_t for timed in opened.packets()]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)
