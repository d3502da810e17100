"""What an RTSP session needs of its server, and what it tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from appliance.clock import Clock
from appliance.demo.auth import Authenticator
from appliance.demo.mounts import Mount

State = Literal["init", "ready", "playing", "closed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost: silence before it is closed, and bytes it may leave unread."""

    session_timeout_s: float = 60.0
    buffer_bytes_max: int = 12 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a session did. bytes_sent: everything the kernel took for this client (after a reset: at most that)."""

    mount: str
    peer: str
    agent: str
    state: State
    bytes_sent: int
    packets_sent: int
    ended: str


class Guest(Protocol):
    """A session, as the server keeps it."""

    @property
    def mount(self) -> Mount | None: ...

    def info(self) -> SessionInfo: ...

    def tick(self) -> None: ...

    def cut(self, why: str, *, reset: bool = False) -> None: ...

    def send_raw(self, data: bytes) -> None: ...


class House(Protocol):
    """What a session needs of the server."""

    @property
    def mounts(self) -> Mapping[str, Mount]: ...

    @property
    def authenticator(self) -> Authenticator | None: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def limits(self) -> Limits: ...

    def admit(self, session: Guest) -> bool: ...

    def ended(self, session: Guest) -> None: ...

    def complain(self, kind: str, peer: str) -> None: ...
