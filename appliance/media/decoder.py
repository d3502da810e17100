"""Decodes packets to frames that carry camera time; damaged packets are skipped and counted."""

from __future__ import annotations

from dataclasses import dataclass

import av

from appliance.errors import SourceLost
from appliance.media.source import SECOND_US, StreamInfo, VideoPacket

DAMAGED_IN_A_ROW_MAX = 300
_NO_LOOP_FILTER = {"skip_loop_filter": "all"}  # codecs without one take no notice


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """One decoded picture. index: 0-based in the run; t: camera time in seconds, rising strictly.

    late: decoded after the fact, with others, since something turned out to matter. next_s: as far as is known, no
    other picture will be decoded for so long.
    """

    index: int
    t: float
    av_frame: av.VideoFrame
    late: bool = False
    next_s: float = 0.0


class Decoder:
    """Decodes one opened stream, one packet at a time, in the calling thread.

    State: the codec's references, counts. Invariant: `t` of the frames rises strictly, in the order they are shown.
    One thread and no frame threads: with many cameras the cores are busy anyway, and frame threads add delay.
    Without the loop filter, a fifth of the work: it smooths the edges of blocks for eyes, and gate and network see a
    picture of a sixteenth of the pixels (docs/decode.md has how little it changes). What people are shown is decoded
    elsewhere, with it.
    """

    def __init__(self, name: str, info: StreamInfo) -> None:
        self.decoded = 0
        self.damaged = 0
        self.in_sync = True
        self._name = name
        self._context = info.stream.codec_context
        self._context.options = _NO_LOOP_FILTER
        self._frame_s = info.frame_s
        self._row = 0
        self._index = 0
        self._last_t: float | None = None

    def decode(self, packet: VideoPacket) -> list[DecodedFrame]:
        """The pictures that this packet completes. Raises SourceLost when nothing can be decoded any more."""
        return self._pictures(packet.packet)

    def flush(self) -> list[DecodedFrame]:
        """The pictures still held back for their order, at the end of a clip."""
        return self._pictures(None)

    def restart(self, index: int) -> None:
        """Forget the pictures so far: what comes next is a key frame, and its picture has the number `index`."""
        self._context.flush_buffers()
        self._index, self._last_t, self.in_sync = index, None, True

    def decode_key_frame(self, packet: VideoPacket) -> DecodedFrame | None:
        """The picture of a key frame, after `restart`; None: it is damaged.

        A decoder that holds pictures back for their order must be drained, and then cannot go on from here (`intact`).
        """
        damaged = self.damaged
        frames = self.decode(packet)
        if not frames and self.damaged == damaged:
            frames = self.flush()
            self._context.flush_buffers()
            self.in_sync = False
        return frames[0] if frames else None

    def _pictures(self, packet: av.Packet[av.VideoStream] | None) -> list[DecodedFrame]:
        try:
            pictures = self._context.decode(packet)
        except av.error.EOFError:
            return []
        except av.error.FFmpegError:
            self._count_damage()
            return []
        self._row = 0
        return [self._frame(picture) for picture in pictures]

    def _count_damage(self) -> None:
        self.damaged += 1
        self._row += 1
        if self._row > DAMAGED_IN_A_ROW_MAX:
            self._row = 0
            raise SourceLost(f"{self._name}: {DAMAGED_IN_A_ROW_MAX} packets in a row could not be decoded")

    def _frame(self, picture: av.VideoFrame) -> DecodedFrame:
        frame = DecodedFrame(self._index, self._time(picture), picture)
        self._index += 1
        self.decoded += 1
        self._last_t = frame.t
        return frame

    def _time(self, picture: av.VideoFrame) -> float:
        stamp = picture.dts if picture.pts is None else picture.pts
        if self._last_t is None:
            return (stamp or 0) / SECOND_US
        if stamp is None:
            return round(self._last_t + self._frame_s, 6)
        return max(stamp / SECOND_US, round(self._last_t + 1 / SECOND_US, 6))
