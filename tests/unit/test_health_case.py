"""One case: it opens when a fault lasts, closes when it is over, and does not flap."""

from __future__ import annotations

from appliance.health.conditions import CLEAR_S, REOPEN_WITHIN_S, HealthCondition
from appliance.types import HealthEvent


def a_case(hold_s: float = 4.0) -> tuple[HealthCondition, list[HealthEvent]]:
    said: list[HealthEvent] = []
    return HealthCondition("gate", "black", said.append, hold_s=hold_s), said


def feed(case: HealthCondition, begin: float, end: float, bad: bool | None, step: float = 0.5) -> None:
    for n in range(round((end - begin) / step)):
        case.update(begin + n * step, bad, "dark")


def test_it_opens_once_after_the_hold_and_says_when_it_began() -> None:
    case, said = a_case()
    feed(case, 0, 10, False)
    feed(case, 10, 30, True)
    (event,) = said
    assert (event.kind, event.t_start, event.t, event.t_end, event.reason) == ("black", 10.0, 14.0, None, "dark")


def test_it_closes_when_it_was_right_for_a_while_and_says_since_when() -> None:
    case, said = a_case()
    feed(case, 0, 20, True)
    feed(case, 20, 30, False)
    assert [(event.t_end, event.t) for event in said] == [(None, 4.0), (20.0, 20.0 + CLEAR_S)]
    assert len({event.id for event in said}) == 1


def test_a_moment_is_nothing() -> None:
    case, said = a_case()
    for n in range(20):
        feed(case, 10 * n, 10 * n + 3, True)
        feed(case, 10 * n + 3, 10 * n + 10, False)
    assert said == []


def test_what_comes_and_goes_is_one_event_and_counts_its_times() -> None:
    case, said = a_case()
    for n in range(5):
        feed(case, 20 * n, 20 * n + 10, True)
        feed(case, 20 * n + 10, 20 * n + 20, False)
    assert len({event.id for event in said}) == 1
    assert (said[-1].times, said[-1].t_start, said[-1].t_end) == (5, 0.0, 90.0)


def test_the_next_day_is_another_event() -> None:
    case, said = a_case()
    feed(case, 0, 10, True)
    feed(case, 10, 20, False)
    feed(case, 10 + REOPEN_WITHIN_S + 20, 10 + REOPEN_WITHIN_S + 30, True)
    assert len({event.id for event in said}) == 2


def test_when_it_cannot_be_told_nothing_opens_or_closes() -> None:
    case, said = a_case()
    feed(case, 0, 10, True)
    feed(case, 10, 100, None)
    assert case.is_open
    assert len(said) == 1
    feed(case, 100, 110, False)
    assert not case.is_open


def test_a_clock_that_leaps_makes_nothing_last() -> None:
    for leap in (+3600.0, -3600.0):
        case, said = a_case()
        case.update(10_000.0, True)
        case.update(10_000.0 + leap, True)
        assert said == []


def test_what_a_person_dismissed_comes_back_only_after_it_was_gone() -> None:
    case, said = a_case()
    feed(case, 0, 10, True)
    case.dismiss(10.0)
    feed(case, 10, 200, True)
    assert [event.t_end for event in said] == [None, 10.0]
    feed(case, 200, 300, False)
    feed(case, 300, 310, True)
    assert said[-1].t_end is None


def test_attempts_are_part_of_an_open_event_alone() -> None:
    case, said = a_case()
    case.record_recovery(0.0, "shouting")
    feed(case, 0, 10, True)
    case.record_recovery(10.0, "shouting")
    case.record_recovery(12.0, "shouting", 3)
    assert [event.attempts for event in said] == [0, 1, 4]
    assert said[-1].recovery == "shouting"
