"""Groups of pictures (GOP): how a stream is built, as its packets show it, and the packets since the last key frame."""

from __future__ import annotations

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
