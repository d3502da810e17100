"""HTTP of a worker: /metrics and the probes on one port, and `POST /api/v1/analyze` on another.

The latter takes pictures and a question, answered at once by the engine. Without a broker there is no router here:
whoever has a token has decided to ask. A token names its site and cameras, how many items a minute it may send and how
many seconds of the judge it may take a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from pydantic import ValidationError

from appliance.base.analyze_protocol import (
    BODY_BYTES_MAX,
    PATH,
    AnalyzeAnswer,
    AnalyzeAnswers,
    AnalyzeCost,
    AnalyzeItem,
    AnalyzeRequest,
    RequestRate,
    media_kind,
)
from appliance.base.clock import Clock, local_day
from appliance.base.errors import EngineError, EngineUnavailable, MissingDependency
from appliance.base.json_lines import first_problem
from appliance.wire import (
    TRACEPARENT,
    Escalation,
    MediaRef,
    Verdict,
    analyze_answer,
    traceparent_after,
    traceparent_of,
)  # fmt: skip
from cloud_worker.config import ApiConfig, ApiToken, StatusConfig
from cloud_worker.evidence import EvidenceFile, MediaDecoder, chunks_of
from cloud_worker.judge import JudgeCase

ANALYZE_S_MAX = 300.0  # eight items of a slow model
HOUR_S = 3600.0  # seconds
_PROBLEM = "application/problem+json"
REQUEST_BYTES_MAX = 8192  # a GET of Prometheus has under 1 kB
REQUEST_S_MAX = 5.0  # Prometheus gives up after 10 s by itself
BODY_BYTES_S_MIN = 64 * 1024  # bytes a second of a body; slower is cut off
UNREAD_S_MAX = 2.0  # the rest of a refused request is discarded: a reset would take the answer with it
CLIENTS_MAX = 64  # scrapers and probes; more is a mistake or an attack
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


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


class AnalyzeServer(HttpServer):
    """Owner of a listening socket, of the tokens' rates, and of what each took of the judge today."""

    def __init__(
        self,
        settings: ApiConfig,
        judge: Callable[[JudgeCase], Awaitable[Verdict]],
        unready: Callable[[], str],
        gpu_hour: Callable[[], float | None],
        decoder: MediaDecoder,
        clock: Clock,
    ) -> None:
        """Take `judge`, which answers a case; `unready`, which says why none is answered; and the price of an hour."""
        super().__init__(
            settings.host, settings.port, "api.port", self._answered, refuse=self._unread,
            body_bytes_max=BODY_BYTES_MAX, request_s=ANALYZE_S_MAX,
        )  # fmt: skip
        self._settings = settings
        self._judge, self._unready, self._gpu_hour = judge, unready, gpu_hour
        self._decoder = decoder
        self._clock = clock
        self._rate = RequestRate(clock.monotonic)
        self._turn = asyncio.Semaphore(settings.concurrency)
        self._spent: dict[tuple[str, str], float] = {}

    def _unread(self, request: HttpRequest) -> HttpAnswer | None:
        """Refuse what no token is for, before megabytes are read."""
        if request.path != PATH:
            return _problem("404 Not Found", f"only POST {PATH}")
        if request.method != "POST":
            return _problem("405 Method Not Allowed", f"only POST {PATH}")
        if self._token(request) is None:
            return _problem("401 Unauthorized", "Send a token of the worker file as a bearer.")
        return None

    async def _answered(self, request: HttpRequest) -> HttpAnswer:
        token = self._token(request)
        assert token is not None, "_unread comes first"
        try:
            asked = AnalyzeRequest.model_validate_json(request.body)
        except ValidationError as error:
            return _problem("422 Unprocessable Content", first_problem(error))
        refused = self._refused(token, asked)
        if refused is not None:
            return refused
        trace = request.headers.get(TRACEPARENT, "")
        items = [await self._answer(token, each, trace) for each in asked.items]
        return HttpAnswer("200 OK", AnalyzeAnswers(items=items).model_dump_json().encode(), "application/json")

    def _token(self, request: HttpRequest) -> ApiToken | None:
        """Find the token; every one is compared, in constant time."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode()).digest()
        found = [
            each
            for each in self._settings.tokens
            if hmac.compare_digest(hashlib.sha256(each.token.get_secret_value().encode()).digest(), digest)
        ]
        return found[0] if found and scheme.lower() == "bearer" else None

    def _refused(self, token: ApiToken, asked: AnalyzeRequest) -> HttpAnswer | None:
        foreign = next((each.camera for each in asked.items if token.cameras and each.camera not in token.cameras), "")
        if foreign:
            return _problem("404 Not Found", f"There is no camera {foreign} among those of this token.")
        if why := self._unready():
            return _problem("503 Service Unavailable", f"Nothing is judged now: {why}", 10)
        wait_s = self._rate.take(token.name, len(asked.items), token.per_minute)
        if wait_s:
            text = f"This token may send {token.per_minute} items a minute (api.tokens.{token.name}.per_minute)."
            return _problem("429 Too Many Requests", text, int(wait_s) + 1)
        if why := self._spent_up(token):
            return _problem("429 Too Many Requests", why, 3600)
        return None

    def _spent_up(self, token: ApiToken) -> str:
        """Return why the token may not have the judge today, or ''."""
        today = (local_day(self._clock.now()), token.name)
        self._spent = {each: seconds for each, seconds in self._spent.items() if each[0] == today[0]}
        spent = token.gpu_s_day is not None and self._spent.get(today, 0.0) >= token.gpu_s_day
        return f"api.tokens.{token.name}.gpu_s_day is spent for today." if spent else ""

    async def _answer(self, token: ApiToken, item: AnalyzeItem, trace: str) -> AnalyzeAnswer:
        """Answer one item. trace: the caller's, which the model server is told; one of our own where it is none."""
        kind = media_kind(item.media)
        mime = "image/webp" if item.media.startswith(b"RIFF") else "image/jpeg"
        reason = ""
        if kind is None or item.media.startswith(b"\x89PNG"):
            reason = "media is no JPEG, WebP or MP4"
        elif item.tier == "edge":
            reason = "a worker has no tier edge: ask the appliance"
        elif not (item.question or item.label):
            reason = "there is no question and no label"
        if reason:
            return AnalyzeAnswer(camera=item.camera, status="refused", reason=f"{reason[0].upper()}{reason[1:]}.")
        now, digest = self._clock.now(), hashlib.sha256(item.media).hexdigest()
        t = now if item.t is None else item.t
        clip = kind == "clip"
        ref = MediaRef(
            id=digest[:32], kind="clip" if clip else "frame", mime="video/mp4" if clip else mime,  # type: ignore[arg-type]
            bytes=len(item.media), sha256=digest, chunks=chunks_of(len(item.media)), t=t,
        )  # fmt: skip
        name = f"ask-{uuid4().hex[:16]}"
        escalation = Escalation(
            id=name, site=token.site, camera=item.camera, alert=name, rule="api", kind="other", label=item.label,
            severity="warning", question=item.question or f"Is there a {item.label} in this picture?", t=t,
            created_t=now, media=(ref,),
        )  # fmt: skip
        trace = traceparent_after(trace, name) or traceparent_of(escalation)
        files = (EvidenceFile(ref, item.media),)
        case = JudgeCase(escalation=escalation, files=files, decoder=self._decoder, traceparent=trace)
        async with self._turn:
            if why := self._spent_up(token):
                return AnalyzeAnswer(camera=item.camera, status="refused", reason=why)
            began = self._clock.monotonic()
            try:
                verdict = await self._judge(case)
            except EngineError as error:
                if not isinstance(error, EngineUnavailable):  # it worked in vain, until the time-out perhaps
                    self._charge(token, self._clock.monotonic() - began)
                return AnalyzeAnswer(camera=item.camera, status="refused", reason=str(error))
            self._charge(token, verdict.seconds)
        return self._priced(verdict).model_copy(update={"camera": item.camera})

    def _charge(self, token: ApiToken, seconds: float) -> None:
        key = (local_day(self._clock.now()), token.name)
        self._spent[key] = self._spent.get(key, 0.0) + seconds

    def _priced(self, verdict: Verdict) -> AnalyzeAnswer:
        cost = AnalyzeCost(
            money=round(verdict.seconds / HOUR_S * (self._gpu_hour() or 0.0), 6), gpu_s=verdict.seconds,
            tokens_in=verdict.tokens_in, tokens_out=verdict.tokens_out,
        )  # fmt: skip
        return analyze_answer(verdict, cost)


def _problem(status: str, detail: str, retry_s: int = 0) -> HttpAnswer:
    code, _, title = status.partition(" ")
    body = {"type": "about:blank", "title": title, "status": int(code), "detail": detail}
    headers = {"Retry-After": str(retry_s)} if retry_s else {}
    return HttpAnswer(status, json.dumps(body).encode(), _PROBLEM, headers)
