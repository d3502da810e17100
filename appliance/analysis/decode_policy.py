"""Decides which packets of a stream are decoded: all of them while something may happen, else only key frames.

States: everything (asked for, or the stream allows nothing else, with the reason), active (every packet is decoded),
idle (key frames; the packets after them are held). Cues lead from idle to active: packets that grow, a key frame in
which something changed, anything the detector finds. The held packets are then decoded from the last key frame on (on a
changed key frame: from the one before), so the moments before the cue are examined, too, with `latency: thrifty` at
half the rate. No clock and no thread: what is decoded depends on packets, their camera time and the answers of
`ActivityProbe`, in order, live as in a replay. docs/decode.md has the measurements.

Packet sizes are a motion cue: an encoder spends bytes on what it did not foresee, and a visitor is that. Each kind of
packet (P frames, B frames; key frames are decoded anyway) has its own usual size and spread, both robust: median and
median absolute deviation over the last packets of that kind. The excess of each packet over the usual adds up in a
cumulative sum (CUSUM, Page 1954), so that two big packets (with `thrifty` four) are a cue, and so is a small rise that
stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from appliance.analysis.decode_session import (
    LEARNING,
    TUNING,
    ActivityProbe,
    DecodeCounts,
    DecodeSession,
    GopTracker,
)
from appliance.config import LatencyMode
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.source import StreamInfo, VideoPacket
from appliance.types import DecodeState

LEARN_MIN = 24  # packets of a kind, before their sizes say anything
WINDOW = 240  # packets of a kind: 16 s at 15 fps; drift of light and rate control is slower than that
RENEW_EVERY = 8  # packets; the median is not worth more often
SIGMA_OF_MAD = 1.4826  # of a normal distribution
SPREAD_SHARE_MIN = 0.1  # of the median: an encoder in a dark room makes packets of nearly one size
SPREAD_BYTES_MIN = 24.0  # less is the size of headers, not of what moved


@dataclass(frozen=True, slots=True)
class CusumThreshold:
    """When packet sizes are a cue. All in spreads; chosen on the rendered clips (docs/decode.md)."""

    slack: float  # above the usual that is forgiven in each packet
    sum_min: float  # of what is beyond, added up, that is a cue
    packet_max: float  # one packet counts at most so much, so that a single oddity need not be a cue


NORMAL = CusumThreshold(slack=1.0, sum_min=10.0, packet_max=8.0)
CALM_SHARE = 0.5  # of NORMAL's `sum_min`, in every mode: below it the packets of a GOP have their usual sizes
KEYS_MIN, KEYS_MAX = 4, 16  # key frames, before their sizes say anything, and that are remembered
KEY_SPREAD_SHARE_MIN = 0.002  # of the median: an empty room's are nearly equal
KEY_SPREADS_MAX = 2.5  # from the median, that a key frame of nothing new may be
ECONOMY = CusumThreshold(slack=2.5, sum_min=40.0, packet_max=15.0)  # `latency: thrifty`


class PacketSizes:
    """State: per kind the last sizes, their median and spread, the sum. Deterministic in the packets it is given.

    `observe` learns nothing; `learn` gets only packets in which nothing was found, so that a visitor who stays does not
    become the usual, and rain, which is nothing, does.
    """

    def __init__(self, threshold: CusumThreshold = NORMAL) -> None:
        self._threshold = threshold
        self._kinds = {False: _PacketKind(), True: _PacketKind()}

    @property
    def known(self) -> bool:
        """True if enough was learnt to recognise a cue."""
        return any(kind.known for kind in self._kinds.values())

    def observe(self, size: int, *, b_frame: bool = False) -> bool:
        """Return True if a packet that is no key frame is a cue."""
        return self._kinds[b_frame].take(size, self._threshold)

    def learn(self, size: int, *, b_frame: bool = False) -> None:
        self._kinds[b_frame].learn(size)

    @property
    def is_calm(self) -> bool:
        """Since `begin_gop` no packets added up to half a cue, neither larger nor, as of a frozen picture, smaller."""
        return all(kind.peak < CALM_SHARE * NORMAL.sum_min for kind in self._kinds.values())

    def begin_gop(self) -> None:
        for kind in self._kinds.values():
            kind.peak = 0.0

    def reset_sums(self) -> None:
        """Reset the sums: they were a cue, and all packets up to here were decoded."""
        for kind in self._kinds.values():
            kind.sum = kind.sum_above = kind.sum_below = 0.0


class KeyFrameSizes:
    """The usual size of key frames at rest.

    A place that nobody entered is coded with much the same number of bytes each time, so another size is a reason to
    decode the key frame, and the usual one is none.

    State: the last sizes. It is deterministic in the packets it is given.
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=KEYS_MAX)

    def learn(self, size: int) -> None:
        """Learn the size of a key frame in which nothing was found."""
        self._sizes.append(size)

    def is_usual(self, size: int) -> bool:
        """Return True if this one shows nothing new, as far as its size tells."""
        if len(self._sizes) < KEYS_MIN:
            return False
        usual = median(self._sizes)
        spread = SIGMA_OF_MAD * median([abs(each - usual) for each in self._sizes])
        return abs(size - usual) <= KEY_SPREADS_MAX * max(spread, KEY_SPREAD_SHARE_MIN * usual)


