"""What a TCP connection carried, as the kernel counted it."""

from __future__ import annotations

import socket
import struct
from asyncio.trsock import TransportSocket
from dataclasses import dataclass

# struct tcp_info in linux/tcp.h: tcpi_bytes_received since Linux 4.1, tcpi_bytes_sent since 4.19.
_INFO_BYTES = 232
_RECEIVED_AT = 128
_SENT_AT = 200


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """received: payload in order, without retransmissions and headers. sent: with retransmissions; None: not told."""

    received: int
    sent: int | None


def tcp_bytes(tcp: socket.socket | TransportSocket) -> TcpBytes | None:
    """The counts of a connection since it was made; None where the system does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    received = _count(info, _RECEIVED_AT)
    return None if received is None else TcpBytes(received, _count(info, _SENT_AT))


def _count(info: bytes, at: int) -> int | None:
    return int(struct.unpack_from("=Q", info, at)[0]) if len(info) >= at + 8 else None
