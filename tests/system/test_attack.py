"""The attack of `make attack`, with some hundred of its tries: no error, no hang, no door.

The quick one leaves out silent sockets and hostile media, which unit/test_dashboard_connections.py and
contract/test_hostile_media.py try without processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.attack.__main__ import QUICK, QUICKEST, Size, attack
from benchmarks.attack.http_attack import exchange
from benchmarks.attack.target import Tally
from tests.servers.nats import find_nats_servers
from tests.support.dashboard_site import config_of, furnished


@pytest.mark.skipif(not find_nats_servers(), reason="no nats-server")
@pytest.mark.parametrize("size", [QUICKEST, pytest.param(QUICK, marks=pytest.mark.slow)], ids=["quickest", "quick"])
def test_some_hundred_tries_find_nothing(tmp_path: Path, size: Size) -> None:
    parts = {part.name: part for part in attack(tmp_path, size, seed=1)}
    assert sum(part.tries for part in parts.values()) >= 500
    assert [(part.name, part.doors, part.faults) for part in parts.values() if not part.clean] == []
    assert parts["http"].answers["200"] >= size.http // 80, (
        "it got in where it may"
    )  # most tries are malformed on purpose
    assert len([each for each in parts["http"].answers if each.startswith("4")]) >= 5
    assert parts["verdicts"].answers["sent"] == parts["escalations"].answers["sent"] == 80
    assert ("media" not in parts and size is QUICKEST) or parts["media"].answers["sent"] >= 60
    assert parts["sockets"].answers["silent"] == size.idle


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with furnished(tmp_path_factory.mktemp("site"), {}, config=config_of(token="correct horse")) as url:
        yield urlsplit(url).port or 0


@pytest.mark.parametrize(
    "path", ["/api/v1/system/diagnostics.zip", "/fragments/health/0", "/api/v1/cameras", "/api/v1/stream"]
)
def test_an_answer_on_a_connection_that_is_kept_is_no_hang(port: int, path: str) -> None:
    """A folded header behind `Connection: close` makes it another value; each kind of answer ends."""
    head = f"GET {path} HTTP/1.1\r\nAuthorization: Bearer correct horse\r\nHost: 127.0.0.1\r\nConnection: close"
    answer = exchange(port, f"{head}\r\n : x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 20")
    assert b"connection: close" not in answer.lower()


def test_an_attack_that_finds_something_says_so() -> None:
    tally = Tally("x")
    for answer in ("200", "404", "503", "closed"):
        tally.count(answer)
    assert tally.clean
    for found in (lambda: tally.count("500"), lambda: tally.count("hang"), lambda: tally.door("an open one")):
        before = (tally.errors, tally.hangs, len(tally.doors))
        found()
        assert not tally.clean
        assert before != (tally.errors, tally.hangs, len(tally.doors))
