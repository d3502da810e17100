"""The attack of `make attack`, with some hundred of its tries: no error, no hang, no door."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack.__main__ import QUICK, attack
from benchmarks.attack.tally import Tally
from tests.servers.nats import find_nats_servers


@pytest.mark.skipif(not find_nats_servers(), reason="no nats-server")
def test_some_hundred_tries_find_nothing(tmp_path: Path) -> None:
    parts = {part.name: part for part in attack(tmp_path, QUICK, seed=1)}
    assert sum(part.tries for part in parts.values()) >= 600
    assert [(part.name, part.doors, part.faults) for part in parts.values() if not part.clean] == []
    assert parts["http"].answers["200"] > 10, "it got in where it may"
    assert len([each for each in parts["http"].answers if each.startswith("4")]) >= 5
    assert parts["media"].answers["sent"] >= 60


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
