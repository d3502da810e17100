"""The attack of `make attack`, with some hundred of its tries: no error, no hang, no door.

The quick one leaves out silent sockets and hostile media, which unit/test_dashboard_connections.py and
contract/test_hostile_media.py try without processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack.__main__ import QUICK, QUICKEST, Size, attack
from benchmarks.attack.tally import Tally
from tests.servers.nats import find_nats_servers


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
