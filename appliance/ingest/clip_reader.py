"""Reads a whole clip as decoded frames, as fast as it decodes: for replay, scenarios and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType

from appliance.base.errors import SourceError
from appliance.decode_policy.decode_session import DecodeCounts
from appliance.decode_policy.keyframe_policy import DecodePolicy
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.hardware_codec import HardwareSource
from appliance.media.source import StreamInfo, VideoPacket


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