class _PacketKind:
    """The sizes of one kind of packet."""

    def __init__(self) -> None:
        self.sum = self.sum_above = self.sum_below = self.peak = 0.0
        self._sizes: deque[int] = deque(maxlen=WINDOW)
        self._usual = 0.0
        self._spread = 0.0
        self._fresh = 0

    @property
    def known(self) -> bool:
        return len(self._sizes) >= LEARN_MIN

    def take(self, size: int, threshold: CusumThreshold) -> bool:
        if not self.known:
            return False
        off = (size - self._usual) / self._spread
        self.sum = max(0.0, self.sum + min(off, threshold.packet_max) - threshold.slack)
        self.sum_above = _doubt(self.sum_above, off)
        self.sum_below = _doubt(self.sum_below, -off)
        self.peak = max(self.peak, self.sum_above, self.sum_below)
        return self.sum >= threshold.sum_min

    def learn(self, size: int) -> None:
        self._sizes.append(size)
        self._fresh += 1
        if self._fresh >= RENEW_EVERY or len(self._sizes) == LEARN_MIN:
            self._fresh = 0
            sizes = sorted(self._sizes)
            usual = self._usual = float(median(sizes))
            off = median([abs(each - usual) for each in sizes])  # two runs in order: sorting them again costs little
            self._spread = max(SIGMA_OF_MAD * off, SPREAD_SHARE_MIN * self._usual, SPREAD_BYTES_MIN)


def _doubt(before: float, off: float) -> float:
    """Return the sum of what is beyond the usual in one direction, as for a cue of NORMAL and never more than that."""
    return min(NORMAL.sum_min, max(0.0, before + min(off, NORMAL.packet_max) - NORMAL.slack))


PACKETS_GREW = "packets grew"
KEY_FRAME_CHANGED = "a key frame shows a change"
MOTION_OR_TRACK = "something moves or is followed"
KEY_FRAME_DAMAGED = "a key frame was damaged"
LATENCY_LOWEST = "detect.latency is lowest"
GOP_TOO_LARGE = "the group of pictures is too large to be held"


