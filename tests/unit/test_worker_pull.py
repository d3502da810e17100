"""The urgent goes first, the rest is not forgotten, and no site stands in another's way."""

from __future__ import annotations

from collections import Counter

from appliance.clock import ManualClock
from appliance.wire import PRIORITIES
from cloud_worker.concurrency_slots import PEAK_S, ConcurrencySlots
from cloud_worker.fair_queue import ANNOUNCED_S, FairQueue, PriorityShares


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


def test_the_urgent_go_first_while_they_take_less_than_their_share() -> None:
    shares = PriorityShares()
    waited = 0
    for _ in range(100):  # two grave ones, one after the other, among four turns: half of all, of two thirds
        for pick in (shares.pick(PRIORITIES), shares.pick(PRIORITIES)):
            waited += pick != "high"
        shares.pick(PRIORITIES[1:])
        shares.pick(PRIORITIES[1:])
    assert waited <= 10, "of 200"


def serve(lanes: FairQueue, held: dict[str, int], turns: int, now: float = 0.0) -> list[str]:
    """Whose question was taken in each of `turns`, when the sites have `held` waiting."""
    order = []
    for _ in range(turns):
        lane = lanes.next(PRIORITIES, now)
        if lane is None:
            break
        if held[lane.site] > 0:
            held[lane.site] -= 1
            order.append(lane.site)
            lanes.served(lane, now)
        else:
            lanes.empty(lane, now)
    return order


def test_a_site_that_floods_gets_no_more_turns_than_the_others() -> None:
    lanes = FairQueue()
    lanes.mark_stored([("flood", "high"), ("depot-1", "high"), ("depot-2", "high")], 0.0)
    order = serve(lanes, {"flood": 1000, "depot-1": 3, "depot-2": 3}, 40)
    assert order[:9] == ["flood", "depot-1", "depot-2"] * 3
    assert set(order[9:]) == {"flood"}


def test_a_site_that_asks_later_is_next_but_one() -> None:
    lanes = FairQueue()
    lanes.mark_stored([("flood", "high")], 0.0)
    held = {"flood": 1000, "depot-1": 1}
    serve(lanes, held, 10)
    lanes.announce("depot-1", "high", 0.0)
    assert "depot-1" in serve(lanes, held, 2)


def test_a_lane_is_asked_by_one_at_a_time_and_forgotten_when_empty() -> None:
    lanes = FairQueue()
    lanes.mark_stored([("depot-1", "low")], 0.0)
    lane = lanes.next(PRIORITIES, 0.0)
    assert lane is not None
    assert lanes.next(PRIORITIES, 0.0) is None
    lanes.empty(lane, 0.0)
    assert len(lanes) == 0


def test_a_question_that_was_announced_is_looked_for_until_it_is_stored() -> None:
    lanes = FairQueue()
    lanes.announce("depot-1", "high", 10.0)
    now, looks = 10.0, 0
    while (lane := lanes.next(PRIORITIES, now)) is not None:
        looks += 1
        lanes.empty(lane, now)
        now = max(now, lanes.next_due(PRIORITIES) or now)
    assert now >= 10.0 + ANNOUNCED_S - 0.3
    assert 8 < looks < 30, "soon at first, then less often"


def test_places_are_kept_for_the_urgent() -> None:
    given = []
    places = ConcurrencySlots(4, lambda: given.append(1), ManualClock())
    for priority in ("low", "normal", "low"):
        assert priority in places.open_priorities()
        places.acquire(priority)
    assert places.open_priorities() == ("high",)
    places.acquire("high")
    assert places.open_priorities() == ()
    places.release("low")
    assert places.open_priorities() == PRIORITIES
    assert given == [1]
    alone = ConcurrencySlots(1, lambda: None, ManualClock())
    assert alone.open_priorities() == PRIORITIES, "of one place none can be kept"


def test_as_many_places_are_kept_as_the_urgent_needed_lately_but_not_more_than_half() -> None:
    clock = ManualClock()
    places = ConcurrencySlots(8, lambda: None, clock)
    assert places.reserve == 1
    for _ in range(6):
        places.acquire("high")
    assert places.reserve == 4
    for _ in range(6):
        places.release("high")
    assert places.reserve == 4, "they may come again at any moment"
    for _ in range(2):
        clock.advance(PEAK_S)
        places.open_priorities()
    assert places.reserve == 1
