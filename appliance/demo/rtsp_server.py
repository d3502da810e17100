"""A small RTSP server that plays files as endless cameras, for the demo and for tests; on request it misbehaves.

    python -m appliance.demo.rtsp_server --port 8554 yard=fixtures/clips/yard.mp4 gate=fixtures/clips/gate.mp4

H.264 and HEVC, RTP inside the RTSP connection (RFC 2326, 10.12), Basic and Digest authentication.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from appliance.clock import Clock, SystemClock
from appliance.demo.auth import Authenticator, Scheme
from appliance.demo.clip import LoopingClip
from appliance.demo.mounts import Mount
from appliance.demo.rtp import interleaved
from appliance.demo.rtsp_house import Guest, Limits, SessionInfo
from appliance.demo.rtsp_session import Session
from appliance.demo.rtsp_thread import RunningServer
from appliance.errors import MissingPart, UsageError, VedetteError, redact
from appliance.telemetry import configure_logging

CLIENTS_MAX = 64
ENDED_KEPT_MAX = 256
TICK_S = 0.5
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64})*")

logger = logging.getLogger(__name__)


class RtspServer:
    """Serves files as cameras.

    State: mounts, clients, the listening socket. Owner: one event loop, in which everything here must be called (from
    other threads: `in_thread`). Invariant: at most `CLIENTS_MAX` clients; each kind of complaint about clients is
    logged once. Faults are for tests: with a mount's name for that mount, without for all.
    """

    def __init__(
        self,
        mounts: Mapping[str, Path | str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str = "",
        password: str = "",
        schemes: Iterable[Scheme] = ("digest", "basic"),
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Opens the clips. Raises SourceRefused for one that cannot be served, UsageError for a bad mount name."""
        self.clock = clock or SystemClock()
        self.limits = limits or Limits()
        self.authenticator = Authenticator(user, password, schemes) if user else None
        self.mounts = {
            _checked(name): Mount(name, LoopingClip(Path(path)), self.clock) for name, path in mounts.items()
        }
        self.host = host
        self.port = port
        self._credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._sessions: set[Guest] = set()
        self._ended: deque[SessionInfo] = deque(maxlen=ENDED_KEPT_MAX)
        self._complaints: Counter[str] = Counter()
        self._random = random.Random(0)

    @staticmethod
    def in_thread(
        mounts: Mapping[str, Path | str],
        *,
        port: int = 0,
        user: str = "",
        password: str = "",
        schemes: Iterable[Scheme] = ("digest", "basic"),
        limits: Limits | None = None,
    ) -> RunningServer:
        """A context manager that runs a server in a thread of its own: `with RtspServer.in_thread(...) as server:`."""
        return RunningServer(
            lambda: RtspServer(mounts, port=port, user=user, password=password, schemes=schemes, limits=limits)
        )

    async def start(self) -> None:
        """Listen; `port` becomes the real one. Raises MissingPart when the port is taken."""
        await self.listen()
        self._ticker = asyncio.get_running_loop().create_task(self._tick_for_ever(), name="rtsp-ticker")

    async def stop(self) -> None:
        """Close the socket and all clients, stop all mounts."""
        self.refuse()
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(mount.close() for mount in self.mounts.values()))

    def url(self, name: str, *, credentials: bool = True) -> str:
        """Where `name` is to be seen."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rtsp://{self._credentials if credentials else ''}{host}:{self.port}/{name}"

    def sessions(self) -> tuple[SessionInfo, ...]:
        """What each client did: those that are gone (the last `ENDED_KEPT_MAX`), then those that are there."""
        return (*self._ended, *(session.info() for session in self._sessions))

    @property
    def complaints(self) -> Mapping[str, int]:
        """How often clients misbehaved, by kind."""
        return dict(self._complaints)

    # -- faults

    def cut(self, mount: str | None = None, *, reset: bool = False) -> None:
        """Close the connections of those who watch; they may come back at once."""
        for session in self._of(mount):
            session.cut("cut on request", reset=reset)

    def stall(self, mount: str | None = None) -> None:
        """Keep connections open and send no media; requests are answered."""
        for each in self._mounts(mount):
            each.faults.stalled = True

    def hang(self, mount: str | None = None) -> None:
        """As `stall`, and answer no request either, of those who watch and of those who come."""
        for each in self._mounts(mount):
            each.faults.stalled = each.faults.hung = True

    def drip(self, mount: str | None = None, *, bytes_per_s: float = 2000.0) -> None:
        """Send everything, but this slowly; pictures that come too late for it are never sent."""
        for each in self._mounts(mount):
            each.faults.drip_bytes_per_s = max(1.0, bytes_per_s)

    def garbage(self, mount: str | None = None, *, size: int = 4096, framed: bool = False) -> None:
        """Send `size` random bytes to those who watch; `framed`: as the payload of a well-formed frame."""
        noise = self._random.randbytes(size)
        for session in self._of(mount):
            session.send_raw(interleaved(0, noise[:0xFFFF]) if framed else noise)

    def refuse(self) -> None:
        """Stop listening and reset all connections, until `listen`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for session in tuple(self._sessions):
            session.cut("refused on request", reset=True)

    async def listen(self) -> None:
        """Listen on the port as at first. Raises MissingPart when it was taken meanwhile."""
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: Session(self), self.host, self.port, backlog=CLIENTS_MAX)
        except OSError as error:
            raise MissingPart(
                f"cannot listen on {self.host}:{self.port} ({os.strerror(error.errno or 0)}); choose another --port"
            ) from None
        self.port = self._listener.sockets[0].getsockname()[1]

    async def resume(self, mount: str | None = None) -> None:
        """End stall, hang, drip and refuse."""
        await self.listen()
        for each in self._mounts(mount):
            each.resume()

    async def change(self, mount: str, path: Path | str) -> None:
        """Let `mount` go on with another file, in the middle of the stream. Raises SourceRefused."""
        clip = await asyncio.to_thread(LoopingClip, Path(path))
        self.mounts[mount].change(clip)

    def jump_back(self, mount: str, seconds: float) -> None:
        """Set the timestamps of `mount` back."""
        self.mounts[mount].jump_back(seconds)

    # -- rtsp_session.House

    def admit(self, session: Guest) -> bool:
        if len(self._sessions) >= CLIENTS_MAX or self._listener is None:
            self.complain("more clients than may watch", "")
            return False
        self._sessions.add(session)
        return True

    def ended(self, session: Guest) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            self._ended.append(session.info())

    def complain(self, kind: str, peer: str) -> None:
        self._complaints[kind] += 1
        if self._complaints[kind] == 1:
            logger.warning("%s%s (said once)", kind, f" from {peer}" if peer else "")

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for session in tuple(self._sessions):
                session.tick()

    def _mounts(self, name: str | None) -> Iterable[Mount]:
        return self.mounts.values() if name is None else (self.mounts[name],)

    def _of(self, name: str | None) -> list[Guest]:
        return [
            session
            for session in self._sessions
            if session.mount is not None and (name is None or session.mount.name == name)
        ]


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is not a name for a camera: letters, digits, `.`, `_`, `-`, and `/` between")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; runs until Ctrl-C or SIGTERM. Returns 2 for wrong use."""
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
    password = os.environ.get(options.password_env, "") if options.password_env else ""
    if options.user and not password:
        raise UsageError("--user needs --password-env VAR, the name of a variable that holds the password")
    server = RtspServer(mounts, host=options.host, port=options.port, user=options.user, password=password)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await server.start()
    for name in mounts:
        print(redact(server.url(name)), flush=True)
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
    parser.add_argument("--user", default="", help="ask for this user name")
    parser.add_argument("--password-env", metavar="VAR", help="the variable that holds the password")
    return parser


if __name__ == "__main__":
    sys.exit(main())
