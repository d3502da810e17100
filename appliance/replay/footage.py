"""Footage to replay: the FrameSource protocol, a clip file, and the recorded segments of a camera.

`ClipReader` reads a whole clip as decoded frames, as fast as it decodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import av

from appliance.analysis.decode_policy import DecodePolicy
from appliance.analysis.decode_session import DecodeCounts
from appliance.base.errors import SourceError, StoreError, printable
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.hardware_codec import HardwareSource
from appliance.media.source import StreamInfo, VideoPacket
from appliance.store.paths import SEGMENTS, inside
from appliance.types import Gap, SegmentRow

logger = logging.getLogger(__name__)

# The last frame may be shown for a while, and edit lists hide some: this much less than announced is not a cut.
_SHORT_S = 2.0
_SHORT_SHARE = 0.1  # of the length: as much of a clip may be missing at its end without being an error
_NOT_STATED = {"mpegts", "mpeg"}  # files that say no length
GAP_S_MIN = 1.0  # live, silence of so long is a gap
_FRAMES_MISSING_MIN = 2  # of a camera that sends a frame a second, every second is no gap
_EDGE_S = 0.001  # by which a segment's last frame may lie behind its end


class ClipReader:
    """One file, read once from its beginning; `t` of a frame is seconds since the first one.

    Use as a context manager. After `frames()` is exhausted, `decoded`, `skipped`, `damaged` and `jumps` tell how it
    went, and `t` where it ended. last_packet_t: of the latest packet before the one whose frame came last.
    """

    def __init__(self, url: str, name: str = "clip", *, hardware: HardwareSource | None = None) -> None:
        """hardware: what decodes; None: software."""
        self._name = name
        self._source = FileSource(name, url)
        self._hardware = hardware
        self._decoder: Decoder | None = None
        self._info: StreamInfo | None = None
        self._counts: Callable[[], DecodeCounts] = DecodeCounts
        self._counts_before = DecodeCounts()
        self.t = 0.0
        self.last_packet_t = float("-inf")

    def __enter__(self) -> ClipReader:
        """Open the clip; raise SourceError with one sentence if it is not a video."""
        self._info = self._source.open()
        self._decoder = Decoder(self._name, self._info, self._hardware)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._source.close()

    @property
    def info(self) -> StreamInfo:
        assert self._info is not None, "use `with ClipReader(...) as clip`"
        return self._info

    @property
    def decoded(self) -> int:
        """Frames; one that was decoded twice counts once."""
        twice = self._counts().decoded_twice - self._counts_before.decoded_twice
        return (self._decoder.decoded if self._decoder else 0) - twice

    @property
    def skipped(self) -> int:
        """Packets that the decode policy left out."""
        return self._counts().skipped - self._counts_before.skipped

    @property
    def damaged(self) -> int:
        """Packets that could not be decoded and were skipped."""
        return self._decoder.damaged if self._decoder else 0

    @property
    def jumps(self) -> int:
        """Places where the file's time stamps made no sense and time was anchored anew."""
        return self._source.jumps

    def packets(self) -> Iterator[VideoPacket]:
        """Return the packets as they are, for a caller that decodes them."""
        return self._source.packets()

    def frames(
        self, policy: DecodePolicy | None = None, base_s: float = 0.0, *, continues: bool = False
    ) -> Iterator[DecodedFrame]:
        """Yield every frame that can be decoded, in order, or only those that `policy` picks.

        With a policy, deal with each frame before you ask for the next one. base_s: what the caller adds to the times
        of the frames. continues: the clip is the next part of the one that `policy` had before. Raise SourceError if
        there was no frame at all.
        """
        assert self._decoder is not None, "use `with ClipReader(...) as clip`"
        first_t: float | None = None
        if policy is not None:
            self._counts, self._counts_before = policy.counts, policy.counts()
            policy.open(self._decoder, self.info, continues=continues)
            policy.t_offset_s = base_s
        for frame in self._decode(self._decoder, policy, base_s):
            if first_t is None:
                first_t = frame.t
                if policy is not None:
                    policy.t_offset_s = base_s - first_t
            self.t = frame.t if first_t == 0 else round(frame.t - first_t, 6)
            yield frame if first_t == 0 else replace(frame, t=self.t)
        if self._decoder.decoded == 0:
            raise SourceError(f"{self._name}: {self.info.label} is a video, but no picture in it can be decoded")

    def _decode(self, decoder: Decoder, policy: DecodePolicy | None, base_s: float) -> Iterator[DecodedFrame]:
        if policy is None:
            for packet in self._source.packets():
                yield from decoder.decode(packet)
            yield from decoder.flush()
            return
        for packet in self._source.packets():
            yield from policy.frames(packet)
            self.last_packet_t = max(self.last_packet_t, round(packet.t + policy.t_offset_s - base_s, 6))
        yield from policy.close()
        if policy.state == "idle":  # time has passed without a decoded frame
            self.t = max(self.t, self.last_packet_t)


