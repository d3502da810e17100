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
    """One decoded frame."""

    index: int  # 0-based in the session
    t: float  # camera time in seconds, rising strictly
    av_frame: av.VideoFrame
    late: bool = False  # decoded after a cue, together with others
    next_s: float = 0.0  # as far as is known, no other frame will be decoded for so long


class Decoder:
    """Decodes one opened stream, one packet at a time, in the calling thread.

    State: the codec's references, counts; in_sync: it can go on from where it is. Invariant: `t` of the frames rises
    strictly, in the order they are shown. One thread and no frame threads: with many cameras the cores are busy anyway,
    and frame threads add delay. Without the loop filter, a fifth of the work: it smooths the edges of blocks for
    people, and motion gate and network get a sixteenth of the pixels (docs/decode.md has how little it changes). What
    people are shown is decoded elsewhere, with it.
    """

    def __init__(self, name: str, info: StreamInfo) -> None:
        self.decoded = 0
        self.damaged = 0
        self.in_sync = True
        self._name = name
        self._context = info.stream.codec_context
        self._context.options = _NO_LOOP_FILTER
        self._frame_s = info.frame_s
        self._damaged_in_a_row = 0
        self._index = 0
        self._last_t: float | None = None

    def decode(self, packet: VideoPacket) -> list[DecodedFrame]:
        """The frames that this packet completes. Raises SourceLost when nothing can be decoded any more."""
        return self._decode(packet.packet)

    def flush(self) -> list[DecodedFrame]:
        """The frames still held back for their order, at the end of a clip."""
        return self._decode(None)

    def restart(self, index: int) -> None:
        """Forget the frames so far: what comes next is a key frame, and its frame has the number `index`."""
        self._context.flush_buffers()
        self._index, self._last_t, self.in_sync = index, None, True

    def decode_key_frame(self, packet: VideoPacket) -> DecodedFrame | None:
        """The frame of a key frame's packet, after `restart`; None: it is damaged.

        A decoder that holds frames back for their order must be drained, and then is not `in_sync` any more.
        """
        damaged = self.damaged
        frames = self.decode(packet)
        if not frames and self.damaged == damaged:
            frames = self.flush()
            self._context.flush_buffers()
            self.in_sync = False
        return frames[0] if frames else None

    def _decode(self, packet: av.Packet[av.VideoStream] | None) -> list[DecodedFrame]:
        try:
            frames = self._context.decode(packet)
        except av.error.EOFError:
            return []
        except av.error.FFmpegError:
            self._count_damage()
            return []
        self._damaged_in_a_row = 0
        return [self._frame(av_frame) for av_frame in frames]

    def _count_damage(self) -> None:
        self.damaged += 1
        self._damaged_in_a_row += 1
        if self._damaged_in_a_row > DAMAGED_IN_A_ROW_MAX:
            self._damaged_in_a_row = 0
            raise SourceLost(f"{self._name}: {DAMAGED_IN_A_ROW_MAX} packets in a row could not be decoded")

    def _frame(self, av_frame: av.VideoFrame) -> DecodedFrame:
        frame = DecodedFrame(self._index, self._time(av_frame), av_frame)
        self._index += 1
        self.decoded += 1
        self._last_t = frame.t
        return frame

    def _time(self, av_frame: av.VideoFrame) -> float:
        stamp = av_frame.dts if av_frame.pts is None else av_frame.pts
        if self._last_t is None:
            return (stamp or 0) / SECOND_US
        if stamp is None:
            return round(self._last_t + self._frame_s, 6)
        return max(stamp / SECOND_US, round(self._last_t + 1 / SECOND_US, 6))
