"""Reads a video file like a camera (at the recorded speed, in a loop), or as fast as possible (for a replay)."""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import av

from appliance.base.clock import Clock
from appliance.base.errors import SourceError, SourceRefused
from appliance.ingest.timestamps import Timeline
from appliance.media.source import MICROSECOND, PIXELS_MAX, SECOND_US, ReceivedBytes, StreamInfo, VideoPacket, stamp_us

OPEN_S_MAX = 10.0  # a disk that answers no sooner has failed
READ_S_MAX = 10.0  # a disk that spins up takes less; a network share that hangs never answers
# A reader that is later than this is not hurried. A clip that ended longer ago is stamped from now, not from its end.
PACE_LAG_S_MAX = 2.0
FRAME_S_DEFAULT = 0.04  # of a file that does not state its frame rate
FRAMES_A_SECOND_MAX = 300  # no camera sends more
DAMAGED_READS_MAX = 100  # in a row
REORDER_PACKETS_MAX = 20  # at the beginning, among which the first frame to be shown is searched


def clip_path(url: str) -> Path:
    """Return the path in `file:clip.mp4`, `file:/path/clip.mp4`, `file:///path/with%20space.mp4` or a plain path."""
    if not url.startswith("file:"):
        return Path(url)
    rest = url.removeprefix("file:")
    if rest.startswith("//"):
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"}:
            raise SourceError(f"{url} names a file on another computer; write file:/path")
        rest = url.split("//", 1)[1].removeprefix(parts.netloc)
    # A file that is really called so wins over what percent-encoding would make of its name.
    return Path(rest) if Path(rest).exists() else Path(unquote(rest))


