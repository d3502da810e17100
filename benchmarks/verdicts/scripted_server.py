"""An engine without a model: OpenAI's protocol, answers of fixed words, streamed at the pace of a model of real size.

It has no queue: a server that batches well keeps this pace up to its capacity, which benchmarks.verdicts.server shows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

CHARS_A_TOKEN = 3.2  # so that an answer on two pictures in the order reason_first has the 80 tokens of --answer-tokens
REASON = "A person in dark clothes stands inside the yard, beside the loading door, and looks at the camera."
START_S_MAX = 30.0


class ScriptedEngine:
    """State: how many answers were begun, and the pace, in seconds."""

    def __init__(self, first_token_s: float, token_s: float) -> None:
        self._first_token_s = first_token_s
        self._token_s = token_s
        self._answers = 0
        self._began = time.perf_counter()

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self._answers += 1
        if body.get("logprobs"):
            await asyncio.sleep(self._first_token_s)
            return JSONResponse(FIRST_WORD)
        text = answer(body)
        if body["stream"]:
            return StreamingResponse(self._stream(text), media_type="text/event-stream")
        await asyncio.sleep(self._first_token_s + self._token_s * (len(tokens(text)) - 1))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": usage(text)})

    async def stats(self) -> dict[str, float]:
        """As the model server has them; one answer a batch."""
        seconds = time.perf_counter() - self._began
        return {"answers": self._answers, "batches": self._answers, "busy_s": 0.0, "seconds": seconds}

    async def _stream(self, text: str) -> AsyncIterator[bytes]:
        began = time.perf_counter()
        for n, token in enumerate(tokens(text)):
            await asyncio.sleep(max(0.0, began + self._first_token_s + n * self._token_s - time.perf_counter()))
            yield event([{"index": 0, "delta": {"content": token}, "finish_reason": None}])
        yield event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        yield event([], usage=usage(text)) + b"data: [DONE]\n\n"


FIRST_WORD = {
    "choices": [
        {
            "index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "length",
            "logprobs": {"content": [{"token": "yes", "logprob": -0.1, "top_logprobs": []}]},
        }
    ],
    "usage": {"prompt_tokens": 0, "completion_tokens": 1},
}  # fmt: skip
"""The one token of the order `one_token`."""


def answer(body: dict[str, Any]) -> str:
    """Return the answer in the order of the request's schema."""
    shown = sum(part["type"] == "image_url" for part in body["messages"][1]["content"])
    properties = body["response_format"]["json_schema"]["schema"]["properties"]
    numbered = properties["pictures"]["items"]["type"] == "object"
    values = {
        "pictures": [{"picture": n + 1, "supports": "yes"} if numbered else "yes" for n in range(shown)],
        "reason": REASON, "decision": "confirmed", "confidence": 0.9,
    }  # fmt: skip
    return json.dumps({name: values[name] for name in properties}, separators=(",", ":"))


def tokens(text: str) -> list[str]:
    """Return the text in pieces of CHARS_A_TOKEN characters in the mean."""
    count = max(1, round(len(text) / CHARS_A_TOKEN))
    edges = [round(n * len(text) / count) for n in range(count + 1)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def usage(text: str) -> dict[str, Any]:
    return {"prompt_tokens": 0, "completion_tokens": len(tokens(text)), "prompt_tokens_details": {"cached_tokens": 0}}


def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


@contextmanager
def served(first_token_s: float, token_s: float) -> Iterator[int]:
    """Serve in a thread of this process; yield the port."""
    engine, app = ScriptedEngine(first_token_s, token_s), FastAPI()
    app.post("/v1/chat/completions", response_model=None)(engine.completions)
    app.get("/stats")(engine.stats)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, name="scripted engine", daemon=True)
    thread.start()
    deadline = time.perf_counter() + START_S_MAX
    while not server.started and time.perf_counter() < deadline:
        time.sleep(0.01)
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(START_S_MAX)
