"""Stands between a site and a broker, and delays every byte as a long way does; the bandwidth stays as it is.

`python -m benchmarks.verdict_latency --rtt-ms 50` uses it: network delay by the kernel (netem) is not everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

READ_BYTES = 64 * 1024


@contextlib.contextmanager
def far(port: int, rtt_s: float) -> Iterator[int]:
    """Yield the port of 127.0.0.1 behind which the server at `port` is `rtt_s` away."""
    loop = asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            back, there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_delayed(reader, there, rtt_s / 2), _delayed(back, writer, rtt_s / 2))

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="the long way", daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(READ_BYTES):
            loop.call_later(delay_s, writer.write, data)
    finally:
        loop.call_later(delay_s, writer.close)
