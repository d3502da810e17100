"""A port for a server that cannot be told to choose one itself."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FROM = 10_000


def quiet_port() -> int:
    """One of 127.0.0.1 that is free, and below those that the kernel lends to whoever asks for any.

    Between this call and the server's own, and between its end and its next start, one of those may be taken by a
    connection of another test.
    """
    below = int(_LENT.read_text().split()[0]) if _LENT.exists() else 32_768
    while True:
        port = random.randrange(_FROM, below)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
