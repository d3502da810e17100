"""Reads the kernel's byte counters of a TCP connection (TCP_INFO), and estimates what reached the wire."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

# struct tcp_info in linux/tcp.h: tcpi_bytes_received since Linux 4.1, tcpi_segs_out 4.2, tcpi_bytes_sent and
# tcpi_bytes_retrans 4.19.
_INFO_BYTES = 232
_RECEIVED_AT = 128  # offsets in struct tcp_info (linux/tcp.h): tcpi_bytes_received
_SEGMENTS_AT = 136  # tcpi_segs_out
_SENT_AT = 200  # tcpi_bytes_sent
_RESENT_AT = 208  # tcpi_bytes_retrans


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """Payload bytes of a connection, as the kernel counted them; None: it does not say."""

    received: int  # in order, without retransmissions and headers
    sent: int | None  # with retransmissions
    resent: int | None = None  # of `sent`, the retransmissions
    segments: int | None = None  # sent, those without payload (acknowledgements) included


def tcp_bytes(tcp: socket.socket | TransportSocket) -> TcpBytes | None:
    """Return the counts of a connection since it was made; None if the system does not report them."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    received = _count(info, _RECEIVED_AT)
    if received is None:
        return None
    segments = struct.unpack_from("=I", info, _SEGMENTS_AT)[0] if len(info) >= _SEGMENTS_AT + 4 else None
    return TcpBytes(received, _count(info, _SENT_AT), _count(info, _RESENT_AT), segments)


def _count(info: bytes, at: int) -> int | None:
    return int(struct.unpack_from("=Q", info, at)[0]) if len(info) >= at + 8 else None


# An Ethernet interface counts for one segment: 14 bytes of Ethernet, 20 of IPv4 (40 of IPv6), 20 of TCP with 12
# of time stamps. A first segment has 8 more bytes of options; a connection ends with up to 4 segments that can
# not be read off its socket any more.
_FRAME = {4: 66, 6: 86}
_BEGIN_BYTES = 8  # options of a SYN beyond those of other segments
_END_SEGMENTS = 4  # FIN and ACK of both sides
# An attempt that failed is not visible on any socket either: at most one first segment a second (tcp(7), linear
# time-outs), two look-ups of the name, and, once TCP stood, a hand-shake with certificates and credentials.
_LOOKUP_BYTES = 2 * 90
_HANDSHAKE_BYTES_MAX = 6144  # a client's certificates, keys and credentials


@dataclass(frozen=True, slots=True)
class WireBytes:
    """Bytes sent, as an Ethernet interface counts them."""

    bytes: int = 0
    resent: int = 0  # of `bytes`, the retransmissions of TCP

    def __add__(self, other: WireBytes) -> WireBytes:
        return WireBytes(self.bytes + other.bytes, self.resent + other.resent)


def bytes_on_wire(counted: TcpBytes, *, version: int, segment_max: int, ended: bool) -> WireBytes | None:
    """Return all bytes that a connection put on the wire, never too few; None if the system does not report them.

    version: of the Internet Protocol, 4 or 6. segment_max: payload bytes of a full segment. ended: it is being closed.
    """
    if counted.sent is None or counted.segments is None:
        return None
    frame, resent = _FRAME[version], counted.resent or 0
    end = _END_SEGMENTS * frame if ended else 0
    repeated = resent + frame * -(-resent // max(1, segment_max))
    return WireBytes(counted.sent + counted.segments * frame + _BEGIN_BYTES + end, repeated)


def failed_connect_bytes(seconds: float, host: str, *, answered: bool) -> WireBytes:
    """Return an upper bound of the bytes of an attempt to connect. answered: the other end accepted the connection."""
    first = (int(seconds) + 2) * (_FRAME[6] + _BEGIN_BYTES)
    return WireBytes(first + dns_lookup_bytes(host).bytes + (_HANDSHAKE_BYTES_MAX if answered else 0))


def dns_lookup_bytes(host: str) -> WireBytes:
    """Return the bytes of the requests to a name server, when `host` is a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return WireBytes(_LOOKUP_BYTES + 2 * len(host))
    return WireBytes()


def ip_version(tcp: socket.socket | TransportSocket) -> int:
    """Return 4 or 6; IPv4 over an IPv6 socket counts as 6, which is the more."""
    return 4 if tcp.family == socket.AF_INET else 6


def segment_bytes_max(tcp: socket.socket | TransportSocket) -> int:
    """Return the payload of a full segment on this connection."""
    try:
        return max(1, tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
    except OSError:
        return 536  # the least that every path carries (RFC 9293)
