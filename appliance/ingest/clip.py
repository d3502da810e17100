"""A whole clip as frames, as fast as it decodes: what replay, scenarios and checks read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from appliance.errors import SourceError
from appliance.ingest.decode import Decoder, Frame
from appliance.ingest.file import FileSource
from appliance.ingest.picture import upright_size
from appliance.ingest.source import StreamInfo


class Clip:
    """One file, read once from its beginning; `t` of a frame is seconds since the first one.

    Use as a context manager. After `frames()` is exhausted, `decoded`, `damaged` and `jumps` say how it went.
    """

    def __init__(self, url: str, name: str = "clip") -> None:
        self._name = name
        self._source = FileSource(name, url)
        self._decoder: Decoder | None = None
        self._info: StreamInfo | None = None

    def __enter__(self) -> Clip:
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
        return self._decoder.decoded if self._decoder else 0

    @property
    def damaged(self) -> int:
        """Packets that could not be decoded and were skipped."""
        return self._decoder.damaged if self._decoder else 0

    @property
    def jumps(self) -> int:
        """Places where the file's time stamps made no sense and time was anchored anew."""
        return self._source.jumps

    def frames(self) -> Iterator[Frame]:
        """Every picture that can be decoded, in order. Raises SourceError when there was none at all."""
        assert self._decoder is not None, "use `with Clip(...) as clip`"
        begin: float | None = None
        for frame in self._decoded(self._decoder):
            begin = frame.t if begin is None else begin
            yield frame if begin == 0 else replace(frame, t=round(frame.t - begin, 6))
        if self._decoder.decoded == 0:
            raise SourceError(f"{self._name}: {self.info.label} is a video, but no picture in it can be decoded")

    def _decoded(self, decoder: Decoder) -> Iterator[Frame]:
        for packet in self._source.packets():
            yield from decoder.decode(packet)
        yield from decoder.flush()


def picture_size(frame: Frame) -> tuple[int, int]:
    """(width, height) of a frame as it is shown: what `StreamHeader.size` and all boxes refer to."""
    return upright_size(frame.picture)
