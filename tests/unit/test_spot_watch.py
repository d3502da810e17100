"""What answers at the address of the spot market's notices may be anything: it must not end the worker."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from appliance.base.clock import SystemClock
from cloud_worker.config import SpotConfig
from cloud_worker.worker import SpotWatch

KINDS: tuple[Literal["aws", "gcp", "azure"], ...] = ("aws", "gcp", "azure")
ANSWERS = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "a list of texts": b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"Events": ["a"]}',
    "a number for a time": b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"time": 1}',
    "deep": b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60_000,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_whatever_answers_the_worker_goes_on_asking(kind: Literal["aws", "gcp", "azure"], answer: str) -> None:
    async def main() -> None:
        asked = asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWERS[answer])
            writer.close()
            asked.release()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = SpotConfig(kind=kind, url=f"http://127.0.0.1:{port}", every_s=0.1)
            watch = asyncio.create_task(SpotWatch(settings, SystemClock(), lambda left_s: None).run())
            asking = asyncio.create_task(_times(asked, 4))
            await asyncio.wait({watch, asking}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert not watch.done(), watch.exception()
            assert asking.done(), "it asks no more"
            watch.cancel()

    asyncio.run(main())


async def _times(semaphore: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await semaphore.acquire()
