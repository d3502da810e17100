"""RTSP server that plays files as endless cameras, for the demo and for tests, with faults on request (cut, stall,
hang, drip, garbage).
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import logging
import os
import random
import re
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, UsageError, VedetteError
from appliance.base.telemetry import configure_logging
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtp_sdp import interleaved
from appliance.demo.rtsp_message import AuthScheme, RtspAuthenticator
from appliance.demo.rtsp_mount import Mount
from appliance.demo.rtsp_session import RtspLimits, RtspSession, SessionInfo

logger = logging.getLogger(__name__)

CALL_S_MAX = 15.0  # for what the event loop does on behalf of another thread
CallResult = TypeVar("CallResult")


class RtspServerThread:
    """A server that runs while the `with` block does.

    State: the server and its event loop. Owner: the thread `rtsp-server`. Every method may be called from any thread
    and returns when the server has done it.
    """

    def __init__(self, make: Callable[[], RtspServer]) -> None:
        self._make = make
        self._ready: concurrent.futures.Future[RtspServer] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="rtsp-server", daemon=True)

    def __enter__(self) -> RtspServerThread:
        self._thread.start()
        self._ready.result(CALL_S_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CALL_S_MAX)

    @property
    def port(self) -> int:
        return self._server.port

    def url(self, name: str, *, credentials: bool = True) -> str:
        """The rtsp:// address of mount `name`."""
        return self._server.url(name, credentials=credentials)

    def sessions(self) -> tuple[SessionInfo, ...]:
        """See `RtspServer.sessions`, as for all below."""
        return self._call(self._server.sessions)

    @property
    def warnings(self) -> Mapping[str, int]:
        return self._call(lambda: self._server.warnings)

    def cut(self, mount: str | None = None, *, reset: bool = False) -> None:
        self._call(lambda: self._server.cut(mount, reset=reset))

    def stall(self, mount: str | None = None) -> None:
        self._call(lambda: self._server.stall(mount))

    def hang(self, mount: str | None = None) -> None:
        self._call(lambda: self._server.hang(mount))

    def drip(self, mount: str | None = None, *, bytes_per_s: float = 2000.0) -> None:
        self._call(lambda: self._server.drip(mount, bytes_per_s=bytes_per_s))

    def garbage(self, mount: str | None = None, *, size: int = 4096, framed: bool = False) -> None:
        self._call(lambda: self._server.garbage(mount, size=size, framed=framed))

    def refuse(self) -> None:
        self._call(self._server.refuse)

    def listen(self) -> None:
        self._await(self._server.listen)

    def resume(self, mount: str | None = None) -> None:
        self._await(lambda: self._server.resume(mount))

    def change(self, mount: str, path: Path | str) -> None:
        self._await(lambda: self._server.change(mount, path))

    def started_at(self, mount: str) -> float:
        """UTC seconds at which the first frame of its clip was taken."""
        return self._call(lambda: self._server.mounts[mount].started_at)

    def jump_back(self, mount: str, seconds: float) -> None:
        self._call(lambda: self._server.jump_back(mount, seconds))

    def set_clock_off(self, mount: str, seconds: float) -> None:
        self._call(lambda: self._server.set_clock_off(mount, seconds))

    @property
    def _server(self) -> RtspServer:
        return self._ready.result(0)

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            server = self._make()
            await server.start()
        except VedetteError as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(server)
        await self._stop.wait()
        await server.stop()

    def _call(self, action: Callable[[], CallResult]) -> CallResult:
        async def once() -> CallResult:
            return action()

        return self._await(once)

    def _await(self, action: Callable[[], Coroutine[Any, Any, CallResult]]) -> CallResult:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(action(), self._loop).result(CALL_S_MAX)


CLIENTS_MAX = 64
ENDED_KEPT_MAX = 256
TICK_S = 0.5
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64})*")


