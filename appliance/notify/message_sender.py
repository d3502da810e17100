"""The port to a target: one message is sent, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from appliance.notify.message import NotificationMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The result of one attempt to send.

    Attributes:
        ok: the target took the message.
        status: the HTTP status, where there was one.
        refused: the target will never take this very message.
        maybe: it may have arrived although nobody confirmed it.
        error: one sentence without secrets; empty when ok.
        after_s: seconds after which the target asked to be tried again.
        payload: what was sent, for the audit; without secrets of the address or headers.
        sent: bytes put on the wire, as an Ethernet interface counts them, never too few.
        seconds: from the beginning of the attempt to its end.
    """

    ok: bool
    status: int | None = None
    refused: bool = False
    maybe: bool = False
    error: str = ""
    after_s: float | None = None
    payload: bytes = b""
    sent: int = 0
    seconds: float = 0.0


class MessageSender(Protocol):
    """The way to one target: HTTP (http_sender) or apprise (apprise_sender). Owner: one task."""

    async def send(self, message: NotificationMessage) -> SendResult:
        """Send one message. Never raises for what the target does."""
        ...

    async def close(self) -> None: ...
