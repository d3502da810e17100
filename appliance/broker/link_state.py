"""The state of the link to the broker, and how many bytes it has put on the wire as a network interface counts them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, replace
from typing import Literal

from nats.aio.client import Client

from appliance.base.tcpinfo import (
    WireBytes,
    bytes_on_wire,
    dns_lookup_bytes,
    failed_connect_bytes,
    ip_version,
    segment_bytes_max,
    tcp_bytes,
)


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of the link, for the dashboard and the API.

    since: when `up` last changed, UTC seconds. error: why it is down, one sentence. connects: connections made.
    sent, received: bytes over all connections of this process, as the kernel counted them (TCP payload, TLS included)
    when `exact`, else as nats-py did. wire: what went out with all that is around it (acknowledgements, headers down to
    Ethernet, attempts that failed), never too little; resent: of wire, what TCP sent again.
    breaker: closed (the cloud answers), open (it does not, and escalations wait) or half_open (one of them is tried);
    breaker_since, breaker_why, trips: since when, why, and how often it opened.
    """

    up: bool
    since: float
    error: str = ""
    connects: int = 0
    sent: int = 0
    received: int = 0
    exact: bool = False
    wire: int = 0
    resent: int = 0
    breaker: Literal["closed", "open", "half_open"] = "closed"
    breaker_since: float = 0.0
    breaker_why: str = ""
    trips: int = 0


class WireByteCounter:
    """State: what earlier connections carried; what the present one did is added at each reading of its socket."""

    def __init__(self, host: str) -> None:
        """host: whose name is looked up for each connection."""
        self._host = host
        self._totals = (0, 0)
        self._wire = WireBytes()

    def opened(self) -> None:
        """Note that a connection was made."""
        self._wire += dns_lookup_bytes(self._host)

    def connect_failed(self, seconds: float, cause: Exception | None, state: LinkState) -> LinkState:
        """Note an attempt that took so long and failed; return `state` with the bytes that it cost."""
        unanswered = isinstance(cause, (ConnectionRefusedError, socket.gaierror, asyncio.TimeoutError)) or (
            isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
        )
        self._wire += failed_connect_bytes(seconds, self._host, answered=not unanswered)
        return replace(state, wire=self._wire.bytes, resent=self._wire.resent)

    def read(self, client: Client, tcp: socket.socket | None, state: LinkState, *, ended: bool = False) -> LinkState:
        """`state` with what the present connection has carried by now. ended: it will carry no more."""
        counted = tcp_bytes(tcp) if tcp is not None else None
        if tcp is None or counted is None or counted.sent is None:
            sent, received = client.stats["out_bytes"], client.stats["in_bytes"]
            return self._counted(sent, received, self._wire + WireBytes(sent), state, exact=False)
        version, segment_max = ip_version(tcp), segment_bytes_max(tcp)
        wire = bytes_on_wire(counted, version=version, segment_max=segment_max, ended=ended) or WireBytes(counted.sent)
        return self._counted(counted.sent, counted.received, self._wire + wire, state, exact=True)

    def closed(self, state: LinkState) -> None:
        """Count the present connection among the earlier ones from here on. state: the state after the last reading."""
        self._totals = (state.sent, state.received)
        self._wire = WireBytes(state.wire, state.resent)

    def _counted(self, sent: int, received: int, wire: WireBytes, state: LinkState, *, exact: bool) -> LinkState:
        return replace(
            state,
            sent=self._totals[0] + sent,
            received=self._totals[1] + received,
            exact=exact,
            wire=max(state.wire, wire.bytes),
            resent=max(state.resent, wire.resent),
        )
