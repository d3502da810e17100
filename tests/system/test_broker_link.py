"""The link comes back by itself, whatever ended it, and nobody says "ready" meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import BrokerChoice, NatsLink, end_tasks
from appliance.config import UplinkConfig
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.scripted_broker import GREETING, ScriptedBroker
from tests.servers.worker import WorkerProcess
from tests.support.ports import quiet_port
from tests.support.waiting import until, until_async


def watch(
    broker: str | BrokerConfig,
    condition: Callable[[NatsLink], bool],
    seconds: float = 20.0,
    *,
    choice: BrokerChoice | None = None,
    serves: Callable[[object], Awaitable[None]] | None = None,
) -> NatsLink:
    """Run a link until the condition holds, or fail."""

    async def main() -> NatsLink:
        address = BrokerConfig(url=broker) if isinstance(broker, str) else broker
        link = NatsLink(address, "test", SystemClock(), choice=choice, serves=serves)
        keeper = asyncio.create_task(link.run())
        try:
            await until_async(lambda: condition(link) or keeper.done(), seconds, lambda: link.state)
            assert not keeper.done(), keeper
        finally:
            await end_tasks(keeper)
        return link

    return asyncio.run(main())


def test_a_region_of_many_servers_is_left_as_soon_as_one_of_few() -> None:
    with ScriptedBroker() as broker:
        away = [{"url": f"nats://127.0.0.1:{quiet_port()}", "region": "a"} for _ in range(6)]
        urls = [*away, {"url": broker.url, "region": "b"}]
        brokers = UplinkConfig(url=away[0]["url"], urls=urls)
        choice = BrokerChoice(brokers.addresses, 0.5, 60.0, SystemClock())
        began = time.monotonic()
        watch(brokers, lambda link: link.state.up, choice=choice)
    assert choice.region == "b"
    assert time.monotonic() - began < 4.0, "a pause that grows from server to server would take 7 s"


def test_a_fault_in_the_probe_of_a_region_ends_no_probes(tmp_path: Path) -> None:
    """Otherwise the link would stay in the less preferred region for as long as this connection lasts."""
    servers = [NatsServer(find_nats_servers()[0], tmp_path / name).start() for name in ("eu", "us")]
    urls = [{"url": each.url, "region": region} for each, region in zip(servers, ("eu", "us"), strict=True)]
    config = UplinkConfig(urls=urls)  # type: ignore[call-arg,arg-type]
    choice = BrokerChoice(config.addresses, 0.0, 0.2, SystemClock())
    assert choice.failed(at_once=True)
    assert choice.region == "us"
    probes = count()

    async def serves(_client: object) -> None:
        if next(probes) == 0:
            raise RuntimeError("a fault, on purpose")

    try:
        watch(config, lambda link: link.state.up and link.state.region == "eu", choice=choice, serves=serves)
    finally:
        for each in servers:
            each.kill()


def test_a_broker_that_no_longer_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.broker.nats_connection.PING_INTERVAL_S", 0.1)
    monkeypatch.setattr("appliance.broker.nats_connection.PONG_S_MAX", 1.0)
    with ScriptedBroker(answers_pings=False) as broker:
        watch(broker.url, lambda link: broker.connections >= 2)


@pytest.mark.parametrize("line", [b"MSG x 1 99999999999\r\n", b"HMSG x 1 12 99999999999\r\n", b"INFO {"])
def test_a_broker_that_sends_without_end_is_cut_off(line: bytes) -> None:
    taken = []

    def flood(sock: socket.socket) -> None:
        sock.settimeout(10)
        sock.sendall(line)
        with contextlib.suppress(OSError):
            while sum(taken) < 300 * 1024**2:
                taken.append(sock.send(b"x" * 65536))

    with ScriptedBroker(flood) as broker:
        # The flood may come before the handshake has ended, and is then no connection that was made.
        watch(broker.url, lambda link: broker.connections == 2 and link.state.up)
    assert sum(taken) < 30 * 1024**2, "what the sockets hold, and no more"


@pytest.mark.parametrize("greeting", [b"INFO []\r\n", b'INFO {"connect_urls":5}\r\n'])
def test_what_greets_in_another_way_is_no_broker_and_no_bug(greeting: bytes) -> None:
    """An appliance whose link ends with a bug ends: its cameras were watched by nobody."""
    with ScriptedBroker(greeting=greeting) as broker:
        link = watch(broker.url, lambda link: broker.connections >= 2)
    assert "what it greets with is not NATS" in link.state.error


@pytest.mark.parametrize("version", [b'"nightly"', b"5"])
def test_a_broker_may_be_of_any_version(version: bytes) -> None:
    looks = count()
    with ScriptedBroker(greeting=GREETING.replace(b'"2.11.0"', version)) as broker:
        watch(broker.url, lambda link: link.state.up and next(looks) >= 20)
        assert broker.connections == 1


GIVES_UP_QUICKLY = 'ping_interval: "300ms"\nping_max: 1\nhttp: 127.0.0.1:-1'


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server that gives a frozen client up within a second instead of a minute."""
    if not find_nats_servers():
        pytest.skip("no nats-server")
    server = NatsServer(find_nats_servers()[0], tmp_path / "nats", extra=GIVES_UP_QUICKLY).start()
    yield server
    server.stop()


def status(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def link_metric(box: ApplianceProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", box.page("/metrics"), re.MULTILINE)
    assert found, name
    return float(found.group(1))


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def stale_connections(server: NatsServer) -> int:
    return status(f"{server.monitoring}/connz?state=closed")[1].count("Stale Connection")


def test_worker_and_appliance_come_back_after_a_freeze(impatient: NatsServer, tmp_path: Path) -> None:
    """SIGSTOP is what a suspend, `docker pause` and the snapshot of a virtual machine do."""
    port = quiet_port()
    config = tmp_path / "worker.yaml"
    engine = {"kind": "openai", "url": "http://127.0.0.1:9/v1", "model": "none"}
    config.write_text(json.dumps({"nats": {"url": impatient.url}, "status": {"port": port}, "engine": engine}))
    ready = f"http://127.0.0.1:{port}/readyz"
    site = f"cameras: {{gate: {{url: 'rtsp://127.0.0.1:9/none'}}}}\nuplink: {{url: '{impatient.url}'}}\n"
    working = WorkerProcess(config)
    try:
        with ApplianceProcess(tmp_path, site) as box:
            until(lambda: "connected to the broker" in working.log(), 60, "the worker has a link")
            until(lambda: link_metric(box, "vedette_link_up") == 1, 60)
            for _ in range(2):
                stale = stale_connections(impatient)
                before = working.log().count("connected to the broker"), box.log.count("connected to the broker")
                with frozen(working.pid, box.pid):
                    until(lambda stale=stale: stale_connections(impatient) >= stale + 2, 20, "both are given up")
                until(
                    lambda before=before: working.log().count("connected to the broker") > before[0], 30, working.log()
                )
                until(lambda before=before: box.log.count("connected to the broker") > before[1], 30, box.log)
            until(lambda: link_metric(box, "vedette_link_up") == 1, 30)
            assert "model server cannot be reached" in status(ready)[1], "the broker is no longer what it waits for"
    finally:
        working.end(signal.SIGTERM)
