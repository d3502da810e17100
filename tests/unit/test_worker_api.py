"""The worker's `POST /api/v1/analyze`: real sockets, a real engine behind a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from pydantic import SecretStr, ValidationError

from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError
from cloud_worker import http_server
from cloud_worker.commands import build_judge
from cloud_worker.config import ApiConfig, ApiToken, FallbackConfig, OpenAiEngine, PooledEngineConfig, WorkerConfig
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.http_server import AnalyzeServer
from cloud_worker.judge import Judge
from cloud_worker.metrics import WorkerMetrics
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub

TOKEN = "a token of twelve"
PICTURE = base64.b64encode(cv2.imencode(".jpg", np.full((64, 64, 3), 90, np.uint8))[1].tobytes()).decode()
ITEM = {"camera": "gate", "media": PICTURE, "question": "Is the gate open?"}


@contextlib.contextmanager
def served(*stubs: OpenAiStub, unready: str = "", timeout_s: float = 60.0, **limits: Any) -> Iterator[httpx.Client]:
    """A worker's API, with an engine for each stub: the first is the best."""
    token = ApiToken(name="hall", token=SecretStr(TOKEN), site="depot-7", cameras=("gate",), **limits)
    engines = tuple(
        PooledEngineConfig(
            name=f"engine-{n}",
            order=n,
            engine=OpenAiEngine(kind="openai", url=stub.url, model=MODEL, api_key=SecretStr(KEY), timeout_s=timeout_s),
        )
        for n, stub in enumerate(stubs, 1)
    )
    settings = WorkerConfig(
        engine=engines[0].engine,
        engines=engines if len(engines) > 1 else (),
        fallback=FallbackConfig(patience_s=0.0),
    )
    started, over = threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def main() -> None:
        clock = SystemClock()
        vlm = build_judge(settings, clock, WorkerMetrics())
        judge = Judge(vlm, "w1", clock, IN_PROCESS)
        with contextlib.suppress(EngineError):
            await judge.check()
        server = AnalyzeServer(
            ApiConfig(port=0, tokens=(token,)), judge.verdict, lambda: unready, lambda: 3600.0, IN_PROCESS, clock
        )
        await server.start()
        ports.append(server.port)
        loops.append(asyncio.get_running_loop())
        started.set()
        await over.wait()
        server.close()
        await vlm.close()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(30)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", headers=bearer, timeout=60) as client:
            yield client
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(30)


@pytest.fixture
def stub() -> Iterator[OpenAiStub]:
    made = OpenAiStub().start()
    yield made
    made.stop()


def ask(client: httpx.Client, *items: dict[str, Any]) -> httpx.Response:
    return client.post("/api/v1/analyze", json={"items": items})


def test_a_question_is_answered_at_once_with_its_cost_and_what_is_refused_says_why(stub: OpenAiStub) -> None:
    with served(stub) as client:
        answer = ask(client, ITEM, {**ITEM, "tier": "edge"}, {**ITEM, "media": base64.b64encode(b"none").decode()})
        yes, edge, none = answer.json()["items"]
    assert answer.status_code == 200
    assert (yes["status"], yes["tier"], yes["answer"], yes["judge"], yes["confidence"]) == (
        "answered", "cloud", "yes", "vlm", 0.9,
    )  # fmt: skip
    assert yes["cost"]["money"] == pytest.approx(yes["cost"]["gpu_s"], abs=1e-4), "an hour costs 3,600"
    assert (edge["status"], edge["reason"]) == ("refused", "A worker has no tier edge: ask the appliance.")
    assert (none["status"], none["reason"]) == ("refused", "Media is no JPEG, WebP or MP4.")
    assert "Is the gate open?" in str(stub.requests[0]["messages"])


