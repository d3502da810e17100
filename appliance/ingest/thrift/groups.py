"""How a stream is built: its groups of pictures, and whether they allow to decode only some of them."""

from __future__ import annotations

from appliance.ingest.source import VideoPacket
from appliance.ingest.thrift.keys import kind_of

KEY_S_MAX = 12.0  # some cameras send one in ten seconds; beyond that nothing is saved any more
GROUPS_MIN = 1  # whole ones, before the stream is known

LEARNING = "learning how this camera sends"
_UNSTAMPED = "its packets carry no time stamps"
_OPEN = "its groups of pictures are open: pictures before a key frame hang on the group before"
_RECOVERY = "its key frames are not whole pictures (intra refresh, or open groups of pictures)"
_FAR = f"there was no key frame for {KEY_S_MAX:.0f} s (long groups of pictures, or intra refresh)"


class Groups:
    """State: the present group, how far key frames are apart, what is wrong with the stream. Owner: one connection.

    `why_not` is "" as long as every packet between two key frames may be left out; a reason that lies in the codec
    stays until the connection ends, a missing key frame is forgiven with the next group that is whole.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.key_every_s = 0.0
        self.count = 0
        self.between = False
        self._codec = codec
        self._extradata = extradata
        self._wrong = ""
        self._begun = 0
        self._key_t: float | None = None
        self._first_t: float | None = None
        self._highest_t = float("-inf")

    @property
    def all_keys(self) -> bool:
        """Every packet so far was a picture of its own, as in Motion JPEG."""
        return self._begun > 1 and self._begun == self.count

    def take(self, packet: VideoPacket) -> None:
        """Each packet, in the order of decoding. Afterwards `between` says whether it is a B picture."""
        self.count += 1
        if packet.jump:
            self.cut()
        if self._first_t is None:
            self._first_t = packet.t
        self.between = packet.t < self._highest_t
        self._highest_t = max(self._highest_t, packet.t)
        if packet.packet.pts is None:
            self._wrong = self._wrong or _UNSTAMPED
        elif packet.keyframe:
            self._key(packet)
        elif self._key_t is not None and packet.t < self._key_t:
            self._wrong = self._wrong or _OPEN

    def cut(self) -> None:
        """Time does not go on here, but the stream is the same."""
        self._first_t, self._highest_t, self._key_t = None, float("-inf"), None

    def why_not(self, t: float) -> str:
        """Why everything must be decoded at camera time `t`, or ''."""
        since = self._first_t if self._key_t is None else self._key_t
        if self._wrong:
            return self._wrong
        if since is not None and t - since > KEY_S_MAX:
            self._begun = 0
            return _FAR
        return LEARNING if self._begun <= GROUPS_MIN else ""

    def _key(self, packet: VideoPacket) -> None:
        if kind_of(self._codec, self._extradata, memoryview(packet.packet)) == "recovery":
            self._wrong = self._wrong or _RECOVERY
        if self._key_t is not None:
            self.key_every_s = packet.t - self._key_t
            if self.key_every_s > KEY_S_MAX:
                self._begun = 0
        self._key_t = packet.t
        self._begun += 1
