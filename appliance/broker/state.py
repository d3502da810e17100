"""What the link is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LinkState:
    """What the link is doing, for the dashboard and the API.

    since: when `up` last changed, UTC seconds. error: why it is down, one sentence. sent, received: bytes over all
    connections of this process, as the kernel counted them (TCP payload, TLS included) when `exact`, else as nats-py
    did. connects: connections made. wire: what went out with all that is around it (acknowledgements, headers down to
    Ethernet, attempts that failed), never too little; resent: of wire, what TCP sent again.
    breaker: closed (the cloud answers), open (it does not, and questions wait) or half_open (one of them is tried);
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
