"""Sends a message over HTTP (ntfy or webhook), and reports what came back and how many bytes it put on the wire."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import UsageError, redact
from appliance.base.tcpinfo import (
    bytes_on_wire,
    dns_lookup_bytes,
    failed_connect_bytes,
    ip_version,
    segment_bytes_max,
    tcp_bytes,
)
from appliance.config import NtfyTarget, WebhookTarget, signing_key
from appliance.notify.message import NotificationMessage, SendResult, is_good_news
from appliance.types import Severity

WEBHOOK_VERSION = 1  # of the JSON; a reader that knows another refuses
_PRIORITY: dict[Severity, int] = {"info": 2, "warning": 3, "alert": 5}
_LOW_PRIORITY = 2  # ntfy: 1 to 5, 2 makes no sound
_TAGS = {"edge": "eye", "unverified": "grey_question", "confirmed": "rotating_light", "withdrawn": "white_check_mark",
         "unsure": "question", "rechecked": "eyes", "doubted": "grey_question"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `headers` and `url` may hold secrets, so they are not in the repr."""

    url: str = field(repr=False)
    body: bytes
    headers: dict[str, str] = field(repr=False)
    method: str = "POST"


def request_for(target: NtfyTarget | WebhookTarget, message: NotificationMessage, now: float) -> HttpRequest:
    """now: UTC seconds, for the signature. The same message gives the same body."""
    if isinstance(target, NtfyTarget):
        return _ntfy(target, message)
    return _webhook(target, message, now)


def _webhook(target: WebhookTarget, message: NotificationMessage, now: float) -> HttpRequest:
    """Signed as Standard Webhooks say: HMAC-SHA256 over `id.timestamp.body` (https://www.standardwebhooks.com)."""
    body = _json(webhook_document(message))
    headers = {"content-type": "application/json", "webhook-id": message.message_id, "webhook-timestamp": str(int(now))}
    if target.authorization is not None:
        headers["authorization"] = target.authorization.get_secret_value()
    if target.secret is not None:
        signed = f"{message.message_id}.{int(now)}.".encode() + body
        digest = hmac.new(signing_key(target.secret), signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return HttpRequest(target.url, body, headers)


def webhook_document(message: NotificationMessage) -> dict[str, object]:
    """Return the JSON of a webhook. Fields may be added; those that stand here stay."""
    return {
        "type": "test" if message.test else "health" if message.health else "alert",
        "version": WEBHOOK_VERSION,
        "id": message.id,
        "message_id": message.message_id,
        "update": message.update,
        "site": message.site,
        "camera": message.camera,
        "alert": message.alert,
        "severity": message.severity,
        "standing": message.finding.standing,
        "title": message.title,
        "message": message.text,
        "reason": message.reason,
        "degraded": list(message.degraded),
        "rules": list(message.finding.rules),
        "labels": list(message.finding.labels),
        "score": round(message.finding.score, 4),
        "t": message.t,
        "time": iso_utc(message.t),
        "link": message.link or None,
        "health": message.health or None,
        "over": message.over,
        "snooze": message.snooze or None,
        "picture": {"media_type": "image/jpeg", "base64": base64.b64encode(message.image).decode()}
        if message.image
        else None,
    }


def _ntfy(target: NtfyTarget, message: NotificationMessage) -> HttpRequest:
    """https://docs.ntfy.sh/publish/#publish-as-json; sequence_id: from server 2.16 on, an older one ignores it."""
    fields: dict[str, object] = {
        "topic": target.topic,
        "title": message.title,
        "message": message.text,
        "priority": _LOW_PRIORITY if is_good_news(message) or message.test else _PRIORITY[message.severity],
        "tags": [_tag(message), *message.finding.labels],
        "sequence_id": message.id,
    }
    if message.link:
        fields["click"] = message.link
    if message.snooze:
        fields["actions"] = [
            {"action": "http", "label": f"Snooze {text}", "url": message.snooze, "method": "POST", "clear": True,
             "headers": {"Content-Type": "application/json"}, "body": json.dumps({"minutes": minutes})}
            for minutes, text in ((15, "15 min"), (60, "1 h"))
        ]  # fmt: skip
    if message.image:
        return _ntfy_with_image(target, message, fields)
    headers = {"content-type": "application/json"}
    if target.token is not None:
        headers["authorization"] = f"Bearer {target.token.get_secret_value()}"
    return HttpRequest(target.url.rstrip("/") + "/", _json(fields), headers)


def _ntfy_with_image(target: NtfyTarget, message: NotificationMessage, fields: dict[str, object]) -> HttpRequest:
    """Return a request with the image as its body and all else in headers.

    See https://docs.ntfy.sh/publish/#attach-local-file for the format.
    """
    headers = {
        "content-type": "image/jpeg",
        "x-filename": "still.jpg",
        "x-title": _header(message.title),
        "x-message": _header(message.text.replace("\n", "\\n")),
        "x-priority": str(fields["priority"]),
        "x-tags": _header(",".join([_tag(message), *message.finding.labels])),
        "x-sequence-id": message.id,
    }
    if message.link:
        headers["x-click"] = message.link
    if message.snooze:
        headers["x-actions"] = json.dumps(fields["actions"])
    if target.token is not None:
        headers["authorization"] = f"Bearer {target.token.get_secret_value()}"
    return HttpRequest(f"{target.url.rstrip('/')}/{target.topic}", message.image, headers, "PUT")


def _header(text: str) -> str:
    """Text that is not ASCII as RFC 2047 says, which ntfy reads."""
    if text.isascii() and text.isprintable():
        return text
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _tag(message: NotificationMessage) -> str:
    if message.health:
        return "white_check_mark" if message.over else "warning"
    return _TAGS[message.finding.standing]


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


ANSWER_BYTES_MAX = 4096  # of a response, read for the error text
RETRY_AFTER_S_MAX = 900.0  # a service that asks for more is tried all the same: the notice expires
ESTIMATE_BYTES = 8192  # of a connection whose counters the system does not give: handshake, TLS, headers, close
_EXCERPT_CHARS_MAX = 120  # of an error page in a log line
_REFUSED = frozenset({400, 405, 406, 411, 413, 414, 415, 422, 431})  # this very message will never be accepted


class HttpSender:
    """The way to one HTTP target. Owner: one task."""

    def __init__(self, target: NtfyTarget | WebhookTarget, clock: Clock) -> None:
        """Prepare the sender; raise UsageError if `tls_ca` cannot be read."""
        self._target = target
        self._clock = clock
        self._poster = HttpPoster(target.timeout_s, tls_verification(target.url, target.tls_ca), clock)

    async def send(self, message: NotificationMessage) -> SendResult:
        """Never raises for what the target does; takes at most `timeout_s`."""
        return await self._poster.post(request_for(self._target, message, self._clock.now()), self._target.host)

    async def close(self) -> None:
        await self._poster.close()


class HttpPoster:
    """Posts requests and counts what they cost. Owner: one task.

    Each message has its own connection: messages are rare, and an idle connection goes stale. Redirects are not
    followed, proxies of the environment not used, and at most ANSWER_BYTES_MAX of a response are read.
    """

    def __init__(self, timeout_s: float, verify: ssl.SSLContext | bool, clock: Clock) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._http = httpx.AsyncClient(
            verify=verify,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
            headers={"user-agent": "vedette"},
        )

    async def post(self, request: HttpRequest, host: str) -> SendResult:
        """Never raises for what the other side does; takes at most `timeout_s`. host: for the words of an error."""
        began, connections = self._clock.monotonic(), _TracedConnections()
        try:
            result = await asyncio.wait_for(self._exchange(request, host, connections), self._timeout_s)
        except (httpx.TimeoutException, asyncio.TimeoutError):
            what = "did not answer" if connections.made else "could not be reached"
            error_text = f"{host} {what} within {self._timeout_s:g} s"
            result = SendResult(ok=False, maybe=connections.request_began, error=error_text)
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            result = SendResult(ok=False, error=f"{host} could not be reached: {_cause(error)}")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError) as error:
            error_text = f"{host} broke the connection: {_cause(error)}"
            result = SendResult(ok=False, maybe=connections.request_began, error=error_text)
        finally:
            sent = connections.close(len(request.body), host, self._clock.monotonic() - began)
        return replace(result, payload=request.body, sent=sent, seconds=self._clock.monotonic() - began)

    async def close(self) -> None:
        await self._http.aclose()

    async def _exchange(self, request: HttpRequest, host: str, connections: _TracedConnections) -> SendResult:
        async with self._http.stream(
            request.method,
            request.url,
            content=request.body,
            headers=request.headers,
            extensions={"trace": connections.trace},
        ) as response:
            body = b""
            async for piece in response.aiter_raw(1024):
                body += piece
                if len(body) >= ANSWER_BYTES_MAX:
                    break
        return _result(host, response.status_code, response.headers, body)


