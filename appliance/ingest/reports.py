"""When a picture was taken, by the sender's own account (RTCP sender reports, RFC 3550 section 6.4.1)."""

from __future__ import annotations

import struct
import sys

import av

ASK_EVERY_US = 1_000_000
_BYTES = 8


class Reports:
    """State: the last account, and of which stamp it was. Owner: one connection.

    Reports come every few seconds, and between two the stream's own stamps count on. So a packet is asked once in
    ASK_EVERY_US: that costs as much as all other stamping. `asked` counts.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._known: tuple[int, int | None] | None = None

    def begin(self) -> None:
        """A new connection."""
        self._known = None

    def of(self, packet: av.Packet[av.VideoStream], pts_us: int | None) -> int | None:
        """UTC of the picture in microseconds, if there were any reports. pts_us: its stamp, in microseconds."""
        if pts_us is None:
            return self._ask(packet)
        if self._known is None or not 0 <= pts_us - self._known[0] < ASK_EVERY_US:
            self._known = pts_us, self._ask(packet)
        at, utc = self._known
        return None if utc is None else utc + pts_us - at

    def _ask(self, packet: av.Packet[av.VideoStream]) -> int | None:
        """What libavformat has attached (AV_PKT_DATA_PRFT)."""
        self.asked += 1
        if not packet.has_sidedata("prft"):
            return None
        data = bytes(packet.get_sidedata("prft"))
        return struct.unpack_from("<q" if sys.byteorder == "little" else ">q", data)[0] if len(data) >= _BYTES else None