@dataclass(frozen=True, slots=True)
class NewSession:
    """The camera connected anew here when it was recorded: earlier tracks mean nothing now."""


SourceItem = DecodedFrame | Gap | NewSession
"""One item of a source; times are seconds since the replay's beginning, `index` counts through the source."""


@dataclass(slots=True)
class SourceCounts:
    """How far a source was played."""

    decoded: int = 0
    skipped: int = 0  # packets that the decode policy did not ask to decode
    damaged: int = 0  # packets that could not be decoded
    jumps: int = 0  # places where the time stamps made no sense
    t: float = 0.0  # seconds of the last packet so far, decoded or not

    @property
    def frames(self) -> int:
        return self.decoded + self.skipped


class FrameSource(Protocol):
    """One camera's footage, played once. One thread. After `play`, `counts` and `error` say how it went."""

    @property
    def name(self) -> str:
        """The name in the log: a file name, never a path."""
        ...

    @property
    def length_s(self) -> float | None:
        """When it will end, as far as is known."""
        ...

    @property
    def bytes(self) -> int:
        """Size of the footage on disk."""
        ...

    @property
    def counts(self) -> SourceCounts: ...

    @property
    def error(self) -> str | None:
        """Why it could not be played to its end."""
        ...

    def decoded_by(self, hardware: HardwareSource) -> FrameSource:
        """Return the same footage, decoded by hardware and not by software."""
        ...

    def play(self, decode_policy: DecodePolicy | None = None) -> Iterator[SourceItem]:
        """Yield the items of the footage in order; `decode_policy` picks which frames are decoded, None: all.

        Its choice may depend on the detections of the frame before, so request the next item only then.

        Raise SourceError when it is not a video, or no frame of it can be decoded.
        """
        ...


class ClipSource:
    """One video file from its first frame, which is t = 0."""

    def __init__(self, path: Path, camera: str, hardware: HardwareSource | None = None) -> None:
        self._path = path
        self._camera = camera
        self._clip = ClipReader(str(path), f"replay as {camera}", hardware=hardware)
        self.name = printable(path.name)
        self.length_s: float | None = None
        self.error: str | None = None

    def decoded_by(self, hardware: HardwareSource) -> ClipSource:
        return ClipSource(self._path, self._camera, hardware)

    @property
    def bytes(self) -> int:
        return self._path.stat().st_size

    @property
    def counts(self) -> SourceCounts:
        clip = self._clip
        return SourceCounts(clip.decoded, clip.skipped, clip.damaged, clip.jumps, clip.t)

    def play(self, decode_policy: DecodePolicy | None = None) -> Iterator[SourceItem]:
        with self._clip as clip:
            self.length_s = _length_s(clip)
            try:
                yield from clip.frames(decode_policy)
            except SourceError as error:
                if clip.decoded == 0:
                    raise
                logger.warning("%s", error)
                self.error = str(error)
            else:
                self.error = self._cut_short()

    def _cut_short(self) -> str | None:
        """Return a note if the file was cut off; only the length it states shows that."""
        t, length_s = round(self._clip.t, 3), self.length_s
        if self._clip.jumps and self._clip.info.stream.container.format.name in _NOT_STATED:
            return None  # reckoned from its first and last time stamp, which are not of one clock
        if length_s is None or length_s - t <= max(_SHORT_S, _SHORT_SHARE * length_s):
            return None
        return f"{self.name} breaks off after {t:.1f} s of the {length_s:.1f} s that it announces"


def _length_s(clip: ClipReader) -> float | None:
    """Return the length that the file states for its video.

    Many state none, or only that of the whole with its sound.
    """
    stream = clip.info.stream
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    container = stream.container
    if isinstance(container, av.container.InputContainer) and container.duration and len(container.streams) == 1:
        # Matroska counts from 0, and not from the first picture, whose time may be anything.
        before = max(0, container.start_time or 0) if "matroska" in container.format.name else 0
        return float((container.duration - before) / av.time_base)
    return None


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """From `t0` to `t1`, UTC seconds; t0 is the replay's t = 0."""

    t0: float
    t1: float


