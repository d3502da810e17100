"""The event loop of a service: what a look-up of a name may hold up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base import service_loop
from appliance.base.service_loop import ServiceLoop


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that answers when the event is set, for one name; it knows all others."""
    over, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **keys: Any) -> Any:
        if host == "stuck.example":
            over.wait(60)
        return real("127.0.0.1", *args, **keys)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield over
    over.set()


async def _connect(name: str, port: int) -> None:
    _, writer = await asyncio.wait_for(asyncio.open_connection(name, port), 0.5)
    writer.close()


def test_a_look_up_that_is_stuck_delays_no_stop(stuck: threading.Event) -> None:
    began = time.monotonic()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await _connect("stuck.example", 4222)

    ServiceLoop().run(main())
    assert time.monotonic() - began < 30


def test_other_names_are_found_meanwhile_and_a_resolver_that_never_answers_holds_few_threads(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_loop, "LOOKUPS_MAX", 2)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(asyncio.TimeoutError):
                await _connect("stuck.example", port)
            await _connect("broker.example", port)
            with pytest.raises(asyncio.TimeoutError):
                await _connect("stuck.example", port)
            with pytest.raises(OSError, match="does not answer"):
                await _connect("broker.example", port)
            stuck.set()
            while True:
                try:
                    await _connect("broker.example", port)
                    return
                except OSError:
                    await asyncio.sleep(0.01)

    ServiceLoop().run(main())
