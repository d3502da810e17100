"""Serve the dashboard over HTTP: bind first, report where, stop without waiting for viewers.

Connections that are too many, too slow to send a request or too slow to read are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from appliance.base.clock import SystemClock
from appliance.base.errors import MissingDependency, lacks_files
from appliance.base.telemetry import LogThrottle
from appliance.web.acceptor import Admission, Connection, ConnectionLimits, TlsAcceptor, plain_address

if TYPE_CHECKING:
    from appliance.web.tls import ServerCertificate  # cryptography: 9 MB, only where it speaks HTTPS

logger = logging.getLogger(__name__)

BACKLOG = 64  # connections that wait to be accepted
HEADER_BYTES_MAX = 32 * 1024  # cookies and a long address fit; nginx takes as much
STOP_S_MAX = 3  # seconds; answers that take longer are cut, streams are closed first
TICK_S = 1.0  # the Date header has seconds


class _BoundedProtocol(H11Protocol):
    """One connection that cannot be held open for nothing. uvicorn bounds neither requests nor answers in time."""

    def __init__(self, admission: Admission, *values: Any, counted: Connection | None = None, **named: Any) -> None:
        """Serve one connection. counted: the connection, where the acceptor has counted it."""
        super().__init__(*values, **named)
        self._admission = admission
        self._counted = counted
        self._limits = admission.limits
        self._request_timer = _Deadline()
        self._stall_timer = _Deadline()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        self.client = (plain_address(host), port) if host else None
        counted = self._counted = self._counted or self._admission.admit(host, transport.abort)
        counted.end = transport.abort
        self.app_state = {**self.app_state, "connection": counted}
        self._await_request()

    def data_received(self, data: bytes) -> None:
        if not self._request_timer.runs and self.conn.their_state is h11.IDLE:
            self._await_request()
        super().data_received(data)
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._request_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes behind a request that are no request; a response that is still being made has nowhere to go."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:  # from here on uvicorn's own limit for idle connections holds
            self._request_timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer.start(self.loop, self._limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted is not None:
            self._admission.leave(self._counted)
        self._request_timer.cancel()
        self._stall_timer.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._request_timer.start(self.loop, self._limits.request_s, self.transport.abort)


class _Deadline:
    """One timer, or none."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self.cancel()
        self._handle = loop.call_later(seconds, call)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers (the core owns the signals), and without its ten ticks a second.

    With a certificate our own acceptor takes the connections: uvicorn's port would speak nothing but TLS, without a
    bound for handshakes and with one certificate for ever.
    """

    def __init__(
        self, config: uvicorn.Config, admission: Admission, certificate: ServerCertificate | None = None
    ) -> None:
        super().__init__(config)
        self._admission = admission
        self._certificate = certificate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        certificate = self._certificate
        if certificate is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for each in sockets or ():
            acceptor = TlsAcceptor(each, lambda: certificate.context, self._admission, self._protocol)
            self.servers.append(acceptor)  # type: ignore[arg-type]

    def _protocol(self, counted: Connection) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, counted=counted
        )
        return made

    def end(self) -> None:
        """Stop serving. Called in the loop's thread."""
        self.should_exit = True
        if self._ended is not None:
            self._ended.set()

    async def main_loop(self) -> None:
        """Tick once a second, which is enough: a tick makes the date header."""
        self._ended = asyncio.Event()
        while not await self.on_tick(0):
            if self._certificate is not None and self._certificate.is_due:
                await asyncio.to_thread(self._certificate.refresh)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_S)

    _ended: asyncio.Event | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """Owner of the listening socket, and of one event loop in the thread that calls `run()`.

    fingerprint: of a certificate that no browser knows; '': there is none.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        *,
        trusted_proxies: Sequence[str] = (),
        limits: ConnectionLimits | None = None,
        certificate: ServerCertificate | None = None,
    ) -> None:
        """Bind at once, so that a taken port is reported before anything else starts. Raises MissingDependency.

        trusted_proxies: addresses or networks of which each is everybody: the limit of one address is not theirs.
        certificate: it speaks HTTPS with it; None: HTTP.
        """
        limits = limits or ConnectionLimits()
        admission = Admission(limits, trusted_proxies)
        self._listening = bind(host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://{_shown(host)}:{self.port}/"
        self.fingerprint = certificate.facts.fingerprint if certificate and certificate.facts.self_signed else ""
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = threading.Event()
        self._repeats = LogThrottle(logger, SystemClock())
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="error",  # a line for each broken request would be the sender's to fill the disk with
                access_log=False,
                server_header=False,
                lifespan="on",
                ws="none",
                # A class in uvicorn's eyes: it is called with what makes a protocol.
                http=partial(_BoundedProtocol, admission),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                backlog=BACKLOG,
                proxy_headers=False,  # ours counts what it ignores, and knows the user: visitor.py
                timeout_graceful_shutdown=STOP_S_MAX,
                timeout_keep_alive=limits.keep_alive_s,
            ),
            admission,
            certificate,
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

    def configure(self, *settings: object) -> None:
        """Apply changed settings from the next request on. Any thread.

        settings: the arguments of `app.state.configure`, which the program that made `app` has set.
        """
        self._app.state.configure(*settings)

    def warm_up(self) -> None:
        """Read translations, prepare routes, sum what was judged: else the first request would. Any thread."""
        self._app.state.warm_up()

    def empty_caches(self) -> None:
        """Memory is short. Any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._app.state.empty_caches)

    @property
    def started(self) -> bool:
        """Return whether connections are answered. They are accepted, and wait, from the beginning."""
        return bool(self._server.started)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._report)
        try:
            if not self._stop_asked.is_set():
                await self._server.serve(sockets=[self._listening])
        finally:
            self._listening.close()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio tells of each connection that it cannot accept, with a traceback, 64 times a second."""
        error = context.get("exception")
        if isinstance(error, OSError) and lacks_files(error):
            self._repeats.report("the dashboard takes no connection: too many files are open in this process")
        else:
            loop.default_exception_handler(context)

    def _end(self) -> None:
        # Streams first: they never end by themselves and would hold the door for STOP_S_MAX.
        for stream in self._app.state.streams:
            stream.close()
        self._server.end()


def bind(host: str, port: int) -> socket.socket:
    """Take the port (0: any free one). Raises MissingDependency with the remedy."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # of a name that no DNS can have, such as `a..b`
        reason = getattr(error, "strerror", error)
        raise MissingDependency(f"dashboard.host {host} is not an address of this machine: {reason}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
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
