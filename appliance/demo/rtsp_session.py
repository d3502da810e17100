"""One client of the RTSP server: its requests, the RTSP state machine, and the packets it is sent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from appliance.demo.rtp_sdp import SOUND_TRACK, TRACK, interleaved
from appliance.demo.rtsp_message import (
    BadRtspRequest,
    RtspRequest,
    RtspRequestReader,
    choose_channels,
    rtsp_response,
)
from appliance.demo.rtsp_mount import Mount, SentUnit

if TYPE_CHECKING:
    from appliance.demo.rtsp_server import RtspServer

RtspState = Literal["init", "ready", "playing", "closed"]


@dataclass(frozen=True, slots=True)
class RtspLimits:
    """The limits of one client's cost."""

    session_timeout_s: float = 60.0  # silence before its connection is closed
    buffer_bytes_max: int = 12 * 1024 * 1024  # bytes it may leave unread


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The report of a session."""

    mount: str
    peer: str
    agent: str
    state: RtspState
    bytes_sent: int  # all that the kernel took for this client (after a reset: at most that)
    packets_sent: int
    ended: str  # why; "" while it lasts


METHODS = "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER, SET_PARAMETER"
REPORT_S = 5.0  # between RTCP sender reports; RFC 3550, 6.2: at least 5 s
REFUSALS_MAX = 8  # wrong passwords on one connection before it is closed


class RtspSession(asyncio.Protocol):
    """A connection and the RTSP session inside it (one at most, as cameras do).

    State: as in RFC 2326, A.2: init, ready, playing. Owner: the server's event loop. Invariant: it holds at most
    `limits.buffer_bytes_max` for a client that does not read; one that falls further behind is cut.
    """

    def __init__(self, server: RtspServer) -> None:
        self._server = server
        self._reader = RtspRequestReader()
        self._transport: asyncio.Transport | None = None
        self._nonce = secrets.token_hex(16)
        self._id = ""
        self._mount: Mount | None = None
        self._channels = (0, 1)
        self._sound_channels: tuple[int, int] | None = None
        self._sound_counts = 0, 0
        self._state: RtspState = "init"
        self._written = 0
        self._packets = 0
        self._octets = 0
        self._refusals = 0
        self._received_at = server.clock.monotonic()
        self._report_at = 0.0
        self._peer = ""
        self._agent = ""
        self._end_reason = ""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._server.limits.buffer_bytes_max)
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if name else "?"
        if not self._server.admit(self):
            self.cut("too many clients", reset=True)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._server.clock.monotonic()
        try:
            for request in self._reader.feed(data):
                self._answer(request)
        except BadRtspRequest as error:
            self._server.warn_once(str(error), self._peer)
            self._reply(error.status, "")
            self.cut(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._state = "closed"
        self._transport = None
        self._end_reason = self._end_reason or (f"{exc}" if exc else "the client closed")
        self._server.ended(self)

    # -- for the server

    @property
    def mount(self) -> Mount | None:
        """The mount that this client set up, if any."""
        return self._mount

    def info(self) -> SessionInfo:
        """Return the report of this session so far."""
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        name = self._mount.name if self._mount else ""
        sent = self._written - unsent
        return SessionInfo(name, self._peer, self._agent, self._state, sent, self._packets, self._end_reason)

    def tick(self) -> None:
        """Send the RTCP report that is due, and close a client that fell silent. Call it every TICK_S of the server."""
        now = self._server.clock.monotonic()
        if now - self._received_at > self._server.limits.session_timeout_s:
            self.cut("no sign of life")
        elif self._state == "playing" and now >= self._report_at:
            self._send_report(now)

    def cut(self, why: str, *, reset: bool = False) -> None:
        """Close the connection; `reset` throws away what is not sent yet."""
        self._end_reason = self._end_reason or why
        self._leave()
        if self._transport is None:
            return
        if reset:
            self._written -= self._transport.get_write_buffer_size()
            self._transport.abort()
        else:
            self._transport.close()

    # -- rtsp_mount.MountViewer

    def send_unit(self, unit: SentUnit) -> None:
        if unit.sound:
            if self._sound_channels is not None:
                packets, octets = self._sound_counts
                self._sound_counts = packets + len(unit.packets), octets + unit.size - 12 * len(unit.packets)
                if not packets:
                    self._report_at = 0.0
                self.send_raw(unit.framed(self._sound_channels[0]))
            return
        if not self._packets:
            self._send_report(self._server.clock.monotonic())
        self.send_raw(self.framed(unit))
        self.count(unit)

    def send_raw(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        self._written += len(data)
        if transport.get_write_buffer_size() > self._server.limits.buffer_bytes_max:
            self._server.warn_once("a client that reads too slowly", self._peer)
            self.cut("read too slowly", reset=True)

    def framed(self, unit: SentUnit) -> bytes:
        return unit.framed(self._channels[0])

    def count(self, unit: SentUnit) -> None:
        self._packets += len(unit.packets)
        self._octets += unit.size - 12 * len(unit.packets)

    # -- requests

    def _answer(self, request: RtspRequest) -> None:
        self._agent = request.headers.get("user-agent", self._agent)[:80]
        mount = self._mount_of(request.target)
        if self._transport is None or self._transport.is_closing() or (mount is not None and mount.faults.hung):
            return
        if "require" in request.headers:
            self._reply(551, request.cseq, [("Unsupported", request.headers["require"][:200])])
        elif request.method == "OPTIONS":
            self._reply(200, request.cseq, [("Public", METHODS)])
        elif not self._authorized(request):
            self._challenge(request)
        else:
            self._perform(request, mount)

    def _perform(self, request: RtspRequest, mount: Mount | None) -> None:
        actions = {
            "DESCRIBE": self._describe,
            "SETUP": self._setup,
            "PLAY": self._play,
            "PAUSE": self._pause,
            "TEARDOWN": self._teardown,
        }
        if request.method in {"GET_PARAMETER", "SET_PARAMETER"}:
            self._reply(200, request.cseq, self._session_headers() if self._id else [])
        elif request.method not in actions:
            self._reply(405, request.cseq, [("Allow", METHODS)])
        elif mount is None:
            self._reply(404, request.cseq)
        else:
            actions[request.method](request, mount)

    def _describe(self, request: RtspRequest, mount: Mount) -> None:
        base = request.target.rstrip("/") + "/"
        headers = [("Content-Base", base), ("Content-Type", "application/sdp"), ("Cache-Control", "no-cache")]
        self._reply(200, request.cseq, headers, mount.description.to_sdp(self._own_host()))

    def _setup(self, request: RtspRequest, mount: Mount) -> None:
        if self._state == "playing" or (self._id and not self._is_session(request)):
            self._reply(455 if self._state == "playing" else 454, request.cseq)
            return
        channels = choose_channels(request.headers.get("transport", ""))
        if channels is None:
            self._reply(461, request.cseq)
            return
        ssrc = mount.ssrc
        if request.target.rstrip("/").endswith(SOUND_TRACK):
            self._sound_channels, ssrc = channels, mount.sound_ssrc
        else:
            self._channels = channels
        self._mount, self._state = mount, "ready"
        self._id = self._id or secrets.token_hex(8)
        given = f"RTP/AVP/TCP;unicast;interleaved={channels[0]}-{channels[1]};ssrc={ssrc:08X};mode=PLAY"
        self._reply(200, request.cseq, [("Transport", given), *self._session_headers()])

    def _play(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        headers = [("Range", "npt=now-"), *self._session_headers()]
        if self._state == "playing":
            self._reply(200, request.cseq, headers)
            return
        sequence, timestamp = mount.position
        url = f"{self._base(request.target)}/{TRACK}"
        headers.append(("RTP-Info", f"url={url};seq={sequence};rtptime={timestamp & 0xFFFFFFFF}"))
        self._reply(200, request.cseq, headers)
        self._state = "playing"
        mount.join(self)

    def _pause(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        self._leave()
        self._reply(200, request.cseq, self._session_headers())

    def _teardown(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        self._reply(200, request.cseq, [("Session", self._id)])
        self._leave()
        self._state, self._id = "init", ""

    # -- pieces

    def _authorized(self, request: RtspRequest) -> bool:
        authenticator = self._server.authenticator
        header = request.headers.get("authorization", "")
        return authenticator is None or authenticator.accepts(header, request.method, request.target, self._nonce)

    def _challenge(self, request: RtspRequest) -> None:
        assert self._server.authenticator is not None
        offers = self._server.authenticator.challenges(self._nonce)
        self._reply(401, request.cseq, [("WWW-Authenticate", offer) for offer in offers])
        self._refusals += 1
        if self._refusals >= REFUSALS_MAX:
            self._server.warn_once("a client that keeps guessing the password", self._peer)
            self.cut("not authorized")

    def _in_session(self, request: RtspRequest, mount: Mount) -> bool:
        """Return whether the request belongs to the session that was set up; answer it if not."""
        if self._state == "init":
            self._reply(455, request.cseq)
        elif not self._is_session(request) or mount is not self._mount:
            self._reply(454, request.cseq)
        else:
            return True
        return False

    def _is_session(self, request: RtspRequest) -> bool:
        return request.headers.get("session", "").partition(";")[0].strip() == self._id

    def _session_headers(self) -> list[tuple[str, str]]:
        return [("Session", f"{self._id};timeout={self._server.limits.session_timeout_s:.0f}")]

    def _mount_of(self, target: str) -> Mount | None:
        path = unquote(urlsplit(self._base(target)).path) if target != "*" else ""
        return self._server.mounts.get(path.strip("/")) or (self._mount if target == "*" else None)

    @staticmethod
    def _base(target: str) -> str:
        return target.rstrip("/").removesuffix(TRACK).removesuffix(SOUND_TRACK).rstrip("/")

    def _own_host(self) -> str:
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else "127.0.0.1"

    def _leave(self) -> None:
        if self._mount is not None and self._state == "playing":
            self._mount.leave(self)
            self._state = "ready"

    def _send_report(self, now: float) -> None:
        report = self._mount.rtcp_report(self._packets, self._octets) if self._mount else None
        if report is not None:
            self._report_at = now + REPORT_S
            self.send_raw(interleaved(self._channels[1], report))
        heard = self._mount.sound_report(*self._sound_counts) if self._mount and self._sound_channels else None
        if heard is not None and self._sound_channels is not None:
            self.send_raw(interleaved(self._sound_channels[1], heard))

    def _reply(self, status: int, cseq: str, headers: Iterable[tuple[str, str]] = (), body: str = "") -> None:
        self.send_raw(rtsp_response(status, cseq, headers, body))
