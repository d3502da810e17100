"""The urgent goes first, and the rest is not forgotten."""

from __future__ import annotations

from collections import Counter

from cloud_worker.pull import Shares


def test_with_everything_waiting_each_priority_gets_its_share() -> None:
    shares = Shares()
    picks = [shares.pick(("high", "normal", "low")) for _ in range(120)]
    assert picks[0] == "high"
    assert Counter(picks) == {"high": 80, "normal": 30, "low": 10}
    assert max(len(run) for run in "".join(pick[0] for pick in picks).replace("l", " ").split()) <= 12


def test_a_priority_alone_is_served_at_once() -> None:
    shares = Shares()
    assert [shares.pick(("low",)) for _ in range(50)] == ["low"] * 50
    assert shares.pick(("low", "high")) == "high", "having been alone is no debt"
