"""The Transport header (RFC 2326, 12.39), as far as a server needs it that only speaks RTP inside RTSP."""

from __future__ import annotations

import re

_INTERLEAVED = re.compile(r"interleaved=(\d{1,3})(?:-(\d{1,3}))?")


def choose_channels(header: str) -> tuple[int, int] | None:
    """The RTP and RTCP channels of the first offer that asks for TCP, or None: UDP and multicast are not served."""
    for offer in header.split(","):
        protocol, *parameters = (part.strip() for part in offer.split(";"))
        if protocol.upper() == "RTP/AVP/TCP":
            return _channels(parameters)
    return None


def _channels(parameters: list[str]) -> tuple[int, int] | None:
    for parameter in parameters:
        match = _INTERLEAVED.fullmatch(parameter)
        if match:
            first = int(match.group(1))
            second = int(match.group(2) or first + 1)
            return (first, second) if first != second and max(first, second) <= 255 else None
    return 0, 1
