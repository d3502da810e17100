"""The packets since the last key frame, held so that they can be decoded when it turns out that they matter."""

from __future__ import annotations

from appliance.ingest.source import VideoPacket

PACKETS_MAX = 900  # 12 s at 60 fps, with room for field pictures; see groups.KEY_S_MAX
BYTES_MAX = 12_000_000  # 8 Mbit/s for 12 s


class Held:
    """State: the packets, and how many of them the decoder has had (`done`). Owner: one stream.

    whole: it begins with a key frame, so the decoder can begin at its beginning. Invariant: at most PACKETS_MAX packets
    of BYTES_MAX bytes together, else it is emptied and no longer whole.
    """

    def __init__(self) -> None:
        self.packets: list[VideoPacket] = []
        self.done = 0
        self.whole = False
        self._bytes = 0

    @property
    def pending(self) -> list[VideoPacket]:
        """What the decoder has not had."""
        return self.packets[self.done :]

    @property
    def full(self) -> bool:
        """Another packet might not find room."""
        return len(self.packets) >= PACKETS_MAX or self._bytes >= BYTES_MAX - self._bytes // max(1, len(self.packets))

    def begin(self, key: VideoPacket) -> None:
        """A key frame: what was before it is not needed any more."""
        self.packets, self.done, self.whole, self._bytes = [key], 0, True, key.size

    def add(self, packet: VideoPacket) -> None:
        if self.full or self._bytes + packet.size > BYTES_MAX:
            self.clear()
        self.packets.append(packet)
        self._bytes += packet.size

    def clear(self) -> None:
        self.packets, self.done, self.whole, self._bytes = [], 0, False, 0