class RtspServer:
    """Serves files as cameras. H.264 and HEVC, RTP inside the RTSP connection (RFC 2326, 10.12), Basic and Digest.

    State: mounts, clients, the listening socket. Owner: one event loop, in which everything here must be called (from
    other threads: `in_thread`). Invariant: at most `CLIENTS_MAX` clients; each kind of misbehaviour of clients
    is logged once. The faults are for tests: with a mount's name for that mount, without for all.
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
        """Opens the clips. Raises SourceRefused for one that cannot be served, UsageError for a bad mount name."""
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
        self._sessions: set[RtspSession] = set()
        self._ended: deque[SessionInfo] = deque(maxlen=ENDED_KEPT_MAX)
        self._warnings: Counter[str] = Counter()
        self._random = random.Random(0)

    @staticmethod
    def in_thread(
        mounts: Mapping[str, Path | str],
        *,
        port: int = 0,
        user: str = "",
        password: str = "",
        schemes: Iterable[AuthScheme] = ("digest", "basic"),
        limits: RtspLimits | None = None,
    ) -> RtspServerThread:
        """A context manager that runs a server in a thread of its own: `with RtspServer.in_thread(...) as server:`."""
        return RtspServerThread(
            lambda: RtspServer(mounts, port=port, user=user, password=password, schemes=schemes, limits=limits)
        )

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
        """The rtsp:// address of mount `name`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rtsp://{self._credentials if credentials else ''}{host}:{self.port}/{name}"

    def sessions(self) -> tuple[SessionInfo, ...]:
        """What each client did: the last `ENDED_KEPT_MAX` that ended, then those that are connected."""
        return (*self._ended, *(session.info() for session in self._sessions))

    @property
    def warnings(self) -> Mapping[str, int]:
        """How often clients misbehaved, by kind."""
        return dict(self._warnings)

    # -- faults

    def cut(self, mount: str | None = None, *, reset: bool = False) -> None:
        """Close the viewers' connections; they may reconnect at once."""
        for session in self._of(mount):
            session.cut("cut on request", reset=reset)

    def stall(self, mount: str | None = None) -> None:
        """Keep connections open and send no media; requests are answered."""
        for each in self._mounts(mount):
            each.faults.stalled = True

    def hang(self, mount: str | None = None) -> None:
        """As `stall`, and answer no request either, of present and of new viewers."""
        for each in self._mounts(mount):
            each.faults.stalled = each.faults.hung = True

    def drip(self, mount: str | None = None, *, bytes_per_s: float = 2000.0) -> None:
        """Send everything, but this slowly; frames that come too late for it are never sent."""
        for each in self._mounts(mount):
            each.faults.drip_bytes_per_s = max(1.0, bytes_per_s)

    def garbage(self, mount: str | None = None, *, size: int = 4096, framed: bool = False) -> None:
        """Send `size` random bytes to the viewers; `framed`: as the payload of a well-formed interleaved frame."""
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

    def set_clock_off(self, mount: str, seconds: float) -> None:
        """Have the clock of `mount` be so much ahead, constantly."""
        self.mounts[mount].set_clock_off(seconds)

    # -- for RtspSession

    def admit(self, session: RtspSession) -> bool:
        if len(self._sessions) >= CLIENTS_MAX or self._listener is None:
            self.warn_once("more clients than may watch", "")
            return False
        self._sessions.add(session)
        return True

    def ended(self, session: RtspSession) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            self._ended.append(session.info())

    def warn_once(self, kind: str, peer: str) -> None:
        self._warnings[kind] += 1
        if self._warnings[kind] == 1:
            logger.warning("%s%s (logged once)", kind, f" from {peer}" if peer else "")

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for session in tuple(self._sessions):
                session.tick()

    def _mounts(self, name: str | None) -> Iterable[Mount]:
        return self.mounts.values() if name is None else (self.mounts[name],)

    def _of(self, name: str | None) -> list[RtspSession]:
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
