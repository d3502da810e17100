"""How many bytes the connections of this process have put on the wire, as a network interface would count them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace

from nats.aio.client import Client

from appliance.broker.state import LinkState
from appliance.tcpinfo import (
    Wire,
    failed_attempt,
    internet_version,
    looked_up,
    on_the_wire,
    segment_bytes_max,
    tcp_bytes,
)


class Odometer:
    """State: what earlier connections carried; that of the present one is added at each look at its socket."""

    def __init__(self, host: str) -> None:
        """host: whose name is looked up for each connection."""
        self._host = host
        self._totals = (0, 0)
        self._wire = Wire()

    def opened(self) -> None:
        """A connection was made."""
        self._wire += looked_up(self._host)

    def not_opened(self, seconds: float, cause: Exception | None, state: LinkState) -> LinkState:
        """An attempt took so long and failed; `state` with what that weighed."""
        nobody = isinstance(cause, (ConnectionRefusedError, socket.gaierror, asyncio.TimeoutError)) or (
            isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
        )
        self._wire += failed_attempt(seconds, self._host, answered=not nobody)
        return replace(state, wire=self._wire.bytes, resent=self._wire.resent)

    def read(self, client: Client, tcp: socket.socket | None, state: LinkState, *, ended: bool = False) -> LinkState:
        """`state` with what the present connection has carried by now. ended: it will carry no more."""
        counted = tcp_bytes(tcp) if tcp is not None else None
        if tcp is None or counted is None or counted.sent is None:
            sent, received = client.stats["out_bytes"], client.stats["in_bytes"]
            return self._counted(sent, received, self._wire + Wire(sent), state, exact=False)
        version, segment_max = internet_version(tcp), segment_bytes_max(tcp)
        wire = on_the_wire(counted, version=version, segment_max=segment_max, ended=ended) or Wire(counted.sent)
        return self._counted(counted.sent, counted.received, self._wire + wire, state, exact=True)

    def closed(self, state: LinkState) -> None:
        """The present connection is an earlier one from here on; `state`: after the last look at it."""
        self._totals = (state.sent, state.received)
        self._wire = Wire(state.wire, state.resent)

    def _counted(self, sent: int, received: int, wire: Wire, state: LinkState, *, exact: bool) -> LinkState:
        return replace(
            state,
            sent=self._totals[0] + sent,
            received=self._totals[1] + received,
            exact=exact,
            wire=max(state.wire, wire.bytes),
            resent=max(state.resent, wire.resent),
        )
