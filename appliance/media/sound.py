"""Prepares sound for segments: copies the camera's AAC, and encodes G.711, which MP4 cannot hold, to AAC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import av
from av.container import OutputContainer

from appliance.media.source import SECOND_US

AAC = "aac"
G711 = frozenset({"pcm_mulaw", "pcm_alaw"})
KEPT = "AAC, G.711 (PCMU, PCMA)"
_RATES = range(7000, 96_001)
_BITS_G711 = 32_000  # a second, of 8000 samples
_OFF_US_MAX = SECOND_US // 10  # of the time that samples count to what the camera stamped: packets were lost


@dataclass(frozen=True, slots=True)
class SoundPacket:
    """One AAC frame. us: camera time of its first sample, in microseconds."""

    data: bytes
    us: int


class SoundTrack:
    """The sound of one connection as AAC frames. State: the encoder of G.711, and the time that its samples count from.

    Owner: the camera's reading thread.
    """

    def __init__(self, stream: av.AudioStream) -> None:
        """Begin the track of a stream. Raise ValueError, with words for people, for sound that is not kept."""
        name = stream.codec_context.name if stream.codec_context is not None else "an unknown codec"
        rate, channels = stream.rate or 0, stream.channels or 0
        if name not in {AAC, *G711} or rate not in _RATES or channels not in (1, 2):
            raise ValueError(f"its sound ({name}, {rate} Hz) is not recorded; set the camera to one of {KEPT}")
        if name == AAC and not stream.codec_context.extradata:
            raise ValueError("its sound is AAC without a description, and is not recorded")
        self.rate = rate
        self._stream = stream
        self._layout = "mono" if channels == 1 else "stereo"
        self._encoder = _encoder(rate, self._layout) if name in G711 else None
        self._samples = 0
        self._zero_us: int | None = None

    def add_to(self, container: OutputContainer) -> av.AudioStream:
        """Add a stream to the container that holds these frames, and return it."""
        if self._encoder is None:
            return container.add_stream_from_template(self._stream, opaque=True)
        made = cast("av.AudioStream", container.add_stream(AAC, rate=self.rate))
        made.codec_context.layout = self._layout
        return made

    def frames(self, packet: av.Packet[av.AudioStream], us: int) -> Iterator[SoundPacket]:
        """Return the frames that are ready with a packet of camera time `us`. Raise FFmpegError."""
        if self._encoder is None:
            yield SoundPacket(bytes(packet), us)
            return
        for heard in packet.decode():
            counted = self._samples * SECOND_US // self.rate
            if self._zero_us is None or abs(self._zero_us + counted - us) > _OFF_US_MAX:
                self._zero_us = us - counted
            heard.pts, heard.time_base = self._samples, Fraction(1, self.rate)
            self._samples += heard.samples
            for made in self._encoder.encode(heard):
                yield SoundPacket(bytes(made), self._zero_us + (made.pts or 0) * SECOND_US // self.rate)


def _encoder(rate: int, layout: str) -> av.AudioCodecContext:
    made = cast("av.AudioCodecContext", av.CodecContext.create(AAC, "w"))
    made.sample_rate, made.layout, made.format = rate, layout, "fltp"
    made.bit_rate, made.time_base = _BITS_G711, Fraction(1, rate)
    return made
