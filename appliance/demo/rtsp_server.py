"""RTSP server that plays files as endless cameras."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, UsageError, VedetteError
from appliance.base.telemetry import configure_logging
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtsp_mount import Mount, SentUnit
from appliance.demo.rtsp_protocol import (
    SOUND_TRACK,
    TRACK,
    BadRtspRequest,
    RtspRequest,
    RtspRequestReader,
    choose_channels,
    interleaved,
    rtsp_response,
)

logger = logging.getLogger(__name__)

CLIENTS_MAX = 64  # each gets every packet; a test has a handful of cameras
TICK_S = 0.5  # RTCP reports are due each few seconds
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64})*")
RtspState = Literal["init", "ready", "playing", "closed"]


@dataclass(frozen=True, slots=True)
class RtspLimits:
    """The limits of one client's cost."""

    session_timeout_s: float = 60.0  # silence before its connection is closed
    buffer_bytes_max: int = 12 * 1024 * 1024  # bytes it may leave unread


METHODS = "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER, SET_PARAMETER"
REPORT_S = 5.0  # between RTCP sender reports; RFC 3550, 6.2: at least 5 s


@dataclass(slots=True)
class _Track:
    """The video or the sound of a session: its RTP and RTCP channels, and what was sent on them."""

    channels: tuple[int, int]
    packets: int = 0
    octets: int = 0


