"""Converts the live video of one camera to a small H.264, piece by piece; a sandbox runs it, one for each camera.

The sandbox gets fragments in memory and opens no file. Decoder and encoder go on from call to call, so each piece costs
what it holds. One thread does all of it: a camera takes a core at most.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from fractions import Fraction

import av
from av.container import OutputContainer
from av.error import FFmpegError, InvalidDataError

from appliance.base.clock import process_cpu_s
from appliance.base.errors import EvidenceError
from appliance.base.process_memory import return_large_blocks
from appliance.media.recorded import even_size
from appliance.media.rendition import FrameWriter
from appliance.media.segment_writer import FLUSH_PACKETS
from appliance.media.source import PIXELS_MAX

HEIGHT_MAX = 360  # lines: enough for a wall, and a fifth of what 720 lines cost
CRF = 28  # 0.3 Mbit/s of a street
_UNIT = Fraction(1, 90_000)
_FRAGMENTS = {"movflags": "empty_moov+default_base_moof+frag_every_frame", "max_interleave_delta": "1"}

av.logging.set_level(None)  # its lines hold what is in the data
return_large_blocks()


class _Written(io.RawIOBase):
    """Holds the bytes that a muxer wrote since they were taken last."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


@dataclass
class LiveRendition:
    """One file of a camera being converted.

    State: the decoder, and the encoder, made with the first frame; `t` is its camera time.
    """

    init: bytes
    keys_only: bool
    t: float | None = None
    _decoder: av.VideoCodecContext | None = None
    _container: OutputContainer | None = None
    _frames: FrameWriter | None = None
    _unit: Fraction = _UNIT
    _written: _Written = field(default_factory=_Written)

    def convert(self, fragments: bytes) -> bytes:
        """Return the pictures of these fragments of the file, as far as they are complete.

        They are fragmented MP4, whose times begin at 0 with `t`. Raise EvidenceError.
        """
        try:
            with av.open(io.BytesIO(self.init + fragments), "r", format="mp4") as reading:
                video = next(iter(reading.streams.video), None)
                if video is None or video.width * video.height > PIXELS_MAX:
                    raise EvidenceError("there is no video in it that can be decoded")
                decoder = self._decoder = self._decoder or _decoder_of(video, self.keys_only)
                for packet in reading.demux(video):
                    if packet.size:
                        self._decode(decoder, packet)
        except (FFmpegError, ValueError) as error:
            raise EvidenceError(f"it cannot be converted: {getattr(error, 'strerror', None) or error}") from None
        return self._written.take()

    def end(self) -> bytes:
        """Return what is left."""
        with contextlib.suppress(FFmpegError, ValueError):
            if self._decoder is not None:
                self._decode(self._decoder, None)
            if self._container is not None:
                self._container.close()
        return self._written.take()

    def _decode(self, decoder: av.VideoCodecContext, packet: av.Packet[av.VideoStream] | None) -> None:
        if packet is not None:
            self._unit = packet.time_base
        with contextlib.suppress(InvalidDataError):  # what cannot be decoded is left out
            for frame in decoder.decode(packet):
                if frame.pts is not None:
                    self._write(frame, float(frame.pts * self._unit))

    def _write(self, frame: av.VideoFrame, t: float) -> None:
        if self._frames is None or self.t is None:
            self.t = t
            self._container = av.open(self._written, "w", format="mp4", options=_FRAGMENTS)
            self._container.flags |= FLUSH_PACKETS
            size = even_size(frame.width, frame.height, HEIGHT_MAX)
            self._frames = FrameWriter(self._container, size, CRF, live=True)
        frame.pts, frame.time_base = round((t - self.t) / _UNIT), _UNIT
        if t >= self.t:
            self._frames.write(frame)


def _decoder_of(video: av.VideoStream, keys_only: bool) -> av.VideoCodecContext:
    """Return a decoder that outlives the stream's file."""
    decoder = av.CodecContext.create(video.codec_context.name, "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.extradata, decoder.thread_count = video.codec_context.extradata, 1
    if keys_only:
        decoder.skip_frame = "NONKEY"
    return decoder


_now = LiveRendition(b"", False)  # of this child, which serves one camera


def convert(init: bytes, fragments: bytes, begins: bool, keys_only: bool) -> dict[str, object]:
    """Convert fragments of the file whose description is `init`.

    begins: they are the first ones of a file. keys_only: decode nothing but its key frames. Answer with `before`, the
    rest of the file before, `data`, the camera time `t` of the file's first frame (None: there is none yet), and
    `cpu_s`, which it took.
    """
    global _now
    began, before = process_cpu_s(), b""
    if begins:
        before, _now = _now.end(), LiveRendition(init, keys_only)
    data = _now.convert(fragments)
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # cameras come first, but for the first picture, which a person waits for
    return {"before": before, "data": data, "t": _now.t, "cpu_s": process_cpu_s() - began}
