"""A video source: an opened stream, its packets stamped with camera time, and the port that RTSP and files implement.

One clock: `pts` and `dts` of a packet are rewritten once, where it enters, to microseconds of camera time (UTC live,
since the first frame in a replay). Boxes, segments and clips are all cut with these numbers: nothing is aligned later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import av

from appliance.base.errors import SourceLost

SECOND_US = 1_000_000  # microseconds
PIXELS_MAX = 40_000_000  # of a frame: 8K has 33 million, and each frame costs one to three bytes of each
MICROSECOND = Fraction(1, SECOND_US)


def stamp_us(stamp: int, base: Fraction) -> int:
    """Return a time stamp in units of `base` seconds as microseconds, rounded as `round` does it: a half to even.

    Whole numbers: with fractions it would take five times as long.
    """
    whole, rest = divmod(stamp * base.numerator * SECOND_US, base.denominator)
    return whole + (2 * rest + whole % 2 > base.denominator)


class SourceStalled(SourceLost):
    """The connection stands, but nothing comes."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A video stream as it was opened."""

    codec: str
    size: tuple[int, int]  # (width, height) as announced, before rotation; (0, 0): unknown
    stream: av.VideoStream  # owner of the decoder, template for copies; valid until the source is closed or reopened
    label: str  # for people, without user or password
    frame_s: float  # the usual time between two frames
    sound: av.AudioStream | None = None  # where it was asked for and there is any


@dataclass(frozen=True, slots=True)
class VideoPacket:
    """One compressed frame."""

    packet: av.Packet[av.VideoStream]  # in microseconds of camera time; pts is None where a raw file has no stamps
    t: float  # camera time in seconds, of pts (else dts)
    keyframe: bool
    size: int  # bytes
    jump: bool = False  # the stream's own clock jumped before it; t goes on, a recording begins a new file soon
    lag_s: float = 0.0  # how long it waited to be read


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Bytes from the camera since the source was made, over all its connections; see `CameraMeter`."""

    bytes: int
    exact: bool


class VideoSource(Protocol):
    """A camera or clip. One thread opens, reads and closes it; `received` may be asked from any thread."""

    loops: bool
    """It begins again at its end, so a new connection is no loss."""

    def open(self) -> StreamInfo:
        """Connect, or begin the clip again. Raises SourceRefused, SourceLost or SourceError."""
        ...

    def packets(self) -> Iterator[VideoPacket]:
        """Yield the packets as they come. They end where a clip ends; raise SourceLost where a camera does."""
        ...

    def received(self) -> ReceivedBytes: ...

    def unread_bytes(self) -> int | None:
        """Bytes that came and were not read yet; None where nobody can say. Any thread."""
        ...

    def close(self) -> None:
        """Give everything back. May be called twice."""
        ...
