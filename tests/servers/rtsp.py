"""The RTSP server as a camera that misbehaves on request (cut, stall, hang, drip, garbage), in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from appliance.base.clock import Clock
from appliance.base.errors import VedetteError
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtsp_mount import GOP_BYTES_MAX, Mount, MountViewer, SentUnit
from appliance.demo.rtsp_protocol import CLOCK_RATE, RtspRequest, interleaved
from appliance.demo.rtsp_server import RtspLimits, RtspServer, RtspSession, RtspState
from tests.servers.rtsp_authentication import AuthScheme, RtspAuthenticator

REFUSALS_MAX = 8  # wrong passwords on one connection before it is closed
DRIP_S = 0.1  # between the pieces of a slowed-down unit
CALL_S_MAX = 15.0  # for what the event loop does on behalf of another thread
CallResult = TypeVar("CallResult")


class RtspServerThread:
    """A server that runs while the `with` block does.

    State: the server and its event loop. Owner: the thread `rtsp-server`. Every method may be called from any thread
    and returns when the server has done it.
    """

    def __init__(self, make: Callable[[], FaultyRtspServer]) -> None:
        self._make = make
        self._ready: concurrent.futures.Future[FaultyRtspServer] = concurrent.futures.Future()
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
        return self._call(lambda: self._server.started_at(mount))

    def jump_back(self, mount: str, seconds: float) -> None:
        self._call(lambda: self._server.jump_back(mount, seconds))

    def set_clock_off(self, mount: str, seconds: float) -> None:
        self._call(lambda: self._server.set_clock_off(mount, seconds))

    @property
    def _server(self) -> FaultyRtspServer:
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


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The report of a session. bytes_sent: all that the kernel took for this client (after a reset: at most that)."""

    mount: str
    state: RtspState
    bytes_sent: int
    ended: str  # why; "" while it lasts


@dataclass(slots=True)
class MountFaults:
    """The faults that are on."""

    stalled: bool = False  # no media
    hung: bool = False  # no answer to any request
    drip_bytes_per_s: float | None = None  # media only this fast


class FaultyMount(Mount):
    """A camera that can stall, hang, slow down and have a wrong clock."""

    def __init__(self, name: str, clip: LoopingClip, clock: Clock) -> None:
        super().__init__(name, clip, clock)
        self.faults = MountFaults()
        self._resumed = asyncio.Event()
        self._clock_off_s = 0.0

    @property
    def started_at(self) -> float:
        """UTC seconds at which the clip's first frame counts as taken. Raises RuntimeError before the first viewer."""
        if self._origin is None:
            raise RuntimeError(f"nobody has watched {self.name} yet")
        return self._clock.now() - (self._clock.monotonic() - self._origin - self._clip_began_s)

    def jump_back(self, seconds: float) -> None:
        """Let timestamps from now on be `seconds` lower, as a camera does whose clock was set back."""
        self._timestamp_base -= round(seconds * CLOCK_RATE)

    def set_clock_off(self, seconds: float) -> None:
        """Let sender reports claim that frames were taken so much later than they were: the camera's clock is wrong."""
        self._clock_off_s = seconds

    def stall(self, *, hung: bool) -> None:
        """Send no media; `hung`: answer no request either."""
        self.faults.stalled, self.faults.hung = True, self.faults.hung or hung
        self._waiting += self._playing
        self._playing = []

    def resume(self) -> None:
        """End the faults; the viewers get the last group of pictures first."""
        self.faults = MountFaults()
        self._resumed.set()
        waiting, self._waiting = self._waiting, []
        for viewer in waiting:
            self.join(viewer)

    def join(self, viewer: MountViewer) -> None:
        if self.faults.stalled:
            self.start()
            self._waiting.append(viewer)
        else:
            super().join(viewer)

    def taken_t(self, unit: SentUnit) -> float:
        return super().taken_t(unit) + self._clock_off_s

    def report(self, packets: int, octets: int, *, sound: bool) -> bytes | None:
        return None if self.faults.stalled else super().report(packets, octets, sound=sound)

    async def deliver(self, unit: SentUnit) -> None:
        if self.faults.stalled:
            self.remember(unit)
        elif self.faults.drip_bytes_per_s is None:
            await super().deliver(unit)
        else:
            self.remember(unit)
            if unit.key:
                self._playing += self._waiting
                self._waiting = []
            await self._drip(unit, [each for each in self._playing if isinstance(each, FaultySession)])

    async def _drip(self, unit: SentUnit, viewers: list[FaultySession]) -> None:
        """Send one unit piece by piece; a piece goes to all, so that no viewer holds half a packet at the end."""
        left = {viewer: viewer.framed(unit) for viewer in viewers}
        self._resumed.clear()
        while any(left.values()):
            rate = self.faults.drip_bytes_per_s
            size = max(1, int(rate * DRIP_S)) if rate is not None else GOP_BYTES_MAX
            for viewer, data in left.items():
                viewer.send_raw(data[:size])
                left[viewer] = data[size:]
            if rate is not None and any(left.values()):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._resumed.wait(), DRIP_S)
        for viewer in viewers:
            viewer.count(unit)


