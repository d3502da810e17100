"""Sends requests to a model server with OpenAI's chat completions, within limits, and explains failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx

from appliance.base.errors import EngineError, EngineUnavailable, redact
from appliance.wire import TRACEPARENT
from cloud_worker.config import OpenAiEngine

ANSWER_BYTES_MAX = 256 * 1024  # ours is under 2 kB; what is longer is a fault
CONNECT_S_MAX = 5.0  # lost SYNs are repeated after 1 and 3 s; the answer has a limit of its own
RETRY_AFTER_S_MAX = 300.0  # a server that names more is asked again all the same
_AWAY = frozenset({401, 403, 404, 408, 429, 502, 503, 504})


class ChatEndpoint:
    """Owner of an HTTP client to one server. It never retries by itself, as redelivery is the retry."""

    def __init__(self, settings: OpenAiEngine, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.where = redact(settings.url)
        self._url, self._timeout_s = settings.url, settings.timeout_s
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._http = httpx.AsyncClient(
            # An encoding would be undone before its length is known: a bomb of a kilobyte becomes gigabytes.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(settings.timeout_s, connect=min(CONNECT_S_MAX, settings.timeout_s)),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the client."""
        await self._http.aclose()

    async def post(
        self, request: bytes, feed: Callable[[bytes], None] = lambda part: None, trace: str = ""
    ) -> tuple[int, bytes]:
        """Return (status, body) of an answer that is about the request; `feed` gets its parts as they come.

        Raise EngineUnavailable (away, overloaded, refuses us) or EngineError (failed at this request).
        """
        try:
            response, body = await asyncio.wait_for(self._exchange(request, feed, trace), self._timeout_s)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnavailable(f"{self.where}: the model server cannot be reached ({_cause(error)})") from None
        except (httpx.TimeoutException, asyncio.TimeoutError):
            raise EngineError(f"{self.where}: no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{self.where}: the connection broke ({_cause(error)})") from None
        if response.status_code in _AWAY:
            why = complaint(response.status_code, body)
            raise EngineUnavailable(f"{self.where}: {why}", _retry_after(response))
        if response.status_code >= 500:
            raise EngineError(f"{self.where}: {complaint(response.status_code, body)}")
        return response.status_code, body

    async def _exchange(
        self, request: bytes, feed: Callable[[bytes], None], trace: str
    ) -> tuple[httpx.Response, bytes]:
        url, headers = f"{self._url}/chat/completions", {"Content-Type": "application/json"}
        if trace:
            headers[TRACEPARENT] = trace
        async with self._http.stream("POST", url, content=request, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise EngineError(f"{self.where}: the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if response.status_code == 200:
                    feed(part)
                if len(body) > ANSWER_BYTES_MAX:
                    raise EngineError(f"{self.where}: an answer of over {ANSWER_BYTES_MAX} bytes was cut off")
            return response, bytes(body)


def complaint(status: int, body: bytes) -> str:
    """Return the server's answer in one sentence, with the remedy for the statuses that need a person."""
    try:
        found = json.loads(body)
        message = found["error"]["message"] if "error" in found else found.get("message", found.get("detail", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = ""
    detail = f": {' '.join(str(message).split())[:160]}" if message else ""
    remedy = {
        401: "the model server refuses the key (engine.api_key)",
        403: "the model server refuses the key (engine.api_key)",
        404: "the model server does not know the model or the path (engine.model, engine.url)",
        429: "the model server is overloaded",
    }.get(status, f"the model server answered {status}")
    return remedy + detail


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After header; its other form, a date, is not used by model servers."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, RETRY_AFTER_S_MAX) if seconds >= 0 else None


def _cause(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__
