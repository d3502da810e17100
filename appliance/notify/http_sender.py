"""Posts one request over HTTP, and reports what came back and how many bytes it put on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from appliance.clock import Clock
from appliance.config import Target
from appliance.errors import UsageError, redact
from appliance.notify.ntfy_webhook import HttpRequest
from appliance.tcpinfo import (
    bytes_on_wire,
    dns_lookup_bytes,
    failed_connect_bytes,
    ip_version,
    segment_bytes_max,
    tcp_bytes,
)

ANSWER_BYTES_MAX = 4096
RETRY_AFTER_S_MAX = 900.0
_SAID_CHARS_MAX = 120
_REFUSED = frozenset({400, 405, 406, 411, 413, 414, 415, 422, 431})
_ESTIMATE_BYTES = 8192  # of a connection whose counts the system does not tell: hand-shake, headers, ends


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """How a request went. ok: it was taken. refused: this very message never will be. maybe: it may have arrived
    although nobody said so. error: one sentence without secrets. after_s: when the other side asked us back. sent:
    bytes put on the wire, as an Ethernet interface counts them. seconds: from the first to the last of it."""

    ok: bool
    status: int | None = None
    refused: bool = False
    maybe: bool = False
    error: str = ""
    after_s: float | None = None
    sent: int = 0
    seconds: float = 0.0


class HttpSender:
    """One target's way out. Owner: one task. A connection a message: they are rare, and one that idles goes stale.

    Redirects are not followed, proxies of the environment not used, and of an answer at most ANSWER_BYTES_MAX is read.
    """

    def __init__(self, target: Target, clock: Clock) -> None:
        """Raises UsageError when `tls_ca` cannot be read."""
        self._host = target.host
        self._timeout_s = target.timeout_s
        self._clock = clock
        self._http = httpx.AsyncClient(
            verify=_trust(target),
            timeout=target.timeout_s,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
            headers={"user-agent": "vedette"},
        )

    async def send(self, request: HttpRequest) -> SendResult:
        """Never raises for what the other side does; it takes at most `timeout_s`."""
        began, wires = self._clock.monotonic(), _TracedConnections()
        try:
            reply = await asyncio.wait_for(self._exchange(request, wires), self._timeout_s)
        except (httpx.TimeoutException, asyncio.TimeoutError):
            what = "did not answer" if wires.made else "could not be reached"
            reply = SendResult(ok=False, maybe=wires.asked, error=f"{self._host} {what} within {self._timeout_s:g} s")
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            reply = SendResult(ok=False, error=f"{self._host} could not be reached: {_cause(error)}")
        except httpx.HTTPError as error:
            reply = SendResult(ok=False, maybe=wires.asked, error=f"{self._host} broke the connection: {_cause(error)}")
        finally:
            sent = wires.close(len(request.body), self._host, self._clock.monotonic() - began)
        return SendResult(
            ok=reply.ok,
            status=reply.status,
            refused=reply.refused,
            maybe=reply.maybe,
            error=reply.error,
            after_s=reply.after_s,
            sent=sent,
            seconds=self._clock.monotonic() - began,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _exchange(self, request: HttpRequest, wires: _TracedConnections) -> SendResult:
        async with self._http.stream(
            "POST", request.url, content=request.body, headers=request.headers, extensions={"trace": wires.trace}
        ) as response:
            said = b""
            async for piece in response.aiter_raw(1024):
                said += piece
                if len(said) >= ANSWER_BYTES_MAX:
                    break
        return _judge(self._host, response.status_code, response.headers, said)


class _TracedConnections:
    """The connections of one exchange, as the client made them, to ask the kernel what they carried.

    made: TCP stood. asked: the request began to leave.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.made = self.asked = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.made = True
            plain = info["return_value"].get_extra_info("socket")
            if plain is not None:
                # A duplicate, which can still be asked once the client has closed its own.
                self._sockets.append(socket.socket(fileno=os.dup(plain.fileno())))
        elif event.endswith("send_request_headers.started"):
            self.asked = True

    def close(self, body: int, host: str, seconds: float) -> int:
        """Bytes on the wire, never too few."""
        if not self.made:
            return failed_connect_bytes(seconds, host, answered=False).bytes
        total = dns_lookup_bytes(host).bytes
        for each in self._sockets:
            counted = tcp_bytes(each)
            wire = counted and bytes_on_wire(
                counted, version=ip_version(each), segment_max=segment_bytes_max(each), ended=True
            )
            total += wire.bytes if wire else body + _ESTIMATE_BYTES
            each.close()
        return total if self._sockets else total + body + _ESTIMATE_BYTES


def _judge(host: str, status: int, headers: httpx.Headers, said: bytes) -> SendResult:
    if 200 <= status < 300:
        return SendResult(ok=True, status=status)
    words = _plain(said)
    text = f"{host} answered {status}" + (f" ({words})" if words else "")
    if 300 <= status < 400:
        text = f"{host} answered {status}, a redirect, which is not followed: set the address it leads to"
    elif status in {401, 403}:
        text = f"{host} refuses us ({status}): check `authorization` or `token`"
    return SendResult(
        ok=False,
        status=status,
        refused=status in _REFUSED,
        maybe=status >= 500,
        error=text,
        after_s=_retry_after(headers),
    )


def _trust(target: Target) -> ssl.SSLContext | bool:
    if not target.url.startswith("https:"):
        return False  # nothing to verify, and the authorities' certificates need not be loaded
    if target.tls_ca is None:
        return True
    return load_tls_ca(target.tls_ca)


def load_tls_ca(tls_ca: Path) -> ssl.SSLContext:
    """Raises UsageError."""
    try:
        return ssl.create_default_context(cafile=str(tls_ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"tls_ca {tls_ca} cannot be used: {error.strerror or type(error).__name__}") from None


def _cause(error: BaseException) -> str:
    """The deepest reason that is one of the system's or of TLS, in its words; they name no address."""
    found = type(error).__name__
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"its certificate: {seen.verify_message}"
        if isinstance(seen, ssl.SSLError):
            return f"TLS: {(seen.reason or 'failed').lower().replace('_', ' ')}"
        if isinstance(seen, OSError) and seen.errno:
            found = (os.strerror(seen.errno) if seen.errno > 0 else str(seen.strerror)).lower()
        seen = seen.__cause__ or seen.__context__
    return found


def _plain(said: bytes) -> str:
    text = " ".join(said[:1024].decode("utf-8", "replace").split())
    return redact("".join(char for char in text if char.isprintable()))[:_SAID_CHARS_MAX]


def _retry_after(headers: httpx.Headers) -> float | None:
    with contextlib.suppress(ValueError):
        return min(RETRY_AFTER_S_MAX, max(0.0, float(headers.get("retry-after", ""))))
    return None
