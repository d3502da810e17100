"""Which packets of a stream are decoded: all of them while something may happen, else only key frames.

States: everything (asked for, or the stream allows nothing else, with the reason), active (every packet is decoded),
idle (key frames; the packets after them are held). From idle to active lead cues: packets that grow, a key frame in
which something changed, anything the detector finds. What is held is then decoded from the last key frame on (on a
changed key frame: from the one before), so the moments before the cue are examined, too, in `thrifty` at half the rate.
No clock and no thread: what is decoded depends on packets, their camera time and the answers of `Attention`, in order,
live as in a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from appliance.config import Latency
from appliance.ingest.decode import Decoder, Frame
from appliance.ingest.examine import LATE_SHARE
from appliance.ingest.source import StreamInfo, VideoPacket
from appliance.ingest.thrift.attention import Attention
from appliance.ingest.thrift.groups import LEARNING, Groups
from appliance.ingest.thrift.held import Held
from appliance.ingest.thrift.late import LATE_MAX, LATE_MAX_THRIFTY, Thinner
from appliance.ingest.thrift.sizes import NORMAL, THRIFTY, PacketSizes
from appliance.types import DecodeState

CUE_HOLD_S = 0.5  # after a cue: at 2 looks a second or more the gate is asked at least once
STEP_EARLY_S = 0.002

GREW = "packets grew"
CHANGED = "a key frame shows a change"
FOUND = "something moves or is followed"
DAMAGED = "a key frame was damaged"
LOWEST = "detect.latency is lowest"
FULL = "the group of pictures is too large to be held"


@dataclass(frozen=True, slots=True)
class ThriftCounts:
    """Since the start. skipped: packets that were never decoded; again: pictures that were decoded a second time; cues:
    times that one led out of idle; thinned: pictures that were decoded late and not handed on, since there were more
    than LATE_MAX."""

    skipped: int = 0
    again: int = 0
    cues: int = 0
    thinned: int = 0


class Thrift:
    """The policy of one camera. State: where it stands, what is held, what is usual. Owner: the thread that decodes.

    Invariant: pictures come in rising order of time, each once, and in no state is a heartbeat missed.
    """

    def __init__(self, latency: Latency, fps: float, heartbeat_s: float, attention: Attention) -> None:
        self.state: DecodeState = "everything" if latency == "lowest" else "active"
        self.why = LOWEST if latency == "lowest" else LEARNING
        self.skipped = self.again = self.cues = self.thinned = 0
        self.ahead_s = 0.0  # what to add to a packet's time to have that of its picture, where somebody else counts
        self._latency = latency
        self._late_max = LATE_MAX_THRIFTY if latency == "thrifty" else LATE_MAX
        self._fps = fps
        self._heartbeat_s = heartbeat_s
        self._attention = attention
        self._sizes = PacketSizes(THRIFTY if latency == "thrifty" else NORMAL)
        self._hold_t = float("-inf")
        self._groups = Groups("", b"")

    def counts(self) -> ThriftCounts:
        return ThriftCounts(self.skipped, self.again, self.cues, self.thinned)

    def begin(self, decoder: Decoder, info: StreamInfo, *, goes_on: bool = False) -> None:
        """A new connection, or (goes_on) the next file of a recording. What is usual for its packets is kept."""
        self._decoder = decoder
        if goes_on:
            self._groups.cut()
        else:
            self._groups = Groups(info.codec, bytes(info.stream.codec_context.extradata or b""))
        self._held = Held()
        self._intact = True
        self._key_t = float("-inf")
        self._begun = (self._groups.count, self.skipped, self.again)
        self._key_index, self._key_count = 0, self._groups.count
        self._damaged = 0
        self._shown_t = float("-inf")
        self._next_key_t = float("-inf")

    def take(self, packet: VideoPacket) -> Iterator[Frame]:
        """The pictures to be looked at now. Ask for the next one only when the last was dealt with: what comes may
        depend on it. Raises SourceLost when nothing can be decoded any more."""
        if self._latency == "lowest":
            yield from self._decoder.decode(packet)
            return
        self._groups.take(packet)
        why = self._groups.why_not(packet.t) or ("" if self._sizes.known or self._groups.all_keys else LEARNING)
        if why == LEARNING:
            yield from self._attentive(packet, "active", why)
        elif why:
            yield from self._attentive(packet, "everything", why)
        elif self.state != "idle":
            yield from self._attentive(packet, "active", self.why if self.state == "active" else LEARNING)
            self._rest(packet)
        elif packet.keyframe:
            yield from self._idle_key(packet)
        else:
            yield from self._idle(packet)

    def until_key_s(self, t: float) -> float:
        """Seconds from a packet's time `t` on until the next key frame, as they came so far; 0: it is due, or late."""
        return max(0.0, self._key_t + self._groups.key_every_s - t)

    def end(self) -> Iterator[Frame]:
        """The stream ended: what the decoder still holds back, if every packet was decoded."""
        if not self._held.pending and self._intact:
            for frame in self._decoder.flush():
                yield from self._hand(frame)
        if self.state == "idle":
            self._count_skipped(self._groups.count)

    def _attentive(self, packet: VideoPacket, state: DecodeState, why: str) -> Iterator[Frame]:
        self.state, self.why = state, why
        if packet.keyframe:
            self._next_group(packet)
        else:
            self._held.add(packet)
        yield from self._catch_up()
        if not packet.keyframe and not self._attention.moved(self._t(packet)):
            self._sizes.learn(packet.size, between=self._groups.between)

    def _rest(self, packet: VideoPacket) -> None:
        """Idle begins as soon as nothing speaks against it; the decoder stays where it is."""
        if packet.t >= self._hold_t and not self._attention.busy(self._t(packet)):
            self.state, self.why = "idle", ""
            self._sizes.settle()

    def _idle(self, packet: VideoPacket) -> Iterator[Frame]:
        """A packet between two key frames: held, unless something speaks for decoding it and all before it."""
        if self._held.full:
            yield from self._catch_up()
            yield from self._attentive(packet, "active", FULL)
            self._hold_t = packet.t + self._groups.key_every_s
            return
        self._held.add(packet)
        between = self._groups.between
        if self._sizes.take(packet.size, between=between):
            yield from self._wake(packet, GREW)
        elif self._attention.busy(self._t(packet)):
            yield from self._wake(packet, FOUND)
        elif self._overdue(packet):
            yield from self._catch_up()
            if self._attention.busy(self._t(packet)):
                self._activate(packet, FOUND)
        else:
            self._sizes.learn(packet.size, between=between)

    def _idle_key(self, packet: VideoPacket) -> Iterator[Frame]:
        """A key frame: the one picture that idle always sees, and may be the cue for the group before it."""
        before, before_index = self._held, self._key_index
        if self._groups.all_keys and packet.t < self._next_key_t - STEP_EARLY_S and not self._overdue(packet):
            self._leave(packet)
            return
        self._next_key_t = max(self._next_key_t + 1 / self._fps, packet.t + 0.5 / self._fps)
        self._held = Held()
        self._held.begin(packet)
        self._number(packet)
        self._decoder.restart(self._key_index)
        frame = self._decoder.alone(packet)
        self._held.done, self._intact = 1, self._decoder.intact
        if frame is None:
            self._count_skipped(self._groups.count)
            self._activate(packet, DAMAGED, self._groups.key_every_s)
            return
        if before.whole and len(before.packets) > 1 and self._attention.changed(frame.picture):
            self._decoder.restart(before_index)
            self._intact = True
            self.again += 1  # the key frame itself: nobody was shown it yet
            yield from self._late([*before.packets, packet])
            self._activate(packet, CHANGED)
            return
        self._count_skipped(self._groups.count)
        yield from self._hand(replace(frame, next_s=self._groups.key_every_s))
        if self._attention.busy(self._t(packet)):
            self._activate(packet, FOUND)

    def _leave(self, packet: VideoPacket) -> None:
        """All pictures are key frames, and more come than are wanted: not even this one is decoded."""
        self._held = Held()
        self._held.begin(packet)
        self._number(packet)
        self._count_skipped(self._groups.count - 1)
        self._intact = False

    def _wake(self, packet: VideoPacket, why: str) -> Iterator[Frame]:
        self._sizes.settle()
        yield from self._catch_up()
        self._activate(packet, why)

    def _activate(self, packet: VideoPacket, why: str, hold_s: float = CUE_HOLD_S) -> None:
        self.cues += 1
        self.state, self.why = "active", why
        self._hold_t = packet.t + hold_s

    def _overdue(self, packet: VideoPacket) -> bool:
        slack_s = LATE_SHARE * self._heartbeat_s
        soon = not packet.keyframe and self._key_t + self._groups.key_every_s - packet.t <= slack_s
        return self._attention.overdue(self._t(packet) - (slack_s if soon else 0.0))

    def _next_group(self, packet: VideoPacket) -> None:
        """A key frame while everything is decoded."""
        before, self._held = self._held, Held()
        self._held.begin(packet)
        self._number(packet)
        if before.pending or not self._intact:
            self._count_skipped(self._groups.count - 1)
            self._decoder.restart(self._key_index)
            self._intact = True

    def _count_skipped(self, packets: int) -> None:
        """Of so many packets of this connection those that neither became a picture nor were damaged are skipped."""
        count, skipped, again = self._begun
        decoded = self._decoder.decoded - (self.again - again)
        self.skipped += max(0, packets - count - decoded - self._decoder.damaged - (self.skipped - skipped))

    def _number(self, packet: VideoPacket) -> None:
        """What number the picture of this key frame has, as if all had been decoded."""
        damaged, self._damaged = self._decoder.damaged - self._damaged, self._decoder.damaged
        self._key_index += max(0, self._groups.count - 1 - self._key_count - damaged)
        self._key_count, self._key_t = self._groups.count - 1, packet.t

    def _catch_up(self) -> Iterator[Frame]:
        """Decode what is held and was not; from the key frame on where the decoder has lost the thread."""
        if not self._intact and self._held.whole:
            self._decoder.restart(self._key_index)
            self._held.done, self._intact = 0, True
        pending = self._held.pending
        self._held.done = len(self._held.packets)
        yield from self._late(pending)

    def _late(self, packets: Sequence[VideoPacket]) -> Iterator[Frame]:
        """Decode packets, one or many; of many only some pictures are handed on."""
        late = len(packets) > 1
        thinner = Thinner(packets[-1].t - packets[0].t if late else 0.0, self._fps, self._late_max)
        for packet in packets:
            for frame in self._decoder.decode(packet):
                for new in self._hand(frame):
                    if thinner.keeps(new.t):
                        yield replace(new, late=True) if late else new
                    else:
                        self.thinned += 1

    def _hand(self, frame: Frame) -> Iterator[Frame]:
        """The picture, if it was not shown before."""
        if abs(frame.t - self._key_t) < STEP_EARLY_S / 4:
            self._key_index = frame.index
        if frame.t <= self._shown_t:
            self.again += 1
            return
        self._shown_t = frame.t
        yield frame

    def _t(self, packet: VideoPacket) -> float:
        return packet.t + self.ahead_s