class FileSource:
    """Yields the packets of one video file.

    With a clock (a camera), packets come at the speed of the recording. Their time stamps begin at the time of
    `open()`. If the clip has just ended and `open()` is called again (a loop), they continue after the last stamp.
    Without a clock (a replay), packets come at once, and their time stamps begin at 0.

    State: the open container, the time line, the pace. Owner: one thread. Bytes received are the sizes of the packets.
    """

    def __init__(
        self,
        camera: str,
        url: str,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
        *,
        loops: bool = False,
    ) -> None:
        self.loops = loops
        self._name = f"camera {camera}" if clock else camera
        self._path = clip_path(url)
        self._clock = clock
        self._stop = stop
        self._timeline = Timeline()
        self._container: av.container.InputContainer | None = None
        self._info: StreamInfo | None = None
        self._received = 0
        self._begin = 0
        self._pace_at = 0.0

    @property
    def jumps(self) -> int:
        """How often the time stamps of the file made no sense and time was anchored anew."""
        return self._timeline.jumps

    def open(self) -> StreamInfo:
        self.close()
        _must_be_file(self._path, self._name)
        try:
            self._container = av.open(
                str(self._path), timeout=(OPEN_S_MAX, READ_S_MAX), metadata_errors="ignore", options=_LOCAL_ONLY
            )
        except av.error.FFmpegError as error:
            raise SourceError(
                f"{self._name}: {self._path.name} is not a video that can be read ({_why(error)})"
            ) from None
        stream = self._container.streams.best("video")
        if not isinstance(stream, av.VideoStream):
            self.close()
            raise SourceError(f"{self._name}: {self._path.name} holds no video")
        try:
            self._info = describe_stream(stream, self._path.name, self._name)
        except SourceError:
            self.close()
            raise
        self._set_pace(self._info)
        return self._info

    def packets(self) -> Iterator[VideoPacket]:
        container, info = self._container, self._info
        assert container is not None, "open() first"
        assert info is not None
        arriving = _read(container, info.stream, self._name)
        head = list(itertools.islice(arriving, REORDER_PACKETS_MAX))
        first = _first_shown(head, info.stream)
        for packet in itertools.chain(head, arriving):
            stamp = self._timeline.stamp_clip(
                _microseconds(packet.pts, info.stream),
                _microseconds(packet.dts, info.stream),
                self._begin,
                round(info.frame_s * SECOND_US),
                first,
            )
            if self._wait(stamp.dts):
                return
            self._received += packet.size
            packet.pts, packet.dts, packet.time_base = stamp.pts, stamp.dts, MICROSECOND
            t = (stamp.dts if stamp.pts is None else stamp.pts) / SECOND_US
            yield VideoPacket(packet, t, packet.is_keyframe, packet.size, stamp.jump)

    def unread_bytes(self) -> int | None:
        return None

    def received(self) -> ReceivedBytes:
        return ReceivedBytes(self._received, exact=False)

    def close(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()

    def _set_pace(self, info: StreamInfo) -> None:
        last_us = self._timeline.last_us
        self._timeline.restart()
        if self._clock is None:
            self._begin = 0
            return
        now = round(self._clock.now() * SECOND_US)
        follows = last_us is not None and abs(now - last_us) < PACE_LAG_S_MAX * SECOND_US
        self._begin = (last_us or 0) + round(info.frame_s * SECOND_US) if follows else now
        self._pace_at = self._clock.monotonic() - (now - self._begin) / SECOND_US

    def _wait(self, due_us: int) -> bool:
        """Sleep until a packet is due; True when asked to stop. A reader that fell far behind is not hurried."""
        if self._clock is None:
            return self._stop is not None and self._stop.is_set()
        ahead_s = self._pace_at + (due_us - self._begin) / SECOND_US - self._clock.monotonic()
        if ahead_s < -PACE_LAG_S_MAX:
            self._pace_at -= ahead_s
        return self._clock.sleep(max(0.0, ahead_s), self._stop)


# A playlist or an image pattern may name other files or hosts; a clip is one file.
_LOCAL_ONLY = {"protocol_whitelist": "file", "pattern_type": "none"}


def _must_be_file(path: Path, name: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise SourceError(f"{name}: there is no file {path}") from None
    except OSError as error:
        raise SourceError(f"{name}: {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise SourceError(f"{name}: {path} is not a file")
    if not os.access(path, os.R_OK):
        raise SourceError(f"{name}: {path} cannot be read: permission denied")


def describe_stream(stream: av.VideoStream, label: str, name: str) -> StreamInfo:
    """Return the StreamInfo of a freshly opened PyAV stream, which is set to decode in the calling thread only.

    Raise SourceRefused for a codec that this FFmpeg does not know, and for frames of more than PIXELS_MAX.
    """
    context = stream.codec_context
    if context is None:  # PyAV makes none without a decoder
        raise SourceRefused(f"{name}: {label}: this video is of a codec that cannot be decoded; use H.264 or H.265")
    if context.width * context.height > PIXELS_MAX:
        raise SourceRefused(
            f"{name}: {label}: frames of {context.width}x{context.height} are over {PIXELS_MAX // 1_000_000} "
            "megapixels; choose a smaller size at the camera"
        )
    # Where a container counts in milliseconds and frames come unevenly, libavformat may guess 1000 a second.
    rates = (stream.average_rate, stream.guessed_rate, stream.base_rate)
    frame_s = next((float(1 / rate) for rate in rates if rate and 0 < rate <= FRAMES_A_SECOND_MAX), FRAME_S_DEFAULT)
    stream.thread_type = "NONE"
    return StreamInfo(
        codec=stream.codec.canonical_name,
        size=(context.width, context.height),
        stream=stream,
        label=label,
        frame_s=frame_s if 0.001 <= frame_s <= 10 else FRAME_S_DEFAULT,
    )


def _read(
    container: av.container.InputContainer, stream: av.VideoStream, name: str
) -> Iterator[av.Packet[av.VideoStream]]:
    """Yield packets until the end; places that cannot be read are skipped, as long as something follows."""
    damaged = 0
    while True:
        try:
            for packet in container.demux(stream):
                if packet.size:
                    damaged = 0
                    yield packet
            return
        except av.error.FFmpegError as error:
            damaged += 1
            if damaged > DAMAGED_READS_MAX or isinstance(error, av.error.ExitError | av.error.OSError):
                raise SourceError(f"{name}: the file cannot be read on ({_why(error)})") from None


def _first_shown(head: list[av.Packet[av.VideoStream]], stream: av.VideoStream) -> int | None:
    """Return the earliest stamp among the first packets that are meant to be seen (an edit list may hide some)."""
    stamps = [us for packet in head if not packet.is_discard and (us := _microseconds(packet.pts, stream)) is not None]
    near = [us for us in stamps if abs(us - stamps[0]) < SECOND_US]
    return min(near, default=None)


def _microseconds(stamp: int | None, stream: av.VideoStream) -> int | None:
    base = stream.time_base
    return stamp_us(stamp, base) if stamp is not None and base else None


def _why(error: av.error.FFmpegError) -> str:
    text: str = error.strerror or type(error).__name__
    return text[0].lower() + text[1:]
