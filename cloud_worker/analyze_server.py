"""`POST /api/v1/analyze` of a worker: pictures and a question over HTTP, answered at once by the engine.

Without a broker there is no router here: whoever has a token has decided to ask. A token names its site and cameras,
how many items a minute it may send and how many seconds of the judge it may take a day.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
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
    judged,
    media_kind,
)
from appliance.base.clock import Clock, local_day
from appliance.base.errors import EngineError, EngineUnavailable
from appliance.base.json_lines import first_problem
from appliance.wire import TRACEPARENT, Escalation, MediaRef, Verdict, traceparent_after, traceparent_of
from cloud_worker.config import ApiConfig, ApiToken
from cloud_worker.evidence import EvidenceFile, MediaDecoder, chunks_of
from cloud_worker.judge import JudgeCase
from cloud_worker.worker_status import HttpAnswer, HttpRequest, HttpServer

REQUEST_S_MAX = 300.0  # eight items of a slow model
HOUR_S = 3600.0  # seconds
_PROBLEM = "application/problem+json"


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
            body_bytes_max=BODY_BYTES_MAX, request_s=REQUEST_S_MAX,
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
        return judged(verdict, cost)


def _problem(status: str, detail: str, retry_s: int = 0) -> HttpAnswer:
    code, _, title = status.partition(" ")
    body = {"type": "about:blank", "title": title, "status": int(code), "detail": detail}
    headers = {"Retry-After": str(retry_s)} if retry_s else {}
    return HttpAnswer(status, json.dumps(body).encode(), _PROBLEM, headers)
