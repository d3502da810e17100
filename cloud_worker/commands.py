"""What each command of `vedette-worker` does; the words and the exit codes are in `__main__`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nats.js import JetStreamContext

from appliance.broker import Link, end_tasks
from appliance.clock import Clock
from appliance.errors import EngineError, MissingPart, UplinkError
from cloud_worker import deadletters, streams
from cloud_worker.config import WorkerConfig
from cloud_worker.deadletters import DeadLetter
from cloud_worker.engines.build import build
from cloud_worker.judge import Judge
from cloud_worker.numbers import Numbers
from cloud_worker.shelf import NoShelf, Shelf
from cloud_worker.worker import Worker

if TYPE_CHECKING:
    from cloud_worker.archive import Archive

CHECK_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What `check` found: sentences on what works, what differs, and what does not work."""

    good: list[str]
    differences: list[str]
    problems: list[str]


async def run(settings: WorkerConfig, clock: Clock) -> None:
    """Work until SIGTERM or SIGINT."""
    engine = build(settings.engine, clock)
    name = settings.worker.name or f"{socket.gethostname()[:40]}-{os.getpid()}"
    numbers = Numbers()
    shelf = shelf_of(settings, clock, numbers)
    link = Link(settings.nats, f"vedette-worker {name}", clock)
    worker = Worker(settings, Judge(engine, name, clock), link, clock, shelf, numbers)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        await worker.run()
    finally:
        await engine.close()


def shelf_of(settings: WorkerConfig, clock: Clock, numbers: Numbers) -> Shelf:
    """The archive that the file asks for. Call it in the loop that reads the numbers. Raises MissingPart."""
    if settings.archive.bucket is None:
        return NoShelf()
    loop = asyncio.get_running_loop()

    def counted(result: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who reads
            loop.call_soon_threadsafe(numbers.archived.add, result)

    return _archive(settings, clock, counted)[0]


def _archive(settings: WorkerConfig, clock: Clock, counted: Callable[[str], None]) -> tuple[Archive, type[Exception]]:
    """The archive, and how it says no. Raises MissingPart."""
    try:
        from cloud_worker import archive, bucket  # boto3 comes with the extra `s3`: only who asks needs it
    except ModuleNotFoundError as error:
        raise MissingPart(f"the archive needs {error.name}: pip install 'vedette[s3]'") from None
    return archive.Archive(settings.archive, clock, counted), bucket.NotStored


async def check(settings: WorkerConfig, clock: Clock) -> Findings:
    """Try what `run` would need."""
    findings = Findings([], [], [])
    try:
        async with _broker(settings, clock) as jetstream:
            findings.differences.extend(await streams.ensure(jetstream, settings.streams))
            for each in await streams.backlog(jetstream):
                findings.good.append(f"{each.stream}: {each.messages} messages, {each.bytes} of {each.bytes_max} bytes")
    except UplinkError as error:
        findings.problems.append(str(error))
    await _check_archive(settings, clock, findings)
    engine = build(settings.engine, clock)
    try:
        findings.good.append(await engine.check())
    except EngineError as error:
        findings.problems.append(str(error))
    finally:
        await engine.close()
    return findings


async def _check_archive(settings: WorkerConfig, clock: Clock, findings: Findings) -> None:
    if settings.archive.bucket is None:
        return
    archive, refused = _archive(settings, clock, lambda _: None)
    try:
        findings.good.append(await asyncio.to_thread(archive.check))
    except refused as error:
        findings.problems.append(f"the archive {settings.archive.bucket}: {error}")
    finally:
        await asyncio.to_thread(archive.close, 0.0)


async def list_letters(settings: WorkerConfig, clock: Clock, count: int) -> list[DeadLetter]:
    """The newest dead letters. Raises UplinkError."""
    async with _broker(settings, clock) as jetstream:
        return await deadletters.listed(jetstream, count)


async def show_letter(settings: WorkerConfig, clock: Clock, number: int) -> DeadLetter:
    """One of them. Raises UsageError, UplinkError."""
    async with _broker(settings, clock) as jetstream:
        return await deadletters.one(jetstream, number)


async def requeue_letters(settings: WorkerConfig, clock: Clock, numbers: Sequence[int]) -> list[DeadLetter]:
    """Ask these again. Raises UsageError at the first that is not there, UplinkError."""
    async with _broker(settings, clock) as jetstream:
        return [await deadletters.requeue(jetstream, number) for number in numbers]


@contextlib.asynccontextmanager
async def _broker(settings: WorkerConfig, clock: Clock) -> AsyncIterator[JetStreamContext]:
    """A connection for as long as the block lasts. Raises UplinkError when there is none in CHECK_S_MAX."""
    link = Link(settings.nats, "vedette-worker command", clock)
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
