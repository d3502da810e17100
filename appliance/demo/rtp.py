"""RTP packets for H.264 (RFC 6184) and HEVC (RFC 7798), RTCP sender reports (RFC 3550), and their TCP framing."""

from __future__ import annotations

import struct

from appliance.demo.nal import Codec

CLOCK_RATE = 90_000
PAYLOAD_TYPE = 96
MTU = 1400
_NTP_EPOCH_S = 2_208_988_800
_RTP_HEADER = struct.Struct(">BBHII")
_FU_A = 28
_HEVC_FU = 49


class Packetizer:
    """Makes the RTP packets of one stream.

    State: SSRC and the next sequence number. Owner: one mount. Invariant: sequence numbers have no gaps, whatever
    the stream changes to.
    """

    def __init__(self, ssrc: int, sequence: int = 0, mtu: int = MTU) -> None:
        self.ssrc = ssrc
        self.sequence = sequence & 0xFFFF
        self._mtu = mtu

    def packets(self, codec: Codec, nals: list[bytes], timestamp: int) -> list[bytes]:
        """All packets of one access unit; the last carries the marker bit. `timestamp` counts 1/90000 s."""
        payloads = [payload for nal in nals for payload in self._payloads(codec, nal)]
        last = len(payloads) - 1
        return [self._packet(payload, timestamp, marker=index == last) for index, payload in enumerate(payloads)]

    def _payloads(self, codec: Codec, nal: bytes) -> list[bytes]:
        if len(nal) <= self._mtu:
            return [nal]
        header = _fu_a_header(nal) if codec == "h264" else _hevc_fu_header(nal)
        body = memoryview(nal)[1 if codec == "h264" else 2 :]
        return _fragments(header, body, self._mtu)

    def _packet(self, payload: bytes, timestamp: int, *, marker: bool) -> bytes:
        second = PAYLOAD_TYPE | (0x80 if marker else 0)
        header = _RTP_HEADER.pack(0x80, second, self.sequence, timestamp & 0xFFFFFFFF, self.ssrc)
        self.sequence = (self.sequence + 1) & 0xFFFF
        return header + payload


def _fu_a_header(nal: bytes) -> tuple[bytes, int]:
    """FU indicator (F and NRI of the unit, type 28) and the unit's type: RFC 6184, 5.8."""
    return bytes([(nal[0] & 0xE0) | _FU_A]), nal[0] & 0x1F


def _hevc_fu_header(nal: bytes) -> tuple[bytes, int]:
    """Payload header (layer and temporal id of the unit, type 49) and the unit's type: RFC 7798, 4.4.3."""
    return bytes([(nal[0] & 0x81) | (_HEVC_FU << 1), nal[1]]), (nal[0] >> 1) & 0x3F


def _fragments(header: tuple[bytes, int], body: memoryview, mtu: int) -> list[bytes]:
    lead, kind = header
    room = mtu - len(lead) - 1
    made: list[bytes] = []
    for at in range(0, len(body), room):
        start = 0x80 if at == 0 else 0
        end = 0x40 if at + room >= len(body) else 0
        made.append(lead + bytes([start | end | kind]) + body[at : at + room])
    return made


def sender_report(ssrc: int, wall_t: float, timestamp: int, packets: int, octets: int, name: str) -> bytes:
    """A compound RTCP packet, SR then SDES: the picture stamped `timestamp` was taken at `wall_t` (UTC seconds)."""
    seconds = int(wall_t)
    fraction = int((wall_t - seconds) * (1 << 32)) & 0xFFFFFFFF
    report = struct.pack(
        ">BBHIIIIII",
        0x80,
        200,
        6,
        ssrc,
        (seconds + _NTP_EPOCH_S) & 0xFFFFFFFF,
        fraction,
        timestamp & 0xFFFFFFFF,
        packets & 0xFFFFFFFF,
        octets & 0xFFFFFFFF,
    )
    return report + _source_description(ssrc, name)


def _source_description(ssrc: int, name: str) -> bytes:
    text = name.encode()[:255]
    chunk = struct.pack(">IBB", ssrc, 1, len(text)) + text + b"\x00"
    chunk += b"\x00" * (-len(chunk) % 4)
    return struct.pack(">BBH", 0x81, 202, len(chunk) // 4) + chunk


def interleaved(channel: int, packet: bytes) -> bytes:
    """`packet` as it travels inside the RTSP connection: RFC 2326, 10.12."""
    return struct.pack(">cBH", b"$", channel, len(packet)) + packet
