"""The decoder of one connection: decodes all, key frames alone, or what was held, and numbers frames as if all were.

What was held is the group of pictures (GOP) since the last key frame. `GopTracker` finds out how a stream is built, as
its packets show it: only of some streams can a group be decoded later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import av

from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.nal import keyframe_kind
from appliance.media.source import VideoPacket

KEY_INTERVAL_S_MAX = 12.0  # some cameras send a key frame in ten seconds; beyond that nothing is saved any more
GOPS_MIN = 1  # whole ones, before the stream is known
GOP_PACKETS_MAX = 900  # 12 s at 60 fps, with room for field pictures: KEY_INTERVAL_S_MAX
GOP_BYTES_MAX = 12_000_000  # 8 Mbit/s for 12 s
LEARNING = "learning how this camera sends"
_UNSTAMPED = "its packets carry no time stamps"
_OPEN = "its groups of pictures are open: pictures before a key frame hang on the group before"
_RECOVERY = "its key frames are not whole pictures (intra refresh, or open groups of pictures)"
_FAR = f"there was no key frame for {KEY_INTERVAL_S_MAX:.0f} s (long groups of pictures, or intra refresh)"


class GopTracker:
    """Learns how a stream is built. State: the present GOP, the time between key frames, what is wrong with the stream.

    Owner: one connection. `decode_all_reason` is "" as long as every packet between two key frames may be left out; a
    reason that lies in the codec stays until the connection ends, a missing key frame is forgiven with the next whole
    GOP. key_interval_s: seconds between the last two key frames, 0: unknown. count: packets so far. is_b_frame: of the
    latest packet.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.key_interval_s = 0.0
        self.count = 0
        self.is_b_frame = False
        self._codec = codec
        self._extradata = extradata
        self._fault = ""
        self._gops = 0
        self._key_t: float | None = None
        self._first_t: float | None = None
        self._highest_t = float("-inf")

    @property
    def all_keyframes(self) -> bool:
        """Every packet so far was a key frame, as in Motion JPEG."""
        return self._gops > 1 and self._gops == self.count

    def observe(self, packet: VideoPacket) -> None:
        """Call it with each packet, in the order of decoding."""
        self.count += 1
        if packet.jump:
            self.discontinuity()
        if self._first_t is None:
            self._first_t = packet.t
        self.is_b_frame = packet.t < self._highest_t
        self._highest_t = max(self._highest_t, packet.t)
        if packet.packet.pts is None:
            self._fault = self._fault or _UNSTAMPED
        elif packet.keyframe:
            self._key(packet)
        elif self._key_t is not None and packet.t < self._key_t:
            self._fault = self._fault or _OPEN

    def discontinuity(self) -> None:
        """Time does not go on here, but the stream is the same."""
        self._first_t, self._highest_t, self._key_t = None, float("-inf"), None

    def decode_all_reason(self, t: float) -> str:
        """Why everything must be decoded at camera time `t`, or ''."""
        since = self._first_t if self._key_t is None else self._key_t
        if self._fault:
            return self._fault
        if since is not None and t - since > KEY_INTERVAL_S_MAX:
            self._gops = 0
            return _FAR
        return LEARNING if self._gops <= GOPS_MIN else ""

    def _key(self, packet: VideoPacket) -> None:
        if keyframe_kind(self._codec, self._extradata, memoryview(packet.packet)) == "recovery":
            self._fault = self._fault or _RECOVERY
        if self._key_t is not None:
            self.key_interval_s = packet.t - self._key_t
            if self.key_interval_s > KEY_INTERVAL_S_MAX:
                self._gops = 0
        self._key_t = packet.t
        self._gops += 1


class GopBuffer:
    """The packets since the last key frame. State: those, and how many of them were decoded. Owner: one stream.

    starts_with_key: the decoder can begin at its beginning. Invariant: at most GOP_PACKETS_MAX packets of GOP_BYTES_MAX
    bytes together, else it is emptied and begins with no key frame any more.
    """

    def __init__(self) -> None:
        self.packets: list[VideoPacket] = []
        self.decoded_count = 0
        self.starts_with_key = False
        self._bytes = 0

    @property
    def pending(self) -> list[VideoPacket]:
        """The packets that were not decoded."""
        return self.packets[self.decoded_count :]

    @property
    def full(self) -> bool:
        """Another packet might not find room."""
        usual_bytes = self._bytes // max(1, len(self.packets))
        return len(self.packets) >= GOP_PACKETS_MAX or self._bytes >= GOP_BYTES_MAX - usual_bytes

    def begin(self, key: VideoPacket) -> None:
        """Begin with a key frame: the packets before it are not needed any more."""
        self.packets, self.decoded_count, self.starts_with_key, self._bytes = [key], 0, True, key.size

    def add(self, packet: VideoPacket) -> None:
        if self.full or self._bytes + packet.size > GOP_BYTES_MAX:
            self.clear()
        self.packets.append(packet)
        self._bytes += packet.size

    def clear(self) -> None:
        self.packets, self.decoded_count, self.starts_with_key, self._bytes = [], 0, False, 0


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """Times of the decode policy; chosen on the rendered clips (docs/decode.md)."""

    hold_s: float = 0.5
    """Active for at least this long after a cue: at 2 inferences a second or more the motion gate is asked once."""
    early_s: float = 0.002
    """Two times this near are one: cameras round their time stamps to milliseconds."""
    wait_share: float = 0.1
    """Share of the pause between two inferences by which one may come late, if a key frame is due until then: it costs
    nothing, while decoding before it costs the whole GOP."""
    late_frames_max: int = 10
    """About so many of the frames that are decoded after a cue become inferences, evenly spread: five a second over
    the usual GOP of two seconds. If the detector is busy they wait: 14 MB of 720p frames, 31 MB of 1080p."""
    late_frames_max_economy: int = 5
    """The same with `latency: thrifty`: 2.5 a second, so two in the first second of a visitor."""