class _TracedConnections:
    """The connections of one exchange, to ask the kernel how many bytes they carried.

    State: duplicates of the client's sockets. made: TCP was connected; request_began: its headers began to be sent.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.made = self.request_began = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.made = True
            plain = info["return_value"].get_extra_info("socket")
            if plain is not None:
                # A duplicate, which can still be asked once the client has closed its own.
                self._sockets.append(socket.socket(fileno=os.dup(plain.fileno())))
        elif event.endswith("send_request_headers.started"):
            self.request_began = True

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
            total += wire.bytes if wire else body + ESTIMATE_BYTES
            each.close()
        return total if self._sockets else total + body + ESTIMATE_BYTES


def _result(host: str, status: int, headers: httpx.Headers, body: bytes) -> SendResult:
    if 200 <= status < 300:
        return SendResult(ok=True, status=status)
    excerpt = _excerpt(body)
    text = f"{host} answered {status}" + (f" ({excerpt})" if excerpt else "")
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


def tls_verification(url: str, tls_ca: Path | None) -> ssl.SSLContext | bool:
    """Return what a certificate is checked against; raise UsageError if `tls_ca` cannot be read."""
    if not url.startswith("https:"):
        return False  # nothing to verify, and the authorities' certificates need not be loaded
    return True if tls_ca is None else load_tls_ca(tls_ca)


def load_tls_ca(tls_ca: Path) -> ssl.SSLContext:
    """Load the certificates of `tls_ca`; raise UsageError."""
    try:
        return ssl.create_default_context(cafile=str(tls_ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"tls_ca {tls_ca} cannot be used: {error.strerror or type(error).__name__}") from None


def _cause(error: BaseException) -> str:
    """Return the deepest reason that comes from the system or from TLS, in its words; they name no address."""
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


def _excerpt(body: bytes) -> str:
    text = " ".join(body[:1024].decode("utf-8", "replace").split())
    return redact("".join(char for char in text if char.isprintable()))[:_EXCERPT_CHARS_MAX]


def _retry_after(headers: httpx.Headers) -> float | None:
    with contextlib.suppress(ValueError):
        return min(RETRY_AFTER_S_MAX, max(0.0, float(headers.get("retry-after", ""))))
    return None
