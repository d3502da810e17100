"""The work of each command of `vedette-worker`, and the objects it builds; texts and exit codes are in `__main__`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from nats.js import JetStreamContext
from pydantic import TypeAdapter, ValidationError

from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, MissingDependency, UplinkError, UsageError
from appliance.base.json_lines import first_problem
from appliance.base.telemetry import remove_identifiers
from appliance.broker.nats_link import NatsLink, end_tasks
from appliance.detect import detector_loader
from appliance.detect.detector import UpscalingDetector
from appliance.wire import Escalation, traceparent_after, traceparent_of
from cloud_worker import dead_letter_store, stream_setup
from cloud_worker.config import EngineConfig, RedetectEngine, WorkerConfig
from cloud_worker.dead_letter_store import DeadLetter
from cloud_worker.engine_pool import EnginePool
from cloud_worker.escalation_handler import ArchivePort, NullArchive
from cloud_worker.evidence import SandboxDecoder, read
from cloud_worker.judge import Engine as EnginePort
from cloud_worker.judge import Judge
from cloud_worker.metrics import WorkerMetrics
from cloud_worker.redetect import UNSURE_SHARE, Redetect
from cloud_worker.worker import Worker

CHECK_S_MAX = 15.0  # to connect, for the commands that a person waits for
LOCAL_NAME = "appliance"  # of a worker that an appliance starts
LOCAL_NICE = 10  # cameras come first


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of `check`: sentences on what works, what differs, and what does not work."""

    good: list[str]
    differences: list[str]
    problems: list[str]


async def run(settings: WorkerConfig, clock: Clock) -> None:
    """Work until SIGTERM or SIGINT."""
    remove_identifiers()
    metrics = WorkerMetrics()
    engine = build_judge(settings, clock, metrics)
    name = settings.worker.name or f"{socket.gethostname()[:40]}-{os.getpid()}"
    archive = build_archive(settings, clock, metrics)
    link = NatsLink(settings.nats, f"vedette-worker {name}", clock)
    decoder = SandboxDecoder()
    judge = Judge(engine, name, clock, decoder)
    worker = Worker(settings, judge, link, clock, archive=archive, metrics=metrics)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        await worker.run()
    finally:
        await engine.close()
        decoder.close()


async def check(settings: WorkerConfig, clock: Clock) -> Findings:
    """Try what `run` would need."""
    findings = Findings([], [], [])
    try:
        async with _broker(settings, clock) as jetstream:
            findings.differences.extend(await stream_setup.ensure_streams(jetstream, settings.streams))
            for each in await stream_setup.stream_fill(jetstream):
                findings.good.append(f"{each.stream}: {each.messages} messages, {each.bytes} of {each.bytes_max} bytes")
    except UplinkError as error:
        findings.problems.append(str(error))
    await _check_archive(settings, clock, findings)
    engine = build_judge(settings, clock, WorkerMetrics())
    try:
        findings.good.append(await engine.check())
    except EngineError as error:
        findings.problems.append(str(error))
    finally:
        await engine.close()
    return findings


def erase_archived(settings: WorkerConfig, receipt: Path) -> Findings:
    """Delete the objects that a receipt of an erasure names. Raise UsageError, MissingDependency."""
    if settings.archive.bucket is None:
        raise UsageError("the worker file names no archive.bucket: nothing is archived")
    archive = _archive_module()
    try:
        text = receipt.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{receipt} cannot be read: {error}") from None
    findings = Findings([], [], [])
    bucket = archive.S3Bucket(settings.archive)
    for key in archive.keys_of_receipt(text, settings.archive.prefix):
        try:
            bucket.delete(key)
            findings.good.append(f"deleted {key}")
        except archive.NotStored as error:
            findings.problems.append(f"{key} is not deleted: {error}")
    bucket.close()
    return findings


async def list_dead_letters(settings: WorkerConfig, clock: Clock, count: int) -> list[DeadLetter]:
    """Return the newest dead letters. Raise UplinkError."""
    async with _broker(settings, clock) as jetstream:
        return await dead_letter_store.list_newest(jetstream, count)


async def show_dead_letter(settings: WorkerConfig, clock: Clock, number: int) -> DeadLetter:
    """Return one dead letter. Raise UsageError, UplinkError."""
    async with _broker(settings, clock) as jetstream:
        return await dead_letter_store.read_one(jetstream, number)


async def requeue_dead_letters(
    settings: WorkerConfig, clock: Clock, numbers: Sequence[int], done: Callable[[DeadLetter], None]
) -> None:
    """Send the escalations of these dead letters again, and call `done` with each as soon as it is sent.

    Raise UsageError at the first number that is not there, UplinkError if the broker fails.
    """
    async with _broker(settings, clock) as jetstream:
        for number in numbers:
            done(await dead_letter_store.requeue(jetstream, number))