class RecordingSource:
    """Recorded segments, oldest first, each decoded from its own first key frame.

    State: counts, the last time stamp, which segments could not be read. A hole between two frames is given as a gap,
    with the reason that the appliance noted, if it noted one. A segment that cannot be read is a hole and is named in
    `error`. Where the camera had connected anew, NewSession is given.
    """

    def __init__(
        self,
        root: Path,
        camera: str,
        span: TimeSpan,
        rows: Sequence[SegmentRow],
        gaps: Sequence[Gap],
        hardware: HardwareSource | None = None,
    ) -> None:
        self._root = root
        self._camera = camera
        self._span = span
        self._rows = rows
        self._gaps = gaps
        self._hardware = hardware
        self._next_index = 0
        self._frame_s = 0.0
        self._unread: list[str] = []
        self.counts = SourceCounts()
        self.name = f"recording of {camera}"
        self.length_s: float | None = span.t1 - span.t0

    def decoded_by(self, hardware: HardwareSource) -> RecordingSource:
        return RecordingSource(self._root, self._camera, self._span, self._rows, self._gaps, hardware)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self._rows)

    @property
    def error(self) -> str | None:
        if not self._unread:
            return None
        more = f" (and {len(self._unread) - 1} more)" if len(self._unread) > 1 else ""
        return f"{len(self._unread)} of {len(self._rows)} segments could not be read: {self._unread[0]}{more}"

    def files(self) -> list[tuple[Path, int | None]]:
        """Return the segments and how much of each counts; one being written counts to where it is whole."""
        return [(self._root / row.path, row.bytes) for row in self._rows]

    def play(self, decode_policy: DecodePolicy | None = None) -> Iterator[SourceItem]:
        before = ""
        for row in self._rows:
            session = Path(row.path).stem.partition("-")[2]  # the connection, as the recorder names it in the file
            if before and before != session:
                yield NewSession()
            try:
                yield from self._segment(row, decode_policy, goes_on=before == session)
            except (SourceError, StoreError) as error:
                logger.warning("%s", error)
                self._unread.append(str(error))
            before = session
        if self.counts.decoded == 0:
            raise SourceError(f"the recording of {self._camera} holds no picture of the time asked for")
        yield from self._hole(self._span.t1 - self._span.t0, self.counts.t)

    def _segment(self, row: SegmentRow, decode_policy: DecodePolicy | None, *, goes_on: bool) -> Iterator[SourceItem]:
        """goes_on: it was recorded in the same session as the segment before."""
        counts = self.counts
        start = row.t_start - self._span.t0
        end = min(row.t_end, self._span.t1 + _EDGE_S) - self._span.t0
        path = inside(self._root, row.path, SEGMENTS)
        with ClipReader(str(path), self._camera, hardware=self._hardware) as clip:
            self._frame_s = clip.info.frame_s
            index_offset: int | None = None
            for frame in clip.frames(decode_policy, start, continues=goes_on):
                t = round(start + frame.t, 6)
                if t > end:
                    break
                if t < 0 or (counts.decoded and t <= counts.t):  # before --from, or given by an earlier segment
                    continue
                yield from self._hole(t, max(counts.t, round(start + clip.last_packet_t, 6)))
                index_offset = self._next_index - frame.index if index_offset is None else index_offset
                self._next_index = frame.index + index_offset + 1
                yield replace(frame, index=frame.index + index_offset, t=t)
                counts.decoded += 1
                counts.t = t
            else:
                counts.t = max(counts.t, min(end, round(start + clip.t, 6)))  # to where nothing was decoded, either
            counts.skipped += clip.skipped
            counts.damaged += clip.damaged
            counts.jumps += clip.jumps

    def _hole(self, t: float, last_t: float) -> Iterator[Gap]:
        """Return a gap between the last packet and `t`, if there is one."""
        if t - last_t < GAP_S_MIN + _FRAMES_MISSING_MIN * self._frame_s:
            return
        begin, end = last_t + self._span.t0, t + self._span.t0
        noted = [gap.reason for gap in self._gaps if gap.t_start < end and (gap.t_end is None or gap.t_end > begin)]
        reason = noted[0] if noted else "nothing is recorded"
        yield Gap(camera=self._camera, t_start=round(last_t, 3), t_end=round(t, 3), reason=reason)
