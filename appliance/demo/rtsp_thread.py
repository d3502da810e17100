"""The RTSP server in a thread of its own, for tests and scripts that are not asynchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from appliance.demo.rtsp_house import SessionInfo
from appliance.errors import VedetteError

if TYPE_CHECKING:
    from appliance.demo.rtsp_server import RtspServer

ANSWER_S_MAX = 15.0
Result = TypeVar("Result")


class RunningServer:
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

    def __enter__(self) -> RunningServer:
        self._thread.start()
        self._ready.result(ANSWER_S_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(ANSWER_S_MAX)

    @property
    def port(self) -> int:
        return self._server.port

    def url(self, name: str, *, credentials: bool = True) -> str:
        """Where `name` is to be seen, with the user and password if there are any."""
        return self._server.url(name, credentials=credentials)

    def sessions(self) -> tuple[SessionInfo, ...]:
        """What each client did, those that are gone first."""
        return self._call(self._server.sessions)

    @property
    def complaints(self) -> Mapping[str, int]:
        """How often clients misbehaved, by kind."""
        return self._call(lambda: self._server.complaints)

    def cut(self, mount: str | None = None, *, reset: bool = False) -> None:
        """Close the connections of those who watch."""
        self._call(lambda: self._server.cut(mount, reset=reset))

    def stall(self, mount: str | None = None) -> None:
        """Keep connections open and send no media."""
        self._call(lambda: self._server.stall(mount))

    def hang(self, mount: str | None = None) -> None:
        """Keep connections open and say nothing at all."""
        self._call(lambda: self._server.hang(mount))

    def drip(self, mount: str | None = None, *, bytes_per_s: float = 2000.0) -> None:
        """Send this slowly."""
        self._call(lambda: self._server.drip(mount, bytes_per_s=bytes_per_s))

    def garbage(self, mount: str | None = None, *, size: int = 4096, framed: bool = False) -> None:
        """Send bytes that are no RTP."""
        self._call(lambda: self._server.garbage(mount, size=size, framed=framed))

    def refuse(self) -> None:
        """Stop listening and reset all connections."""
        self._call(self._server.refuse)

    def listen(self) -> None:
        """Listen again, on the same port."""
        self._await(self._server.listen)

    def resume(self, mount: str | None = None) -> None:
        """End stall, hang, drip and refuse."""
        self._await(lambda: self._server.resume(mount))

    def change(self, mount: str, path: Path | str) -> None:
        """Go on with another file in the middle of the stream."""
        self._await(lambda: self._server.change(mount, path))

    def jump_back(self, mount: str, seconds: float) -> None:
        """Set the timestamps of `mount` back."""
        self._call(lambda: self._server.jump_back(mount, seconds))

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

    def _call(self, action: Callable[[], Result]) -> Result:
        async def once() -> Result:
            return action()

        return self._await(once)

    def _await(self, action: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(action(), self._loop).result(ANSWER_S_MAX)
