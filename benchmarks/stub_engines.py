"""Engines without a model: one that answers after a fixed time, and a server that streams fixed words at a pace.

    .venv/bin/python -m benchmarks.stub_engines nats://127.0.0.1:4222 --concurrency 16 --latency-s 0.2
    .venv/bin/python -m benchmarks.stub_engines nats://127.0.0.1:4222 --engine http://127.0.0.1:8000/v1

These run a worker in a process of its own: with the engine that takes a fixed time, and with one that asks a server.
In production the worker is far from the site, so a benchmark must not run both in one Python interpreter. The process
prints `ready` and ends when its input does.

The server (`served`) speaks OpenAI's protocol, at the pace of a model of real size. It has no queue: one that batches
well keeps this pace up to its capacity, which benchmarks.verdicts.server shows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import NatsLink
from appliance.types import JudgeKind
from appliance.wire import Need
from cloud_worker.config import HandlingConfig as WorkerSettings
from cloud_worker.config import OpenAiEngine, RedetectEngine, StatusConfig, WorkerConfig
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import AnswerOrder
from cloud_worker.worker import Worker

ROOT = Path(__file__).resolve().parents[1]
CHARS_A_TOKEN = 3.2  # so that an answer on two pictures in the order reason_first has the 80 tokens of --answer-tokens
REASON = "A person in dark clothes stands inside the yard, beside the loading door, and looks at the camera."
START_S_MAX = 30.0


class Instant:
    """An engine without a model that takes `latency_s` for each answer, for any number of escalations at a time."""

    name, model, prompt_version, answer_schema = "instant", "none", "", ""
    kind: JudgeKind = "simulated"
    uses: frozenset[Need] = frozenset({"crop", "frame"})

    def __init__(self, latency_s: float = 0.0) -> None:
        self._latency_s = latency_s

    async def judge(self, case: JudgeCase) -> Opinion:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        return Opinion(decision="confirmed", reason=f"{len(case.files)} pictures arrived.")

    async def check(self) -> str:
        return "instant"

    async def close(self) -> None: ...


@contextlib.contextmanager
def instant_worker(
    url: str,
    *,
    concurrency: int = 4,
    latency_s: float = 0.0,
    shed_s: Mapping[str, float] | None = None,
    engine: Sequence[str] = (),
) -> Iterator[None]:
    """Run a worker process that is ready, for the time of the block.

    shed_s: as in the worker file, by priority. engine: the options of a model server that is asked instead.
    """
    command = [sys.executable, "-m", "benchmarks.stub_engines", url, *engine]
    command += ["--concurrency", str(concurrency), "--latency-s", str(latency_s), "--shed-s", json.dumps(shed_s or {})]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != b"ready":
            raise RuntimeError(f"the worker did not start: {' '.join(command)}")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--shed-s", type=json.loads, default={}, help="seconds by priority, as JSON")
    parser.add_argument("--engine", metavar="URL", help="an OpenAI-compatible server that judges")
    parser.add_argument("--order", choices=get_args(AnswerOrder), default="reason_first", help="of its answer")
    asyncio.run(_work(parser.parse_args()))


async def _work(options: argparse.Namespace) -> None:
    clock, loop = SystemClock(), asyncio.get_running_loop()
    settings = WorkerSettings(name="w1", concurrency=options.concurrency, drain_s=5.0, shed_s=options.shed_s)
    link = NatsLink(BrokerConfig(url=options.url), "worker", clock)
    config = WorkerConfig(engine=RedetectEngine(kind="redetect"), worker=settings, status=StatusConfig())
    if options.engine:
        model = OpenAiEngine(kind="openai", url=options.engine, model="bench", answer_order=options.order)
        judge = Judge(OpenAiVlm(model, clock), "w1", clock, IN_PROCESS)
    else:
        judge = Judge(Instant(options.latency_s), "w1", clock, IN_PROCESS)
    worker = Worker(config, judge, link, clock)

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(worker.stop)

    threading.Thread(target=wait_for_the_end, name="input", daemon=True).start()
    work = asyncio.create_task(worker.run())
    while worker.unready() and not work.done():  # noqa: ASYNC110 - it tells nobody when it is
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await work


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


if __name__ == "__main__":
    main()
