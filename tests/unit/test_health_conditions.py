"""One condition: it opens when a fault lasts, closes when it is over, and does not flap."""

from __future__ import annotations

from appliance.health.camera_health import CLEAR_S, REOPEN_WITHIN_S, HealthCondition
from appliance.types import HealthEvent


def condition_and_events(hold_s: float = 4.0) -> tuple[HealthCondition, list[HealthEvent]]:
    events: list[HealthEvent] = []
    return HealthCondition("gate", "black", events.append, hold_s=hold_s), events


def feed(condition: HealthCondition, begin: float, end: float, fault: bool | None, step: float = 0.5) -> None:
    for n in range(round((end - begin) / step)):
        condition.update(begin + n * step, fault, "dark")


def test_it_opens_once_after_the_hold_and_reports_when_it_began() -> None:
    condition, events = condition_and_events()
    feed(condition, 0, 10, False)
    feed(condition, 10, 30, True)
    (event,) = events
    assert (event.kind, event.t_start, event.t, event.t_end, event.reason) == ("black", 10.0, 14.0, None, "dark")


def test_it_closes_when_it_was_right_for_a_while_and_reports_since_when() -> None:
    condition, events = condition_and_events()
    feed(condition, 0, 20, True)
    feed(condition, 20, 30, False)
    assert [(event.t_end, event.t) for event in events] == [(None, 4.0), (20.0, 20.0 + CLEAR_S)]
    assert len({event.id for event in events}) == 1


def test_a_moment_is_nothing() -> None:
    condition, events = condition_and_events()
    for n in range(20):
        feed(condition, 10 * n, 10 * n + 3, True)
        feed(condition, 10 * n + 3, 10 * n + 10, False)
    assert events == []


def test_what_comes_and_goes_is_one_event_and_counts_its_times() -> None:
    condition, events = condition_and_events()
    for n in range(5):
        feed(condition, 20 * n, 20 * n + 10, True)
        feed(condition, 20 * n + 10, 20 * n + 20, False)
    assert len({event.id for event in events}) == 1
    assert (events[-1].times, events[-1].t_start, events[-1].t_end) == (5, 0.0, 90.0)


def test_the_next_day_is_another_event() -> None:
    condition, events = condition_and_events()
    feed(condition, 0, 10, True)
    feed(condition, 10, 20, False)
    feed(condition, 10 + REOPEN_WITHIN_S + 20, 10 + REOPEN_WITHIN_S + 30, True)
    assert len({event.id for event in events}) == 2


def test_while_it_cannot_be_judged_nothing_opens_or_closes() -> None:
    condition, events = condition_and_events()
    feed(condition, 0, 10, True)
    feed(condition, 10, 100, None)
    assert condition.is_open
    assert len(events) == 1
    feed(condition, 100, 110, False)
    assert not condition.is_open


def test_a_clock_that_leaps_makes_nothing_last() -> None:
    for leap in (+3600.0, -3600.0):
        condition, events = condition_and_events()
        condition.update(10_000.0, True)
        condition.update(10_000.0 + leap, True)
        assert events == []


def test_what_a_person_dismissed_comes_back_only_after_it_was_gone() -> None:
    condition, events = condition_and_events()
    feed(condition, 0, 10, True)
    condition.dismiss(10.0)
    feed(condition, 10, 200, True)
    assert [event.t_end for event in events] == [None, 10.0]
    feed(condition, 200, 300, False)
    feed(condition, 300, 310, True)
    assert events[-1].t_end is None


def test_attempts_are_part_of_an_open_event_alone() -> None:
    condition, events = condition_and_events()
    condition.record_recovery(0.0, "shouting")
    feed(condition, 0, 10, True)
    condition.record_recovery(10.0, "shouting")
    condition.record_recovery(12.0, "shouting", 3)
    assert [event.attempts for event in events] == [0, 1, 4]
    assert events[-1].recovery == "shouting"
