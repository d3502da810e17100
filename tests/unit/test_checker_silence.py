"""A history without a bug never alarms: 1,000 seeds of a simulated run with every fault that is allowed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.checker import ChaosResult, Promises, check, main, paid_elsewhere
from benchmarks.chaos.history import HistoryEvent, write_history

SEEDS = 1000
DEADLINE_S = {"high": 60.0, "normal": 60.0, "low": 30.0}


def simulated(seed: int, questions: int = 7) -> list[HistoryEvent]:
    """The history of a site, a broker and workers that keep the rules, with the faults of one seed.

    A worker may die at any moment of its work; an acknowledgement may be lost; a second worker may judge once more
    before the first one's verdict is stored; a verdict may be copied, be late, come before its reason, or ask for more
    evidence; an escalation may have no answer at all.
    """
    chance = random.Random(seed)
    events = [event for n in range(questions) for event in _one(chance, n)]
    return sorted(events, key=lambda event: event.t)


def _one(chance: random.Random, n: int) -> Iterator[HistoryEvent]:
    t, priority = n * chance.uniform(0, 0.2), chance.choice(tuple(DEADLINE_S))
    base = HistoryEvent(t=t, what="raised", escalation=f"esc-{n}", alert=f"alert-{n}", priority=priority)
    yield base
    yield replace(base, t=t, what="flagged", escalation="")
    worker, step = 0, 0
    while True:
        yield replace(base, t=(t := t + chance.uniform(0, 0.3)), what="state", value="ready", step=step)
        if not step and chance.random() < 0.1:  # nobody answers: people are told in time
            yield replace(base, t=base.t + DEADLINE_S[priority] - 1, what="state", value="expired", step=step)
            if chance.random() < 0.5:
                return
            t = base.t + DEADLINE_S[priority]  # and a late verdict still counts
        elif chance.random() < 0.9:  # killed before that was recorded
            yield replace(base, t=(t := t + chance.uniform(0, 0.3)), what="state", value="sent", step=step)
        while chance.random() < 0.3:  # a worker that dies before its verdict is stored, or an engine that fails
            call = replace(base, step=step, where=f"worker {(worker := worker + 1)}")
            yield replace(call, t=(t := t + 0.1), what="asked")
            if chance.random() < 0.7:
                yield replace(call, t=(t := t + 0.2), what=chance.choice(("answered", "failed")))
        call = replace(base, step=step, where=f"worker {(worker := worker + 1)}")
        yield replace(call, t=(t := t + 0.1), what="asked")
        yield replace(call, t=(t := t + 0.2), what="answered")
        if step == 2 or chance.random() < 0.7:
            break
        yield replace(base, t=(t := t + 0.01), what="stored", value="unsure", part="need", step=step)
        yield replace(base, t=(t := t + 0.01), what="acked", step=step)
        yield replace(base, t=(t := t + 0.01), what="state", value="waiting", step=(step := step + 1))
    yield from _verdict(chance, replace(base, t=t, step=step))


def _verdict(chance: random.Random, base: HistoryEvent) -> Iterator[HistoryEvent]:
    t, decision = base.t, chance.choice(("confirmed", "rejected", "unsure"))
    provisional = chance.random() < 0.4 and decision != "unsure"
    if provisional:
        yield replace(base, t=(t := t + 0.01), what="stored", value=decision, part="decision")
    else:
        yield replace(base, t=(t := t + 0.01), what="stored", value=decision)
    applied_t = t + chance.uniform(0.001, 5.0)  # a site that was cut off
    yield replace(base, t=applied_t, what="applied", value=decision)
    yield replace(base, t=applied_t, what="changed", escalation="", value=decision)
    yield replace(base, t=applied_t, what="state", value="settled")
    if provisional:
        yield replace(base, t=(t := t + 0.5), what="stored", value=decision)
        yield replace(base, t=max(t, applied_t) + 0.01, what="completed", value=decision)
    for _ in range(chance.choice((0, 0, 1, 2))):  # a copy of another worker, which the site ignores
        yield replace(base, t=(t := t + 0.01), what="stored", value=chance.choice(("confirmed", "rejected")))
    for _ in range(chance.choice((1, 1, 2))):  # the first was lost, and the escalation came again
        yield replace(base, t=(t := t + 0.01), what="acked")


def test_a_thousand_seeds_of_a_right_history_make_no_alarm() -> None:
    events = 0
    for seed in range(SEEDS):
        history = simulated(seed)
        events += len(history)
        assert check(history, Promises(deadline_s=DEADLINE_S)) == [], f"seed {seed}"
    assert events > 50 * SEEDS


def two_regions(*, away_t: float, read_s: float = 0.0, refused_t: float | None = None) -> list[HistoryEvent]:
    """An escalation that was judged in both: its verdict was stored in the first at 1 s, the site left at `away_t`."""
    base = HistoryEvent(t=0.0, what="raised", escalation="esc-1", alert="alert-1")
    first, second = replace(base, where="a 1", region="a"), replace(base, where="b 1", region="b")
    there_t = away_t + 2.0
    events = [
        HistoryEvent(t=0.0, what="link", region="a"), base, replace(first, t=0.9, what="asked"),
        replace(first, t=1.0, what="answered"), replace(first, t=1.0, what="stored", value="confirmed"),
        HistoryEvent(t=away_t, what="link"), HistoryEvent(t=there_t, what="link", region="b"),
        replace(second, t=there_t + 0.1 + read_s, what="asked"),
        replace(second, t=there_t + 0.2 + read_s, what="answered"),
        replace(second, t=there_t + 0.2 + read_s, what="stored", value="confirmed"),
        replace(base, t=there_t + 0.3, what="applied", value="confirmed"),
    ]  # fmt: skip
    return [*events, HistoryEvent(t=refused_t, what="refused")] if refused_t is not None else events


def test_two_regions_are_paid_only_when_the_site_was_cut_off_before_it_could_read() -> None:
    cut_off = two_regions(away_t=3.0)
    assert (check(cut_off), paid_elsewhere(cut_off)) == ([], 1)
    (unread,) = check(two_regions(away_t=13.0))
    assert "b was asked although the verdict was in a, where the site was for 12.0 s" in str(unread)
    assert check(two_regions(away_t=13.0, refused_t=5.0)) == [], "its disk refused the verdict, and then it was cut off"
    (applied,) = check(two_regions(away_t=3.0, read_s=5.0))
    assert "b was asked after the site had applied a verdict" in str(applied)


def test_the_command_reads_a_file_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = simulated(7)
    write_history(tmp_path / "right.jsonl", history)
    assert main([str(tmp_path / "right.jsonl"), "--deadline", "61"]) == 0
    applied = next(event for event in history if event.what == "applied")
    write_history(tmp_path / "twice.jsonl", [*history, applied])
    assert main([str(tmp_path / "twice.jsonl")]) == 1
    assert f"doubled: {applied.escalation}: a verdict was applied 2 times" in capsys.readouterr().out


def test_a_run_that_raised_little_is_no_good_one() -> None:
    assert ChaosResult(raised=1998, unsaid=2).never_raised(2000) == []
    (found,) = ChaosResult(raised=0).never_raised(2000)
    assert str(found) == "lost: alerts: 0 of 2000 alerts were raised before the time was over"