class FaultySession(RtspSession):
    """A session that asks for a password where the server has one, answers nothing when hung, and reports on itself."""

    def __init__(self, server: FaultyRtspServer) -> None:
        super().__init__(server)
        self._authenticator = server.authenticator
        self._nonce = secrets.token_hex(16)
        self._refusals = 0
        self._written = 0
        self._end_reason = ""

    def info(self) -> SessionInfo:
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        return SessionInfo(self.mount.name if self.mount else "", self._state, self._written - unsent, self._end_reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_reason = self._end_reason or (f"{exc}" if exc else "the client closed")
        super().connection_lost(exc)

    def cut(self, why: str, *, reset: bool = False) -> None:
        self._end_reason = self._end_reason or why
        if reset and self._transport is not None:
            self._written -= self._transport.get_write_buffer_size()
        super().cut(why, reset=reset)

    def send_raw(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._written += len(data)
        super().send_raw(data)

    def framed(self, unit: SentUnit) -> bytes:
        track = self._tracks.get(unit.sound)  # None: torn down meanwhile
        return b"" if track is None else unit.framed(track.channels[0])

    def answer(self, request: RtspRequest) -> None:
        mount = self.mount_of(request.target)
        if isinstance(mount, FaultyMount) and mount.faults.hung:
            return
        known = request.method == "OPTIONS" or "require" in request.headers
        if known or self._authenticator is None or self._authorized(self._authenticator, request):
            super().answer(request)
        else:
            self._challenge(self._authenticator, request)

    def _authorized(self, authenticator: RtspAuthenticator, request: RtspRequest) -> bool:
        header = request.headers.get("authorization", "")
        return authenticator.accepts(header, request.method, request.target, self._nonce)

    def _challenge(self, authenticator: RtspAuthenticator, request: RtspRequest) -> None:
        offers = authenticator.challenges(self._nonce)
        self.reply(401, request.cseq, [("WWW-Authenticate", offer) for offer in offers])
        self._refusals += 1
        if self._refusals >= REFUSALS_MAX:
            self._server.warn_once("a client that keeps guessing the password", self._peer)
            self.cut("not authorized")


class FaultyRtspServer(RtspServer):
    """A server with faults: with a mount's name for that mount, without for all."""

    _random = random.Random(0)

    def __init__(
        self,
        mounts: Mapping[str, Path | str],
        *,
        port: int = 0,
        user: str = "",
        password: str = "",
        schemes: Iterable[AuthScheme] = ("digest", "basic"),
        limits: RtspLimits | None = None,
    ) -> None:
        super().__init__(mounts, port=port, limits=limits)
        self.authenticator = RtspAuthenticator(user, password, schemes) if user else None
        self.warnings: Counter[str] = Counter()
        self._credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        self._ended: list[SessionInfo] = []

    def make_mount(self, name: str, path: Path) -> FaultyMount:
        return FaultyMount(name, LoopingClip(path), self.clock)

    def make_session(self) -> FaultySession:
        return FaultySession(self)

    def url(self, name: str, *, credentials: bool = True) -> str:
        return super().url(name).replace("//", f"//{self._credentials if credentials else ''}", 1)

    def sessions(self) -> tuple[SessionInfo, ...]:
        """The report of each client: those that ended, then those that are connected."""
        return (*self._ended, *(each.info() for each in self._clients if isinstance(each, FaultySession)))

    def ended(self, session: RtspSession) -> None:
        if session in self._clients and isinstance(session, FaultySession):
            self._ended.append(session.info())
        super().ended(session)

    def warn_once(self, kind: str, peer: str) -> None:
        self.warnings[kind] += 1
        super().warn_once(kind, peer)

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
        """A context manager that runs a server in a thread of its own."""
        return RtspServerThread(
            lambda: FaultyRtspServer(mounts, port=port, user=user, password=password, schemes=schemes, limits=limits)
        )

    def cut(self, mount: str | None = None, *, reset: bool = False) -> None:
        """Close the viewers' connections; they may reconnect at once."""
        for session in self._of(mount):
            session.cut("cut on request", reset=reset)

    def stall(self, mount: str | None = None) -> None:
        """Keep connections open and send no media; requests are answered."""
        for each in self._mounts(mount):
            each.stall(hung=False)

    def hang(self, mount: str | None = None) -> None:
        """As `stall`, and answer no request either, of present and of new viewers."""
        for each in self._mounts(mount):
            each.stall(hung=True)

    def drip(self, mount: str | None = None, *, bytes_per_s: float = 2000.0) -> None:
        """Send everything, but this slowly; frames that come too late for it are never sent."""
        for each in self._mounts(mount):
            each.faults.drip_bytes_per_s = max(1.0, bytes_per_s)

    def garbage(self, mount: str | None = None, *, size: int = 4096, framed: bool = False) -> None:
        """Send `size` random bytes to the viewers; `framed`: as the payload of a well-formed interleaved frame."""
        noise = self._random.randbytes(size)
        for session in self._of(mount):
            session.send_raw(interleaved(0, noise[:0xFFFF]) if framed else noise)

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
        self._mount(mount).jump_back(seconds)

    def set_clock_off(self, mount: str, seconds: float) -> None:
        """Have the clock of `mount` be so much ahead, constantly."""
        self._mount(mount).set_clock_off(seconds)

    def started_at(self, mount: str) -> float:
        """See `FaultyMount.started_at`."""
        return self._mount(mount).started_at

    def _mount(self, name: str) -> FaultyMount:
        found = self.mounts[name]
        assert isinstance(found, FaultyMount)
        return found

    def _mounts(self, name: str | None) -> Iterable[FaultyMount]:
        return map(self._mount, self.mounts if name is None else [name])

    def _of(self, name: str | None) -> list[RtspSession]:
        return [
            session
            for session in self._clients
            if session.mount is not None and (name is None or session.mount.name == name)
        ]
