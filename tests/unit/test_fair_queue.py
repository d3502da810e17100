"""The urgent goes first, the rest is not forgotten, and no site stands in another's way."""

from __future__ import annotations

from collections import Counter

import pytest

from appliance.base.clock import ManualClock
from appliance.wire import PRIORITIES
from cloud_worker.fair_queue import ANNOUNCED_S, PEAK_S, ConcurrencySlots, FairQueue, PriorityShares


def test_with_everything_waiting_each_priority_gets_its_share() -> None:
    shares = PriorityShares()
    picks = [shares.pick(("high", "normal", "low")) for _ in range(120)]
    assert picks[0] == "high"
    assert Counter(picks) == {"high": 80, "normal": 30, "low": 10}
    assert max(len(run) for run in "".join(pick[0] for pick in picks).replace("l", " ").split()) <= 12


def test_a_priority_alone_is_served_at_once() -> None:
    shares = PriorityShares()
    assert [shares.pick(("low",)) for _ in range(50)] == ["low"] * 50
    assert shares.pick(("low", "high")) == "high", "having been alone is no debt"


@pytest.mark.parametrize("quiet_turns", [0, 10, 1000])
def test_after_a_quiet_night_the_others_still_move_beside_a_flood_of_urgent_ones(quiet_turns: int) -> None:
    """What `low` got while it was alone is held against it for some turns, not for the next thousand."""
    shares = PriorityShares()
    for _ in range(quiet_turns):
        shares.pick(("low",))
    picks = Counter(shares.pick(("high", "low")) for _ in range(60))
    assert 15 <= picks["low"] <= 20, "a third of 60, less a few"


def test_the_urgent_go_first_while_they_take_less_than_their_share() -> None:
    shares = PriorityShares()
    waited = 0
    for _ in range(100):  # two grave ones, one after the other, among four turns: half of all, of two thirds
        for pick in (shares.pick(PRIORITIES), shares.pick(PRIORITIES)):
            waited += pick != "high"
        shares.pick(PRIORITIES[1:])
        shares.pick(PRIORITIES[1:])
    assert waited <= 10, "of 200"


def serve(queue: FairQueue, held: dict[str, int], turns: int, now: float = 0.0) -> list[str]:
    """Whose escalation was pulled in each of `turns`, when the sites have `held` waiting."""
    order = []
    for _ in range(turns):
        site_queue = queue.next(PRIORITIES, now)
        if site_queue is None:
            break
        if held[site_queue.site] > 0:
            held[site_queue.site] -= 1
            order.append(site_queue.site)
            queue.served(site_queue, now)
        else:
            queue.empty(site_queue, now)
    return order


def test_a_site_that_floods_gets_no_more_turns_than_the_others() -> None:
    queue = FairQueue()
    queue.mark_stored([("flood", "high"), ("depot-1", "high"), ("depot-2", "high")], 0.0)
    order = serve(queue, {"flood": 1000, "depot-1": 3, "depot-2": 3}, 40)
    assert order[:9] == ["flood", "depot-1", "depot-2"] * 3
    assert set(order[9:]) == {"flood"}


def test_a_site_that_escalates_later_is_next_but_one() -> None:
    queue = FairQueue()
    queue.mark_stored([("flood", "high")], 0.0)
    held = {"flood": 1000, "depot-1": 1}
    serve(queue, held, 10)
    queue.announce("depot-1", "high", 0.0)
    assert "depot-1" in serve(queue, held, 2)


def test_a_sites_queue_is_pulled_by_one_at_a_time_and_forgotten_when_empty() -> None:
    queue = FairQueue()
    queue.mark_stored([("depot-1", "low")], 0.0)
    site_queue = queue.next(PRIORITIES, 0.0)
    assert site_queue is not None
    assert queue.next(PRIORITIES, 0.0) is None
    queue.empty(site_queue, 0.0)
    assert len(queue) == 0


def test_an_escalation_that_was_announced_is_looked_for_until_it_is_stored() -> None:
    queue = FairQueue()
    queue.announce("depot-1", "high", 10.0)
    now, looks = 10.0, 0
    while (site_queue := queue.next(PRIORITIES, now)) is not None:
        looks += 1
        queue.empty(site_queue, now)
        now = max(now, queue.next_due(PRIORITIES) or now)
    assert now >= 10.0 + ANNOUNCED_S - 0.3
    assert 8 < looks < 30, "soon at first, then less often"


def test_slots_are_reserved_for_the_urgent() -> None:
    given = []
    slots = ConcurrencySlots(4, lambda: given.append(1), ManualClock())
    for priority in ("low", "normal", "low"):
        assert priority in slots.open_priorities()
        slots.acquire(priority)
    assert slots.open_priorities() == ("high",)
    slots.acquire("high")
    assert slots.open_priorities() == ()
    slots.release("low")
    assert slots.open_priorities() == PRIORITIES
    assert given == [1]
    alone = ConcurrencySlots(1, lambda: None, ManualClock())
    assert alone.open_priorities() == PRIORITIES, "of one place none can be kept"


def test_as_many_slots_are_reserved_as_the_urgent_needed_lately_but_not_more_than_half() -> None:
    clock = ManualClock()
    slots = ConcurrencySlots(8, lambda: None, clock)
    assert slots.reserve == 1
    for _ in range(6):
        slots.acquire("high")
    assert slots.reserve == 4
    for _ in range(6):
        slots.release("high")
    assert slots.reserve == 4, "they may come again at any moment"
    for _ in range(2):
        clock.advance(PEAK_S)
        slots.open_priorities()
    assert slots.reserve == 1
