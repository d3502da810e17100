"""A video source: an opened stream, its packets stamped with camera time, and the port that RTSP and files implement.
Time stamps are rewritten once, where a packet enters, to microseconds of camera time (UTC live, since the first
frame in a replay).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import av

from appliance.errors import SourceLost

MICROSECOND = Fraction(1, 1_000_000)
SECOND_US = 1_000_000


class SourceStalled(SourceLost):
    """The connection stands, but nothing comes."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A video stream as it was opened.

    size: (width, height) as announced, before rotation; (0, 0) if the sender did not say. stream: the PyAV stream, the
    template for copying packets and the owner of the decoder; valid until the source is closed or opened again.
    label: what a person may read, without user or password. frame_s: the usual time between two frames.
    """

    codec: str
    size: tuple[int, int]
    stream: av.VideoStream
    label: str
    frame_s: float


@dataclass(frozen=True, slots=True)
class VideoPacket:
    """One compressed picture.

    packet: pts and dts in microseconds of camera time; pts is None only where a raw file has no time stamps, then
    frames take their time from dts. t: seconds, of pts (else dts). jump: the stream's own clock jumped before this
    packet; t goes on, but a recording begins a new file as soon as it can. behind_s: how long it waited to be read.
    """

    packet: av.Packet[av.VideoStream]
    t: float
    keyframe: bool
    size: int
    jump: bool = False
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Bytes from the camera's socket since the source was made, over all its connections; see `CameraMeter`."""

    bytes: int
    exact: bool


class VideoSource(Protocol):
    """A camera or clip. One thread opens, reads and closes it; `received` may be asked from any thread."""

    def open(self) -> StreamInfo:
        """Connect, or begin the clip again. Raises SourceRefused, SourceLost or SourceError."""
        ...

    def packets(self) -> Iterator[VideoPacket]:
        """The packets as they come. Ends where a clip ends; raises SourceLost where a camera does."""
        ...

    def received(self) -> ReceivedBytes: ...

    def close(self) -> None:
        """Give everything back. May be called twice."""
        ...
