"""Decodes packets to frames that carry camera time; damaged packets are skipped and counted."""

from __future__ import annotations

from dataclasses import dataclass

import av

from appliance.base.errors import SourceLost
from appliance.media.hardware_codec import FrameCodec, HardwareFailed, HardwareSource
from appliance.media.source import SECOND_US, StreamInfo, VideoPacket

DAMAGED_IN_A_ROW_MAX = 300  # packets, 20 s at 15 a second: a connection that long without a picture is made anew
NO_LOOP_FILTER = {"skip_loop_filter": "all"}  # codecs without one take no notice


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

    A hardware codec that fails is closed. Software goes on, where it may, with the next key frame or from `restart` on;
    until then it is not `in_sync`, and no frame comes. At key frames the hardware is asked for again.
    """

    def __init__(self, name: str, info: StreamInfo, hardware: HardwareSource | None = None) -> None:
        """hardware: None: software decodes."""
        self.decoded = 0
        self.damaged = 0
        self.in_sync = True
        self._name = name
        self._info = info
        self._software = info.stream.codec_context
        self._software.options = NO_LOOP_FILTER
        self._source = hardware
        self._hardware = None if hardware is None else hardware.open(info)
        self._codec: FrameCodec | None = self._software
        if hardware is not None:
            self._codec = self._hardware or (self._software if hardware.may_fall_back else None)
        self._damaged_in_a_row = 0
        self._index = 0
        self._last_t: float | None = None

    def decode(self, packet: VideoPacket) -> list[DecodedFrame]:
        """Return the frames that this packet completes. Raise SourceLost when nothing can be decoded any more."""
        left = self._regain(packet.t) if packet.keyframe else []
        if self._codec is None:
            self.damaged += 1
            return left
        if not self.in_sync and not packet.keyframe:
            return left
        self.in_sync = True
        failed = self._hardware
        frames = self._decode(self._codec, packet.packet)
        if packet.keyframe and failed is not None and self._hardware is None and self._codec is not None:
            self.in_sync = True
            frames = self._decode(self._codec, packet.packet)
        return left + frames

    def flush(self) -> list[DecodedFrame]:
        """Return the frames still held back for their order, at the end of a clip."""
        return self._decode(self._codec, None) if self._codec is not None else []

    def restart(self, index: int) -> None:
        """Forget the frames so far: what comes next is a key frame, and its frame has the number `index`."""
        if self._codec is not None:
            self._codec.flush_buffers()
        self._index, self._last_t, self.in_sync = index, None, True

    def decode_key_frame(self, packet: VideoPacket) -> DecodedFrame | None:
        """Return the frame of a key frame's packet, after `restart`; None: it is damaged.

        A decoder that holds frames back for their order must be drained, and then is not `in_sync` any more. One that
        cannot be drained at little cost is left alone: software decodes this one frame.
        """
        damaged, hardware = self.damaged, self._hardware
        if hardware is not None and not hardware.alone:
            frames = self._decode(self._software, packet.packet) + self._decode(self._software, None)
            self._software.flush_buffers()
            self.in_sync = False
            return frames[0] if frames else None
        frames = self.decode(packet)
        if not frames and self.damaged == damaged and self._codec is not None:
            frames = self.flush()
            if self._codec is not None:
                self._codec.flush_buffers()
            self.in_sync = False
        return frames[0] if frames else None

    def close(self) -> None:
        """Give the hardware back. May be called twice."""
        if self._hardware is not None and self._source is not None:
            self._hardware.close()
            self._source.release()
        self._hardware = self._source = None

    def _regain(self, t: float) -> list[DecodedFrame]:
        """Ask for the hardware again, if it is not at work; the frames that software still held back."""
        if self._source is None or self._hardware is not None:
            return []
        self._hardware = self._source.open(self._info, t)
        if self._hardware is None:
            return []
        left = self._decode(self._software, None) if self._codec is not None and self.in_sync else []
        self._software.flush_buffers()
        self._codec = self._hardware
        return left

    def _decode(self, codec: FrameCodec, packet: av.Packet[av.VideoStream] | None) -> list[DecodedFrame]:
        try:
            frames = codec.decode(packet)
        except av.error.EOFError:
            return []
        except av.error.FFmpegError:
            self._count_damage()
            return []
        except HardwareFailed as error:
            self._give_up(error)
            return []
        self._damaged_in_a_row = 0
        return [self._frame(av_frame) for av_frame in frames]

    def _give_up(self, error: HardwareFailed) -> None:
        """Go on in software: the hardware has failed."""
        assert self._hardware is not None
        assert self._source is not None
        self._hardware.close()
        self._source.release(error)
        self._hardware, self.in_sync = None, False
        self._software.flush_buffers()
        self._codec = self._software if self._source.may_fall_back else None

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
            return round(self._last_t + self._info.frame_s, 6)
        return max(stamp / SECOND_US, round(self._last_t + 1 / SECOND_US, 6))
