"""Groups of pictures (GOPs): how a stream is built, whether packets between key frames may be left out, and the packets
held since the last key frame.
"""

from __future__ import annotations

from appliance.media.nal import keyframe_kind
from appliance.media.source import VideoPacket

KEY_INTERVAL_S_MAX = 12.0  # some cameras send one in ten seconds; beyond that nothing is saved any more
GOPS_MIN = 1  # whole ones, before the stream is known

LEARNING = "learning how this camera sends"
_UNSTAMPED = "its packets carry no time stamps"
_OPEN = "its groups of pictures are open: pictures before a key frame hang on the group before"
_RECOVERY = "its key frames are not whole pictures (intra refresh, or open groups of pictures)"
_FAR = f"there was no key frame for {KEY_INTERVAL_S_MAX:.0f} s (long groups of pictures, or intra refresh)"


class GopTracker:
    """State: the present group, how far key frames are apart, what is wrong with the stream. Owner: one connection.

    `why_not` is "" as long as every packet between two key frames may be left out; a reason that lies in the codec
    stays until the connection ends, a missing key frame is forgiven with the next group that is whole.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.key_interval_s = 0.0
        self.count = 0
        self.is_b_frame = False
        self._codec = codec
        self._extradata = extradata
        self._wrong = ""
        self._begun = 0
        self._key_t: float | None = None
        self._first_t: float | None = None
        self._highest_t = float("-inf")

    @property
    def all_keyframes(self) -> bool:
        """Every packet so far was a picture of its own, as in Motion JPEG."""
        return self._begun > 1 and self._begun == self.count

    def observe(self, packet: VideoPacket) -> None:
        """Each packet, in the order of decoding. Afterwards `between` says whether it is a B picture."""
        self.count += 1
        if packet.jump:
            self.discontinuity()
        if self._first_t is None:
            self._first_t = packet.t
        self.is_b_frame = packet.t < self._highest_t
        self._highest_t = max(self._highest_t, packet.t)
        if packet.packet.pts is None:
            self._wrong = self._wrong or _UNSTAMPED
        elif packet.keyframe:
            self._key(packet)
        elif self._key_t is not None and packet.t < self._key_t:
            self._wrong = self._wrong or _OPEN

    def discontinuity(self) -> None:
        """Time does not go on here, but the stream is the same."""
        self._first_t, self._highest_t, self._key_t = None, float("-inf"), None

    def decode_all_reason(self, t: float) -> str:
        """Why everything must be decoded at camera time `t`, or ''."""
        since = self._first_t if self._key_t is None else self._key_t
        if self._wrong:
            return self._wrong
        if since is not None and t - since > KEY_INTERVAL_S_MAX:
            self._begun = 0
            return _FAR
        return LEARNING if self._begun <= GOPS_MIN else ""

    def _key(self, packet: VideoPacket) -> None:
        if keyframe_kind(self._codec, self._extradata, memoryview(packet.packet)) == "recovery":
            self._wrong = self._wrong or _RECOVERY
        if self._key_t is not None:
            self.key_interval_s = packet.t - self._key_t
            if self.key_interval_s > KEY_INTERVAL_S_MAX:
                self._begun = 0
        self._key_t = packet.t
        self._begun += 1


GOP_PACKETS_MAX = 900  # 12 s at 60 fps, with room for field pictures; see groups.KEY_S_MAX
GOP_BYTES_MAX = 12_000_000  # 8 Mbit/s for 12 s


class GopBuffer:
    """State: the packets, and how many of them the decoder has had (`done`). Owner: one stream.

    whole: it begins with a key frame, so the decoder can begin at its beginning. Invariant: at most PACKETS_MAX packets
    of BYTES_MAX bytes together, else it is emptied and no longer whole.
    """

    def __init__(self) -> None:
        self.packets: list[VideoPacket] = []
        self.decoded_count = 0
        self.starts_with_key = False
        self._bytes = 0

    @property
    def pending(self) -> list[VideoPacket]:
        """What the decoder has not had."""
        return self.packets[self.decoded_count :]

    @property
    def full(self) -> bool:
        """Another packet might not find room."""
        return len(self.packets) >= GOP_PACKETS_MAX or self._bytes >= GOP_BYTES_MAX - self._bytes // max(
            1, len(self.packets)
        )

    def begin(self, key: VideoPacket) -> None:
        """A key frame: what was before it is not needed any more."""
        self.packets, self.decoded_count, self.starts_with_key, self._bytes = [key], 0, True, key.size

    def add(self, packet: VideoPacket) -> None:
        if self.full or self._bytes + packet.size > GOP_BYTES_MAX:
            self.clear()
        self.packets.append(packet)
        self._bytes += packet.size

    def clear(self) -> None:
        self.packets, self.decoded_count, self.starts_with_key, self._bytes = [], 0, False, 0
