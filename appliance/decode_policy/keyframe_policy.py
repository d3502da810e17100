"""Decides which packets of a stream are decoded: all of them while something may happen, else only key frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import av

from appliance.config import LatencyMode
from appliance.decode_policy.gop import LEARNING, GopBuffer, GopTracker
from appliance.decode_policy.packet_sizes import ECONOMY, NORMAL, PacketSizes
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.source import StreamInfo, VideoPacket
from appliance.types import DecodeState


class ActivityProbe(Protocol):
    """Whoever takes the pictures; `t` is the camera's time in seconds, as in the pictures handed over."""

    def busy(self, t: float) -> bool:
        """Something moves or is followed, or did a moment ago: every picture may matter."""
        ...

    def moved(self, t: float) -> bool:
        """Something moves, or did a moment ago."""
        ...

    def overdue(self, t: float) -> bool:
        """The detector must look at a picture of this time, whatever moves."""
        ...

    def changed(self, picture: av.VideoFrame) -> bool:
        """Whether this picture, compared with what is usual there, would count as movement; nothing is learnt."""
        ...


# Of what is decoded late, at most about so many pictures can become looks, evenly spread: five a second, as usual, over
# the usual group of two seconds. If the detector is not there at once they wait: 14 MB of 720p pictures, 31 of 1080p.
LATE_FRAMES_MAX = 10
LATE_FRAMES_MAX_ECONOMY = 5  # 2.5 a second: two looks, of which one is told, in the first second of a visitor


class FrameSampler:
    """State: from when on the next picture is kept. Lives for one catching up."""

    def __init__(self, span_s: float, fps: float, most: int) -> None:
        """Of `span_s` seconds about `most` pictures are kept; all of them where `fps` a second would be no more."""
        self._every_s = span_s / most if span_s * fps > most + 0.5 else 0.0
        self._next_t = float("-inf")

    def keeps(self, t: float) -> bool:
        """Whether the picture of camera time `t` is one of them; in rising order."""
        if t < self._next_t:
            return False
        self._next_t = max(self._next_t + self._every_s, t + self._every_s / 2)
        return True


LATE_SHARE = 0.1  # of the time between two heartbeats: a key frame that comes that much later is waited for
CUE_HOLD_S = 0.5  # after a cue: at 2 looks a second or more the gate is asked at least once
STEP_EARLY_S = 0.002

PACKETS_GREW = "packets grew"
KEY_FRAME_CHANGED = "a key frame shows a change"
MOTION_OR_TRACK = "something moves or is followed"
KEY_FRAME_DAMAGED = "a key frame was damaged"
LATENCY_LOWEST = "detect.latency is lowest"
GOP_TOO_LARGE = "the group of pictures is too large to be held"


@dataclass(frozen=True, slots=True)
class DecodeCounts:
    """Since the start. skipped: packets that were never decoded; again: pictures that were decoded a second time; cues:
    times that one led out of idle; thinned: pictures that were decoded late and not handed on, since there were more
    than LATE_MAX."""

    skipped: int = 0
    decoded_twice: int = 0
    wake_ups: int = 0
    sampled_out: int = 0


