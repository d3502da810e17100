"""A server that speaks OpenAI's chat completions the way vLLM does, with its answers and its failures on demand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import cv2
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.support.waiting import until

MODEL = "stub-vlm"
KEY = "sk-stub"
IMAGES_MAX = 4
GOOD = {
    "pictures": [{"picture": 1, "supports": "yes"}],
    "reason": "A person in dark clothes stands inside the yard.",
    "decision": "confirmed",
    "confidence": 0.9,
}


def answer(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes}, separators=(",", ":"))


def short(**changes: Any) -> str:
    """An answer in the order `decision_first`."""
    given = {"pictures": ["yes"], "decision": "confirmed", "confidence": 0.9, "reason": GOOD["reason"]}
    return json.dumps({**given, **changes}, separators=(",", ":"))


# name -> (pieces, finish_reason): what a model streams in the order `decision_first`; None ends the connection.
STREAMS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "good": ((short(),), "stop"),
    "unsure": ((short(decision="unsure", confidence=0.5, pictures=["unsure"]),), "stop"),
    "rejected": ((short(decision="rejected", pictures=["no"]),), "stop"),
    "held": ((short()[:60], short()[60:]), "stop"),
    "cut before": ((short()[:40],), None),
    "cut after": ((short()[:60],), None),
    "cut at the limit": ((short()[:60],), "length"),
    "broken after": ((short()[:60] + '"}',), "stop"),
    "broken before": (('{"pictures":["yes"],"decision":"confirmed","confidence":0.9.9,',), "stop"),
    "endless reason": ((short(reason="a" * 5000),), "stop"),
    "unsupported": ((short(pictures=["no"]),), "stop"),
    "chinese": ((short(reason="一个人站在院子里，靠近大门。"),), "stop"),
    "changed": ((short() + short(decision="rejected", pictures=["no"]),), "stop"),
}


# name -> (content, finish_reason): what a model may write, and how vLLM ends it.
CONTENTS: dict[str, tuple[str | None, str]] = {
    "good": (answer(), "stop"),
    "unsure": (answer(decision="unsure", confidence=0.5, pictures=[{"picture": 1, "supports": "unsure"}]), "stop"),
    "rejected": (answer(decision="rejected", pictures=[{"picture": 1, "supports": "no"}]), "stop"),
    "whitespace": ('{"pictures"' + "\t" * 900, "length"),
    "truncated": (answer()[:60], "length"),
    "broken": (answer()[:-1], "stop"),
    "fences": (f"```json\n{answer()}\n```", "stop"),
    "prose": ("Yes, I can see a person in the yard.", "stop"),
    "empty": ("", "stop"),
    "null": (None, "stop"),
    "filtered": (answer(), "content_filter"),
    "german": (answer(decision="bestätigt"), "stop"),
    "chinese": (answer(reason="一个人站在院子里，靠近大门。"), "stop"),
    "extra": (answer(thoughts="hm"), "stop"),
    "missing": (json.dumps({"decision": "confirmed"}), "stop"),
    "confident": (answer(confidence=7), "stop"),
    "stringly": (answer(confidence="0.9"), "stop"),
    "endless": (answer(reason="a" * 5000), "stop"),
    "invented": (answer(pictures=[{"picture": 9, "supports": "yes"}]), "stop"),
    "unsupported": (answer(pictures=[{"picture": 1, "supports": "no"}]), "stop"),
    "divided": (
        answer(decision="rejected", pictures=[{"picture": 1, "supports": "no"}, {"picture": 2, "supports": "yes"}]),
        "stop",
    ),
    "rejected unseen": (answer(decision="rejected", pictures=[]), "stop"),
    "rejected unsure": (answer(decision="rejected", pictures=[{"picture": 1, "supports": "unsure"}]), "stop"),
    "rejected seen": (answer(decision="rejected"), "stop"),
    "list": ("[]", "stop"),
    "twice": (answer() + answer(), "stop"),
    "reason": (json.dumps({"pictures": ["yes"], "reason": GOOD["reason"]}), "stop"),
    "boxes": (
        json.dumps(
            {
                "objects": [
                    {"label": "person", "box": [412, 300, 470, 580]},
                    {"label": "person", "box": [500, 300, 500, 580]},
                    {"label": "dog", "box": [10, 10, 90, 90]},
                ]
            }
        ),
        "stop",
    ),
    "other reason": (json.dumps({"pictures": ["no"], "reason": "Nobody is there."}), "stop"),
}


class OpenAiStub:
    """`mode` says how the next request is answered, unless `modes` names one for it.

    requests: the bodies of all that were well-formed, the worker's trials apart; asked_t: when each came, UTC seconds.
    """

    def __init__(self) -> None:
        self.mode = "good"
        self.modes: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.asked_t: list[float] = []
        self.complaints: list[str] = []
        self.trials = 0
        self.traces: list[str] = []
        self.first_word: dict[str, float] | None = {"yes": -0.1}  # token -> logprob; None: no logprobs
        self.logprobs_error = ""  # with which it refuses a request for logprobs (400); '': it takes it
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        app = FastAPI()
        app.post("/v1/chat/completions")(self._completions)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="openai-stub", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/v1"

    def start(self) -> OpenAiStub:
        self._thread.start()
        until(lambda: self._server.started, 10, "the stub's start")
        return self

    def stop(self) -> None:
        self.release()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)

    def release(self) -> None:
        """End all answers that are slow on purpose."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)

    async def _completions(self, request: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        body = await request.json()
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": "Unauthorized"}, 401)  # vLLM: a string here, not an object
        if body.get("model") != MODEL:
            return _error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
        images = [part for part in body["messages"][1]["content"] if part["type"] == "image_url"]
        if len(images) > IMAGES_MAX:
            return _error(400, f"At most {IMAGES_MAX} image(s) may be provided in one prompt.", "BadRequestError")
        if is_trial(body):
            self.trials += 1
        else:
            if "response_format" in body:
                self._inspect(body, images)
            self.requests.append(body)
            self.traces.append(request.headers.get("traceparent", ""))
            self.asked_t.append(time.time())
        if body.get("logprobs") and self.logprobs_error:
            return _error(400, self.logprobs_error, "BadRequestError")
        if body.get("logprobs") and self.first_word is not None:
            return JSONResponse(first_word(self.first_word, body))
        return await self._answer(self._mode_of(body), streamed=body["stream"])

    def _mode_of(self, body: dict[str, Any]) -> str:
        """`needs frame`: unsure until a whole picture is among those shown; `needs clip` likewise."""
        if self.modes and not is_trial(body):
            return self.modes.pop(0)
        if is_trial(body) and self.mode in STREAMS and self.mode not in CONTENTS:
            return "good"
        if not self.mode.startswith("needs "):
            return self.mode
        if is_trial(body):
            return "good"
        return "good" if self.mode.removeprefix("needs ") in kinds_shown(body) else "unsure"

    async def _answer(self, mode: str, *, streamed: bool = False) -> Response:
        if streamed and mode in STREAMS:
            return StreamingResponse(self._events(mode), media_type="text/event-stream")
        if mode in CONTENTS:
            return JSONResponse(completion(*CONTENTS[mode]))
        if mode == "unstreamed":  # a server that knows no streams
            return JSONResponse(completion(short(), "stop"))
        if mode == "tool":
            call = {"id": "1", "type": "function", "function": {"name": "open_gate", "arguments": "{}"}}
            return JSONResponse(completion(None, "tool_calls", tool_calls=[call]))
        if mode == "no choices":
            return JSONResponse({**completion("", "stop"), "choices": []})
        if mode == "html":
            return Response("<html>hello</html>", media_type="text/html")
        if mode == "gzip bomb":
            bomb = gzip.compress(gzip.compress(b" " * 50_000_000))
            return Response(bomb, headers={"content-encoding": "gzip, gzip"}, media_type="application/json")
        if mode == "deep error":
            return Response(b'{"error": ' + b"[" * 100_000, 400, media_type="application/json")
        if mode == "429":
            return _error(429, "Too many requests", "RateLimitError", {"Retry-After": "2"})
        if mode == "too long":
            return _error(400, "The decoder prompt is longer than the maximum model length of 2048.", "BadRequestError")
        if mode in {"500", "502", "503"}:
            return _error(int(mode), "EngineCore encountered an issue.", "InternalServerError")
        if mode == "held 503":
            await self._pause(60)
            return _error(503, "EngineCore is dead.", "InternalServerError")
        return StreamingResponse(self._slowly(mode), media_type="application/json")

    async def _events(self, mode: str) -> AsyncIterator[bytes]:
        """Stream an answer as vLLM does; `held` stops after the decision until `release`."""
        pieces, finish = STREAMS[mode]
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield event(first)
        for n, piece in enumerate(pieces):
            if n:
                await self._pause(60)
            for at in range(0, len(piece), 7):
                yield event({"index": 0, "delta": {"content": piece[at : at + 7]}, "finish_reason": None})
        if finish is None:
            raise ConnectionResetError("on purpose")
        yield event({"index": 0, "delta": {"content": ""}, "finish_reason": finish})
        details = {"cached_tokens": 640}
        usage = {"prompt_tokens": 812, "completion_tokens": 38, "prompt_tokens_details": details}
        yield event(None, usage=usage) + b"data: [DONE]\n\n"

    async def _slowly(self, mode: str) -> AsyncIterator[bytes]:
        data = json.dumps(completion(*CONTENTS["good"])).encode()
        if mode == "cut":
            yield data[:50]
            raise ConnectionResetError("on purpose")
        if mode == "flood":
            for _ in range(200):
                yield b" " * 10_000
        if mode == "drip":
            for n in range(len(data)):
                yield data[n : n + 1]
                await self._pause(0.2)
        if mode == "blank drip":
            while not self._over.is_set():
                yield b" "
                await self._pause(0.05)
        await self._pause(60)  # "hang"

    async def _pause(self, seconds: float) -> None:
        """A slow server's wait, which ends with the test."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    def _inspect(self, body: dict[str, Any], images: list[dict[str, Any]]) -> None:
        """What a real server, or its cache, would mind."""
        system, user = body["messages"]
        schema = body["response_format"]["json_schema"]
        ordered = schema["schema"]["properties"]
        checks = {
            "fixed system text first": system["role"] == "system" and isinstance(system["content"], str),
            "the rule's question before the pictures": user["content"][0]["type"] == "text",
            "facts after the pictures": user["content"][-1]["type"] == "text",
            "temperature 0": body["temperature"] == 0,
            "bounded answer": 0 < body["max_tokens"] <= 4096,
            "streamed where the decision comes first": body["stream"]
            is ("decision" in ordered and list(ordered)[-1] == "reason"),
            "usage of a stream": not body["stream"] or body["stream_options"] == {"include_usage": True},
            "strict schema": body["response_format"]["type"] == "json_schema" and schema["strict"] is True,
            "closed schema": schema["schema"]["additionalProperties"] is False,
            "bounded reason": "reason" not in ordered or ordered["reason"]["maxLength"] > 0,
            "no removed parameter": not any(name.startswith("guided_") for name in body),
            "some picture": len(images) > 0,
            "small JPEGs as data": all(max(size_of(each)) <= 1536 for each in images),
            "on the model's grid": all(side % 32 == 0 for each in images for side in size_of(each)),
        }
        self.complaints += [name for name, fine in checks.items() if not fine]


def completion(content: str | None, finish_reason: str, **message: Any) -> dict[str, Any]:
    """A chat completion as vLLM 0.3x writes it."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": None, "tool_calls": [], **message},
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }
    usage = {"prompt_tokens": 812, "total_tokens": 860, "completion_tokens": 48, "prompt_tokens_details": None}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice],
        "usage": usage, "prompt_logprobs": None, "kv_transfer_params": None,
    }  # fmt: skip


