"""RTSP server that plays files as endless cameras: the cameras of `vedette demo`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, UsageError, VedetteError
from appliance.base.telemetry import configure_logging
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtsp_message import AuthScheme, RtspAuthenticator
from appliance.demo.rtsp_mount import Mount
from appliance.demo.rtsp_session import RtspLimits, RtspSession, SessionInfo

logger = logging.getLogger(__name__)

CLIENTS_MAX = 64  # each gets every packet; a demo has a handful of cameras
ENDED_KEPT_MAX = 256  # reports of sessions that ended
TICK_S = 0.5  # RTCP reports are due each few seconds
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64})*")


class RtspServer:
    """Serves files as cameras. H.264 and HEVC, RTP inside the RTSP connection (RFC 2326, 10.12), Basic and Digest.

    State: mounts, clients, the listening socket. Owner: one event loop, in which everything here must be called.
    Invariant: at most `CLIENTS_MAX` clients; each kind of misbehaviour of clients is logged once.
    """

    def __init__(
        self,
        mounts: Mapping[str, Path | str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str = "",
        password: str = "",
        schemes: Iterable[AuthScheme] = ("digest", "basic"),
        limits: RtspLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the clips. Raise SourceRefused for one that cannot be served, UsageError for a bad mount name."""
        self.clock = clock or SystemClock()
        self.limits = limits or RtspLimits()
        self.authenticator = RtspAuthenticator(user, password, schemes) if user else None
        self.mounts = {
            _checked(name): Mount(name, LoopingClip(Path(path)), self.clock) for name, path in mounts.items()
        }
        self.host = host
        self.port = port
        self._credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._clients: set[RtspSession] = set()
        self._ended: deque[SessionInfo] = deque(maxlen=ENDED_KEPT_MAX)
        self._warnings: Counter[str] = Counter()

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

    def url(self, name: str, *, credentials: bool = True) -> str:
        """Return the rtsp:// address of mount `name`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rtsp://{self._credentials if credentials else ''}{host}:{self.port}/{name}"

    def sessions(self) -> tuple[SessionInfo, ...]:
        """Return the report of each client: the last `ENDED_KEPT_MAX` that ended, then those that are connected."""
        return (*self._ended, *(session.info() for session in self._clients))

    @property
    def warnings(self) -> Mapping[str, int]:
        """How often clients misbehaved, by kind."""
        return dict(self._warnings)

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
            self._listener = await loop.create_server(
                lambda: RtspSession(self), self.host, self.port, backlog=CLIENTS_MAX
            )
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
        if session in self._clients:
            self._clients.discard(session)
            self._ended.append(session.info())

    def warn_once(self, kind: str, peer: str) -> None:
        self._warnings[kind] += 1
        if self._warnings[kind] == 1:
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
        print(server.url(name).replace(f":{quote(password, safe='')}@", ":***@"), flush=True)
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