class DecodePolicy:
    """The policy of one camera.

    State: where it stands (`state`, `reason`), the usual packet sizes, the present `DecodeSession`. Owner: the thread
    that decodes. Invariants: frames come in rising order of time, each once, and in no state is a heartbeat missed.
    t_offset_s: what to add to a packet's time to have that of its frame, where the reader shifts frame times.
    """

    def __init__(self, latency: LatencyMode, fps: float, probe: ActivityProbe) -> None:
        self.state: DecodeState = "everything" if latency == "lowest" else "active"
        self.reason = LATENCY_LOWEST if latency == "lowest" else LEARNING
        self.t_offset_s = 0.0
        self._latency = latency
        self._fps = fps
        self._probe = probe
        self._sizes = PacketSizes(ECONOMY if latency == "thrifty" else NORMAL)
        self._key_sizes = KeyFrameSizes()
        self._hold_t = float("-inf")
        self._counts = DecodeCounts()
        self._session: DecodeSession | None = None

    def counts(self) -> DecodeCounts:
        """Return a copy of the counts. Any thread may call."""
        return replace(self._counts)

    def open(self, decoder: Decoder, info: StreamInfo, *, continues: bool = False) -> None:
        """Begin a new connection, or (continues) the next file of a recording. Usual packet sizes are kept."""
        if continues and self._session is not None:
            gops = self._session.gops
            gops.discontinuity()
        else:
            gops = GopTracker(info.codec, bytes(info.stream.codec_context.extradata or b""))
        economy = self._latency == "thrifty"
        most = TUNING.late_frames_max_economy if economy else TUNING.late_frames_max
        self._session = DecodeSession(decoder, gops, self._counts, fps=self._fps, late_frames_max=most)

    def frames(self, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """Yield the frames to be analysed now.

        Deal with each frame before you ask for the next one: what comes may depend on it. Raise SourceLost if nothing
        can be decoded any more.
        """
        session = self._session
        assert session is not None, "open() first"
        if self._latency == "lowest":
            yield from session.decode(packet)
            return
        gops = session.gops
        gops.observe(packet)
        reason = gops.decode_all_reason(packet.t) or ("" if self._sizes.known or gops.all_keyframes else LEARNING)
        if reason:
            yield from self._decode_all(session, packet, "active" if reason == LEARNING else "everything", reason)
        elif self.state != "idle":
            yield from self._decode_all(session, packet, "active", self.reason if self.state == "active" else LEARNING)
            self._go_idle(packet)
        elif packet.keyframe:
            yield from self._idle_key(session, packet)
        else:
            yield from self._idle_packet(session, packet)

    def until_key_s(self, t: float) -> float:
        """Seconds from a packet's time `t` on until the next key frame, as they came so far; 0: it is due, or late."""
        session = self._session
        return 0.0 if session is None else max(0.0, session.key_t + session.gops.key_interval_s - t)

    def close(self) -> Iterator[DecodedFrame]:
        """Yield the frames that the decoder still holds back: the stream ended."""
        session = self._session
        if session is None:
            return
        yield from session.flush()
        if self.state == "idle":
            session.count_skipped(session.gops.count)

    def _decode_all(
        self, session: DecodeSession, packet: VideoPacket, state: DecodeState, reason: str
    ) -> Iterator[DecodedFrame]:
        self.state, self.reason = state, reason
        yield from session.decode_all(packet)
        if self._probe.has_motion(self._t(packet)):
            return
        if packet.keyframe:
            self._key_sizes.learn(packet.size)
        else:
            self._sizes.learn(packet.size, b_frame=session.gops.is_b_frame)

    def _go_idle(self, packet: VideoPacket) -> None:
        """Idle begins as soon as nothing speaks against it; the decoder stays where it is."""
        if packet.t >= self._hold_t and not self._probe.is_active(self._t(packet)):
            self.state, self.reason = "idle", ""
            self._sizes.reset_sums()

    def _idle_packet(self, session: DecodeSession, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """Hold a packet between two key frames, unless there is a reason to decode it and all before it."""
        if session.held.full:
            yield from session.catch_up()
            yield from self._decode_all(session, packet, "active", GOP_TOO_LARGE)
            self._hold_t = packet.t + session.gops.key_interval_s
            return
        session.held.add(packet)
        b_frame = session.gops.is_b_frame
        if self._sizes.observe(packet.size, b_frame=b_frame):
            yield from self._wake_up(session, packet, PACKETS_GREW)
        elif self._probe.is_active(self._t(packet)):
            yield from self._wake_up(session, packet, MOTION_OR_TRACK)
        elif self._is_overdue(session, packet):
            yield from session.catch_up()
            if self._probe.is_active(self._t(packet)):
                self._activate(packet, MOTION_OR_TRACK)
        else:
            self._sizes.learn(packet.size, b_frame=b_frame)

    def _idle_key(self, session: DecodeSession, packet: VideoPacket) -> Iterator[DecodedFrame]:
        """Handle a key frame while idle.

        It is the one frame that idle always decodes, unless it is too early or may be passed. It may be the cue for the
        GOP before it.
        """
        if session.is_too_early(packet) and not self._is_overdue(session, packet):
            session.skip_key(packet)
            return
        if self._may_pass(session, packet):
            session.pass_key(packet)
            self._key_sizes.learn(packet.size)
            self._sizes.begin_gop()
            return
        before, frame = session.decode_key(packet)
        self._sizes.begin_gop()
        key_interval_s = session.gops.key_interval_s
        if frame is None:
            session.count_skipped(session.gops.count)
            self._activate(packet, KEY_FRAME_DAMAGED, key_interval_s)
        elif before.last.starts_with_key and len(before.last.packets) > 1 and self._probe.shows_change(frame.av_frame):
            yield from session.redecode(before, packet, self._probe)
            self._activate(packet, KEY_FRAME_CHANGED)
        else:
            session.count_skipped(session.gops.count)
            self._key_sizes.learn(packet.size)
            yield from session.hand_on(replace(frame, next_s=key_interval_s))
            if self._probe.is_active(self._t(packet)):
                self._activate(packet, MOTION_OR_TRACK)

    def _wake_up(self, session: DecodeSession, packet: VideoPacket, reason: str) -> Iterator[DecodedFrame]:
        self._sizes.reset_sums()
        yield from session.catch_up()
        self._activate(packet, reason)

    def _activate(self, packet: VideoPacket, reason: str, hold_s: float = TUNING.hold_s) -> None:
        self._counts.wake_ups += 1
        self.state, self.reason = "active", reason
        self._hold_t = packet.t + hold_s

    def _may_pass(self, session: DecodeSession, packet: VideoPacket) -> bool:
        """Return True if there is no reason to decode this key frame.

        The last one was decoded in this session, this one and the packets before it have their usual sizes, and the
        heartbeat has time until the next one.
        """
        gops, t = session.gops, self._t(packet)
        if (
            session.passed is not None
            or not session.held.starts_with_key
            or gops.all_keyframes
            or gops.key_interval_s <= 0
        ):
            return False
        if not (self._key_sizes.is_usual(packet.size) and self._sizes.is_calm) or self._probe.is_active(t):
            return False
        return not self._probe.is_overdue(t + gops.key_interval_s, TUNING.wait_share)

    def _is_overdue(self, session: DecodeSession, packet: VideoPacket) -> bool:
        """Return True if the heartbeat is due, and no key frame comes soon enough to be waited for."""
        t = self._t(packet)
        overdue = self._probe.is_overdue(t)
        if packet.keyframe or not overdue:
            return overdue
        key_t = session.key_t + session.gops.key_interval_s - packet.t + t
        return self._probe.is_overdue(max(t, key_t), TUNING.wait_share)

    def _t(self, packet: VideoPacket) -> float:
        return packet.t + self.t_offset_s
