"""Publishes the status of a worker: to the sites over NATS, and over HTTP as /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nats.aio.client import Client

from appliance.base.clock import Clock
from appliance.base.errors import MissingDependency, UplinkError
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_connection import broker_errors
from appliance.wire import POOL_COUNT_MAX, POOL_SUBJECT, PRICE_MAX, PoolStatus
from cloud_worker.config import PoolConfig, StatusConfig
from cloud_worker.metrics import WorkerMetrics

LIVES = 4  # an announcement counts until so many more should have come
JUDGE_S_FIRST = 1.0  # seconds of a verdict, until the first one tells
_PRICE_CHARS_MAX = 64  # a float and a currency
REQUEST_BYTES_MAX = 8192  # a GET of Prometheus has under 1 kB
REQUEST_S_MAX = 5.0  # Prometheus gives up after 10 s by itself
BODY_BYTES_S_MIN = 64 * 1024  # bytes a second of a body; slower is cut off
UNREAD_S_MAX = 2.0  # the rest of a refused request is discarded: a reset would take the answer with it
CLIENTS_MAX = 64  # scrapers and probes; more is a mistake or an attack
_TEXT = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger(__name__)


class PoolAnnouncer:
    """Publisher of a small message every `pool.every_s`.

    Owner: the worker's loop owns it, with one task a connection. State: it knows when the worker began, and so the rest
    of its cold start.
    """

    def __init__(
        self,
        settings: PoolConfig,
        worker: str,
        slots: int,
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        ready: Callable[[], bool],
        waiting: Callable[[], int],
    ) -> None:
        """Take `ready`, which says whether escalations are taken now, and `waiting`, the count that the broker stores.

        The count is that for all workers.
        """
        self._settings = settings
        self._worker = worker
        self._slots = slots
        self._metrics = metrics
        self._clock = clock
        self._ready = ready
        self._waiting = waiting
        self._began = clock.monotonic()
        self._log = LogThrottle(logger, clock)

    async def run(self, client: Client) -> None:
        """Announce for as long as the connection lasts, or until cancelled."""
        while True:
            await self.announce(client)
            await asyncio.sleep(self._settings.every_s)

    async def announce(self, client: Client) -> None:
        """Announce the worker as it is now, once."""
        try:
            with broker_errors("the worker could not be announced"):
                await client.publish(POOL_SUBJECT, self.status().to_json())
        except UplinkError as error:  # the connection's own task says that it is lost
            self._log.report(error)

    def status(self) -> PoolStatus:
        """Return the worker's status as it is now."""
        ready = self._ready()
        left_s = self._settings.cold_start_s - (self._clock.monotonic() - self._began)
        return PoolStatus(
            worker=self._worker,
            ready=ready,
            waiting=min(max(0, self._waiting()), POOL_COUNT_MAX),
            slots=self._slots,
            judge_s=min(self._metrics.judge_s_mean() or JUDGE_S_FIRST, 3600.0),
            cold_start_s=0.0 if ready else max(0.0, left_s),
            gpu_hour=self.price(),
            ttl_s=min(300.0, self._settings.every_s * LIVES),
        )

    def price(self) -> float | None:
        """Return the price in the file, which a watcher of the spot market keeps up to date, or the fixed one."""
        if self._settings.gpu_hour_file is None:
            return self._settings.gpu_hour
        return self._price_in(self._settings.gpu_hour_file)

    def _price_in(self, path: Path) -> float | None:
        try:
            with path.open(encoding="utf-8") as file:
                price = float(file.read(_PRICE_CHARS_MAX))
            if not 0 <= price <= PRICE_MAX:  # not a number is neither
                raise ValueError
        except (OSError, ValueError):
            self._log.report(f"{path} (pool.gpu_hour_file) holds no price from 0 to {PRICE_MAX:g}: none is announced")
            return None
        return price


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. headers: by their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: str
    body: bytes
    type: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpServer:
    """Owner of a listening socket. One request a connection; slow readers are cut off."""

    def __init__(
        self,
        host: str,
        port: int | None,
        key: str,
        handle: Callable[[HttpRequest], Awaitable[HttpAnswer]],
        *,
        refuse: Callable[[HttpRequest], HttpAnswer | None] = lambda request: None,
        body_bytes_max: int = 0,
        request_s: float = REQUEST_S_MAX,
    ) -> None:
        """key: of the file, which names the port; port None: nothing is served.

        refuse: called before the body is read; what it returns is the answer, and the body is not kept.
        """
        self._host, self._wanted, self._key, self._handle = host, port, key, handle
        self._refuse, self._body_bytes_max, self._request_s = refuse, body_bytes_max, request_s
        self._clients = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen, if the file says where. Raise MissingDependency when the port is taken."""
        host, port = self._host, self._wanted
        if port is None:
            return
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise MissingDependency(f"{self._key}: {host}:{port} cannot be listened on ({error.strerror})") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening; requests under way are answered, within the time of a request."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX:
                await asyncio.wait_for(self._exchange(reader, writer), self._request_s)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self._clients -= 1
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request. Raise ValueError for one that cannot be read."""
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S_MAX)  # an answer may take far longer
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, path, *_ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0")) if self._body_bytes_max else 0
        request = HttpRequest(method, path.split("?")[0], headers)
        refused = self._refuse(request)
        if refused is None and not 0 <= length <= self._body_bytes_max:
            refused = HttpAnswer("413 Content Too Large", f"at most {self._body_bytes_max} bytes\n".encode())
        if refused is None:
            if headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await asyncio.wait_for(reader.readexactly(length), REQUEST_S_MAX + length / BODY_BYTES_S_MIN)
            answer = await self._handle(replace(request, body=body))
        else:
            answer = refused
        more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        status = (
            f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.type}\r\nContent-Length: {len(answer.body)}\r\n"
            f"{more}Connection: close\r\nCache-Control: no-store\r\n\r\n"
        )
        writer.write(status.encode() + (b"" if method == "HEAD" else answer.body))
        await writer.drain()
        if refused is not None:
            await asyncio.wait_for(_discard(reader, length), UNREAD_S_MAX)


async def _discard(reader: asyncio.StreamReader, length: int) -> None:
    """Read `length` bytes, or to the end, and keep none."""
    while length > 0 and (chunk := await reader.read(REQUEST_BYTES_MAX)):
        length -= len(chunk)


class StatusServer(HttpServer):
    """Serves /metrics, /healthz and /readyz.

    metrics, unready: asked at each request; `unready` returns why escalations are not taken, empty when they are.
    """

    def __init__(self, settings: StatusConfig, metrics: Callable[[], bytes], unready: Callable[[], str]) -> None:
        super().__init__(settings.host, settings.port, "status.port", self._answered)
        self._metrics = metrics
        self._unready = unready

    async def _answered(self, request: HttpRequest) -> HttpAnswer:
        if request.method not in {"GET", "HEAD"}:
            return HttpAnswer("405 Method Not Allowed", b"only GET\n")
        if request.path == "/metrics":
            return HttpAnswer("200 OK", self._metrics())
        if request.path == "/healthz":
            return HttpAnswer("200 OK", b"ok\n")
        if request.path == "/readyz":
            why = self._unready()
            if why:
                return HttpAnswer("503 Service Unavailable", f"{why}\n".encode())
            return HttpAnswer("200 OK", b"ready\n")
        return HttpAnswer("404 Not Found", b"/metrics, /healthz, /readyz\n")