def build_engine(settings: EngineConfig, clock: Clock) -> EnginePort:
    """Return the judge that the worker file asks for.

    Raise ModelError when a detector cannot be loaded, MissingDependency when a package is absent.
    """
    if isinstance(settings, RedetectEngine):
        # Objects a little below the threshold are wanted too: they make an image abstain instead of saying no.
        lower = settings.model_copy(update={"score_min": settings.score_min * UNSURE_SHARE})
        return Redetect(UpscalingDetector(detector_loader.load(lower)), settings.score_min, clock)
    try:
        from cloud_worker import openai_vlm  # httpx comes with the extra `cloud`: only who asks needs it
    except ModuleNotFoundError as error:
        raise MissingDependency(f"the engine openai needs {error.name}: pip install 'vedette[cloud]'") from None
    return openai_vlm.OpenAiVlm(settings, clock)


def build_judge(settings: WorkerConfig, clock: Clock, metrics: WorkerMetrics) -> EnginePort:
    """Return the engine, or the pool of them, that the worker file asks for. Raise ModelError, MissingDependency."""
    if not settings.engines:
        return build_engine(settings.engine, clock)
    engines = [(each, build_engine(each.engine, clock)) for each in settings.engines]
    pool = EnginePool(
        engines, settings.fallback, clock, lambda name, outcome: metrics.calls.labels(name, outcome).inc()
    )
    for each in pool.engines:
        metrics.add_engine(each.name, lambda each=each: each.state)  # type: ignore[misc]
    return pool


def build_archive(settings: WorkerConfig, clock: Clock, metrics: WorkerMetrics) -> ArchivePort:
    """Return the archive that the file asks for. Raise MissingDependency."""
    if settings.archive.bucket is None:
        return NullArchive()
    archive: ArchivePort = _archive_module().S3Archive(
        settings.archive, clock, lambda result: metrics.archived.labels(result).inc()
    )
    return archive


def _archive_module() -> ModuleType:
    try:
        from cloud_worker import archive  # boto3 comes with the extra `s3`: only who asks needs it
    except ModuleNotFoundError as error:
        raise MissingDependency(f"the archive needs {error.name}: pip install 'vedette[s3]'") from None
    return archive


async def _check_archive(settings: WorkerConfig, clock: Clock, findings: Findings) -> None:
    if settings.archive.bucket is None:
        return
    module = _archive_module()
    archive = module.S3Archive(settings.archive, clock, lambda _: None)
    try:
        findings.good.append(await asyncio.to_thread(archive.check))
    except module.NotStored as error:
        findings.problems.append(f"the archive {settings.archive.bucket}: {error}")
    finally:
        await asyncio.to_thread(archive.close, 0.0)


@contextlib.asynccontextmanager
async def _broker(settings: WorkerConfig, clock: Clock) -> AsyncIterator[JetStreamContext]:
    """Hold a connection for as long as the block lasts. Raise UplinkError when there is none in CHECK_S_MAX."""
    link = NatsLink(settings.nats, "vedette-worker command", clock)
    keeper = asyncio.create_task(link.run_once())
    waiting = asyncio.create_task(link.client())
    try:
        await asyncio.wait({keeper, waiting}, timeout=CHECK_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            if keeper.done():
                keeper.result()
            raise UplinkError(f"the broker at {settings.nats} does not answer")
        yield waiting.result().jetstream()
    finally:
        await end_tasks(keeper, waiting)


async def judge_lines(lines: BinaryIO, answers: BinaryIO, clock: Clock) -> None:
    """Judge without a broker until `lines` ends: escalations come as JSON lines, and their verdicts go back.

    The first line is the section `engine` of a worker file. Each further one is
    `{"escalation": {...}, "paths": {...}}`, with the files of the evidence by the ids of their references. The next
    line comes when this one is answered, with
    `{"verdict": {...}}` or `{"error": "...", "away": true}`. Standard input that ends means: stop at once.

    Raise UsageError for an engine that is wrong, ModelError, MissingDependency.
    """
    os.nice(LOCAL_NICE)
    engine = build_engine(_engine(await asyncio.to_thread(lines.readline)), clock)
    decoder = SandboxDecoder()
    judge = Judge(engine, LOCAL_NAME, clock, decoder)
    coming = asyncio.create_task(asyncio.to_thread(lines.readline))
    try:
        while line := await coming:
            coming = asyncio.create_task(asyncio.to_thread(lines.readline))
            work = asyncio.create_task(_answer(judge, line))
            await asyncio.wait({work, coming}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # nothing is sent while one is judged: the appliance has gone, or wants no answer
                work.cancel()
                return
            answers.write(json.dumps(work.result()).encode() + b"\n")
            answers.flush()
    finally:
        await engine.close()
        decoder.close()


def _engine(line: bytes) -> EngineConfig:
    try:
        found: EngineConfig = TypeAdapter(EngineConfig).validate_json(line)
    except ValidationError as error:
        raise UsageError(f"the first line of standard input must be an engine: {first_problem(error)}") from None
    return found


async def _answer(judge: Judge, line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        escalation = Escalation.model_validate(asked["escalation"])
        case = await judge.fetch_case(partial(read, asked["paths"]), escalation)
        trace = traceparent_after(traceparent_of(escalation), LOCAL_NAME)
        verdict = await judge.verdict(replace(case, traceparent=trace))
    except EngineError as error:
        return {"error": str(error), "away": isinstance(error, EngineUnavailable)}
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"the line was not understood ({type(error).__name__})", "away": False}
    return {"verdict": verdict.model_dump(mode="json")}
