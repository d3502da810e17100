"""Serves the dashboard over HTTP: binds first, reports where, stops without waiting for viewers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from appliance.config import SiteConfig
from appliance.dashboard.deps import CoreProbes
from appliance.errors import MissingDependency

CONNECTIONS_MAX = 200
STOP_S_MAX = 3
TICK_S = 1.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers (the core owns the signals), and without its ten ticks a second."""

    def end(self) -> None:
        """Stop serving. Called in the loop's thread."""
        self.should_exit = True
        if self._ended is not None:
            self._ended.set()

    async def main_loop(self) -> None:
        """A tick a second is enough: it makes the date header."""
        self._ended = asyncio.Event()
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_S)

    _ended: asyncio.Event | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class DashboardServer:
    """Owner of the listening socket, and of one event loop in the thread that calls `run()`."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Bind at once, so that a taken port is reported before anything else starts. Raises MissingDependency."""
        self._listening = bind(host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://{_shown(host)}:{self.port}/"
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = threading.Event()
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                ws="none",
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=STOP_S_MAX,
                timeout_keep_alive=20,
            )
        )

    def run(self) -> None:
        """Serve until `stop()`."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """End serving; from any thread, also before `run()`."""
        self._stop_asked.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._end)

    def configure(self, config: SiteConfig, probes: CoreProbes) -> None:
        """Answer by these sections of the site file from the next request on. Any thread."""
        self._app.state.configure(config, probes)

    @property
    def started(self) -> bool:
        """Are connections answered? (They are accepted, and wait, from the beginning.)"""
        return bool(self._server.started)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if not self._stop_asked.is_set():
                await self._server.serve(sockets=[self._listening])
        finally:
            self._listening.close()

    def _end(self) -> None:
        # Event streams first: they never end by themselves and would hold the door for STOP_S_MAX.
        self._app.state.hub.close()
        self._server.end()


def bind(host: str, port: int) -> socket.socket:
    """Take the port (0: any free one). Raises MissingDependency with the remedy."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise MissingDependency(f"dashboard.host {host} is not an address of this machine: {error.strerror}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise MissingDependency(
                f"port {port} is taken by another program: set dashboard.port (0 takes any)"
            ) from None
        raise MissingDependency(f"the dashboard cannot listen on {host}:{port}: {error.strerror}") from None
    listening.setblocking(False)
    return listening


def _shown(host: str) -> str:
    if host in {"0.0.0.0", "::"}:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