TUNING = DecodeTuning()


class ActivityProbe(Protocol):
    """The questions that the policy asks of the analysis that gets its frames; `t` is camera time in seconds."""

    def is_active(self, t: float) -> bool:
        """Something moves or is tracked, or did a moment ago: every frame may matter."""
        ...

    def has_motion(self, t: float) -> bool:
        """Something moves, or did a moment ago."""
        ...

    def is_overdue(self, t: float, late_share: float = 0.0) -> bool:
        """Return True if the detector must examine a frame of this time, whatever moves.

        late_share: a share of the time that may pass between two inferences; so much more has passed.
        """
        ...

    def shows_change(self, av_frame: av.VideoFrame) -> bool:
        """Return True if this frame would count as motion; nothing is learnt from it."""
        ...


@dataclass(slots=True)
class DecodeCounts:
    """Since the start."""

    skipped: int = 0
    """Packets that were never decoded."""
    decoded_twice: int = 0
    """Frames that were decoded a second time, after a cue."""
    wake_ups: int = 0
    """Cues that led out of idle."""
    sampled_out: int = 0
    """Frames that were decoded late and not handed on, since there were more than `late_frames_max`."""


class FrameSampler:
    """A filter that keeps about `most` of the frames in a span of `span_s` seconds, evenly spread.

    It keeps all of them if `fps` a second would be no more. State: the time of the next frame to keep. It lives for one
    catching up.
    """

    def __init__(self, span_s: float, fps: float, most: int) -> None:
        self._every_s = span_s / most if span_s * fps > most + 0.5 else 0.0
        self._next_t = float("-inf")

    def keeps(self, t: float) -> bool:
        """Return True if the frame of camera time `t` is kept; call it in rising order."""
        if t < self._next_t:
            return False
        self._next_t = max(self._next_t + self._every_s, t + self._every_s / 2)
        return True


@dataclass(frozen=True, slots=True)
class HeldGops:
    """The packets that were held when a key frame came.

    last: the GOP before it, with the index of its first frame. earlier: the GOP before `last`, if the key frame of
    `last` was passed; else None.
    """

    last: GopBuffer
    index: int
    earlier: GopBuffer | None
    earlier_index: int


