"""Counts what the uplink sends: messages by purpose, what had to be sent again, and the protocol around it all."""

from __future__ import annotations

from typing import Protocol

from appliance.broker import LinkState
from appliance.savings import ledger

PROTOCOL = f"{ledger.UPLINK}_protocol"
RESENT = f"{ledger.UPLINK}_resent"


class Counts(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...


class Account:
    """The sum of `uplink_bytes` is never less than what the link put on the wire.

    A message counts when it is handed to the link, for its camera and purpose: payload, subject and headers. What the
    wire carried beyond that (TLS, TCP/IP and Ethernet headers, acknowledgements, keep-alive, hand-shakes, attempts to
    connect) belongs to no camera: what TCP repeated is `resent`, the rest `protocol`. Owner: the uplink's task.
    State: what was counted so far.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._counted = 0
        self._resent = 0

    def message(self, camera: str, purpose: str, size: int) -> None:
        """A message goes out. purpose: facts, crop, frame or clip; `again` when it went before."""
        self._counts.add(camera, ledger.UPLINK, size)
        self._counts.add(camera, f"{ledger.UPLINK}_{purpose}", size)
        self._counted += size

    def overhead(self, link: LinkState) -> int:
        """Count what the wire carried beyond the messages; returns how many bytes were added."""
        beyond = link.wire - self._counted
        if beyond <= 0:  # below zero: the link has not looked at its socket since the last message
            return 0
        resent = min(beyond, link.resent - self._resent)
        self._counts.add("", ledger.UPLINK, beyond)
        self._counts.add("", RESENT, resent)
        self._counts.add("", PROTOCOL, beyond - resent)
        self._counted += beyond
        self._resent += resent
        return beyond
