"""Events held against what had to come: one to one, no window starves, and what is left over is named."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.scenario.expectations import (
    EVENTS_MAX,
    EventMatches,
    EventPattern,
    Expectation,
    Prohibition,
    match_events,
)
from appliance.types import Event


def event(t: float, rule: str = "intruder", label: str = "person", zone: str = "yard") -> Event:
    return Event(camera="gate", rule=rule, kind="enter", track=1, label=label, t=t, zone=zone)


def wanted(start: float, end: float, at: float | None = None, least: int = 1, most: int | None = 1) -> Expectation:
    return Expectation(
        pattern=EventPattern(rule="intruder", start=start, end=end), source=f"{start:g}", at=at, min=least, max=most
    )


def judged(events: list[Event], *expected: Expectation, closed: bool = True) -> EventMatches:
    return match_events(events, expected, (), others_forbidden=closed)


def test_each_event_takes_one_place_and_each_place_one_event() -> None:
    found = judged([event(11), event(12)], wanted(10, 20))
    assert [(hit.event.t, hit.delay_s) for hit in found.hits] == [(11, 1.0)]
    assert [(alarm.event.t, alarm.reason) for alarm in found.false_alarms] == [(12, "10 already had its event")]
    assert (found.required_outcomes, found.judged_outcomes) == ((True,), (True, False))


def test_of_two_overlapping_windows_none_starves() -> None:
    """The event at 12 fits both, the one at 8 only the first: taking the nearest first would leave one open."""
    found = judged([event(8), event(12)], wanted(5, 15, at=12), wanted(11, 20))
    assert {hit.wanted.source: hit.event.t for hit in found.hits} == {"5": 8, "11": 12}
    assert found.misses == ()


def test_a_place_that_must_be_filled_comes_before_one_that_may_be() -> None:
    found = judged([event(12)], wanted(10, 20, least=0, most=5), wanted(11, 13))
    assert [hit.wanted.source for hit in found.hits] == ["11"]
    assert found.misses == ()


def test_of_two_events_in_a_window_the_nearer_to_the_moment_counts() -> None:
    found = judged([event(8), event(9.9)], wanted(5, 15, at=10))
    assert [(hit.event.t, hit.delay_s) for hit in found.hits] == [(9.9, -0.1)]


def test_what_is_missing_is_counted_and_the_nearest_alike_is_named() -> None:
    found = judged([event(5), event(30), event(12)], wanted(10, 20, least=3, most=None))
    (miss,) = found.misses
    assert (miss.missing, miss.nearest and miss.nearest.t) == (2, 5)
    assert found.required_outcomes == (True, False, False)


def test_any_number_is_right_where_no_most_is_given() -> None:
    found = judged([event(t) for t in range(10, 20)], wanted(10, 20, most=None))
    assert (len(found.hits), found.false_alarms, found.required_outcomes) == (10, (), (True,))


def test_an_open_scenario_does_not_judge_events_without_an_entry() -> None:
    found = judged([event(12), event(40), event(50, rule="leaver")], wanted(10, 20), closed=False)
    assert [each.t for each in found.unjudged] == [40, 50]
    assert found.judged_outcomes == (True,)


def test_an_event_that_is_not_to_be_judged_is_neither_right_nor_wrong() -> None:
    optional = replace(wanted(10, 20, least=0), judged=False)
    found = judged([event(12), event(13)], optional, wanted(12.5, 20))
    assert [hit.event.t for hit in found.hits] == [13]
    assert [each.t for each in found.unjudged] == [12]
    assert (found.required_outcomes, found.judged_outcomes) == ((True,), (True,))
    again = judged([event(12), event(13)], optional)
    assert [alarm.event.t for alarm in again.false_alarms] == [13], "one, and no more"


def test_what_is_forbidden_is_a_false_alarm_unless_it_was_wanted() -> None:
    barred = Prohibition(pattern=EventPattern(rule="intruder"), source="never 1")
    found = match_events([event(12), event(40)], [wanted(10, 20)], [barred], others_forbidden=False)
    assert [hit.event.t for hit in found.hits] == [12]
    assert [(alarm.event.t, alarm.reason) for alarm in found.false_alarms] == [(40, "never 1 forbids it")]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (EventPattern(), True),
        (EventPattern(rule="intruder", label="person", zone="yard", camera="gate"), True),
        (EventPattern(label="car"), False),
        (EventPattern(zone="office"), False),
        (EventPattern(line="door"), False),
        (EventPattern(camera="dock"), False),
        (EventPattern(start=12, end=12), True),
        (EventPattern(start=12.1), False),
    ],
)
def test_a_pattern_fits_what_it_describes(pattern: EventPattern, fits: bool) -> None:
    assert pattern.matches(event(12)) is fits


def test_a_pattern_speaks_in_words() -> None:
    pattern = EventPattern(rule="intruder", label="person", zone="yard", camera="gate", start=75, end=80.5)
    assert pattern.text() == "rule intruder, person, zone yard, camera gate, 1:15.0 to 1:20.5"
    assert EventPattern().text() == "any rule, at any time"


def test_a_flood_is_refused_instead_of_eating_the_memory() -> None:
    with pytest.raises(ValueError, match="at most 2000"):
        judged([event(1)] * (EVENTS_MAX + 1))


TIMES = st.lists(st.integers(0, 12), max_size=5).map(sorted)
WINDOWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(0, 2)), max_size=4)


@settings(max_examples=150)
@given(TIMES, WINDOWS)
def test_no_other_pairing_fills_more_slots_or_explains_more_events(
    times: list[int], windows: list[tuple[int, int, int]]
) -> None:
    """Against every possible pairing of a small case."""
    entries = [wanted(start, start + length, least=least, most=2) for start, length, least in windows]
    found = judged([event(t) for t in times], *entries)
    best = (0, 0)
    for choice in itertools.product([None, *range(len(entries))], repeat=len(times)):
        pairs = [(t, entries[index]) for t, index in zip(times, choice, strict=True) if index is not None]
        if all(each.pattern.start <= t <= each.pattern.end for t, each in pairs):
            counts = [sum(other is each for _, other in pairs) for each in entries]
            if all(count <= 2 for count in counts):
                filled = sum(min(count, each.min) for count, each in zip(counts, entries, strict=True))
                best = max(best, (filled, len(pairs)))
    assert (sum(found.required_outcomes), len(found.hits)) == best
    assert len(found.hits) + len(found.false_alarms) == len(times)