def first_word(chances: dict[str, float], request: dict[str, Any]) -> dict[str, Any]:
    """The one token of a request with logprobs, as vLLM and llama.cpp give it: the likeliest first."""
    assert (request["max_tokens"], request["stream"]) == (1, False)
    rows = [{"token": token, "logprob": chance, "bytes": None} for token, chance in chances.items()]
    found = completion(rows[0]["token"], "length")
    found["choices"][0]["logprobs"] = {"content": [{**rows[0], "top_logprobs": rows[: request["top_logprobs"]]}]}
    return found | {"usage": {"prompt_tokens": 812, "completion_tokens": 1, "prompt_tokens_details": None}}


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    """One chunk of a streamed chat completion."""
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: " + json.dumps({**chunk, "choices": [choice] if choice else [], **more}).encode() + b"\n\n"


def is_trial(request: dict[str, Any]) -> bool:
    """Whether the worker only tries if the model answers."""
    return bool(request["messages"][1]["content"][-1].get("text", "").startswith("A trial"))


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """The facts of the case, as the worker wrote them."""
    found: dict[str, Any] = json.loads(request["messages"][1]["content"][-1]["text"].split("\n", 1)[1])
    return found


def kinds_shown(request: dict[str, Any]) -> list[str]:
    """What each picture of a request was said to be, in order."""
    return [each["kind"] for each in facts(request)["pictures"]]


def _error(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status, headers)


def size_of(part: dict[str, Any]) -> tuple[int, int]:
    """Width and height of an image of a request."""
    prefix, data = part["image_url"]["url"].split(",", 1)
    assert prefix == "data:image/jpeg;base64"
    image = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    return image.shape[1], image.shape[0]


@contextlib.contextmanager
def openai_stub() -> Iterator[OpenAiStub]:
    stub = OpenAiStub().start()
    try:
        yield stub
    finally:
        stub.stop()
