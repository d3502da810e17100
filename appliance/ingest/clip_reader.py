"""Reads a whole clip as decoded frames, as fast as it decodes: for replay, scenarios and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType

from appliance.decode_policy.keyframe_policy import DecodePolicy
from appliance.errors import SourceError
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.media.source import StreamInfo


class ClipReader:
    """One file, read once from its beginning; `t` of a frame is seconds since the first one.

    Use as a context manager. After `frames()` is exhausted, `decoded`, `skipped`, `damaged` and `jumps` say how it
    went, and `t` where it ended. before_t: of the latest packet before the one whose picture was shown last.
    """

    def __init__(self, url: str, name: str = "clip") -> None:
        self._name = name
        self._source = FileSource(name, url)
        self._decoder: Decoder | None = None
        self._info: StreamInfo | None = None
        self._counted: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.t = 0.0
        self.before_t = float("-inf")

    def __enter__(self) -> ClipReader:
        """Raises SourceError with one sentence when it is not a video."""
        self._info = self._source.open()
        self._decoder = Decoder(self._name, self._info)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()

    @property
    def info(self) -> StreamInfo:
        assert self._info is not None, "use `with Clip(...) as clip`"
        return self._info

    @property
    def decoded(self) -> int:
        """Pictures; one that was decoded twice counts once."""
        return (self._decoder.decoded if self._decoder else 0) - self._counted()[1]

    @property
    def skipped(self) -> int:
        """Packets that `thrift` saw no reason to decode."""
        return self._counted()[0]

    @property
    def damaged(self) -> int:
        """Packets that could not be decoded and were skipped."""
        return self._decoder.damaged if self._decoder else 0

    @property
    def jumps(self) -> int:
        """Places where the file's time stamps made no sense and time was anchored anew."""
        return self._source.jumps

    def frames(
        self, thrift: DecodePolicy | None = None, base_s: float = 0.0, *, goes_on: bool = False
    ) -> Iterator[DecodedFrame]:
        """Every picture that can be decoded, in order, or those that `thrift` picks, which must have been dealt with
        before the next one is asked for.

        base_s: what the caller adds to their times. goes_on: the clip is the next part of the one that `thrift` had
        before. Raises SourceError when there was no picture at all.
        """
        assert self._decoder is not None, "use `with Clip(...) as clip`"
        begin: float | None = None
        if thrift is not None:
            self._follow(thrift, self._decoder, base_s, goes_on=goes_on)
        for frame in self._decoded(self._decoder, thrift, base_s):
            if begin is None:
                begin = frame.t
                if thrift is not None:
                    thrift.t_offset_s = base_s - begin
            self.t = frame.t if begin == 0 else round(frame.t - begin, 6)
            yield frame if begin == 0 else replace(frame, t=self.t)
        if self._decoder.decoded == 0:
            raise SourceError(f"{self._name}: {self.info.label} is a video, but no picture in it can be decoded")

    def _decoded(self, decoder: Decoder, thrift: DecodePolicy | None, base_s: float) -> Iterator[DecodedFrame]:
        if thrift is None:
            for packet in self._source.packets():
                yield from decoder.decode(packet)
            yield from decoder.flush()
            return
        for packet in self._source.packets():
            yield from thrift.take(packet)
            self.before_t = max(self.before_t, round(packet.t + thrift.t_offset_s - base_s, 6))
        yield from thrift.end()
        if thrift.state == "idle":  # time has passed, and nobody has looked
            self.t = max(self.t, self.before_t)

    def _follow(self, thrift: DecodePolicy, decoder: Decoder, base_s: float, *, goes_on: bool) -> None:
        before = thrift.counts()
        self._counted = lambda: (thrift.skipped - before.skipped, thrift.decoded_twice - before.decoded_twice)
        thrift.begin(decoder, self.info, goes_on=goes_on)
        thrift.t_offset_s = base_s


def frame_size(frame: DecodedFrame) -> tuple[int, int]:
    """(width, height) of a frame as it is shown: what `StreamHeader.size` and all boxes refer to."""
    return upright_size(frame.av_frame)
