"""A worker in a process of its own whose engine has no model: it answers after a fixed time, or asks a scripted server.

    .venv/bin/python -m benchmarks.instant_worker nats://127.0.0.1:4222 --concurrency 16 --latency-s 0.2
    .venv/bin/python -m benchmarks.instant_worker nats://127.0.0.1:4222 --engine http://127.0.0.1:8000/v1

In production the worker is far from the site, so a benchmark must not run both in one Python interpreter. It prints
`ready` and ends when its input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import NatsLink
from appliance.types import JudgeKind
from appliance.wire import Need
from cloud_worker.config import HandlingConfig as WorkerSettings
from cloud_worker.config import OpenAiEngine, RedetectEngine, StatusConfig, WorkerConfig
from cloud_worker.engines.openai_vlm import OpenAiVlm
from cloud_worker.images import IN_PROCESS
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.prompt import AnswerOrder
from cloud_worker.worker import Worker

ROOT = Path(__file__).resolve().parents[1]


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
    command = [sys.executable, "-m", "benchmarks.instant_worker", url, *engine]
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


if __name__ == "__main__":
    main()
