"""The demo's RTSP server as a camera that misbehaves on request (cut, stall, hang, drip, garbage), in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from appliance.base.errors import VedetteError
from appliance.demo.looping_clip import LoopingClip
from appliance.demo.rtp_sdp import interleaved
from appliance.demo.rtsp_message import AuthScheme
from appliance.demo.rtsp_mount import Mount
from appliance.demo.rtsp_server import RtspServer
from appliance.demo.rtsp_session import RtspLimits, RtspSession, SessionInfo

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
        return self._call(lambda: self._server.mounts[mount].started_at)

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


class FaultyRtspServer(RtspServer):
    """A server with faults: with a mount's name for that mount, without for all."""

    _random = random.Random(0)

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

    def _mounts(self, name: str | None) -> Iterable[Mount]:
        return self.mounts.values() if name is None else (self.mounts[name],)

    def _of(self, name: str | None) -> list[RtspSession]:
        return [
            session
            for session in self._clients
            if session.mount is not None and (name is None or session.mount.name == name)
        ]
