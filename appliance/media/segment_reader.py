"""Reads recorded segments back as packets with the camera's time, also from a file that is still being written."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import av
from av.container import InputContainer
from av.error import FFmpegError

from appliance.base.errors import EvidenceError
from appliance.media.recorded import ROUNDING_S, RecordedSegment
from appliance.media.source import PIXELS_MAX

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
    """The sound of an open segment. Segments with equal `parameters` can be played as one stream."""

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
        """None: there is none."""
        stream = next(iter(self.container.streams.audio), None)
        if stream is None or stream.codec_context is None or not stream.rate:
            return None
        context = stream.codec_context
        return SegmentSound(stream, (context.name, stream.rate, stream.channels, bytes(context.extradata or b"")))

    def sound_packets(self, sound: SegmentSound) -> Iterator[tuple[av.Packet[av.AudioStream], float]]:
        """Instead of `packets`: the readable packets of sound, and the camera time of each."""
        with contextlib.suppress(FFmpegError):
            for packet in self.container.demux(sound.stream):
                if packet.pts is None or not packet.size or packet.is_corrupt:
                    continue
                t = self.segment.t_start + float(packet.pts * packet.time_base)
                if t > self.segment.t_end + ROUNDING_S:
                    return
                yield packet, t

    def packets(self) -> Iterator[TimedPacket]:
        """Return the readable packets; they end where the file is torn."""
        base: int | None = None
        try:
            for packet in self.container.demux(self.stream):
                if packet.pts is None or packet.dts is None or not packet.size:
                    continue
                # A fragmented file of a stream with B-frames has its times moved by the reordering delay, so time is
                # counted from the first packet (a key frame), whose time the recorder stated.
                base = packet.pts if base is None else base
                t = self.segment.t_start + float((packet.pts - base) * packet.time_base)
                order_t = self.segment.t_start + float((packet.dts - base) * packet.time_base)
                if order_t > self.segment.t_end + ROUNDING_S or packet.is_corrupt:
                    return
                if t <= self.segment.t_end + ROUNDING_S:
                    yield TimedPacket(packet, packet.pts, t, order_t)
        except FFmpegError as error:
            logger.debug("%s ends early: %s", self.segment.path, error)


@contextlib.contextmanager
def open_segment(segment: RecordedSegment) -> Iterator[OpenSegment]:
    """Open a segment. Raises EvidenceError when it is gone, empty or no video."""
    try:
        # The recorder names its files; nothing is guessed from what stands in them.
        container = av.open(str(segment.path), format="matroska" if segment.path.suffix == ".mkv" else "mp4")
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
        parameters = (context.name, context.width, context.height, bytes(context.extradata or b""))
        yield OpenSegment(segment, container, stream, parameters)


def _error_text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def longest_step_s(segment: RecordedSegment) -> float:
    """Return the longest time from one frame to the next, in decode order. Raise EvidenceError."""
    with open_segment(segment) as opened:
        times = [timed.order_t for timed in opened.packets()]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)