def test_tokens_cameras_rates_and_budgets_hold(stub: OpenAiStub) -> None:
    with served(stub, per_minute=2, gpu_s_day=0.0001) as client:
        assert ask(client, {**ITEM, "camera": "attic"}).status_code == 404
        assert (
            client.post("/api/v1/analyze", json={"items": [ITEM]}, headers={"Authorization": "Bearer no"}).status_code
            == 401
        )
        assert client.post("/api/v1/analyze", json={"items": []}).status_code == 422
        assert client.get("/api/v1/analyze").status_code == 405
        assert client.post("/else", json={}).status_code == 404
        assert ask(client, ITEM).status_code == 200
        spent = ask(client, ITEM)
        assert (spent.status_code, "gpu_s_day is spent" in spent.json()["detail"]) == (429, True)
        fast = ask(client, ITEM)
        assert (fast.status_code, "2 items a minute" in fast.json()["detail"]) == (429, True)
        assert int(fast.headers["Retry-After"]) > 1
    assert len(stub.requests) == 1
    with served(stub, unready="not connected") as client:
        assert ask(client, ITEM).json()["detail"] == "Nothing is judged now: not connected"


def test_the_seconds_of_a_day_hold_for_each_item_and_a_time_out_is_charged(stub: OpenAiStub) -> None:
    with served(stub, gpu_s_day=0.0001) as client:
        first, second = ask(client, ITEM, ITEM).json()["items"]
        assert (first["status"], second["status"]) == ("answered", "refused")
        assert second["reason"] == "api.tokens.hall.gpu_s_day is spent for today."
    assert len(stub.requests) == 1
    with served(stub, gpu_s_day=0.9, timeout_s=1.0) as client:
        stub.modes = ["hang"]
        assert "no answer within 1 s" in ask(client, ITEM).json()["items"][0]["reason"]
        assert ask(client, ITEM).status_code == 429


def test_who_connects_and_asks_nothing_keeps_nobody_out(stub: OpenAiStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer may take minutes; a place that nobody asks from is not held for so long."""
    monkeypatch.setattr(http_server, "REQUEST_S_MAX", 0.5)
    with served(stub) as client, contextlib.ExitStack() as held:
        where = ("127.0.0.1", client.base_url.port or 0)
        idle = [held.enter_context(socket.create_connection(where, 20)) for _ in range(http_server.CLIENTS_MAX)]
        assert [each.recv(1) for each in idle] == [b""] * len(idle)
        assert ask(client, ITEM).status_code == 200


def test_no_body_is_read_of_who_has_no_token(stub: OpenAiStub) -> None:
    head = "POST /api/v1/analyze HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer no\r\nContent-Length: 12000000\r\n"
    with served(stub) as client, socket.create_connection(("127.0.0.1", client.base_url.port or 0), 20) as slow:
        slow.sendall(f"{head}\r\n".encode() + bytes(1000))
        slow.settimeout(20)
        answer = slow.recv(1000)
        assert answer.startswith(b"HTTP/1.1 401 ")
        with contextlib.suppress(OSError):  # it is cut off soon, however slow it sends
            while slow.recv(1000):
                pass


def test_who_sends_a_long_body_without_a_token_reads_why_it_is_refused(stub: OpenAiStub) -> None:
    with served(stub) as client:
        answer = client.post("/api/v1/analyze", content=bytes(8_000_000), headers={"Authorization": "Bearer no"})
        assert answer.status_code == 401
        assert client.post("/else", content=bytes(8_000_000)).status_code == 404


def test_of_two_engines_the_second_answers_a_batch_and_says_so(stub: OpenAiStub) -> None:
    small = OpenAiStub().start()
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    try:
        with served(stub, small, per_minute=5) as client:
            assert [each["answered_by"] for each in ask(client, ITEM).json()["items"]] == ["engine-1"]
            stub.mode = "503"
            small.modes = ["good", "rejected"]
            client.headers["traceparent"] = caller
            answer = ask(client, ITEM, ITEM)
            first, second = answer.json()["items"]
            too_many = ask(client, *[ITEM] * 3)
    finally:
        small.stop()
    assert (answer.status_code, first["answer"], second["answer"]) == (200, "yes", "no")
    assert {each["answered_by"] for each in (first, second)} == {"engine-2"}
    assert {each["flagged"] for each in (first, second)} == {"better engines that did not answer: 1"}
    assert too_many.status_code == 429, "a batch is taken whole or not at all"
    traces = [each for each in small.traces if each]
    assert [each.split("-")[1] for each in traces] == [caller.split("-")[1]] * 2, "the caller's trace"
    assert len({each.split("-")[2] for each in traces} | {caller.split("-")[2]}) == 3, "each call is a span of its own"


def test_a_port_without_a_token_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a token"):
        ApiConfig(port=0)