class DecodePolicy:
    """The policy of one camera. State: where it stands, what is held, what is usual. Owner: the thread that decodes.

    Invariant: pictures come in rising order of time, each once, and in no state is a heartbeat missed.
    """

    def __init__(self, latency: LatencyMode, fps: float, heartbeat_s: float, attention: ActivityProbe) -> None:
        self.state: DecodeState = "everything" if latency == "lowest" else "active"
        self.reason = LATENCY_LOWEST if latency == "lowest" else LEARNING
        self.skipped = self.decoded_twice = self.wake_ups = self.sampled_out = 0
        self.t_offset_s = 0.0  # what to add to a packet's time to have that of its picture, where somebody else counts
        self._latency = latency
        self._late_max = LATE_FRAMES_MAX_ECONOMY if latency == "thrifty" else LATE_FRAMES_MAX
        self._fps = fps
        self._heartbeat_s = heartbeat_s
        self._attention = attention
        self._sizes = PacketSizes(ECONOMY if latency == "thrifty" else NORMAL)
        self._hold_t = float("-inf")
        self._groups = GopTracker("", b"")

    def counts(self) -> DecodeCounts:
        return DecodeCounts(self.skipped, self.decoded_twice, self.wake_ups, self.sampled_out)

    def begin(self, decoder: Decoder, info: StreamInfo, *, goes_on: bool = False) -> None:
        """A new connection, or (goes_on) the next file of a recording. What is usual for its packets is kept."""
        self._decoder = decoder
        if goes_on:
            self._groups.discontinuity()
        else:
            self._groups = GopTracker(info.codec, bytes(info.stream.codec_context.extradata or b""))
        self._held = GopBuffer()
        self._intact = True
        self._key_t = float("-inf")
        self._begun = (self._groups.count, self.skipped, self.decoded_twice)
        self._key_index, self._key_count = 0, self._groups.count
        self._damaged = 0
        self._shown_t = float("-inf")
        self._next_key_t = float("-inf")

    def take(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """The pictures to be looked at now. Ask for the next one only when the last was dealt with: what comes may
        depend on it. Raises SourceLost when nothing can be decoded any more."""
        if self._latency == "lowest":
            yield from self._decoder.decode(packet)
            return
        self._groups.take(packet)
        why = self._groups.decode_all_reason(packet.t) or (
            "" if self._sizes.known or self._groups.all_keyframes else LEARNING
        )
        if why == LEARNING:
            yield from self._attentive(packet, "active", why)
        elif why:
            yield from self._attentive(packet, "everything", why)
        elif self.state != "idle":
            yield from self._attentive(packet, "active", self.reason if self.state == "active" else LEARNING)
            self._rest(packet)
        elif packet.keyframe:
            yield from self._idle_key(packet)
        else:
            yield from self._idle(packet)

    def until_key_s(self, t: float) -> float:
        """Seconds from a packet's time `t` on until the next key frame, as they came so far; 0: it is due, or late."""
        return max(0.0, self._key_t + self._groups.key_interval_s - t)

    def end(self) -> Iterator[DecodedFrame]:
        """The stream ended: what the decoder still holds back, if every packet was decoded."""
        if not self._held.pending and self._intact:
            for frame in self._decoder.flush():
                yield from self._hand(frame)
        if self.state == "idle":
            self._count_skipped(self._groups.count)

    def _attentive(self, packet: VideoPacket, state: DecodeState, why: str) -> Iterator[DecodedFrame]:
        self.state, self.reason = state, why
        if packet.keyframe:
            self._next_group(packet)
        else:
            self._held.add(packet)
        yield from self._catch_up()
        if not packet.keyframe and not self._attention.moved(self._t(packet)):
            self._sizes.learn(packet.size, between=self._groups.is_b_frame)

    def _rest(self, packet: VideoPacket) -> None:
        """Idle begins as soon as nothing speaks against it; the decoder stays where it is."""
        if packet.t >= self._hold_t and not self._attention.busy(self._t(packet)):
            self.state, self.reason = "idle", ""
            self._sizes.reset_sums()

    def _idle(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """A packet between two key frames: held, unless something speaks for decoding it and all before it."""
        if self._held.full:
            yield from self._catch_up()
            yield from self._attentive(packet, "active", GOP_TOO_LARGE)
            self._hold_t = packet.t + self._groups.key_interval_s
            return
        self._held.add(packet)
        between = self._groups.is_b_frame
        if self._sizes.observe(packet.size, between=between):
            yield from self._wake(packet, PACKETS_GREW)
        elif self._attention.busy(self._t(packet)):
            yield from self._wake(packet, MOTION_OR_TRACK)
        elif self._overdue(packet):
            yield from self._catch_up()
            if self._attention.busy(self._t(packet)):
                self._activate(packet, MOTION_OR_TRACK)
        else:
            self._sizes.learn(packet.size, between=between)

    def _idle_key(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """A key frame: the one picture that idle always sees, and may be the cue for the group before it."""
        before, before_index = self._held, self._key_index
        if self._groups.all_keyframes and packet.t < self._next_key_t - STEP_EARLY_S and not self._overdue(packet):
            self._leave(packet)
            return
        self._next_key_t = max(self._next_key_t + 1 / self._fps, packet.t + 0.5 / self._fps)
        self._held = GopBuffer()
        self._held.begin(packet)
        self._number(packet)
        self._decoder.restart(self._key_index)
        frame = self._decoder.decode_key_frame(packet)
        self._held.decoded_count, self._intact = 1, self._decoder.in_sync
        if frame is None:
            self._count_skipped(self._groups.count)
            self._activate(packet, KEY_FRAME_DAMAGED, self._groups.key_interval_s)
            return
        if before.starts_with_key and len(before.packets) > 1 and self._attention.changed(frame.av_frame):
            self._decoder.restart(before_index)
            self._intact = True
            self.decoded_twice += 1  # the key frame itself: nobody was shown it yet
            yield from self._late([*before.packets, packet])
            self._activate(packet, KEY_FRAME_CHANGED)
            return
        self._count_skipped(self._groups.count)
        yield from self._hand(replace(frame, next_s=self._groups.key_interval_s))
        if self._attention.busy(self._t(packet)):
            self._activate(packet, MOTION_OR_TRACK)

    def _leave(self, packet: VideoPacket) -> None:
        """All pictures are key frames, and more come than are wanted: not even this one is decoded."""
        self._held = GopBuffer()
        self._held.begin(packet)
        self._number(packet)
        self._count_skipped(self._groups.count - 1)
        self._intact = False

    def _wake(self, packet: VideoPacket, why: str) -> Iterator[DecodedFrame]:
        self._sizes.reset_sums()
        yield from self._catch_up()
        self._activate(packet, why)

    def _activate(self, packet: VideoPacket, why: str, hold_s: float = CUE_HOLD_S) -> None:
        self.wake_ups += 1
        self.state, self.reason = "active", why
        self._hold_t = packet.t + hold_s

    def _overdue(self, packet: VideoPacket) -> bool:
        slack_s = LATE_SHARE * self._heartbeat_s
        soon = not packet.keyframe and self._key_t + self._groups.key_interval_s - packet.t <= slack_s
        return self._attention.overdue(self._t(packet) - (slack_s if soon else 0.0))

    def _next_group(self, packet: VideoPacket) -> None:
        """A key frame while everything is decoded."""
        before, self._held = self._held, GopBuffer()
        self._held.begin(packet)
        self._number(packet)
        if before.pending or not self._intact:
            self._count_skipped(self._groups.count - 1)
            self._decoder.restart(self._key_index)
            self._intact = True

    def _count_skipped(self, packets: int) -> None:
        """Of so many packets of this connection those that neither became a picture nor were damaged are skipped."""
        count, skipped, again = self._begun
        decoded = self._decoder.decoded - (self.decoded_twice - again)
        self.skipped += max(0, packets - count - decoded - self._decoder.damaged - (self.skipped - skipped))

    def _number(self, packet: VideoPacket) -> None:
        """What number the picture of this key frame has, as if all had been decoded."""
        damaged, self._damaged = self._decoder.damaged - self._damaged, self._decoder.damaged
        self._key_index += max(0, self._groups.count - 1 - self._key_count - damaged)
        self._key_count, self._key_t = self._groups.count - 1, packet.t

    def _catch_up(self) -> Iterator[DecodedFrame]:
        """Decode what is held and was not; from the key frame on where the decoder has lost the thread."""
        if not self._intact and self._held.starts_with_key:
            self._decoder.restart(self._key_index)
            self._held.decoded_count, self._intact = 0, True
        pending = self._held.pending
        self._held.decoded_count = len(self._held.packets)
        yield from self._late(pending)

    def _late(self, packets: Sequence[VideoPacket]) -> Iterator[DecodedFrame]:
        """Decode packets, one or many; of many only some pictures are handed on."""
        late = len(packets) > 1
        thinner = FrameSampler(packets[-1].t - packets[0].t if late else 0.0, self._fps, self._late_max)
        for packet in packets:
            for frame in self._decoder.decode(packet):
                for new in self._hand(frame):
                    if thinner.keeps(new.t):
                        yield replace(new, late=True) if late else new
                    else:
                        self.sampled_out += 1

    def _hand(self, frame: DecodedFrame) -> Iterator[DecodedFrame]:
        """The picture, if it was not shown before."""
        if abs(frame.t - self._key_t) < STEP_EARLY_S / 4:
            self._key_index = frame.index
        if frame.t <= self._shown_t:
            self.decoded_twice += 1
            return
        self._shown_t = frame.t
        yield frame

    def _t(self, packet: VideoPacket) -> float:
        return packet.t + self.t_offset_s
