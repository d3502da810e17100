"""The worker's HTTP server: /metrics for Prometheus, /healthz and /readyz for the orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from appliance.base.errors import MissingDependency
from cloud_worker.config import StatusConfig

REQUEST_BYTES_MAX = 8192  # a GET of Prometheus has under 1 kB
REQUEST_S_MAX = 5.0  # Prometheus gives up after 10 s by itself
CLIENTS_MAX = 64  # scrapers and probes; more is a mistake or an attack
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    status: str
    body: bytes


class StatusServer:
    """Owner of a listening socket. One request a connection; slow readers are cut off.

    metrics, unready: asked at each request; `unready` returns why escalations are not taken, empty when they are.
    """

    def __init__(self, settings: StatusConfig, metrics: Callable[[], bytes], unready: Callable[[], str]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._unready = unready
        self._clients = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen, if the file says where. Raise MissingDependency when the port is taken."""
        host, port = self._settings.host, self._settings.port
        if port is None:
            return
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise MissingDependency(f"status.port: {host}:{port} cannot be listened on ({error.strerror})") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening; requests under way are answered, within REQUEST_S_MAX."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX:
                await asyncio.wait_for(self._exchange(reader, writer), REQUEST_S_MAX)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self._clients -= 1
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, *_ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        answer = self._answer(method, path.split("?")[0])
        head = (
            f"HTTP/1.1 {answer.status}\r\nContent-Type: {_TEXT}\r\nContent-Length: {len(answer.body)}\r\n"
            "Connection: close\r\nCache-Control: no-store\r\n\r\n"
        )
        writer.write(head.encode() + (b"" if method == "HEAD" else answer.body))
        await writer.drain()

    def _answer(self, method: str, path: str) -> StatusAnswer:
        if method not in {"GET", "HEAD"}:
            return StatusAnswer("405 Method Not Allowed", b"only GET\n")
        if path == "/metrics":
            return StatusAnswer("200 OK", self._metrics())
        if path == "/healthz":
            return StatusAnswer("200 OK", b"ok\n")
        if path == "/readyz":
            why = self._unready()
            if why:
                return StatusAnswer("503 Service Unavailable", f"{why}\n".encode())
            return StatusAnswer("200 OK", b"ready\n")
        return StatusAnswer("404 Not Found", b"/metrics, /healthz, /readyz\n")
