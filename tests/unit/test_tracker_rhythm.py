"""Looks at parts of the picture, and looks that come now quickly, now slowly: nobody loses the number for that."""

from __future__ import annotations

import pytest
from test_tracker import LABELS, Seen, look, numbers, person, settled

from appliance.track.tracker import Tracker
from appliance.types import Box, Detections

LEFT: Box = (0.0, 0.0, 0.5, 1.0)
RIGHT: Box = (0.5, 0.0, 1.0, 1.0)
CAR: Seen = (0.8, 0.5, 0.8, "car")


def resting(*seen: Seen) -> Tracker:
    """A tracker in which `seen` has stood for 4 s until t = 0."""
    tracker = Tracker(LABELS)
    for step in range(-20, 1):
        tracker.update(look(*seen), step * 0.2)
    return tracker


def test_what_rests_outside_the_region_is_reported_as_it_was_for_as_long_as_nothing_is_examined_there() -> None:
    tracker = resting(CAR)
    (was,) = tracker.update(look(CAR), 0.2)
    for step in range(2, 600):
        (told,) = tracker.update(Detections.empty(), step * 0.2, parts=[LEFT])
        assert told == was
    assert numbers(tracker.update(look(CAR), 121.0)) == [1]


def test_what_rests_inside_the_region_and_is_not_found_there_is_missed() -> None:
    tracker = resting(CAR)
    for step in range(1, 5):
        assert tracker.update(Detections.empty(), step * 0.2, parts=[RIGHT]) == ()
    for step in range(5, 20):  # nor is it told again where it was missed last
        assert tracker.update(Detections.empty(), step * 0.2, parts=[LEFT]) == ()


def test_who_moves_outside_the_region_is_neither_reported_nor_aged_but_expected_further_on() -> None:
    tracker = Tracker(LABELS)
    for step in range(10):
        tracker.update(look(person(0.6 + 0.01 * step)), step * 0.2)
    for step in range(10, 30):
        assert tracker.update(Detections.empty(), step * 0.2, parts=[LEFT]) == ()
    assert numbers(tracker.update(look(person(0.90)), 6.0)) == [1]


def test_who_walked_out_of_the_frame_is_looked_for_twice_and_then_forgotten_whatever_is_examined() -> None:
    tracker = Tracker(LABELS)
    for step in range(10):
        tracker.update(look(person(0.79 + 0.02 * step)), step * 0.2)
    for step in (10, 11):
        assert len(tracker.active_boxes) == 1
        tracker.update(Detections.empty(), step * 0.2)
    assert tracker.active_boxes == ()
    for step in range(12, 22):
        tracker.update(Detections.empty(), step * 0.2, parts=[LEFT])
    for step in range(22, 25):  # somebody else comes in there
        seen = numbers(tracker.update(look(person(0.95 - 0.02 * (step - 22))), step * 0.2 + 6.0))
    assert seen == [2]


def test_a_box_that_the_region_cuts_is_no_miss() -> None:
    tracker = settled((0.5, 0.5, 0.8, "car"))  # half of it in the region; the examiner drops what is cut
    for step in range(1, 40):
        tracker.update(Detections.empty(), step * 0.2, parts=[LEFT])
    assert numbers(tracker.update(look((0.5, 0.5, 0.8, "car")), 8.0)) == [1]


def test_in_the_region_things_go_on_as_in_a_whole_frame() -> None:
    whole, part = Tracker(LABELS), Tracker(LABELS)
    for step in range(30):
        seen = look(person(0.1 + 0.01 * step)) if step % 7 else Detections.empty()
        assert whole.update(seen, step * 0.2) == part.update(seen, step * 0.2, parts=[(0, 0.2, 1, 0.8)])


def test_a_newcomer_in_the_region_is_not_taken_for_what_stands_outside_it() -> None:
    standing = (0.56, 0.5, 0.8, "car")
    tracker = resting(standing)
    region: Box = (0.0, 0.0, 0.48, 1.0)
    comes = (0.42, 0.5, 0.8, "car")
    tracker.update(look(comes), 0.2, parts=[region])
    assert numbers(tracker.update(look(comes), 0.4, parts=[region])) == [1, 2]


@pytest.mark.parametrize("every_s", [2.0, 4.0, 5.0])
def test_at_rest_a_frame_every_few_seconds_is_enough_also_when_some_of_them_miss(every_s: float) -> None:
    tracker, seen = resting(CAR), set[int]()
    for step in range(1, 60):
        found = Detections.empty() if step % 3 == 1 else look(CAR)
        seen |= set(numbers(tracker.update(found, step * every_s)))
    assert seen == {1}


def test_one_that_is_gone_is_given_up_after_a_few_slow_frames() -> None:
    tracker = resting(CAR)
    for step in range(1, 4):
        tracker.update(Detections.empty(), step * 5.0)
    tracker.update(look(CAR), 20.0)
    assert numbers(tracker.update(look(CAR), 20.2)) == [2]


def test_the_rhythm_may_change_between_slow_and_quick() -> None:
    tracker, t, x, seen = resting(person(0.2)), 0.0, 0.2, set[int]()
    for _ in range(5):  # stands, and is seen every 4 s; then walks for 2 s, 5 looks a second
        for _ in range(4):
            t += 4.0
            seen |= set(numbers(tracker.update(look(person(x)), t)))
        for _ in range(10):
            t, x = t + 0.2, x + 0.008
            seen |= set(numbers(tracker.update(look(person(x)), t)))
    assert seen == {1}


@pytest.mark.parametrize("every_s", [0.5, 1.0])
def test_a_walker_is_followed_at_the_rhythm_of_a_box_that_is_too_busy(every_s: float) -> None:
    tracker, seen = Tracker(LABELS), list[int]()
    for step in range(20):
        seen += numbers(tracker.update(look(person(0.1 + 0.03 * step * every_s)), step * every_s))
    assert set(seen) == {1}
    assert len(seen) == 19


def test_who_walks_away_after_a_long_rest_is_not_left_behind() -> None:
    tracker = resting(person(0.2))
    for step in range(1, 4):
        tracker.update(look(person(0.2)), step * 5.0)
    seen = [numbers(tracker.update(look(person(0.2 + 0.012 * step)), 15.0 + 0.2 * step)) for step in range(1, 20)]
    assert seen == [[1]] * 19


def test_unsettled_names_what_moves_is_new_or_was_missed_and_nothing_that_rests() -> None:
    tracker = Tracker(LABELS)
    tracker.update(look(CAR), 0.0)
    assert len(tracker.active_boxes) == 1  # new
    tracker = resting(CAR)
    assert tracker.active_boxes == ()
    tracker.update(Detections.empty(), 0.2, parts=[LEFT])
    assert tracker.active_boxes == ()
    tracker.update(Detections.empty(), 0.4)
    assert len(tracker.active_boxes) == 1  # missed
    (box,) = tracker.active_boxes
    assert box == pytest.approx((0.74, 0.45, 0.86, 0.55), abs=0.01)
    tracker = resting(CAR)
    for step in range(1, 4):
        tracker.update(look((0.8 - 0.02 * step, 0.5, 0.8, "car")), 0.2 * step)
    assert len(tracker.active_boxes) == 1  # moves