class DecodeSession:
    """One connection, or one file of a recording: its decoder, and the packets since the last key frame.

    State: the GOP that is held, whether the decoder can go on from where it is (`in_sync`), how frames are numbered.
    Owner: the policy. Invariant: frames come in rising order of time, each once, numbered as if all were decoded.
    """

    def __init__(
        self, decoder: Decoder, gops: GopTracker, counts: DecodeCounts, *, fps: float, late_frames_max: int
    ) -> None:
        self.gops = gops
        self.held = GopBuffer()
        self.key_t = float("-inf")
        self._decoder = decoder
        self._counts = counts
        self._fps = fps
        self._late_frames_max = late_frames_max
        self._in_sync = True
        self._begun_at = gops.count
        self._skipped = self._damaged = 0
        self._decoded_twice_before = counts.decoded_twice
        self._key_index, self._key_count = 0, gops.count
        self._shown_t = self._next_key_t = float("-inf")
        self.passed: GopBuffer | None = None
        """The GOP before the latest key frame, if that was not decoded (`pass_key`)."""
        self._passed_index = 0

    @property
    def _is_in_sync(self) -> bool:
        """The decoder can go on from where it is: it was not led elsewhere, and its hardware has not failed."""
        return self._in_sync and self._decoder.in_sync

    def decode(self, packet: VideoPacket) -> list[DecodedFrame]:
        """Decode a packet while every packet is decoded.

        The packet is skipped while the decoder waits for a key frame, since its hardware has failed.
        """
        if not self._decoder.in_sync and not packet.keyframe:
            self._counts.skipped += 1
        return self._decoder.decode(packet)

    def decode_all(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """Decode this packet, and those that were held before it."""
        if packet.keyframe:
            before = self.held
            self._start_gop(packet)
            if before.pending or not self._is_in_sync:
                self.count_skipped(self.gops.count - 1)
                self._decoder.restart(self._key_index)
                self._in_sync = True
        else:
            self.held.add(packet)
        yield from self.catch_up()

    def catch_up(self) -> Iterator[DecodedFrame]:
        """Decode what is held and was not; from the key frame on where the decoder is out of sync."""
        if self.passed is not None:
            self.passed = None
            self.count_skipped(self.gops.count - len(self.held.packets))
        if not self._is_in_sync and self.held.starts_with_key:
            self._decoder.restart(self._key_index)
            self.held.decoded_count, self._in_sync = 0, True
        pending = self.held.pending
        self.held.decoded_count = len(self.held.packets)
        yield from self._decode_late(pending)

    def is_too_early(self, packet: VideoPacket) -> bool:
        """All packets are key frames, and this one comes before another frame is wanted."""
        return self.gops.all_keyframes and packet.t < self._next_key_t - TUNING.early_s

    def skip_key(self, packet: VideoPacket) -> None:
        """Skip a key frame that is too early: not even this one is decoded."""
        self.passed = None
        self._start_gop(packet)
        self.count_skipped(self.gops.count - 1)
        self._in_sync = False

    def pass_key(self, packet: VideoPacket) -> None:
        """Hold a key frame and what comes after it; the GOP before it is held, too, until the next one."""
        self.passed, self._passed_index = self.held, self._key_index
        self._start_gop(packet)
        self._in_sync = False

    def decode_key(self, packet: VideoPacket) -> tuple[HeldGops, DecodedFrame | None]:
        """Decode a key frame alone: what was held before it, for `redecode`, and the frame; None: it is damaged."""
        before = HeldGops(self.held, self._key_index, self.passed, self._passed_index)
        self.passed = None
        self._next_key_t = max(self._next_key_t + 1 / self._fps, packet.t + 0.5 / self._fps)
        self._start_gop(packet)
        self._decoder.restart(self._key_index)
        frame = self._decoder.decode_key_frame(packet)
        self.held.decoded_count, self._in_sync = 1, self._decoder.in_sync
        return before, frame

    def redecode(self, before: HeldGops, key: VideoPacket, probe: ActivityProbe) -> Iterator[DecodedFrame]:
        """Decode the GOP before a key frame, and then the key frame once more: the decoder needs the order.

        If the key frame of that GOP was passed, and shows a change as well, decode the GOP before it, too.
        """
        packets, index = [*before.last.packets, key], before.index
        self._counts.decoded_twice += 1  # the key frame itself: it was not handed on yet
        if before.earlier is not None and before.earlier.starts_with_key:
            self._decoder.restart(index)
            passed = self._decoder.decode_key_frame(before.last.packets[0])
            self._counts.decoded_twice += 1
            if passed is None or probe.shows_change(passed.av_frame):
                packets, index = [*before.earlier.packets, *packets], before.earlier_index
            else:
                self.count_skipped(self.gops.count - len(packets))
        self._decoder.restart(index)
        self._in_sync = True
        yield from self._decode_late(packets)

    def hand_on(self, frame: DecodedFrame) -> Iterator[DecodedFrame]:
        """Yield the frame, if it was not handed on before."""
        if abs(frame.t - self.key_t) < TUNING.early_s / 4:
            self._key_index = frame.index
        if frame.t <= self._shown_t:
            self._counts.decoded_twice += 1
            return
        self._shown_t = frame.t
        yield frame

    def flush(self) -> Iterator[DecodedFrame]:
        """Yield the frames that the decoder still holds back at the end of the stream, if every packet was decoded."""
        if not self.held.pending and self._is_in_sync:
            for frame in self._decoder.flush():
                yield from self.hand_on(frame)

    def count_skipped(self, packets: int) -> None:
        """Count as skipped: all of the first `packets` (by `gops.count`) that became no frame and were not damaged."""
        decoded = self._decoder.decoded - (self._counts.decoded_twice - self._decoded_twice_before)
        more = max(0, packets - self._begun_at - decoded - self._decoder.damaged - self._skipped)
        self._skipped += more
        self._counts.skipped += more

    def _start_gop(self, key: VideoPacket) -> None:
        """Begin another GOP with a key frame; its frame's number is what it would be if all had been decoded."""
        self.held = GopBuffer()
        self.held.begin(key)
        damaged, self._damaged = self._decoder.damaged - self._damaged, self._decoder.damaged
        self._key_index += max(0, self.gops.count - 1 - self._key_count - damaged)
        self._key_count, self.key_t = self.gops.count - 1, key.t

    def _decode_late(self, packets: Sequence[VideoPacket]) -> Iterator[DecodedFrame]:
        """Decode packets, one or many; of many only some frames are handed on."""
        late = len(packets) > 1
        sampler = FrameSampler(packets[-1].t - packets[0].t if late else 0.0, self._fps, self._late_frames_max)
        for packet in packets:
            for frame in self._decoder.decode(packet):
                for new in self.hand_on(frame):
                    if sampler.keeps(new.t):
                        yield replace(new, late=True) if late else new
                    else:
                        self._counts.sampled_out += 1