class RtspSession(asyncio.Protocol):
    """A connection and the RTSP session inside it (one at most, as cameras do).

    State: as in RFC 2326, A.2: init, ready, playing. Owner: the server's event loop. Invariant: it holds at most
    `limits.buffer_bytes_max` for a client that does not read; one that falls further behind is cut.
    """

    def __init__(self, server: RtspServer) -> None:
        self._server = server
        self._reader = RtspRequestReader()
        self._transport: asyncio.Transport | None = None
        self._id = ""
        self.mount: Mount | None = None  # that this client set up
        self._tracks: dict[bool, _Track] = {}  # by whether it is the sound
        self._state: RtspState = "init"
        self._received_at = server.clock.monotonic()
        self._report_at = 0.0
        self._peer = ""

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
                self.answer(request)
        except BadRtspRequest as error:
            self._server.warn_once(str(error), self._peer)
            self.reply(error.status, "")
            self.cut(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._state = "closed"
        self._transport = None
        self._server.ended(self)

    # -- for the server

    def tick(self) -> None:
        """Send the RTCP report that is due, and close a client that fell silent. Call it every TICK_S of the server."""
        now = self._server.clock.monotonic()
        if now - self._received_at > self._server.limits.session_timeout_s:
            self.cut("no sign of life")
        elif self._state == "playing" and now >= self._report_at:
            self._report_at = now + REPORT_S
            for sound in self._tracks:
                self._send_report(sound)

    def cut(self, why: str, *, reset: bool = False) -> None:
        """Close the connection; `reset` throws away what is not sent yet."""
        self._leave()
        if self._transport is None:
            return
        logger.debug("%s is cut off: %s", self._peer, why)
        if reset:
            self._transport.abort()
        else:
            self._transport.close()

    # -- rtsp_mount.MountViewer

    def send_unit(self, unit: SentUnit) -> None:
        track = self._tracks.get(unit.sound)
        if track is None:
            return
        if not track.packets:
            self._send_report(unit.sound)
        self.send_raw(unit.framed(track.channels[0]))
        self.count(unit)

    def send_raw(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > self._server.limits.buffer_bytes_max:
            self._server.warn_once("a client that reads too slowly", self._peer)
            self.cut("read too slowly", reset=True)

    def count(self, unit: SentUnit) -> None:
        """Count what the next sender report tells of."""
        track = self._tracks.get(unit.sound)
        if track is None:  # torn down meanwhile
            return
        track.packets += len(unit.packets)
        track.octets += unit.size - 12 * len(unit.packets)

    # -- requests

    def answer(self, request: RtspRequest) -> None:
        """Do what a request asks for, and reply."""
        mount = self.mount_of(request.target)
        actions = {
            "DESCRIBE": self._describe,
            "SETUP": self._setup,
            "PLAY": self._play,
            "PAUSE": self._pause,
            "TEARDOWN": self._teardown,
        }
        if self._transport is None or self._transport.is_closing():
            return
        if "require" in request.headers:
            self.reply(551, request.cseq, [("Unsupported", request.headers["require"][:200])])
        elif request.method == "OPTIONS":
            self.reply(200, request.cseq, [("Public", METHODS)])
        elif request.method in {"GET_PARAMETER", "SET_PARAMETER"}:
            self.reply(200, request.cseq, self._session_headers() if self._id else [])
        elif request.method not in actions:
            self.reply(405, request.cseq, [("Allow", METHODS)])
        elif mount is None:
            self.reply(404, request.cseq)
        else:
            actions[request.method](request, mount)

    def _describe(self, request: RtspRequest, mount: Mount) -> None:
        base = request.target.rstrip("/") + "/"
        headers = [("Content-Base", base), ("Content-Type", "application/sdp"), ("Cache-Control", "no-cache")]
        self.reply(200, request.cseq, headers, mount.description.to_sdp(self._own_host()))

    def _setup(self, request: RtspRequest, mount: Mount) -> None:
        if self._state == "playing" or (self._id and not self._is_session(request)):
            self.reply(455 if self._state == "playing" else 454, request.cseq)
            return
        channels = choose_channels(request.headers.get("transport", ""))
        if channels is None:
            self.reply(461, request.cseq)
            return
        sound = request.target.rstrip("/").endswith(SOUND_TRACK)
        self._tracks[sound] = _Track(channels)
        self.mount, self._state = mount, "ready"
        self._id = self._id or secrets.token_hex(8)
        given = (
            f"RTP/AVP/TCP;unicast;interleaved={channels[0]}-{channels[1]};ssrc={mount.ssrc(sound=sound):08X};mode=PLAY"
        )
        self.reply(200, request.cseq, [("Transport", given), *self._session_headers()])

    def _play(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        headers = [("Range", "npt=now-"), *self._session_headers()]
        if self._state == "playing":
            self.reply(200, request.cseq, headers)
            return
        sequence, timestamp = mount.position
        url = f"{self._base(request.target)}/{TRACK}"
        headers.append(("RTP-Info", f"url={url};seq={sequence};rtptime={timestamp & 0xFFFFFFFF}"))
        self.reply(200, request.cseq, headers)
        self._state, self._report_at = "playing", self._server.clock.monotonic() + REPORT_S
        mount.join(self)

    def _pause(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        self._leave()
        self.reply(200, request.cseq, self._session_headers())

    def _teardown(self, request: RtspRequest, mount: Mount) -> None:
        if not self._in_session(request, mount):
            return
        self.reply(200, request.cseq, [("Session", self._id)])
        self._leave()
        self._tracks.clear()
        self._state, self._id = "init", ""

    # -- pieces

    def _in_session(self, request: RtspRequest, mount: Mount) -> bool:
        """Return whether the request belongs to the session that was set up; answer it if not."""
        if self._state == "init":
            self.reply(455, request.cseq)
        elif not self._is_session(request) or mount is not self.mount:
            self.reply(454, request.cseq)
        else:
            return True
        return False

    def _is_session(self, request: RtspRequest) -> bool:
        return request.headers.get("session", "").partition(";")[0].strip() == self._id

    def _session_headers(self) -> list[tuple[str, str]]:
        return [("Session", f"{self._id};timeout={self._server.limits.session_timeout_s:.0f}")]

    def mount_of(self, target: str) -> Mount | None:
        """Return the mount that a request's URL names, if there is one."""
        try:
            path = unquote(urlsplit(self._base(target)).path) if target != "*" else ""
        except ValueError:  # of rtsp://[
            return None
        return self._server.mounts.get(path.strip("/")) or (self.mount if target == "*" else None)

    @staticmethod
    def _base(target: str) -> str:
        return target.rstrip("/").removesuffix(TRACK).removesuffix(SOUND_TRACK).rstrip("/")

    def _own_host(self) -> str:
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else "127.0.0.1"

    def _leave(self) -> None:
        if self.mount is not None and self._state == "playing":
            self.mount.leave(self)
            self._state = "ready"

    def _send_report(self, sound: bool) -> None:
        track = self._tracks[sound]
        report = self.mount.report(track.packets, track.octets, sound=sound) if self.mount else None
        if report is not None:
            self.send_raw(interleaved(track.channels[1], report))

    def reply(self, status: int, cseq: str, headers: Iterable[tuple[str, str]] = (), body: str = "") -> None:
        """Send one answer."""
        self.send_raw(rtsp_response(status, cseq, headers, body))


class RtspServer:
    """Serves files as cameras. H.264 and HEVC, RTP inside the RTSP connection (RFC 2326, 10.12).

    State: mounts, clients, the listening socket. Owner: one event loop, in which everything here must be called.
    Invariant: at most `CLIENTS_MAX` clients; each kind of misbehaviour of clients is logged once.
    """

    def __init__(
        self,
        mounts: Mapping[str, Path | str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RtspLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the clips. Raise SourceRefused for one that cannot be served, UsageError for a bad mount name."""
        self.clock = clock or SystemClock()
        self.limits = limits or RtspLimits()
        self.mounts = {_checked(name): self.make_mount(name, Path(path)) for name, path in mounts.items()}
        self.host = host
        self.port = port
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._clients: set[RtspSession] = set()
        self._warned: set[str] = set()

    async def start(self) -> None:
        """Listen; `port` becomes the real one. Raises MissingDependency when the port is taken."""
        await self.listen()
        self._ticker = asyncio.get_running_loop().create_task(self._tick_for_ever(), name="rtsp-ticker")

    async def stop(self) -> None:
        """Close the socket and all clients, stop all mounts."""
        self.refuse()
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(mount.close() for mount in self.mounts.values()))

    def url(self, name: str) -> str:
        """Return the rtsp:// address of mount `name`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rtsp://{host}:{self.port}/{name}"

    def make_mount(self, name: str, path: Path) -> Mount:
        """Return the mount that plays a clip. Raise SourceRefused."""
        return Mount(name, LoopingClip(path), self.clock)

    def make_session(self) -> RtspSession:
        """Return the session of a new connection."""
        return RtspSession(self)

    def refuse(self) -> None:
        """Stop listening and reset all connections, until `listen`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for session in tuple(self._clients):
            session.cut("refused on request", reset=True)

    async def listen(self) -> None:
        """Listen on the port as at first. Raises MissingDependency when it was taken meanwhile."""
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self.make_session, self.host, self.port, backlog=CLIENTS_MAX)
        except OSError as error:
            raise MissingDependency(
                f"cannot listen on {self.host}:{self.port} ({os.strerror(error.errno or 0)}); choose another --port"
            ) from None
        self.port = self._listener.sockets[0].getsockname()[1]

    # -- for RtspSession

    def admit(self, session: RtspSession) -> bool:
        if len(self._clients) >= CLIENTS_MAX or self._listener is None:
            self.warn_once("more clients than may watch", "")
            return False
        self._clients.add(session)
        return True

    def ended(self, session: RtspSession) -> None:
        self._clients.discard(session)

    def warn_once(self, kind: str, peer: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s%s (logged once)", kind, f" from {peer}" if peer else "")

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for session in tuple(self._clients):
                session.tick()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is not a name for a camera: letters, digits, `.`, `_`, `-`, and `/` between")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line until Ctrl-C or SIGTERM. Return 2 for wrong use."""
    options = _parser().parse_args(arguments)
    configure_logging()
    try:
        asyncio.run(_serve(options))
    except VedetteError as error:
        print(f"rtsp_server: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(options: argparse.Namespace) -> None:
    mounts = dict(_mount_argument(text) for text in options.mounts)
    server = RtspServer(mounts, host=options.host, port=options.port)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await server.start()
    for name in mounts:
        print(server.url(name), flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await stopped.wait()
    await server.stop()


def _mount_argument(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise UsageError(f"`{text}` is not NAME=FILE, for example yard=fixtures/clips/yard.mp4")
    return name, Path(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m appliance.demo.rtsp_server",
        description="Play video files as endless RTSP cameras.",
        epilog="Example: python -m appliance.demo.rtsp_server --port 8554 yard=yard.mp4 gate=gate.mp4",
    )
    parser.add_argument("mounts", nargs="+", metavar="NAME=FILE", help="a camera and the H.264 or HEVC file it plays")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8554, help="port (default 8554; 0: any free one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
